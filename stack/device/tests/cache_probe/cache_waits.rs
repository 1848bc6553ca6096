//! What a lock does about memory that comes back, or does not, while it is under way.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headroom_base::{AllocatorKind, MIB};
use headroom_device::cache::{Dropped, Event, Observer};
use headroom_device::driver::RetainedPool;
use headroom_device::probe::HookError;
use headroom_device::{LockedModel, ModelSpec, PieceSpec};

use crate::rig::{Rig, Watcher, Wishes, in_scope, key, only_window};

/// Far beyond what anything here takes, so that what never comes is a failure and not a wait for ever.
const LONG: Duration = Duration::from_secs(60);

/// Enough to be announced, and over at once.
const SHORT: Duration = Duration::from_millis(1);

/// Two locks that run out of room: the second looks and finds the first one running; before it waits, the first fails.
struct Meeting {
    /// Another model's lock, which ends once the first lock has looked.
    held: Mutex<Option<LockedModel>>,
    first_looked: Sender<()>,
    second_looked: (Sender<()>, Mutex<Receiver<()>>),
    first_failed: (Sender<()>, Mutex<Receiver<()>>),
}

impl Observer for Meeting {
    fn event(&self, event: &Event) -> Result<(), HookError> {
        let hear = |said: &Mutex<Receiver<()>>| said.lock().unwrap().recv_timeout(LONG).unwrap();
        match event {
            Event::WaitingForRoom { key, .. } if key.to_string() == "first" => {
                drop(self.held.lock().unwrap().take());
                self.first_looked.send(()).unwrap();
                hear(&self.second_looked.1);
            }
            Event::WaitingForRoom { .. } => {
                self.second_looked.0.send(()).unwrap();
                hear(&self.first_failed.1);
            }
            Event::LockFailed { .. } => self.first_failed.0.send(()).unwrap(),
            _ => {}
        }
        Ok(())
    }
}

/// A model of two pieces that it cannot do without and a small one that it can.
fn three_pieces(name: &str, required_mib: [u64; 2]) -> ModelSpec {
    let required = required_mib.map(|mib| PieceSpec::required(format!("{mib}"), mib * MIB));
    ModelSpec::synthetic(name, required.into_iter().chain([PieceSpec::new("more", 40 * MIB)]))
}

/// A card of 1,000 MiB with 600 used by others; 300 are the first model's, of which 320 are missing, and 60 are held.
fn crowded() -> Rig {
    let rig = Wishes::mib(1_000).wait(LONG).rig();
    rig.cache.add(three_pieces("first", [300, 320])).unwrap();
    rig.cache.add(three_pieces("second", [100, 80])).unwrap();
    rig.load("first");
    rig.add("held", 60);
    rig.add("passing", 580);
    rig.load("passing");
    rig.cache.drop_model(&key("passing")).unwrap();
    rig.device.empty_cache().unwrap();
    assert_eq!(rig.resident_mib("first"), 300);
    rig.card.set_others_bytes(600 * MIB);
    rig
}

#[test]
fn a_lock_that_fails_between_anothers_look_and_its_wait_leaves_it_the_room() {
    let rig = crowded();
    let (first_looked, first_looks) = channel();
    let ((said_second, hears_second), (said_failed, hears_failed)) = (channel(), channel());
    let meeting = Meeting {
        held: Mutex::new(Some(rig.lock("held", 0))),
        first_looked,
        second_looked: (said_second, Mutex::new(hears_second)),
        first_failed: (said_failed, Mutex::new(hears_failed)),
    };
    rig.cache.observe(Arc::new(meeting));
    std::thread::scope(|threads| {
        let first = threads.spawn(|| rig.cache.lock(&key("first"), Some(0)).map(drop));
        first_looks.recv_timeout(LONG).unwrap();
        let second = rig.lock("second", 0);
        assert_eq!(second.report().missing_bytes, 0, "the first one's 300 MiB came back, and nobody looked");
        assert!(first.join().unwrap().unwrap_err().is_out_of_memory());
    });
    rig.assert_empties();
}

