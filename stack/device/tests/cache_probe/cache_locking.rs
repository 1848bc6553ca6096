//! What a lock moves, in which order, how much of it, and what it says.

use crate::rig::{Watcher, Wishes, key, model, warnings};
use headroom_base::{Cap, MIB};
use headroom_device::cache::{ComputeOn, Dropped, Event, Observer, WeakCache};
use headroom_device::probe::HookError;
use headroom_device::{CacheError, ModelSpec, PieceSpec};
use std::sync::{Arc, Mutex};

/// Moves of a lock as (model, MiB, MiB that stayed).
fn moves(locked: &headroom_device::LockedModel) -> Vec<(String, u64, u64)> {
    let moves = locked.report().moves.iter();
    moves.map(|moved| (moved.key.to_string(), moved.bytes / MIB, moved.remaining_bytes / MIB)).collect()
}

#[test]
fn a_resident_model_with_room_moves_nothing_and_asks_the_driver_once() {
    let rig = Wishes::mib(8_192).floor_mib(1_024).rig();
    rig.add("unet", 4_000);
    rig.add("vae", 200);
    rig.load("vae");
    rig.load("unet");
    let allocations = rig.card.total_calls();
    let locked = rig.lock("unet", 512);
    assert_eq!(rig.card.total_calls() - allocations, 1);
    assert_eq!((moves(&locked), locked.report().loaded_bytes, locked.report().missing_bytes), (vec![], 0, 0));
    assert_eq!(rig.resident_mib("vae"), 200);
}

#[test]
fn others_go_smallest_first_and_no_more_than_needed() {
    let rig = Wishes::mib(10_000).rig();
    for (name, mib) in [("large", 4_000), ("small", 1_000), ("middle", 2_000)] {
        rig.add(name, mib);
        rig.load(name);
    }
    rig.add("new", 4_500);
    let locked = rig.lock("new", 0);
    // 3,000 MiB are free and 4,500 are missing: the small one whole, and 500 of the middle one.
    assert_eq!(moves(&locked), [("small".into(), 1_000, 0), ("middle".into(), 500, 1_500)]);
    assert_eq!((rig.resident_mib("new"), rig.resident_mib("large")), (4_500, 4_000));
    rig.assert_reconciled(0);
}

#[test]
fn a_model_that_cannot_be_split_goes_whole_even_if_it_is_the_last() {
    let rig = Wishes::mib(10_000).rig();
    rig.cache.add(model("block", 5_000).whole()).unwrap();
    rig.load("block");
    rig.add("new", 5_100);
    let locked = rig.lock("new", 0);
    assert_eq!(moves(&locked), [("block".into(), 5_000, 0)]);
}

#[test]
fn a_locked_model_is_never_moved_off_for_another() {
    let rig = Wishes::mib(4_000).rig();
    rig.add("used", 2_000);
    rig.add("new", 3_000);
    let used = rig.lock("used", 0);
    let new = rig.lock("new", 0);
    assert_eq!((moves(&new), rig.resident_mib("used"), rig.resident_mib("new")), (vec![], 2_000, 2_000));
    assert_eq!(new.report().missing_bytes, 1_000 * MIB);
    drop((used, new));
    rig.assert_empties();
}

#[test]
fn working_memory_is_respected_although_the_model_is_resident_already() {
    let rig = Wishes::mib(8_000).rig();
    rig.add("transformer", 6_000);
    rig.add("vae", 200);
    rig.load("vae");
    rig.load("transformer");
    let locked = rig.lock("vae", 5_000);
    assert_eq!(moves(&locked), [("transformer".into(), 3_200, 2_800)]);
    assert!(rig.card.free_bytes() >= 5_000 * MIB);
}

