//! Plain and virtual memory of one device, and the caching allocator over them.

use headroom_base::{AllocatorKind, MIB};
use headroom_device::cuda::CudaDriver;
use headroom_device::device::UploadPart;
use headroom_device::driver::{Address, CardSettings, DriverCall};
use headroom_device::replay::{ScriptAction, replay_script_on};
use headroom_device::{Allocator, Driver, DriverError, Settings, SimulatedCard};

use crate::recorded::{DEVICE_BYTES, scripts};
use crate::stub::{
    Ever, Kind, bytes_at, context, copy, ever, fail, give_kernel, has_failed, in_child, leaks, live, own_bytes,
    set_others_bytes,
};

const CONTEXT_BYTES: u64 = 524 * MIB;

fn driver() -> CudaDriver {
    CudaDriver::new(context()).unwrap()
}

fn held() -> u64 {
    own_bytes(0) - CONTEXT_BYTES
}

#[test]
fn plain_memory_costs_whole_pages_and_goes_back_after_the_stream_was_waited_for() {
    let name = "plain_memory_costs_whole_pages_and_goes_back_after_the_stream_was_waited_for";
    in_child(module_path!(), name, &[], || {
        let mut driver = driver();
        assert_eq!(driver.granularity_bytes(), 2 * MIB);
        let before = driver.memory().unwrap();
        let (first, second) = (driver.allocate(3 * MIB).unwrap(), driver.allocate(1).unwrap());
        assert_eq!((held(), live(Kind::Plain)), (6 * MIB, 2));
        assert_eq!(before.free_bytes - driver.memory().unwrap().free_bytes, 6 * MIB);
        give_kernel(driver.context());
        driver.free(first).unwrap();
        assert_eq!((held(), ever(Ever::FreedUnderWork)), (2 * MIB, 0));
        let error = driver.free(first).unwrap_err();
        assert!(error.to_string().contains("nothing was allocated at this address"), "{error}");
        assert!(driver.free(Address(second.0 + 512)).is_err(), "an address inside is no allocation");
        drop(driver);
        assert_eq!((leaks(), own_bytes(0)), (Vec::new(), 0));
    });
}

#[test]
fn too_little_memory_is_told_with_the_devices_own_figures() {
    let name = "too_little_memory_is_told_with_the_devices_own_figures";
    in_child(module_path!(), name, &[("HEADROOM_STUB_MEMORY_MIB", "2048")], || {
        let mut driver = driver();
        set_others_bytes(0, 500 * MIB);
        let too_little = |requested: u64, free: u64| DriverError::OutOfMemory {
            requested_bytes: requested * MIB,
            free_bytes: free * MIB,
            total_bytes: 2048 * MIB,
        };
        assert_eq!(driver.allocate(1025 * MIB), Err(too_little(1025, 1024)));
        driver.allocate(1000 * MIB).unwrap();
        let range = driver.reserve(200 * MIB).unwrap();
        assert_eq!(driver.map(range, 40 * MIB, 20 * MIB), Err(too_little(40, 24)), "its first page would have fitted");
        assert_eq!((live(Kind::Handles), live(Kind::Mappings), held()), (0, 0, 1000 * MIB));
        driver.map(range, 20 * MIB, 20 * MIB).unwrap();
        assert!(driver.context().ballast(5 * MIB).is_err());
    });
}

