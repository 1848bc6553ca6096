//! Listing, opening and telling devices apart.

use headroom_base::{AllocatorKind, MIB, Reading};
use headroom_device::cuda::{CudaContext, CudaUnavailable, gpus};
use headroom_device::driver::DriverCall;
use headroom_device::readers::{NvmlReader, ProcessReader, nvml_devices};
use headroom_device::{Device, DriverError, Settings};

use crate::stub::{Ever, Kind, context, ever, gpu, in_child, leaks, live, own_bytes, set_others_bytes};
use crate::two_caches::{FIRST_FREE_BYTES, keep_to_their_own};

fn parts(context: &CudaContext, kind: AllocatorKind) -> Device {
    context.parts(Settings::of_kind(kind)).unwrap().build()
}

#[test]
fn listing_tells_every_device_and_makes_no_context() {
    in_child(module_path!(), "listing_tells_every_device_and_makes_no_context", &[], || {
        let listed = gpus().unwrap();
        let told: Vec<_> = listed.iter().map(|gpu| (gpu.ordinal, gpu.name.as_str(), gpu.total_bytes / MIB)).collect();
        assert_eq!(told, [(0, "Stand-in 0", 24 * 1024), (1, "Stand-in 1", 12 * 1024)]);
        assert_eq!(listed[0].uuid, "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf");
        assert_eq!((listed[0].compute_capability, listed[0].driver_version.as_str()), ((9, 0), "580.0.1"));
        assert_eq!(listed[0].abilities().unwrap().allocators(), AllocatorKind::ALL);
        assert_eq!(ever(Ever::ContextsMade), 0);
        assert_eq!((own_bytes(0), own_bytes(1), leaks()), (0, 0, Vec::new()));
    });
}

#[test]
fn without_virtual_memory_expandable_segments_are_not_offered_and_refused_clearly() {
    let variables = [("HEADROOM_STUB_VIRTUAL_MEMORY", "0")];
    let name = "without_virtual_memory_expandable_segments_are_not_offered_and_refused_clearly";
    in_child(module_path!(), name, &variables, || {
        let offered = gpu().abilities().unwrap().allocators();
        assert!(!offered.contains(&AllocatorKind::ExpandableSegments) && offered.contains(&AllocatorKind::Native));
        let device = parts(&context(), AllocatorKind::ExpandableSegments);
        let error = device.allocate(MIB).unwrap_err().to_string();
        assert!(error.contains("this driver cannot reserve addresses"), "{error}");
        parts(&context(), AllocatorKind::Native).allocate(MIB).unwrap();
    });
}

#[test]
fn devices_are_told_apart_by_uuid_whatever_order_the_process_sees_them_in() {
    let variables = [("CUDA_VISIBLE_DEVICES", "1,0")];
    let name = "devices_are_told_apart_by_uuid_whatever_order_the_process_sees_them_in";
    in_child(module_path!(), name, &variables, || {
        let listed = gpus().unwrap();
        let by_nvml = nvml_devices().unwrap();
        assert_eq!([&listed[0].uuid, &listed[1].uuid], [&by_nvml[1].uuid, &by_nvml[0].uuid], "the orders differ");
        let small = CudaContext::open(&listed[0]).unwrap();
        let large = CudaContext::open(&listed[1]).unwrap();
        let (small_device, large_device) =
            (parts(&small, AllocatorKind::Native), parts(&large, AllocatorKind::ExpandableSegments));
        assert_eq!(small_device.class().total_gib, 12);
        assert_eq!(small_device.id().as_str(), listed[0].uuid);
        let on_small = small_device.allocate(100 * MIB).unwrap();
        let on_large = large_device.allocate(200 * MIB).unwrap();
        // The machine's device 1 is this process's device 0.
        assert_eq!((own_bytes(1), own_bytes(0)), ((524 + 100) * MIB, (524 + 200) * MIB));
        assert_eq!(small_device.process_bytes().unwrap(), Reading::Bytes((524 + 100) * MIB));
        assert_eq!(large_device.process_bytes().unwrap(), Reading::Bytes((524 + 200) * MIB));
        let free = |device: &Device| device.figures().unwrap().driver_free_bytes / MIB;
        assert_eq!((free(&small_device), free(&large_device)), (12 * 1024 - 624, 24 * 1024 - 724));
        set_others_bytes(1, 1024 * MIB);
        assert_eq!((free(&small_device), free(&large_device)), (11 * 1024 - 624, 24 * 1024 - 724));
        small_device.free(on_small).unwrap();
        large_device.free(on_large).unwrap();
        drop((small_device, large_device, small, large));
        assert_eq!((leaks(), own_bytes(0), own_bytes(1)), (Vec::new(), 0, 0));
    });
}

