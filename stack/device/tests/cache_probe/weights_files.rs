//! Weights from safetensors files: what is loaded, what is shared, and what is refused with which words.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use headroom_base::{AllocatorKind, DeviceFigures, Reading};
use headroom_device::allocator::{AllocationError, Counters, NotAllocated, Settings};
use headroom_device::cache::{Dropped, WeightsSource};
use headroom_device::device::{AllocatorMemory, UploadPart, Uploaded};
use headroom_device::driver::DriverError;
use headroom_device::weights::{HostStore, WeightsError};
use headroom_device::{
    Allocator, Cache, CacheError, CacheSettings, Device, DeviceMemory, DeviceParts, Holding, ModelSpec, SimulatedCard,
    SimulatedDriver,
};
use safetensors::tensor::{Dtype, TensorView};

use crate::rig::key;

/// Writes a file of these tensors, each filled with its own byte.
fn write(path: &Path, tensors: &[(&str, usize, u8)]) {
    let contents: Vec<_> = tensors.iter().map(|(_, bytes, fill)| vec![*fill; *bytes]).collect();
    let views = tensors.iter().zip(&contents).map(|((name, bytes, _), contents)| {
        ((*name).to_owned(), TensorView::new(Dtype::U8, vec![*bytes], contents).unwrap())
    });
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn small_file(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("model.safetensors");
    write(&path, &[("embed.weight", 3_000, 1), ("block.0", 70_000, 2), ("block.1", 1, 3)]);
    path
}

fn cache(store: &Arc<HostStore>) -> Cache {
    let device = Device::simulated(&SimulatedCard::with_gib(1), AllocatorKind::Native);
    Cache::with_store(device, CacheSettings { floor_bytes: 0, ..CacheSettings::default() }, Arc::clone(store))
}

#[test]
fn each_tensor_is_a_piece_and_prefixes_say_which_are_required() {
    let folder = tempfile::tempdir().unwrap();
    let path = small_file(&folder);
    let cache = cache(&Arc::default());
    let weights = WeightsSource::Safetensors { path, required_prefixes: vec!["embed.".to_owned()] };
    cache.add(ModelSpec { weights, ..ModelSpec::safetensors("m", "") }).unwrap();
    assert_eq!(cache.model(&key("m")).unwrap().total_bytes, 73_001);
    let locked = cache.lock(&key("m"), Some((1 << 30) - (2 << 20))).unwrap();
    assert!(locked.report().resident_bytes >= 3_000 && locked.report().missing_bytes < 73_001);
    drop(locked);
    assert_eq!(cache.lock(&key("m"), None).unwrap().report().missing_bytes, 0);
}

/// Memory that keeps what was uploaded, by the piece's size.
struct Keeps {
    memory: AllocatorMemory<SimulatedDriver>,
    uploaded: Arc<Mutex<HashMap<usize, u8>>>,
}

impl DeviceMemory for Keeps {
    fn figures(&mut self) -> Result<DeviceFigures, DriverError> {
        self.memory.figures()
    }
    fn counters(&mut self) -> Result<Counters, DriverError> {
        self.memory.counters()
    }
    fn allocate(&mut self, requested_bytes: u64) -> Result<Holding, AllocationError> {
        self.memory.allocate(requested_bytes)
    }
    fn free(&mut self, holding: Holding) -> Result<(), NotAllocated> {
        self.memory.free(holding)
    }
    fn empty_cache(&mut self) -> Result<(), AllocationError> {
        self.memory.empty_cache()
    }
    fn reset_peaks(&mut self) -> Result<(), DriverError> {
        self.memory.reset_peaks()
    }
    fn process_bytes(&mut self) -> Result<Reading, DriverError> {
        self.memory.process_bytes()
    }
    fn spilled_bytes(&mut self) -> Result<Reading, DriverError> {
        self.memory.spilled_bytes()
    }
    fn upload_unless(
        &mut self,
        parts: &[UploadPart<'_>],
        _: &(dyn Fn() -> bool + Sync),
    ) -> Result<Uploaded, DriverError> {
        let mut uploaded = self.uploaded.lock().unwrap();
        for part in parts {
            assert!(part.to.bytes() as usize >= part.contents.len());
            assert!(part.contents.iter().all(|byte| *byte == part.contents[0]), "pieces are mixed up");
            uploaded.insert(part.contents.len(), part.contents[0]);
        }
        Ok(Uploaded::Whole)
    }
}

#[test]
fn what_goes_up_is_what_the_file_holds() {
    let folder = tempfile::tempdir().unwrap();
    let card = SimulatedCard::with_gib(1);
    let uploaded = Arc::new(Mutex::new(HashMap::new()));
    let memory = AllocatorMemory::new(Allocator::new(card.driver(), Settings::default()));
    let memory = Box::new(Keeps { memory, uploaded: Arc::clone(&uploaded) });
    let device = DeviceParts { memory, ..DeviceParts::simulated(&card, Settings::default()) }.build();
    let cache = Cache::new(device, CacheSettings { floor_bytes: 0, ..CacheSettings::default() });
    cache.add(ModelSpec::safetensors("m", small_file(&folder))).unwrap();
    drop(cache.lock(&key("m"), None).unwrap());
    assert_eq!(*uploaded.lock().unwrap(), HashMap::from([(3_000, 1), (70_000, 2), (1, 3)]));
}

#[test]
fn caches_of_one_process_share_a_file_and_a_replaced_file_is_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = small_file(&folder);
    let store = Arc::new(HostStore::default());
    let (first, second) = (cache(&store), cache(&store));
    for cache in [&first, &second] {
        cache.add(ModelSpec::safetensors("m", &path)).unwrap();
    }
    assert_eq!(store.copies(), 1);
    let replacement = folder.path().join("replacement");
    write(&replacement, &[("other", 10, 9)]);
    fs::rename(&replacement, &path).unwrap();
    second.add(ModelSpec::safetensors("replaced", &path)).unwrap();
    assert_eq!(store.copies(), 2);
    assert_eq!(second.model(&key("replaced")).unwrap().total_bytes, 10);
    assert_eq!(first.model(&key("m")).unwrap().total_bytes, 73_001, "the mapped one stays what it was");
    for (cache, name) in [(&first, "m"), (&second, "m"), (&second, "replaced")] {
        assert_eq!(cache.drop_model(&key(name)).unwrap(), Dropped::Now);
    }
    assert_eq!(store.copies(), 0);
}

#[test]
fn a_file_that_is_cut_short_or_lies_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(small_file(&folder)).unwrap();
    let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let lying = |from: &str, to: &str| {
        let text = String::from_utf8(whole[8..8 + header].to_vec()).unwrap();
        assert!(text.contains(from), "{text}");
        let text = text.replace(from, to);
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(&whole[8 + header..]);
        bytes
    };
    let mut appended = whole.clone();
    appended.extend_from_slice(b"more");
    let cases: [(&str, Vec<u8>, &str); 8] = [
        ("empty", Vec::new(), "empty"),
        ("a few bytes", whole[..5].to_vec(), "too short"),
        ("cut in the header", whole[..8 + header / 2].to_vec(), "cut short"),
        ("cut in the last tensor", whole[..whole.len() - 1].to_vec(), "cut short"),
        ("longer than its header says", appended, "appended"),
        ("a header length of 2^63", [&(1_u64 << 63).to_le_bytes()[..], &whole[8..]].concat(), ""),
        ("a shape that its bytes do not have", lying("[70000]", "[70001]"), "do not agree"),
        ("a tensor that begins inside another", lying("70000]", "69999]"), ""),
    ];
    let cache = cache(&Arc::default());
    for (name, contents, word) in cases {
        let path = folder.path().join("bad.safetensors");
        fs::write(&path, contents).unwrap();
        let error = cache.add(ModelSpec::safetensors("bad", &path)).unwrap_err();
        assert!(matches!(&error, CacheError::Weights(WeightsError::Malformed { .. })), "{name}: {error}");
        let text = error.to_string();
        assert!(text.contains("bad.safetensors") && text.contains(word), "{name}: {text}");
        assert!(cache.models().is_empty());
    }
    let absent = cache.add(ModelSpec::safetensors("bad", folder.path().join("absent"))).unwrap_err();
    assert!(matches!(absent, CacheError::Weights(WeightsError::Io { .. })), "{absent}");
}