#[test]
fn a_load_takes_no_more_than_the_driver_was_seen_to_give_back() {
    let mut wishes = Wishes::mib(8_000);
    wishes.card.retained = Some(RetainedPool { most_bytes: 500 * MIB, reused: false });
    let rig = wishes.rig();
    rig.add("m", 7_800);
    rig.free_and_unreleased(6_000);
    let locked = rig.lock("m", 0);
    assert_eq!(locked.report().resident_bytes, 7_500 * MIB);
    assert_eq!(rig.device.counters().unwrap().num_ooms, 0);
}

#[test]
fn nothing_is_given_back_for_a_load_that_the_driver_has_room_for() {
    for (kind, working_mib) in [
        (AllocatorKind::Native, 2_500),
        (AllocatorKind::ExpandableSegments, 2_500),
        (AllocatorKind::CudaMallocAsync, 3_400),
    ] {
        let rig = Wishes::mib(4_000).allocator(kind).rig();
        rig.add("m", 200);
        rig.free_and_unreleased(1_000);
        let reserved_bytes = rig.device.figures().unwrap().reserved_bytes;
        assert!(reserved_bytes >= 1_000 * MIB);
        let locked = rig.lock("m", working_mib);
        assert_eq!(locked.report().missing_bytes, 0);
        assert!(rig.device.figures().unwrap().reserved_bytes >= reserved_bytes, "{kind}");
    }
}

#[test]
fn where_no_model_moves_what_lies_idle_stays_for_the_next_lock() {
    let rig = Wishes::mib(4_000).rig();
    rig.add("m", 200);
    rig.free_and_unreleased(1_000);
    assert_eq!(rig.cache.offload_unlocked().unwrap(), 0);
    assert_eq!(rig.device.figures().unwrap().reserved_bytes, 1_000 * MIB);
    rig.load("m");
    assert_eq!(rig.cache.offload_unlocked().unwrap(), 200 * MIB);
    assert_eq!(rig.device.figures().unwrap().reserved_bytes, 0);
}

#[test]
fn dropping_a_model_that_is_not_on_the_device_changes_nothing_for_a_window() {
    let rig = Wishes::mib(4_000).rig();
    rig.add("measured", 200);
    rig.add("not here", 200);
    let scope = in_scope(0, |_| {
        let locked = rig.lock("measured", 10);
        assert_eq!(rig.cache.drop_model(&key("not here")).unwrap(), Dropped::Now);
        drop(locked);
    });
    assert_eq!(only_window(&scope).1, 1);
}

#[test]
fn a_lock_waits_for_what_the_driver_cannot_hold_and_for_no_less() {
    for (needed_bytes, waits) in [(600 * MIB, false), (600 * MIB + 1, true), (601 * MIB, true)] {
        let rig = Wishes::mib(1_000).wait(SHORT).rig();
        rig.add("held", 400);
        rig.cache.add(ModelSpec::synthetic("wanted", [PieceSpec::required("all", needed_bytes)])).unwrap();
        let watcher = Arc::new(Watcher::default());
        rig.cache.observe(watcher.clone());
        let held = std::thread::scope(|threads| threads.spawn(|| rig.lock("held", 0)).join().unwrap());
        let fits = rig.cache.lock(&key("wanted"), Some(0)).is_ok();
        let said = watcher.take().iter().any(|event| matches!(event, Event::WaitingForRoom { .. }));
        assert_eq!((said, fits), (waits, needed_bytes <= 600 * MIB), "{needed_bytes}");
        drop(held);
    }
}

#[test]
fn a_lock_that_need_not_wait_does_not_say_that_it_does() {
    let rig = Wishes::mib(1_000).wait(SHORT).rig();
    rig.add("whole", 300);
    rig.add("in part", 1_400);
    let watcher = Arc::new(Watcher::default());
    rig.cache.observe(watcher.clone());
    let whole = std::thread::scope(|threads| threads.spawn(|| rig.lock("whole", 0)).join().unwrap());
    let in_part = rig.lock("in part", 0);
    assert_eq!([whole, in_part].map(|locked| locked.report().resident_bytes / MIB), [300, 700]);
    assert!(!watcher.take().iter().any(|event| matches!(event, Event::WaitingForRoom { .. })));
}