#[test]
fn the_last_resort_is_the_model_itself_without_the_pieces_it_needs() {
    let rig = Wishes::mib(8_000).rig();
    let pieces = [PieceSpec::required("embedding", 1_000 * MIB)]
        .into_iter()
        .chain((0..5).map(|index| PieceSpec::new(format!("block.{index}"), 1_000 * MIB)));
    rig.cache.add(ModelSpec::synthetic("transformer", pieces)).unwrap();
    rig.load("transformer");
    let locked = rig.lock("transformer", 4_500);
    assert_eq!(moves(&locked), [("transformer".into(), 3_000, 3_000)]);
    drop(locked);
    let locked = rig.lock("transformer", 7_800);
    assert!(locked.report().beyond_device.is_some(), "1,000 MiB are required, so 7,800 can never be free");
    drop(locked);
    let locked = rig.lock("transformer", 7_000);
    assert_eq!(rig.resident_mib("transformer"), 1_000);
    assert_eq!(locked.report().missing_bytes, 5_000 * MIB);
}

#[test]
fn required_pieces_are_loaded_whatever_the_budget_says() {
    let rig = Wishes::mib(4_000).floor_mib(3_900).rig();
    rig.cache
        .add(ModelSpec::synthetic(
            "text",
            [PieceSpec::required("embedding", 500 * MIB), PieceSpec::new("block", 300 * MIB)],
        ))
        .unwrap();
    let locked = rig.cache.lock(&key("text"), None).unwrap();
    assert_eq!((locked.report().resident_bytes, locked.report().missing_bytes), (500 * MIB, 300 * MIB));
}

#[test]
fn a_shortfall_of_one_mib_fits_and_one_byte_more_does_not() {
    for (short_bytes, missing) in [(0, false), (MIB, false), (MIB + 1, true)] {
        let rig = Wishes::mib(1_000).rig();
        let sizes = [100 * MIB, 100 * MIB, 100 * MIB];
        rig.cache
            .add(ModelSpec::synthetic(
                "m",
                sizes.iter().enumerate().map(|(i, size)| PieceSpec::new(format!("{i}"), *size)),
            ))
            .unwrap();
        let working = 700 * MIB + short_bytes;
        let locked = rig.cache.lock(&key("m"), Some(working)).unwrap();
        assert_eq!(locked.report().missing_bytes > 0, missing, "{short_bytes} short");
    }
}

#[test]
fn a_cap_limits_weights_and_working_memory_together_and_the_device_still_limits_the_cap() {
    for (cap, others, resident) in [(Cap::Bytes(8_000 * MIB), 0, 5_000), (Cap::Bytes(90_000 * MIB), 18_000, 3_000)] {
        let rig = Wishes { cap, ..Wishes::mib(24_000) }.others_mib(others).floor_mib(3_000).rig();
        rig.add("m", 10_000);
        drop(rig.cache.lock(&key("m"), None).unwrap());
        assert_eq!(rig.resident_mib("m"), resident, "{cap:?}");
    }
}

#[test]
fn the_warning_names_everybody_with_the_effective_working_memory_and_comes_once_a_stream() {
    let rig = Wishes::mib(12_000).floor_mib(3_072).rig();
    rig.add("flux:transformer", 9_500);
    rig.add("flux:text_encoder", 300);
    let text = rig.cache.lock(&key("flux:text_encoder"), Some(0)).unwrap();
    rig.load("flux:transformer");
    rig.cache.device().allocate(500 * MIB).unwrap();
    let lines = warnings(|| {
        for _step in 0..30 {
            drop(rig.cache.lock(&key("flux:transformer"), Some(1_024 * MIB)).unwrap());
            rig.card.set_others_bytes(500 * MIB);
        }
    });
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let line = &lines[0];
    for part in ["flux:transformer", "3,072 MiB of working memory", "flux:text_encoder 300 MiB (locked)", "(locked)"] {
        assert!(line.contains(part), "{part} is not in: {line}");
    }
    assert!(!line.contains("1,024 MiB"), "the asked working memory is below the floor: {line}");
    drop(text);
}

