//! Edges of the cache: pieces without bytes, sizes nobody has, waits without end, files that change, idle segments.

use std::fs;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headroom_base::{AllocatorKind, Cap, MIB, budget};
use headroom_device::cache::{Dropped, Event, Observer};
use headroom_device::probe::HookError;
use headroom_device::weights::WeightsError;
use headroom_device::{CacheError, ModelSpec, PieceSpec};

use crate::rig::{Wishes, key, model, warnings};

#[test]
fn a_piece_without_bytes_takes_no_memory_and_leaves_none_behind() {
    for kind in AllocatorKind::ALL {
        let rig = Wishes::mib(4_000).allocator(kind).rig();
        let pieces =
            [PieceSpec::new("nothing", 0), PieceSpec::required("none", 0), PieceSpec::new("block", 2_000 * MIB)];
        rig.cache.add(ModelSpec::synthetic("m", pieces)).unwrap();
        rig.add("other", 3_000);
        rig.load("m");
        // The block is moved off, as far as needed: all of its bytes.
        let other = rig.lock("other", 0);
        assert_eq!((rig.view("m").resident_bytes, rig.view("m").device_bytes), (0, 0), "{kind}");
        assert_eq!(rig.cache.drop_model(&key("m")).unwrap(), Dropped::Now);
        rig.assert_reconciled(0);
        drop(other);
        rig.assert_empties();
    }
}

#[test]
fn sizes_that_no_device_has_are_refused_and_change_nothing() {
    let rig = Wishes::mib(4_000).rig();
    for pieces in
        [vec![u64::MAX], vec![u64::MAX, 1], vec![u64::MAX / 2, u64::MAX / 2, 2], vec![1 << 60; 16], vec![1 << 63]]
    {
        let named = pieces.iter().enumerate().map(|(index, bytes)| PieceSpec::new(index.to_string(), *bytes));
        let error = rig.cache.add(ModelSpec::synthetic("m", named)).unwrap_err();
        assert!(matches!(error, CacheError::TooLarge { .. }), "{error}");
    }
    assert!(rig.cache.models().is_empty());
}

#[test]
fn whatever_working_memory_is_asked_for_a_lock_answers() {
    for kind in AllocatorKind::ALL {
        for cap in [Cap::Unlimited, Cap::Bytes(0), Cap::Bytes(u64::MAX)] {
            for floor_bytes in [0, 1, u64::MAX] {
                let rig = Wishes { cap, ..Wishes::mib(4_000).allocator(kind) };
                let rig = rig.rig_with_floor(floor_bytes);
                rig.add("m", 1_000);
                rig.cache.add(ModelSpec::of_bytes("largest", (1 << 60) - 1, 3)).unwrap();
                for asked in [None, Some(0), Some(u64::MAX), Some(i64::MAX as u64), Some(1 << 62)] {
                    drop(rig.cache.lock(&key("m"), asked).unwrap());
                    drop(rig.cache.lock(&key("largest"), asked).unwrap());
                    let scope =
                        crate::rig::in_scope(u64::MAX / MIB, |_| drop(rig.cache.lock(&key("m"), asked).unwrap()));
                    assert_eq!(scope.recorded().len(), usize::from(asked.is_some()));
                }
                rig.assert_empties();
            }
        }
    }
}

/// Says how long a lock is going to wait at most.
struct SaysHowLong(Mutex<Sender<Duration>>);

impl Observer for SaysHowLong {
    fn event(&self, event: &Event) -> Result<(), HookError> {
        if let Event::WaitingForRoom { at_most, .. } = event {
            self.0.lock().unwrap().send(*at_most).unwrap();
        }
        Ok(())
    }
}

#[test]
fn a_wait_without_end_is_announced_as_one_of_a_year_and_ends_when_room_comes() {
    let rig = Wishes::mib(2_000).wait(Duration::MAX).rig();
    for name in ["used", "wanted"] {
        rig.cache.add(model(name, 1_500).whole()).unwrap();
    }
    let (said, hears) = channel();
    rig.cache.observe(Arc::new(SaysHowLong(Mutex::new(said))));
    let used = rig.lock("used", 0);
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| rig.cache.lock(&key("wanted"), Some(0)).map(drop));
        let at_most = hears.recv_timeout(Duration::from_secs(60));
        drop(used);
        waiting.join().unwrap().unwrap();
        assert_eq!(at_most.unwrap(), Duration::from_secs(365 * 24 * 60 * 60));
    });
    rig.assert_empties();
}