/// The check that runs on two GPUs too, with the decision that it is about: which device's figures a cache reads.
#[test]
fn a_cache_on_each_device_keeps_to_its_own_budget_and_one_that_read_the_others_would_be_noticed() {
    let name = "a_cache_on_each_device_keeps_to_its_own_budget_and_one_that_read_the_others_would_be_noticed";
    in_child(module_path!(), name, &[], || {
        let contexts: Vec<_> = gpus().unwrap().iter().map(|gpu| CudaContext::open(gpu).unwrap()).collect();
        for (small, large) in [(0, 1), (1, 0)] {
            let free = contexts[small].memory().unwrap().free_bytes;
            let ballast = contexts[small].ballast(free - FIRST_FREE_BYTES).unwrap();
            let check = || {
                let device = |which: usize| parts(&contexts[which], AllocatorKind::Native);
                keep_to_their_own(&device(small), &device(large))
            };
            check().unwrap();
            #[cfg(feature = "mutants")]
            {
                use headroom_base::mutants::{choose, clear};
                assert!(choose("wrong_device_read"));
                let told = check();
                clear();
                assert!(told.is_err(), "the other device's figures did as well: {told:?}");
            }
            drop(ballast);
        }
        drop(contexts);
        assert_eq!(leaks(), []);
    });
}

#[test]
fn a_hidden_device_is_not_listed_and_cannot_be_opened() {
    let name = "a_hidden_device_is_not_listed_and_cannot_be_opened";
    in_child(module_path!(), name, &[("CUDA_VISIBLE_DEVICES", "1")], || {
        let listed = gpus().unwrap();
        assert_eq!((listed.len(), listed[0].name.as_str()), (1, "Stand-in 1"));
        let hidden = nvml_devices().unwrap().remove(0).uuid;
        let mut gone = listed[0].clone();
        gone.uuid = hidden;
        let error = CudaContext::open(&gone).unwrap_err().to_string();
        assert!(error.contains("lists no device GPU-a0a1") && error.contains("list the devices anew"), "{error}");
        assert_eq!(leaks(), []);
    });
}

#[test]
fn a_device_opened_twice_has_one_context_and_one_stream_and_closes_with_the_last_handle() {
    let name = "a_device_opened_twice_has_one_context_and_one_stream_and_closes_with_the_last_handle";
    in_child(module_path!(), name, &[], || {
        let first = context();
        let second = context();
        assert_eq!(first.stream(), second.stream());
        assert_eq!((ever(Ever::ContextsMade), live(Kind::Contexts), live(Kind::Streams)), (1, 1, 1));
        assert_eq!(first.own_bytes_at_start(), Reading::Bytes(524 * MIB));
        let ballast = first.ballast(1000 * MIB).unwrap();
        assert_eq!((ballast.bytes(), own_bytes(0)), (1000 * MIB, 1524 * MIB));
        drop(first);
        assert_eq!(live(Kind::Contexts), 1);
        drop(ballast);
        assert_eq!(own_bytes(0), 524 * MIB);
        drop(second);
        assert_eq!((leaks(), own_bytes(0)), (Vec::new(), 0));
        let again = context();
        assert_eq!((ever(Ever::ContextsMade), live(Kind::Contexts)), (2, 1));
        drop(again);
    });
}

#[test]
fn a_context_that_finds_no_memory_is_an_error_and_leaves_nothing_open() {
    let name = "a_context_that_finds_no_memory_is_an_error_and_leaves_nothing_open";
    in_child(module_path!(), name, &[("HEADROOM_STUB_MEMORY_MIB", "1024")], || {
        let gpu = gpu();
        set_others_bytes(0, 600 * MIB);
        let error = CudaContext::open(&gpu).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("CUDA_ERROR_OUT_OF_MEMORY") && text.contains("open the device"), "{text}");
        assert_eq!(leaks(), []);
        set_others_bytes(0, 0);
        CudaContext::open(&gpu).unwrap();
    });
}

#[test]
fn a_device_that_another_process_holds_for_itself_is_told_by_the_drivers_code_and_nothing_is_left_open() {
    let name = "a_device_that_another_process_holds_for_itself_is_told_by_the_drivers_code_and_nothing_is_left_open";
    in_child(module_path!(), name, &[("HEADROOM_STUB_HELD", "1")], || {
        let held = CudaContext::open(&gpu()).unwrap_err();
        assert!(matches!(held, DriverError::Failed { call: DriverCall::Context, code: 46, .. }), "{held}");
        assert_eq!((leaks(), ever(Ever::ContextsMade)), (Vec::new(), 0));
    });
}

#[test]
fn any_thread_may_use_a_device_and_asks_that_device() {
    let name = "any_thread_may_use_a_device_and_asks_that_device";
    in_child(module_path!(), name, &[], || {
        let listed = gpus().unwrap();
        let contexts: Vec<_> = listed.iter().map(|gpu| CudaContext::open(gpu).unwrap()).collect();
        let devices: Vec<_> = contexts.iter().map(|context| parts(context, AllocatorKind::Native)).collect();
        std::thread::scope(|scope| {
            for (device, gpu) in devices.iter().zip(&listed) {
                scope.spawn(move || {
                    let held = device.allocate(64 * MIB).unwrap();
                    assert_eq!(device.figures().unwrap().total_bytes, gpu.total_bytes);
                    device.free(held).unwrap();
                    device.empty_cache().unwrap();
                });
            }
        });
        assert_eq!(devices[0].figures().unwrap().total_bytes, listed[0].total_bytes);
        assert_eq!((own_bytes(0), own_bytes(1)), (524 * MIB, 524 * MIB));
    });
}