#[test]
fn pages_are_mapped_with_one_access_call_and_any_of_them_unmapped_again() {
    let name = "pages_are_mapped_with_one_access_call_and_any_of_them_unmapped_again";
    in_child(module_path!(), name, &[], || {
        let mut driver = driver();
        let page = 20 * MIB;
        let range = driver.reserve(1000 * MIB).unwrap();
        assert_eq!(held(), 0, "addresses cost nothing");
        driver.map(range, 10 * page, page).unwrap();
        assert_eq!((live(Kind::Mappings), ever(Ever::AccessesSet), held()), (10, 1, 200 * MIB));
        let at = |index: u64| Address(range.0 + index * page);
        give_kernel(driver.context());
        driver.unmap(at(3), 4 * page, page).unwrap();
        assert_eq!((live(Kind::Mappings), live(Kind::Handles), held()), (6, 6, 120 * MIB));
        assert_eq!(ever(Ever::FreedUnderWork), 0);
        driver.map(at(4), page, page).unwrap();
        assert_eq!(held(), 140 * MIB);
        for refused in [
            driver.map(at(4), page, page),
            driver.map(at(2), 2 * page, page),
            driver.map(at(49), 2 * page, page),
            driver.map(at(5), page + 1, page),
            driver.unmap(at(3), 2 * page, page),
            driver.unmap(at(0), 2 * MIB, 2 * MIB),
            driver.release(range, 1000 * MIB),
            driver.release(range, 998 * MIB),
        ] {
            assert!(matches!(refused, Err(DriverError::Failed { code: 1, .. })), "{refused:?}");
        }
        assert_eq!((live(Kind::Mappings), held()), (7, 140 * MIB), "what was refused changed nothing");
        driver.unmap(at(0), 3 * page, page).unwrap();
        driver.unmap(at(4), page, page).unwrap();
        driver.unmap(at(7), 3 * page, page).unwrap();
        assert_eq!(held(), 0);
        driver.release(range, 1000 * MIB).unwrap();
        assert_eq!(live(Kind::Reserved), 0);
    });
}

#[test]
fn what_is_held_goes_back_with_the_driver() {
    in_child(module_path!(), "what_is_held_goes_back_with_the_driver", &[], || {
        let context = context();
        let mut driver = CudaDriver::new(context.clone()).unwrap();
        driver.allocate(100 * MIB).unwrap();
        let range = driver.reserve(100 * MIB).unwrap();
        driver.map(range, 60 * MIB, 20 * MIB).unwrap();
        driver.unmap(Address(range.0 + 20 * MIB), 20 * MIB, 20 * MIB).unwrap();
        give_kernel(&context);
        drop(driver);
        assert_eq!(leaks(), [(Kind::Contexts, 1), (Kind::Streams, 1)]);
        assert_eq!((held(), ever(Ever::FreedUnderWork)), (0, 0));
    });
}

#[test]
fn recorded_expandable_scripts_equal_in_every_counter_and_cost_the_card_what_is_reserved() {
    let name = "recorded_expandable_scripts_equal_in_every_counter_and_cost_the_card_what_is_reserved";
    in_child(module_path!(), name, &[("HEADROOM_STUB_MEMORY_MIB", "142336")], || {
        let context = context();
        assert_eq!(context.gpu().total_bytes, DEVICE_BYTES);
        for script in scripts("scenario-expandable.jsonl.gz") {
            let comparison = replay_script_on(&script, CudaDriver::new(context.clone()).unwrap());
            assert!(comparison.is_exact(), "{comparison:?}");
            assert!(comparison.compared >= 1_500 * 8, "{comparison:?}");
            assert_eq!(held(), 0, "everything went back with the allocator");
        }
        assert!(ever(Ever::AccessesSet) > 100, "hardly anything was mapped");
    });
}

#[test]
fn the_same_script_counts_the_same_on_the_simulated_card_and_on_this_driver() {
    let name = "the_same_script_counts_the_same_on_the_simulated_card_and_on_this_driver";
    in_child(module_path!(), name, &[("HEADROOM_STUB_MEMORY_MIB", "142336")], || {
        let context = context();
        for file in ["scenario-native.jsonl.gz", "scenario-gc.jsonl.gz", "scenario-expandable.jsonl.gz"] {
            let script = scripts(file).swap_remove(0);
            let card = SimulatedCard::new(CardSettings::new(DEVICE_BYTES));
            let mut simulated = Allocator::new(card.driver(), script.settings.clone());
            let mut real = Allocator::new(CudaDriver::new(context.clone()).unwrap(), script.settings.clone());
            simulated.set_memory_limit(script.limit_bytes);
            real.set_memory_limit(script.limit_bytes);
            let mut live = std::collections::BTreeMap::new();
            for (step, action) in script.steps.iter().map(|step| step.action).enumerate() {
                match action {
                    ScriptAction::Allocate { id, bytes, .. } => {
                        if let Some(both) = simulated.allocate(bytes).ok().zip(real.allocate(bytes).ok()) {
                            live.insert(id, both);
                        }
                    }
                    ScriptAction::Free { id } => {
                        if let Some((first, second)) = live.remove(&id) {
                            simulated.free(first).unwrap();
                            real.free(second).unwrap();
                        }
                    }
                    ScriptAction::EmptyCache => {
                        simulated.empty_cache().unwrap();
                        real.empty_cache().unwrap();
                    }
                    ScriptAction::FreeAll => {
                        for (first, second) in std::mem::take(&mut live).into_values() {
                            simulated.free(first).unwrap();
                            real.free(second).unwrap();
                        }
                    }
                }
                assert_eq!(real.counters(), simulated.counters(), "{file}, step {step}: {action:?}");
                assert_eq!(held(), real.counters().reserved.current, "{file}, step {step}: {action:?}");
            }
        }
    });
}

