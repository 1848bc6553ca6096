//! Small answers of the cache that larger stories never ask for.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use headroom_base::{AllocatorKind, InvalidReason, MIB, Validity};
use headroom_device::cache::{Cache, Event, Observer, WeightsSource};
use headroom_device::probe::HookError;
use headroom_device::{LockedModel, ModelSpec, PieceSpec};

use crate::rig::{Rig, Watcher, Wishes, in_scope, key, model, only_window};

#[test]
fn a_lock_that_fails_for_another_reason_is_not_out_of_memory() {
    let rig = Wishes::mib(1_000).rig();
    assert!(!rig.cache.lock(&key("nobody"), None).unwrap_err().is_out_of_memory());
    rig.cache.add(model("m", 2_000).whole()).unwrap();
    assert!(rig.cache.lock(&key("m"), None).unwrap_err().is_out_of_memory());
}

#[test]
fn an_operation_that_says_it_ran_out_of_memory_is_believed() {
    let rig = Wishes::mib(1_000).rig();
    rig.add("m", 100);
    let scope = in_scope(0, |_| {
        let locked = rig.lock("m", 10);
        locked.out_of_memory();
        drop(locked);
    });
    assert_eq!(only_window(&scope).2, Validity::Invalid(InvalidReason::OutOfMemory));
}

#[test]
fn nothing_is_told_of_a_load_that_brought_nothing_up() {
    let rig = Wishes::mib(1_000).rig();
    rig.add("m", 100);
    let held = rig.hold(990);
    let watcher = Arc::new(Watcher::default());
    rig.cache.observe(watcher.clone());
    drop(rig.lock("m", 0));
    assert!(!watcher.take().iter().any(|event| matches!(event, Event::Loaded { .. })));
    rig.device.free(held).unwrap();
    drop(rig.lock("m", 0));
    let loaded = |event: &Event| matches!(event, Event::Loaded { bytes, .. } if *bytes == 100 * MIB);
    assert!(watcher.take().iter().any(loaded));
}

#[test]
fn required_pieces_are_loaded_when_the_budget_is_negative_and_no_others() {
    let rig = Wishes::mib(1_000).floor_mib(2_000).rig();
    let pieces = [PieceSpec::new("optional", 200 * MIB), PieceSpec::required("required", 100 * MIB)];
    rig.cache.add(ModelSpec::synthetic("m", pieces)).unwrap();
    let locked = rig.cache.lock(&key("m"), None).unwrap();
    assert!(locked.report().budget.budget_bytes < 0);
    assert_eq!(rig.resident_mib("m"), 100);
}

#[test]
fn the_steps_of_the_drivers_pool_count_when_room_is_made() {
    // 212 MiB are free: enough for 200 bytes by bytes, and not for the 224 that the pool takes in steps of 32.
    let rig = Wishes::mib(980).allocator(AllocatorKind::CudaMallocAsync).rig();
    rig.add("m", 200);
    rig.add("other", 320);
    rig.load("other");
    let _held = rig.hold(448);
    assert_eq!(rig.card.free_bytes(), 212 * MIB);
    let locked = rig.lock("m", 0);
    assert_eq!(locked.report().missing_bytes, 0);
    assert!(rig.resident_mib("other") < 320);
}

#[test]
fn pieces_that_must_be_there_are_said_to_take_working_memory_when_they_take_more_than_a_mib_of_it() {
    for (working_bytes, said) in [
        (200 * MIB, None),
        (400 * MIB, None),
        (401 * MIB, None),
        (401 * MIB + 1, Some((599 * MIB - 1, 600 * MIB))),
        (700 * MIB, Some((300 * MIB, 600 * MIB))),
        (1_000 * MIB, Some((0, 600 * MIB))),
    ] {
        let rig = Wishes::mib(1_000).rig_with_floor(working_bytes);
        rig.cache.add(model("m", 600).whole()).unwrap();
        let locked = rig.cache.lock(&key("m"), None).unwrap();
        let pressure = locked.report().pressure.as_ref();
        let said = said.map(|(budget_bytes, required_bytes)| (budget_bytes as i64, required_bytes));
        assert_eq!(pressure.map(|pressure| (pressure.budget_bytes, pressure.required_bytes)), said, "{working_bytes}");
    }
}

#[test]
fn a_budget_of_nothing_is_no_shortage() {
    let rig = Wishes::mib(1_000).rig();
    rig.add("m", 100);
    let locked = rig.lock("m", 1_000);
    assert_eq!((locked.report().budget.budget_bytes, locked.report().pressure.clone()), (0, None));
    assert_eq!(locked.report().missing_bytes, 100 * MIB);
}

#[test]
fn pieces_that_another_lock_runs_with_stay_when_a_second_one_is_short() {
    let rig = Wishes::mib(1_000).rig();
    rig.add("m", 600);
    let first = rig.lock("m", 0);
    let second = rig.lock("m", 700);
    assert_eq!((second.report().moves.len(), rig.resident_mib("m")), (0, 600));
    drop((first, second));
    assert_eq!(rig.lock("m", 700).report().resident_bytes, 300 * MIB, "alone it makes room for itself");
}