#[test]
fn what_the_management_library_does_not_tell_is_unknown_and_never_nothing() {
    let name = "what_the_management_library_does_not_tell_is_unknown_and_never_nothing";
    // The last two leave no reader at all, and what is not there is not verified.
    for (variable, value) in [
        ("HEADROOM_STUB_NVML_PROCESSES", "denied"),
        ("HEADROOM_STUB_NVML_PROCESSES", "others"),
        ("HEADROOM_STUB_NVML_KNOWS", "0"),
        ("HEADROOM_STUB_NVML_STARTS", "0"),
    ] {
        in_child(module_path!(), name, &[(variable, value)], || {
            let reads = std::env::var_os("HEADROOM_STUB_NVML_PROCESSES").is_some();
            let context = context();
            assert_eq!(context.own_bytes_at_start(), Reading::Unknown);
            for kind in AllocatorKind::ALL {
                let device = parts(&context, kind);
                device.allocate(100 * MIB).unwrap();
                assert_eq!(device.process_bytes().unwrap(), Reading::Unknown);
                assert_eq!(
                    (device.reader_name(), device.reader_verified()),
                    ("nvml", reads && NvmlReader::is_verified())
                );
            }
        });
    }
}

#[test]
fn a_reader_is_verified_only_under_a_driver_that_was_seen_to_agree_and_on_no_divided_card() {
    let name = "a_reader_is_verified_only_under_a_driver_that_was_seen_to_agree_and_on_no_divided_card";
    for (variable, value) in [
        ("HEADROOM_STUB_NVML_DRIVER", "580"),
        ("HEADROOM_STUB_NVML_DRIVER", "570"),
        ("HEADROOM_STUB_NVML_DRIVER", "999"),
        ("HEADROOM_STUB_NVML_MIG", "1"),
    ] {
        in_child(module_path!(), name, &[(variable, value)], || {
            let of_a_seen_driver = std::env::var("HEADROOM_STUB_NVML_DRIVER").is_ok_and(|driver| driver == "580");
            let reader = NvmlReader::open(gpu().uuid).unwrap();
            let here = of_a_seen_driver && NvmlReader::is_verified();
            assert_eq!(ProcessReader::verified(&reader), here);
            if std::env::var_os("HEADROOM_STUB_NVML_DRIVER").is_some() {
                assert_eq!(NvmlReader::is_verified(), here);
            }
        });
    }
}

#[test]
fn a_driver_that_lists_nothing_says_so_and_what_may_hide_it() {
    let name = "a_driver_that_lists_nothing_says_so_and_what_may_hide_it";
    in_child(module_path!(), name, &[("HEADROOM_STUB_DEVICES", "0")], || {
        let error = gpus().unwrap_err();
        assert!(matches!(error, CudaUnavailable::NoDevice { visible_devices: None, .. }));
        assert!(error.to_string().contains("lists no device; if there is one"), "{error}");
    });
}

#[test]
fn a_driver_whose_devices_are_hidden_names_the_variable() {
    let name = "a_driver_whose_devices_are_hidden_names_the_variable";
    in_child(module_path!(), name, &[("CUDA_VISIBLE_DEVICES", "-1")], || {
        let error = gpus().unwrap_err().to_string();
        assert!(error.contains("lists no device; CUDA_VISIBLE_DEVICES is \"-1\", which may hide them"), "{error}");
    });
}

#[test]
fn a_driver_that_is_too_old_names_both_versions() {
    let name = "a_driver_that_is_too_old_names_both_versions";
    in_child(module_path!(), name, &[("HEADROOM_STUB_VERSION", "12080")], || {
        let error = gpus().unwrap_err();
        assert!(matches!(error, CudaUnavailable::TooOld { found: 12_080, .. }));
        let text = error.to_string();
        assert!(text.contains(".so) is too old: it knows CUDA up to 12.8, and 13.0 is needed"), "{text}");
    });
}

#[test]
fn a_driver_that_does_not_start_gives_its_code_and_words() {
    let name = "a_driver_that_does_not_start_gives_its_code_and_words";
    in_child(module_path!(), name, &[("HEADROOM_STUB_INIT", "803")], || {
        let error = gpus().unwrap_err();
        assert_eq!(error.code(), 803);
        let text = error.to_string();
        assert!(text.contains("does not start (code 803): CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), "{text}");
        let gpu = headroom_device::cuda::Gpu {
            ordinal: 0,
            uuid: "GPU-0".to_owned(),
            name: String::new(),
            total_bytes: 0,
            compute_capability: (9, 0),
            driver_version: String::new(),
        };
        let DriverError::Failed { code, .. } = CudaContext::open(&gpu).unwrap_err() else { panic!("another error") };
        assert_eq!(code, 803);
    });
}