#[test]
fn weights_do_not_break_up_idle_segments_that_the_working_memory_needs() {
    for idle_mib in [1_000, 3_000, 5_000] {
        let rig = Wishes::mib(8_000).rig();
        rig.add("vae", 100);
        rig.free_and_unreleased(idle_mib);
        let locked = rig.lock("vae", 7_800);
        assert_eq!((locked.report().missing_bytes, locked.report().pressure.clone()), (0, None));
        let now = budget(&rig.device.figures().unwrap(), Some(7_800 * MIB), 0, Cap::Unlimited);
        assert!(now.budget_bytes >= 0, "idle MiB: {idle_mib}, {now:?}");
        assert!(rig.device.allocate(7_800 * MIB).is_ok(), "the lock was granted, and its operation runs out of memory");
    }
}

#[test]
fn a_stream_under_pressure_warns_once_although_other_processes_come_and_go() {
    let rig = Wishes::mib(8_000).rig();
    rig.add("m", 6_000);
    let lines = warnings(|| {
        for step in 0..30 {
            rig.card.set_others_bytes((step % 2) * 40 * MIB);
            let locked = rig.lock("m", 3_000);
            assert!(step == 0 || locked.report().missing_bytes > 0);
        }
    });
    assert_eq!(lines.len(), 1, "{lines:#?}");
}

#[test]
fn a_file_that_lost_its_end_after_it_was_mapped_is_an_error_of_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let contents = vec![7_u8; 3 << 20];
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::U8, vec![contents.len()], &contents).unwrap();
    fs::write(&path, safetensors::serialize([("w", view)], None).unwrap()).unwrap();
    let rig = Wishes::mib(100).rig();
    rig.cache.add(ModelSpec::safetensors("m", &path)).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(5_000).unwrap();
    let error = rig.cache.lock(&key("m"), None).unwrap_err();
    assert!(matches!(&error, CacheError::Weights(WeightsError::Malformed { .. })), "{error}");
    assert!(error.to_string().contains("model.safetensors") && error.to_string().contains("5000"), "{error}");
    assert_eq!((rig.view("m").locks, rig.card.held_bytes()), (0, 0));
}

#[test]
fn what_is_no_plain_file_is_refused_and_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Wishes::mib(100).rig();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [folder.path(), &pipe, std::path::Path::new("/dev/zero")] {
        let error = rig.cache.add(ModelSpec::safetensors("m", path)).unwrap_err();
        assert!(error.to_string().contains("no plain file"), "{}: {error}", path.display());
    }
    assert!(rig.cache.models().is_empty());
}

/// A model of about 2,000 MiB in pieces of this size.
fn in_pieces(name: &str, piece_bytes: u64) -> ModelSpec {
    let pieces = 2_000 * MIB / piece_bytes;
    ModelSpec::synthetic(name, (0..pieces).map(|index| PieceSpec::new(index.to_string(), piece_bytes)))
}

/// Sizes of pieces whose segments hold up to half as much again.
const WASTEFUL_KIB: [u64; 6] = [513, 700, 5_200, 6_900, 10_241, 11_000];

#[test]
fn what_segments_hold_beyond_the_weights_is_made_up_for_by_others() {
    for kib in WASTEFUL_KIB {
        let rig = Wishes::mib(8_000).rig();
        rig.add("other", 3_000);
        rig.load("other");
        rig.cache.add(in_pieces("m", kib * 1_024)).unwrap();
        let locked = rig.lock("m", 3_000);
        assert_eq!((locked.report().missing_bytes, locked.report().pressure.clone()), (0, None));
        assert!(rig.card.free_bytes() >= 2_999 * MIB, "pieces of {kib} KiB, free MiB: {}", rig.card.free_bytes() / MIB);
        assert!(rig.resident_mib("other") > 1_900, "{kib} KiB: more than needed was moved off");
    }
}

#[test]
fn what_segments_hold_beyond_the_weights_is_said_where_nobody_can_make_room() {
    for kib in WASTEFUL_KIB {
        let rig = Wishes::mib(8_000).rig();
        let spec = in_pieces("m", kib * 1_024);
        rig.cache.add(spec).unwrap();
        let working = 8_000 - rig.view("m").total_bytes.div_ceil(MIB);
        let mut pressure = None;
        let lines = warnings(|| pressure = rig.lock("m", working).report().pressure.clone());
        let short = working * MIB - rig.card.free_bytes();
        assert!(short > 200 * MIB, "{kib} KiB: only {short} are short");
        assert_eq!(pressure.map(|pressure| -pressure.budget_bytes), Some(short as i64), "{kib} KiB");
        assert_eq!(lines.len(), 1, "{lines:?}");
    }
}