#[test]
fn a_model_that_goes_in_two_moves_stands_once_with_the_bytes_of_both() {
    // Two pieces of 7 MiB share a segment of 20: the first that goes gives nothing back.
    let rig = Wishes::mib(1_000).rig();
    rig.cache.add(ModelSpec::synthetic("m", (0..40).map(|index| PieceSpec::new(index.to_string(), 7 * MIB)))).unwrap();
    rig.load("m");
    assert_eq!(rig.card.free_bytes(), 600 * MIB);
    rig.add("new", 607);
    let locked = rig.lock("new", 0);
    let moves: Vec<_> = locked.report().moves.iter().map(|moved| (moved.bytes, moved.remaining_bytes)).collect();
    assert_eq!(moves, [(14 * MIB, 266 * MIB)]);
    assert_eq!(rig.resident_mib("m"), 266);
}

#[test]
fn of_equal_pieces_the_last_one_has_the_remainder() {
    for (total_bytes, pieces, expected) in
        [(11, 3, vec![3, 3, 5]), (12, 3, vec![4; 3]), (2, 3, vec![0, 0, 2]), (7, 1, vec![7]), (7, 0, vec![7])]
    {
        let WeightsSource::Synthetic(made) = ModelSpec::of_bytes("m", total_bytes, pieces).weights else {
            panic!("the pieces are of no file")
        };
        assert_eq!(made.iter().map(|piece| piece.bytes).collect::<Vec<_>>(), expected, "{total_bytes} in {pieces}");
    }
}

#[test]
fn a_mib_that_segments_hold_beyond_the_weights_moves_nobody() {
    // The last piece takes whole steps of 2 MiB.
    for (model_mib, working_mib, other_mib) in [(499, 401, 100), (498, 402, 100), (499, 402, 80)] {
        let rig = Wishes::mib(1_000).rig();
        rig.add("other", 100);
        rig.load("other");
        rig.add("m", model_mib);
        let locked = rig.lock("m", working_mib);
        assert_eq!((locked.report().missing_bytes, rig.resident_mib("other")), (0, other_mib), "{model_mib}");
    }
}

/// What happens when a lock begins to wait.
type Deed = Box<dyn Fn(&Cache) + Send + Sync>;

/// Acts at the moment when a lock begins to wait, before it does.
struct AtTheWait {
    cache: Cache,
    deed: Deed,
}

impl Observer for AtTheWait {
    fn event(&self, event: &Event) -> Result<(), HookError> {
        if matches!(event, Event::WaitingForRoom { .. }) {
            (self.deed)(&self.cache);
        }
        Ok(())
    }
}

/// A card of 1,000 MiB on which another thread holds 600, and a model of 700 waits for them.
fn waiting(wait: Duration, deed: impl Fn(&Cache, &Mutex<Option<LockedModel>>) + Send + Sync + 'static) -> Rig {
    let rig = Wishes::mib(1_000).wait(wait).rig();
    rig.add("held", 600);
    rig.cache.add(model("waits", 700).whole()).unwrap();
    let cache = rig.cache.clone();
    let held = std::thread::spawn(move || cache.lock(&key("held"), Some(0)).unwrap()).join().unwrap();
    let held = Mutex::new(Some(held));
    let deed: Deed = Box::new(move |cache| deed(cache, &held));
    rig.cache.observe(Arc::new(AtTheWait { cache: rig.cache.clone(), deed }));
    rig
}

#[test]
fn an_unlock_between_the_look_and_the_wait_is_not_missed() {
    let rig = waiting(Duration::from_secs(20), |_, held| drop(held.lock().unwrap().take()));
    let locked = rig.cache.lock(&key("waits"), Some(0)).unwrap();
    assert_eq!(locked.report().missing_bytes, 0);
}

#[test]
fn an_unlock_between_the_look_and_the_wait_is_enough_although_others_stay_locked() {
    let longest = Duration::from_secs(20);
    let rig = waiting(longest, |_, held| drop(held.lock().unwrap().take()));
    rig.add("stays", 100);
    let stays = std::thread::scope(|threads| threads.spawn(|| rig.lock("stays", 0)).join().unwrap());
    let locked = rig.cache.lock(&key("waits"), Some(0)).unwrap();
    assert_eq!(locked.report().missing_bytes, 0);
    assert!(locked.report().waited < longest, "it waited for the other one as well");
    drop(stays);
}

#[test]
fn a_model_that_is_dropped_while_its_lock_waits_in_vain_is_gone_afterwards() {
    let rig = waiting(Duration::from_millis(30), |cache, _| drop(cache.drop_model(&key("waits"))));
    assert!(rig.cache.lock(&key("waits"), Some(0)).unwrap_err().is_out_of_memory());
    assert!(rig.cache.model(&key("waits")).is_none());
    assert!(rig.cache.model(&key("held")).is_some());
}

#[test]
fn a_thread_that_waited_and_went_on_is_waited_for_like_any_other() {
    let rig = waiting(Duration::from_millis(30), |_, held| drop(held.lock().unwrap().take()));
    rig.cache.add(model("third", 700).whole()).unwrap();
    let locked = rig.cache.lock(&key("waits"), Some(0)).unwrap();
    let watcher = Arc::new(Watcher::default());
    rig.cache.observe(watcher.clone());
    let third = std::thread::scope(|threads| {
        threads.spawn(|| rig.cache.lock(&key("third"), Some(0)).map(drop)).join().unwrap()
    });
    assert!(third.unwrap_err().is_out_of_memory());
    assert!(watcher.take().iter().any(|event| matches!(event, Event::WaitingForRoom { .. })));
    drop(locked);
}