#[test]
fn the_warning_is_written_before_the_model_itself_is_moved() {
    let rig = Wishes::mib(8_000).rig();
    rig.add("m", 6_000);
    rig.load("m");
    let lines = warnings(|| drop(rig.lock("m", 3_000)));
    assert_eq!(
        lines,
        ["too little device memory to lock m with 3,000 MiB of working memory: the budget is -1,000 MiB after \
          everything unlocked was moved off. Resident: m 6,000 MiB (locked)"]
    );
    assert_eq!(rig.resident_mib("m"), 5_000);
}

#[test]
fn a_lock_with_room_says_nothing_and_lets_the_next_shortage_be_said_again() {
    let rig = Wishes::mib(8_000).rig();
    rig.add("m", 6_000);
    let lines = warnings(|| {
        for others in [0, 1_000, 1_000, 0, 1_000] {
            rig.card.set_others_bytes(others * MIB);
            drop(rig.lock("m", 2_000));
        }
    });
    assert_eq!(lines.len(), 2, "{lines:#?}");
}

#[test]
fn a_request_beyond_the_device_is_said_and_moves_nobody() {
    let rig = Wishes::mib(24_576).context_mib(500).floor_mib(3_072).rig();
    rig.add("transformer", 12_000);
    rig.load("transformer");
    let mut report = None;
    let lines = warnings(|| report = Some(rig.lock("transformer", 37_440).report().clone()));
    let beyond = report.unwrap().beyond_device.unwrap();
    assert_eq!((beyond.asked_bytes, beyond.most_bytes), (37_440 * MIB, 24_076 * MIB));
    assert_eq!(rig.resident_mib("transformer"), 12_000);
    assert!(lines.len() == 1 && lines[0].contains("could never give more than 23.51 GiB"), "{lines:?}");
}

#[test]
fn a_dropped_model_that_is_in_use_goes_with_its_last_lock() {
    let rig = Wishes::mib(8_000).rig();
    rig.add("m", 1_000);
    let (first, second) = (rig.lock("m", 0), rig.lock("m", 0));
    assert_eq!(rig.cache.drop_model(&key("m")).unwrap(), Dropped::WhenIdle);
    assert!(!first.unlock().evicted);
    assert_eq!(rig.resident_mib("m"), 1_000);
    assert!(matches!(rig.cache.add(model("m", 10)), Err(CacheError::AlreadyAdded { .. })));
    assert!(second.unlock().evicted);
    assert!(rig.cache.model(&key("m")).is_none());
    rig.assert_empties();
    rig.add("m", 10);
    assert_eq!(rig.cache.drop_model(&key("m")).unwrap(), Dropped::Now);
    assert!(matches!(rig.cache.lock(&key("m"), None), Err(CacheError::UnknownModel { .. })));
}

#[test]
fn a_failed_load_keeps_the_kind_of_error_and_leaves_nothing_behind() {
    let rig = Wishes::mib(2_000).rig();
    rig.cache.add(model("m", 3_000).whole()).unwrap();
    let error = rig.cache.lock(&key("m"), None).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    let view = rig.view("m");
    assert_eq!((view.locks, view.resident_bytes, rig.card.held_bytes()), (0, 0, 0));
    rig.card.change(|card| card.total_bytes = 4_000 * MIB);
    drop(rig.cache.lock(&key("m"), None).unwrap());
    assert_eq!(rig.resident_mib("m"), 3_000);
}

#[test]
fn a_failed_second_lock_leaves_the_pieces_that_the_first_one_runs_with() {
    let rig = Wishes::mib(2_000).rig();
    let pieces = [PieceSpec::required("a", 1_000 * MIB), PieceSpec::new("b", 500 * MIB)];
    rig.cache.add(ModelSpec::synthetic("m", pieces)).unwrap();
    let first = rig.lock("m", 700);
    assert_eq!(rig.resident_mib("m"), 1_000);
    rig.card.plant_fault(headroom_device::driver::Fault {
        call: Some(headroom_device::driver::DriverCall::Allocate),
        at: 1,
        persistent: false,
    });
    assert!(rig.cache.lock(&key("m"), Some(0)).is_err());
    assert_eq!((rig.resident_mib("m"), rig.view("m").locks), (1_000, 1));
    rig.assert_reconciled(0);
    drop(first);
    rig.assert_empties();
}

