//! Models loaded from files onto a device: what a load that fails leaves on the device and in pinned memory.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use headroom_base::{AllocatorKind, GIB, MIB};
use headroom_device::cuda::Uploader;
use headroom_device::device::UploadPart;
use headroom_device::probe::{Hook, HookError, HookPoint};
use headroom_device::weights::MappedWeights;
use headroom_device::{Cache, CacheError, CacheSettings, Device, ModelKey, ModelSpec, Settings};
use safetensors::tensor::{Dtype, TensorView};

use crate::stub::{Ever, Kind, context, ever, fail, has_failed, in_child, leaks, live, own_bytes, set_others_bytes};

const CONTEXT_BYTES: u64 = 524 * MIB;

/// The file is two buffers long, and a buffer is pinned for each, whoever copies it.
const RING_BUFFERS: u64 = 2;

/// A file of three tensors, a mebibyte and a half each.
fn file(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("model.safetensors");
    let contents = vec![7; 3 << 19];
    let names = ["first", "second", "third"];
    let views = names.map(|name| (name, TensorView::new(Dtype::U8, vec![contents.len()], &contents).unwrap()));
    fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    path
}

fn cut_short(path: &Path) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(2 << 20).unwrap();
}

fn device(kind: AllocatorKind) -> Device {
    context().parts(Settings::of_kind(kind)).unwrap().build()
}

fn cache(device: &Device, path: PathBuf) -> Cache {
    let cache = Cache::new(device.clone(), CacheSettings { floor_bytes: 0, ..CacheSettings::default() });
    cache.add(ModelSpec::safetensors("m", path)).unwrap();
    cache
}

fn allocated_bytes(device: &Device) -> u64 {
    device.counters().unwrap().allocated.current
}

/// What the process holds on the first device but for the streams of copies, each a page.
fn beside_streams() -> u64 {
    own_bytes(0) - (live(Kind::Streams) - 1) * 2 * MIB
}

#[test]
fn a_file_cut_short_since_it_was_mapped_fails_the_load_and_leaves_nothing() {
    let name = "a_file_cut_short_since_it_was_mapped_fails_the_load_and_leaves_nothing";
    in_child(module_path!(), name, &[], || {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder);
        let device = device(AllocatorKind::Native);
        let cache = cache(&device, path.clone());
        cut_short(&path);
        let error = cache.lock(&ModelKey::model("m"), None).map(|_| ()).unwrap_err();
        assert!(matches!(error, CacheError::Weights(_)) && error.to_string().contains("cut short"), "{error}");
        assert_eq!((allocated_bytes(&device), own_bytes(0), live(Kind::Pinned)), (0, CONTEXT_BYTES, 0));
    });
}

#[test]
fn a_file_cut_short_while_it_goes_up_fails_the_upload_and_leaves_nothing_pinned() {
    let name = "a_file_cut_short_while_it_goes_up_fails_the_upload_and_leaves_nothing_pinned";
    in_child(module_path!(), name, &[], || {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder);
        let mapped = MappedWeights::open(&path).unwrap();
        let context = context();
        let mut memory = context.parts(Settings::default()).unwrap().memory;
        let holdings: Vec<_> = mapped.tensors().iter().map(|span| memory.allocate(span.bytes).unwrap()).collect();
        let to_and_from = holdings.iter().zip(mapped.tensors());
        let parts: Vec<_> =
            to_and_from.map(|(to, span)| UploadPart { to: *to, contents: mapped.contents(span) }).collect();
        let mut uploader = Uploader::new(context);
        uploader.upload(&parts).unwrap();
        cut_short(&path);
        let error = uploader.upload(&parts).unwrap_err().to_string();
        assert!(error.contains("cut short"), "{error}");
        assert_eq!([Kind::Pinned, Kind::Streams, Kind::Events].map(live), [0, 1, 0]);
        uploader.upload(&parts[..1]).expect("what is still there");
    });
}

