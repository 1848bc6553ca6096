//! What a device could never give: it is said, and nobody is moved off for it.

use headroom_base::{AllocatorKind, Cap, MIB};
use headroom_device::cache::Beyond;
use headroom_device::{ModelSpec, PieceSpec};

use crate::rig::{Rig, Wishes, key, model, warnings};

/// A card of 12 GiB with a context of 500 MiB and three idle models of 2 GiB.
fn three_idle(kind: AllocatorKind) -> Rig {
    let rig = Wishes::mib(12_288).context_mib(500).floor_mib(3_072).allocator(kind).rig();
    for name in ["one", "two", "three"] {
        rig.add(name, 2_048);
        rig.load(name);
    }
    rig
}

fn idle_mib(rig: &Rig) -> u64 {
    ["one", "two", "three"].map(|name| rig.resident_mib(name)).iter().sum()
}

#[test]
fn a_model_that_can_never_be_loaded_is_said_and_moves_nobody() {
    for kind in AllocatorKind::ALL {
        let whole = ModelSpec::of_bytes("huge", 20_480 * MIB, 200).whole();
        let required = ModelSpec::synthetic("huge", [PieceSpec::required("all", 20_480 * MIB)]);
        let few = (0..3).map(|index| PieceSpec::required(index.to_string(), 4_000 * MIB));
        let too_many = ModelSpec::synthetic("huge", few.chain([PieceSpec::new("more", MIB)]));
        for spec in [whole, required, too_many] {
            let rig = three_idle(kind);
            rig.cache.add(spec).unwrap();
            let mut outcome = None;
            let lines = warnings(|| outcome = Some(rig.cache.lock(&key("huge"), None).map(drop)));
            assert!(outcome.unwrap().unwrap_err().is_out_of_memory());
            assert_eq!(idle_mib(&rig), 6_144, "{kind}");
            assert!(lines.len() == 1 && lines[0].contains("could never give more than 11.51 GiB"), "{lines:?}");
            assert_eq!((rig.view("huge").resident_bytes, rig.view("huge").locks), (0, 0));
        }
    }
}

#[test]
fn a_piece_that_can_never_be_loaded_is_said_and_moves_nobody() {
    let rig = three_idle(AllocatorKind::Native);
    rig.cache
        .add(ModelSpec::synthetic("m", [PieceSpec::new("huge", 20_480 * MIB), PieceSpec::new("small", MIB)]))
        .unwrap();
    let mut report = None;
    let lines = warnings(|| report = Some(rig.cache.lock(&key("m"), None).unwrap().report().clone()));
    let report = report.unwrap();
    let beyond = report.beyond_device.expect("20 GiB are more than the card has");
    assert_eq!((beyond.what, beyond.asked_bytes), (Beyond::Weights, 20_480 * MIB));
    assert_eq!(beyond.most_bytes, (12_288 - 500 - 3_072) * MIB);
    assert_eq!((report.resident_bytes, report.pressure, idle_mib(&rig)), (MIB, None, 6_144));
    assert!(lines.len() == 1 && lines[0].contains("m asks for 20.00 GiB of weights"), "{lines:?}");
}

/// Of 8,716 MiB that could be had: a mebibyte more is within what tracking may be off by.
#[test]
fn a_piece_as_large_as_can_be_had_with_the_tolerance_is_not_beyond_the_device_and_a_byte_more_is() {
    for (bytes, is_beyond) in [(8_717 * MIB, false), (8_717 * MIB + 1, true)] {
        let rig = three_idle(AllocatorKind::Native);
        rig.cache
            .add(ModelSpec::synthetic("m", [PieceSpec::new("edge", bytes), PieceSpec::new("small", MIB)]))
            .unwrap();
        let report = rig.cache.lock(&key("m"), None).unwrap().report().clone();
        assert_eq!(report.beyond_device.map(|beyond| beyond.asked_bytes), is_beyond.then_some(bytes));
    }
}

#[test]
fn of_a_model_larger_than_the_device_as_much_is_loaded_as_can_be_and_nothing_is_said() {
    let rig = three_idle(AllocatorKind::Native);
    rig.add("large", 20_480);
    let mut report = None;
    let lines = warnings(|| report = Some(rig.cache.lock(&key("large"), None).unwrap().report().clone()));
    let report = report.unwrap();
    assert_eq!((report.beyond_device, report.pressure), (None, None));
    assert_eq!((report.resident_bytes / MIB, idle_mib(&rig), lines.len()), (8_700, 0, 0));
}

#[test]
fn working_memory_that_only_a_card_without_this_process_had_is_beyond_it() {
    for (asked_mib, beyond) in [(12_288, true), (11_789, true), (11_788, false)] {
        let rig = three_idle(AllocatorKind::Native);
        rig.cache.add(model("none", 0)).unwrap();
        let locked = rig.lock("none", asked_mib);
        let said = locked.report().beyond_device.clone();
        assert_eq!(said.map(|said| said.most_bytes), beyond.then_some(11_788 * MIB), "{asked_mib}");
        assert_eq!(idle_mib(&rig), if beyond { 6_144 } else { 0 });
    }
}

#[test]
fn other_processes_may_end_and_a_cap_does_not() {
    let asks = |wishes: Wishes| {
        let rig = wishes.context_mib(500).rig();
        rig.cache.add(model("none", 0)).unwrap();
        rig.lock("none", 9_000).report().beyond_device.clone().map(|beyond| beyond.most_bytes / MIB)
    };
    assert_eq!(asks(Wishes::mib(12_288).others_mib(6_000)), None);
    assert_eq!(asks(Wishes { cap: Cap::Bytes(8_000 * MIB), ..Wishes::mib(12_288) }), Some(8_000));
}

#[test]
fn where_nobody_knows_what_the_process_keeps_the_whole_device_is_the_limit() {
    let mut wishes = Wishes::mib(12_288).context_mib(500);
    wishes.card.tells_process_bytes = false;
    let rig = wishes.rig();
    rig.cache.add(model("none", 0)).unwrap();
    assert_eq!(rig.lock("none", 12_288).report().beyond_device, None);
    let beyond = rig.lock("none", 12_289).report().beyond_device.clone();
    assert_eq!(beyond.map(|beyond| beyond.most_bytes), Some(12_288 * MIB));
}