#[test]
fn a_model_that_computes_on_the_host_never_touches_the_device() {
    let rig = Wishes::mib(1_000).rig();
    rig.cache.add(model("m", 500).on_host()).unwrap();
    let locked = rig.lock("m", 100);
    assert_eq!((locked.compute(), locked.report().missing_bytes, rig.card.held_bytes()), (ComputeOn::Host, 0, 0));
}

#[test]
fn observers_hear_what_happened_in_order_and_may_call_the_cache() {
    let rig = Wishes::mib(3_000).rig();
    let watcher = Arc::new(Watcher::default());
    rig.cache.observe(watcher.clone());
    rig.add("a", 2_000);
    rig.add("b", 2_000);
    rig.load("a");
    drop(rig.lock("b", 0));
    let said: Vec<_> = watcher
        .take()
        .into_iter()
        .map(|event| match event {
            Event::Locked { key, .. } => format!("locked {key}"),
            Event::Loaded { key, bytes } => format!("loaded {key} {}", bytes / MIB),
            Event::Offloaded { key, bytes, .. } => format!("offloaded {key} {}", bytes / MIB),
            Event::Unlocked { key, locks } => format!("unlocked {key} {locks}"),
            other => format!("{other:?}"),
        })
        .collect();
    let expected =
        ["loaded a 2000", "locked a", "unlocked a 0", "offloaded a 1000", "loaded b 2000", "locked b", "unlocked b 0"];
    assert_eq!(said, expected);
}

#[test]
fn a_cache_that_nobody_has_any_more_gives_the_device_back_what_it_held() {
    let rig = Wishes::mib(8_000).rig();
    rig.add("m", 1_000);
    let locked = rig.lock("m", 0);
    let (device, card) = (rig.device.clone(), rig.card.clone());
    drop(rig);
    assert_eq!(device.counters().unwrap().allocated.current, 1_000 * MIB, "a guard keeps its cache");
    drop(locked);
    assert_eq!(device.counters().unwrap().allocated.current, 0);
    device.empty_cache().unwrap();
    assert_eq!(card.held_bytes(), 0);
}

/// Looks its cache up at every event.
struct Looks(WeakCache, Mutex<Vec<usize>>);

impl Observer for Looks {
    fn event(&self, _: &Event) -> Result<(), HookError> {
        let cache = self.0.upgrade().ok_or_else(|| HookError("the cache is gone".to_owned()))?;
        self.1.lock().unwrap().push(cache.models().len());
        Ok(())
    }
}

#[test]
fn an_observer_that_looks_at_its_cache_does_not_keep_it() {
    let rig = Wishes::mib(8_000).rig();
    rig.add("m", 1_000);
    let (weak, looks) = (rig.cache.downgrade(), Arc::new(Looks(rig.cache.downgrade(), Mutex::default())));
    rig.cache.observe(looks.clone());
    rig.load("m");
    assert_eq!(looks.1.lock().unwrap()[..], [1, 1, 1], "loaded, locked, unlocked");
    let device = rig.device.clone();
    drop(rig);
    assert!(weak.upgrade().is_none());
    assert_eq!(device.counters().unwrap().allocated.current, 0);
}

#[test]
fn models_of_one_cache_are_told_apart_and_pieces_too() {
    let rig = Wishes::mib(8_000).rig();
    rig.add("m", 100);
    assert!(matches!(rig.cache.add(model("m", 200)), Err(CacheError::AlreadyAdded { .. })));
    let twice = ModelSpec::synthetic("n", [PieceSpec::new("a", 1), PieceSpec::new("a", 2)]);
    assert!(matches!(rig.cache.add(twice), Err(CacheError::DuplicatePiece { .. })));
    assert!(matches!(rig.cache.drop_model(&key("n")), Err(CacheError::UnknownModel { .. })));
    assert_eq!(rig.cache.models().len(), 1);
}