#[test]
fn whichever_call_fails_a_load_leaves_nothing_allocated_and_nothing_pinned() {
    let name = "whichever_call_fails_a_load_leaves_nothing_allocated_and_nothing_pinned";
    in_child(module_path!(), name, &[], || {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder);
        for kind in AllocatorKind::ALL {
            let device = device(kind);
            let cache = cache(&device, path.clone());
            let key = ModelKey::model("m");
            let failures = (1..).take_while(|n| {
                fail(*n, 999);
                let outcome = cache.lock(&key, None).map(drop);
                let failed = has_failed();
                fail(0, 0);
                if let Err(error) = outcome {
                    assert!(failed && error.to_string().contains("code 999"), "call {n}: {error}");
                    let pinned = live(Kind::Pinned);
                    assert!(pinned == 0 || pinned == RING_BUFFERS, "{pinned} buffers are pinned after call {n}");
                    assert_eq!(allocated_bytes(&device), 0, "after call {n}");
                }
                cache.offload_unlocked().unwrap();
                device.empty_cache().unwrap();
                assert_eq!(beside_streams(), CONTEXT_BYTES, "after call {n}");
                failed
            });
            assert!(failures.count() > 10, "{kind:?}");
            drop(cache);
        }
        assert_eq!((leaks(), ever(Ever::FreedUnderWork)), (Vec::new(), 0));
    });
}

/// Cancels every load of the cache at one point of it.
#[derive(Default)]
struct Canceller(Mutex<Option<(HookPoint, Cache)>>);

impl Hook for Canceller {
    fn at(&self, point: HookPoint) -> Result<(), HookError> {
        match &*self.0.lock().unwrap() {
            Some((at, cache)) if *at == point => cache.cancel_loads(),
            _ => {}
        }
        Ok(())
    }
}

#[test]
fn a_cancelled_load_is_not_counted_and_leaves_the_model_whole_in_host_memory_and_nothing_pinned() {
    let name = "a_cancelled_load_is_not_counted_and_leaves_the_model_whole_in_host_memory_and_nothing_pinned";
    in_child(module_path!(), name, &[], || {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder);
        for kind in AllocatorKind::ALL {
            let canceller = Arc::new(Canceller::default());
            let parts = context().parts(Settings::of_kind(kind)).unwrap().with_hook(canceller.clone());
            let device = parts.build();
            let cache = cache(&device, path.clone());
            let key = ModelKey::model("m");
            for point in [HookPoint::Loading, HookPoint::Uploading] {
                *canceller.0.lock().unwrap() = Some((point, cache.clone()));
                let error = cache.lock(&key, None).map(drop).unwrap_err();
                assert!(matches!(&error, CacheError::Cancelled { key } if key.to_string() == "m"), "{error}");
                assert!(!error.is_out_of_memory() && error.to_string().contains("cancelled"), "{error}");
                let model = cache.models().remove(0);
                assert_eq!((model.locks, model.resident_bytes), (0, 0), "{kind:?} at {point:?}");
                assert_eq!((allocated_bytes(&device), beside_streams()), (0, CONTEXT_BYTES), "{kind:?} at {point:?}");
                assert_eq!([Kind::Pinned, Kind::Events].map(live), [0, 0], "{kind:?} at {point:?}");

                *canceller.0.lock().unwrap() = None;
                let locked = cache.lock(&key, None).expect("a lock that begins later is not concerned");
                assert_eq!(locked.report().missing_bytes, 0);
                drop(locked);
                cache.cancel_loads();
                cache.lock(&key, None).map(drop).expect("nothing is to be loaded");
                cache.offload_unlocked().unwrap();
            }
        }
        assert_eq!((leaks(), ever(Ever::FreedUnderWork)), (Vec::new(), 0));
    });
}

#[test]
fn a_load_for_which_the_device_has_no_room_for_a_stream_is_out_of_memory() {
    let name = "a_load_for_which_the_device_has_no_room_for_a_stream_is_out_of_memory";
    in_child(module_path!(), name, &[], || {
        let folder = tempfile::tempdir().unwrap();
        let device = device(AllocatorKind::Native);
        let cache = cache(&device, file(&folder));
        let all_but = |bytes| set_others_bytes(0, 24 * GIB - CONTEXT_BYTES - bytes);
        // The model's one segment, and nothing beside it.
        all_but(20 * MIB);
        let error = cache.lock(&ModelKey::model("m"), None).map(drop).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
        assert!(error.to_string().contains("model `m`: the device is out of memory"), "{error}");
        assert_eq!((allocated_bytes(&device), own_bytes(0), live(Kind::Pinned)), (0, CONTEXT_BYTES, 0));
        all_but(22 * MIB);
        let locked = cache.lock(&ModelKey::model("m"), None).unwrap();
        assert_eq!((locked.report().missing_bytes, live(Kind::Streams)), (0, 2), "one stream carries all");
    });
}