#[test]
fn contents_arrive_where_they_belong_whoever_allocated_the_memory() {
    let name = "contents_arrive_where_they_belong_whoever_allocated_the_memory";
    in_child(module_path!(), name, &[], || {
        let context = context();
        for kind in AllocatorKind::ALL {
            let device = context.parts(Settings::of_kind(kind)).unwrap().build();
            let contents: [Vec<u8>; 3] =
                [100_000, 512, 9_000_001].map(|length: u32| (0..length).map(|at| (at % 251) as u8 + 1).collect());
            let holdings = contents.each_ref().map(|contents| device.allocate(contents.len() as u64).unwrap());
            let parts: Vec<_> =
                holdings.iter().zip(&contents).map(|(to, contents)| UploadPart { to: *to, contents }).collect();
            device.with_memory(|memory| memory.upload(&parts)).unwrap();
            for (holding, contents) in holdings.iter().zip(&contents) {
                let headroom_device::Holding::Allocated(allocation) = holding else { panic!("not of this process") };
                assert_eq!(&bytes_at(allocation.address().0, contents.len() as u64), contents, "{kind}");
            }
            let too_long = vec![0; holdings[1].bytes() as usize + 1];
            let part = UploadPart { to: holdings[1], contents: &too_long };
            let error = device.with_memory(|memory| memory.upload(&[part])).unwrap_err();
            assert!(matches!(error, DriverError::Failed { call: DriverCall::Copy, .. }), "{error}");
        }
    });
}

#[test]
fn a_map_or_unmap_of_which_any_call_fails_is_whole_or_did_not_happen() {
    let name = "a_map_or_unmap_of_which_any_call_fails_is_whole_or_did_not_happen";
    in_child(module_path!(), name, &[], || {
        let mut driver = driver();
        let (page, pages) = (20 * MIB, 4);
        let range = driver.reserve(pages * page).unwrap();
        let (mut maps_failed, mut unmaps_failed) = (0, 0);
        for n in 1.. {
            fail(n, 999);
            let mapped = driver.map(range, pages * page, page);
            let failed_at_map = has_failed();
            if mapped.is_err() {
                maps_failed += 1;
                assert_eq!((live(Kind::Mappings), live(Kind::Handles), held()), (0, 0, 0), "call {n}");
                fail(0, 0);
                driver.map(range, pages * page, page).unwrap();
            }
            assert_eq!((live(Kind::Mappings), held()), (pages, pages * page), "call {n}");
            let unmapped = driver.unmap(range, pages * page, page);
            if unmapped.is_err() {
                unmaps_failed += 1;
                assert_eq!((live(Kind::Mappings), held()), (pages, pages * page), "call {n}");
                let contents = vec![5; 512];
                assert!(is_usable(&driver, range.0 + (pages - 1) * page, &contents), "call {n}");
                assert!(is_usable(&driver, range.0, &contents), "call {n}");
                driver.unmap(range, pages * page, page).unwrap();
            }
            let failed = has_failed();
            fail(0, 0);
            // Memory whose release the driver refused is offered again with the next call.
            driver.map(range, page, page).unwrap();
            driver.unmap(range, page, page).unwrap();
            assert_eq!((live(Kind::Mappings), live(Kind::Handles), held()), (0, 0, 0), "call {n}");
            if !failed && !failed_at_map {
                break;
            }
        }
        // Creating, mapping, granting; waiting, unmapping.
        assert!(maps_failed > 2 * pages && unmaps_failed > pages, "{maps_failed} and {unmaps_failed}");
        driver.release(range, pages * page).unwrap();
    });
}

/// Whether contents can be copied to an address.
fn is_usable(driver: &CudaDriver, address: u64, contents: &[u8]) -> bool {
    driver.context().bind().unwrap();
    copy(address, contents) && bytes_at(address, contents.len() as u64) == contents
}
