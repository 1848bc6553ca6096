//! What holds after any sequence of locks, whatever the models, the allocator and the device.

use headroom_base::{AllocatorKind, MIB, budget};
use headroom_device::cache::{LockReport, TOLERANCE_BYTES};
use headroom_device::{ModelKey, ModelSpec, PieceSpec};
use proptest::prelude::*;

use crate::rig::{Rig, Wishes};

/// A model as (pieces of 20 MiB, how many of them are required, whether it can only be loaded whole).
type Model = (u64, u64, bool);

/// A lock as (which model, working memory in MiB, whether it is kept while later locks come).
type Lock = (usize, Option<u64>, bool);

fn models() -> impl Strategy<Value = Vec<Model>> {
    prop::collection::vec((1_u64..60, 0_u64..8, prop::bool::weighted(0.2)), 2..6)
}

fn locks() -> impl Strategy<Value = Vec<Lock>> {
    prop::collection::vec((0_usize..6, prop::option::of(0_u64..1_500), prop::bool::weighted(0.3)), 1..14)
}

fn key(index: usize) -> ModelKey {
    ModelKey::submodel("m", format!("{index}"))
}

fn add(rig: &Rig, index: usize, (pieces, required, whole): Model) {
    let piece = |number: u64| {
        let name = number.to_string();
        if number < required { PieceSpec::required(name, 20 * MIB) } else { PieceSpec::new(name, 20 * MIB) }
    };
    let spec = ModelSpec::synthetic(key(index), (0..pieces).map(piece));
    rig.cache.add(if whole { spec.whole() } else { spec }).unwrap();
}

/// The other models' resident bytes.
fn others(rig: &Rig, own: &ModelKey) -> Vec<(ModelKey, u64, bool)> {
    let others = rig.cache.models().into_iter().filter(|model| model.key != *own);
    others.map(|model| (model.key, model.resident_bytes, model.locks > 0)).collect()
}

/// What must hold after a lock that was granted.
fn check(rig: &Rig, own: &ModelKey, report: &LockReport, before: &[(ModelKey, u64, bool)], asked_mib: Option<u64>) {
    let sizes: Vec<_> = report.moves.iter().filter(|moved| moved.key != *own).collect();
    for (moved, next) in sizes.iter().zip(sizes.iter().skip(1)) {
        assert_eq!(moved.remaining_bytes, 0, "only the last one goes in part");
        let total = |key: &ModelKey| rig.cache.model(key).unwrap().total_bytes;
        assert!(total(&moved.key) <= total(&next.key), "smallest first");
    }
    for (key, bytes, locked) in before.iter().filter(|(_, _, locked)| *locked) {
        assert_eq!(rig.cache.model(key).unwrap().resident_bytes, *bytes, "{key} is in use ({locked}) and was moved");
    }
    let last_other_bytes = sizes.last().map_or(0, |moved| moved.bytes);
    let figures = rig.device.figures().unwrap();
    let settings = rig.cache.settings();
    let asked = if report.beyond_device.is_some() { None } else { asked_mib.map(|mib| mib * MIB) };
    let now = budget(&figures, asked, settings.floor_bytes, settings.cap);
    if report.pressure.is_none() {
        assert!(now.budget_bytes >= -(TOLERANCE_BYTES as i64), "working memory is short and nobody said so: {now:?}");
    }
    if last_other_bytes > 0
        && report.pressure.is_none()
        && report.missing_bytes == 0
        && report.moves.len() == sizes.len()
    {
        let spare = now.budget_bytes - last_other_bytes as i64;
        assert!(spare < 20 * MIB as i64, "the last move was not needed: {now:?}");
    }
    assert!(now.available_bytes <= figures.total_bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn locks_keep_their_promises(
        specs in models(),
        locks in locks(),
        kind in prop::sample::select(&[AllocatorKind::Native, AllocatorKind::ExpandableSegments][..]),
        card_mib in 1_000_u64..3_000,
        floor_mib in 0_u64..400,
    ) {
        let rig = Wishes::mib(card_mib).floor_mib(floor_mib).allocator(kind).rig();
        for (index, spec) in specs.iter().enumerate() {
            add(&rig, index, *spec);
        }
        let mut held = Vec::new();
        for (index, asked_mib, kept) in locks {
            let own = key(index % specs.len());
            let before = others(&rig, &own);
            let own_before = rig.cache.model(&own).unwrap();
            match rig.cache.lock(&own, asked_mib.map(|mib| mib * MIB)) {
                Ok(locked) => {
                    let report = locked.report().clone();
                    check(&rig, &own, &report, &before, asked_mib);
                    let (pieces, required, whole) = specs[index % specs.len()];
                    let least = if whole { pieces } else { required.min(pieces) } * 20 * MIB;
                    assert!(report.resident_bytes >= least, "required pieces are missing");
                    if kept {
                        held.push(locked);
                    }
                }
                Err(error) => {
                    assert!(error.is_out_of_memory(), "{error}");
                    let after = rig.cache.model(&own).unwrap();
                    assert_eq!(after.locks, own_before.locks);
                    assert!(after.resident_bytes == 0 || own_before.locks > 0, "half a model was left behind");
                }
            }
            rig.assert_reconciled(0);
        }
        drop(held);
        rig.assert_empties();
    }
}
