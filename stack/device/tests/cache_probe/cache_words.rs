//! What a cache says, to whom, and how often.

use std::sync::Arc;
use std::time::Duration;

use headroom_base::MIB;
use headroom_device::cache::Event;
use headroom_device::{LockedModel, ModelSpec, PieceSpec};

use crate::rig::{Rig, Watcher, Wishes, in_scope, key, model, warnings};

#[test]
fn the_warning_says_what_must_be_loaded_and_names_only_what_is_on_the_device() {
    let rig = Wishes::mib(1_000).floor_mib(700).rig();
    rig.add("never loaded", 100);
    rig.cache.add(model("m", 600).whole()).unwrap();
    let lines = warnings(|| drop(rig.lock("m", 0)));
    assert_eq!(
        lines,
        ["too little device memory to lock m with 700 MiB of working memory: the budget is 300 MiB for 600 MiB that \
          must be loaded after everything unlocked was moved off. Resident: no model"]
    );
}

#[test]
fn a_request_beyond_the_device_is_said_once_a_stream_and_again_of_a_model_that_came_anew() {
    let rig = Wishes::mib(1_000).rig();
    ["a", "b"].iter().for_each(|name| rig.add(name, 100));
    let said = |name: &str| warnings(|| drop(rig.lock(name, 2_000))).len();
    assert_eq!(["a", "a", "b", "b", "a"].map(said), [1, 0, 1, 0, 0]);
    rig.cache.drop_model(&key("a")).unwrap();
    rig.add("a", 100);
    assert_eq!(["b", "a", "a", "b"].map(said), [0, 1, 0, 0]);
}

#[test]
fn a_shortage_is_said_again_of_a_model_that_came_anew() {
    let rig = Wishes::mib(1_000).rig();
    let said = || {
        rig.add("m", 500);
        let lines = [(); 2].map(|()| warnings(|| drop(rig.cache.lock(&key("m"), Some(1_000 * MIB)))).len());
        rig.cache.drop_model(&key("m")).unwrap();
        lines
    };
    rig.card.set_others_bytes(100 * MIB);
    assert_eq!([said(), said()], [[1, 0], [1, 0]]);
}

#[test]
fn nothing_is_told_of_models_that_were_not_there_to_be_moved() {
    let rig = Wishes::mib(1_000).rig();
    ["here", "not here"].iter().for_each(|name| rig.add(name, 100));
    let watcher = Arc::new(Watcher::default());
    rig.cache.observe(watcher.clone());
    let moved = || {
        let moves = watcher.take().into_iter().filter_map(|event| match event {
            Event::Offloaded { key, .. } => Some(key.to_string()),
            _ => None,
        });
        moves.collect::<Vec<_>>()
    };
    rig.load("here");
    rig.cache.offload_unlocked().unwrap();
    assert_eq!(moved(), ["here"]);
    in_scope(0, |_| assert!(rig.lock("here", 10).report().moves.is_empty()));
    assert!(moved().is_empty());
}

/// Whether a lock of a model that has no room says that it waits, where `others` are locked by somebody else.
fn says_that_it_waits(rig: &Rig, others: &[&str], keeps: &[LockedModel]) -> bool {
    let held: Vec<_> = std::thread::scope(|threads| {
        threads.spawn(|| others.iter().map(|name| rig.lock(name, 0)).collect()).join().unwrap()
    });
    rig.cache.add(model("wanted", 900).whole()).unwrap();
    let watcher = Arc::new(Watcher::default());
    rig.cache.observe(watcher.clone());
    let keeps: Vec<_> = keeps.iter().collect();
    assert!(rig.cache.lock_beside(&key("wanted"), Some(0), &keeps).unwrap_err().is_out_of_memory());
    drop(held);
    watcher.take().iter().any(|event| matches!(event, Event::WaitingForRoom { .. }))
}

#[test]
fn a_lock_says_that_it_waits_only_where_anothers_unlock_would_make_room() {
    let rig = || {
        let rig = Wishes::mib(1_000).wait(Duration::from_millis(1)).rig();
        rig.add("a", 500);
        rig.cache.add(model("on the host", 500).on_host()).unwrap();
        rig
    };
    assert!(says_that_it_waits(&rig(), &["a"], &[]));
    let own = rig();
    let held = own.lock("a", 0);
    assert!(!says_that_it_waits(&own, &[], &[held]), "nobody but itself is in the way");
    let own = rig();
    let held = own.lock("a", 0);
    assert!(
        !says_that_it_waits(&own, &["on the host"], &[held]),
        "who holds nothing on the device makes no room there"
    );
}

#[test]
fn what_models_hold_is_compared_with_what_was_handed_out_to_the_byte() {
    let rig = Wishes::mib(1_000).rig();
    rig.add("m", 100);
    rig.load("m");
    let _held = rig.hold(50);
    let differ = |others_bytes: u64| rig.cache.reconcile(others_bytes).unwrap().map_err(|error| error.difference_bytes);
    assert_eq!(differ(50 * MIB), Ok(()));
    assert_eq!(differ(0), Err(50 * MIB as i64));
    assert_eq!(differ(50 * MIB + 1), Err(-1));
}

#[test]
fn a_locked_models_pieces_are_named_in_order_with_where_each_lies() {
    let rig = Wishes::mib(1_000).rig();
    let pieces = [PieceSpec::new("first", 600 * MIB), PieceSpec::new("second", 700 * MIB)];
    rig.cache.add(ModelSpec::synthetic("m", pieces)).unwrap();
    let locked = rig.lock("m", 0);
    let weights = locked.weights();
    let shown: Vec<_> = weights.iter().map(|one| (one.name.as_str(), one.bytes / MIB, one.holding.is_some())).collect();
    assert_eq!(shown, [("first", 600, true), ("second", 700, false)]);
    assert_eq!(weights[0].holding.unwrap().bytes(), 600 * MIB);
    assert!(weights.iter().all(|one| !one.has_contents), "synthetic weights have none");
}
