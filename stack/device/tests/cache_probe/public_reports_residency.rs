//! Public reports about partial loads, offloading, eviction and who holds what. Sizes are MiB.

use headroom_base::{
    AllocatorKind, Capacity, CapacityTerms, Case, DType, Estimate, InvalidReason, LineKey, MIB, Operation, Plan,
    PricedCase, Reading, Source, Validity, Verdict,
};
use headroom_device::cache::ComputeOn;
use headroom_device::driver::CardSettings;
use headroom_device::{ModelSpec, PieceSpec};

use crate::rig::{Wishes, in_scope, key, model, only_window};

/// Report 29, https://github.com/invoke-ai/InvokeAI/issues/9257. The report's own recipe takes the floor away where an
/// operation states less. The floor stays: it is the device's working memory, set by its owner, and what the report
/// wants is had by setting it lower.
#[test]
fn r29_the_floor_stays_whatever_an_operation_states_and_is_the_owners_to_lower() {
    let resident = |floor: u64, stated: Option<u64>| {
        let rig = Wishes::mib(6_146).floor_mib(floor).rig();
        rig.cache.add(ModelSpec::synthetic("m", (0..3_988).map(|i| PieceSpec::new(format!("{i}"), MIB)))).unwrap();
        drop(rig.cache.lock(&key("m"), stated.map(|mib| mib * MIB)).unwrap());
        rig.resident_mib("m")
    };
    assert_eq!(resident(3_072, Some(900)), 3_074);
    assert_eq!(resident(3_072, None), 3_074);
    assert_eq!(resident(900, Some(900)), 3_988);
    assert_eq!(resident(900, None), 3_988);
}

/// Report 31, https://github.com/invoke-ai/InvokeAI/pull/9572
#[test]
fn r31_a_cap_is_a_policy_and_never_more_than_the_card_has() {
    for (cap, others) in [(8_192, 18_000), (8_192, 0), (30_000, 18_000)] {
        let rig = Wishes::mib(24_576).others_mib(others).cap_mib(cap).floor_mib(3_072).rig();
        rig.cache.add(ModelSpec::of_bytes("vae", 242 * MIB, 1)).unwrap();
        let vae = rig.cache.lock(&key("vae"), None).unwrap();
        rig.free_and_unreleased(200);
        drop(vae);
        rig.add("m", 20_000);
        let locked = rig.cache.lock(&key("vae"), None).unwrap();
        let budget = locked.report().budget;
        let free = 24_576 - others - 242 - 200;
        let physical = (free + 200) as i64 - 3_072;
        let policy = cap as i64 - 3_072 - 242;
        assert_eq!(budget.budget_bytes / MIB as i64, physical.min(policy), "cap {cap}, others {others}");
        assert_eq!(budget.available_bytes / MIB, free + 200 + 242, "what the card has is shown beside it");
        assert!(budget.available_bytes <= (24_576 - others) * MIB);
    }
}

/// Report 33, https://github.com/invoke-ai/InvokeAI/pull/6193
#[test]
fn r33_a_load_that_fails_half_way_leaves_nothing_stuck() {
    for spec in [
        model("m", 5_000).whole(),
        ModelSpec::synthetic("m", (0..250).map(|index| PieceSpec::required(format!("{index}"), 20 * MIB))),
    ] {
        let rig = Wishes::mib(12_012).others_mib(10_912).rig();
        rig.cache.add(spec).unwrap();
        let error = rig.cache.lock(&key("m"), None).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
        assert_eq!((rig.view("m").resident_bytes, rig.view("m").locks, rig.card.held_bytes()), (0, 0, 0));
        rig.card.set_others_bytes(0);
        let locked = rig.cache.lock(&key("m"), None).unwrap();
        assert_eq!((rig.resident_mib("m"), locked.report().missing_bytes), (5_000, 0));
    }
}

/// Report 35, https://github.com/invoke-ai/InvokeAI/pull/9375
#[test]
fn r35_a_model_computes_where_it_was_told_although_none_of_it_is_there() {
    let rig = Wishes::mib(4_000).rig();
    rig.add("vae", 242);
    rig.cache.add(model("clip", 200).on_host()).unwrap();
    let vae = rig.lock("vae", 3_990);
    assert_eq!((rig.resident_mib("vae"), vae.compute(), vae.device().id()), (0, ComputeOn::Device, rig.device.id()));
    assert_eq!(rig.lock("clip", 100).compute(), ComputeOn::Host);
}

/// Report 37, https://github.com/Comfy-Org/ComfyUI/issues/10855. Choosing tiles up front is the pipeline's.
#[test]
fn r37_after_an_out_of_memory_the_last_resident_bytes_can_go_and_the_retry_has_them() {
    let rig = Wishes::mib(9_000).rig();
    rig.cache.add(ModelSpec::synthetic("vae", (0..2_404).map(|i| PieceSpec::new(format!("{i}"), MIB)))).unwrap();
    let scope = in_scope(0, |_| {
        let locked = rig.lock("vae", 8_872);
        assert_eq!(rig.resident_mib("vae"), 128);
        assert!(rig.device.allocate(8_900 * MIB).is_err());
        locked.out_of_memory();
    });
    assert_eq!(only_window(&scope).2, Validity::Invalid(InvalidReason::OutOfMemory), "it is no measurement");
    rig.cache.offload_unlocked().unwrap();
    let locked = rig.lock("vae", 9_000);
    assert_eq!(rig.resident_mib("vae"), 0);
    assert!(rig.device.allocate(8_900 * MIB).is_ok());
    drop(locked);
}

/// Report 39, https://github.com/lllyasviel/stable-diffusion-webui-forge/issues/820
#[test]
fn r39_what_stays_leaves_the_inference_its_memory_and_ten_switches_leak_nothing() {
    let mib = |value: f64| (value * MIB as f64) as u64;
    for pieces in [1_639, 400, 100, 30] {
        let rig = {
            let mut wishes = Wishes::mib(0);
            wishes.card = CardSettings::new(mib(2_356.83));
            wishes.rig()
        };
        for name in ["a", "b"] {
            rig.cache.add(ModelSpec::of_bytes(name, mib(1_639.41), pieces)).unwrap();
        }
        let mut free = Vec::new();
        for switch in 0..20 {
            let name = if switch % 2 == 0 { "a" } else { "b" };
            let locked = rig.cache.lock(&key(name), Some(1_024 * MIB)).unwrap();
            assert!(locked.report().resident_bytes <= mib(2_356.83 - 1_024.0));
            assert!(locked.report().missing_bytes >= mib(306.58), "{pieces} pieces");
            assert!(rig.card.free_bytes() >= 1_024 * MIB, "segments of {pieces} pieces eat the working memory");
            free.push(rig.card.free_bytes());
            drop(locked);
            rig.cache.offload_unlocked().unwrap();
        }
        assert!(free.iter().all(|bytes| *bytes == free[0]), "{free:?}");
        rig.assert_empties();
    }
}

/// Report 41, https://github.com/huggingface/accelerate/pull/2412
#[test]
fn r41_buffers_that_must_stay_on_the_device_count_as_required() {
    let spec = |buffers_required: bool| {
        let layers = (0..20).map(move |index| {
            let (name, bytes) = (format!("layer.{index}.buffers"), 425 * MIB);
            if buffers_required { PieceSpec::required(name, bytes) } else { PieceSpec::new(name, bytes) }
        });
        let parameters = (0..90).map(|index| PieceSpec::required(format!("parameters.{index}"), 100 * MIB));
        ModelSpec::synthetic("gptq", parameters.chain(layers))
    };
    let rig = Wishes::mib(16_000).rig();
    rig.cache.add(spec(true)).unwrap();
    assert!(rig.cache.lock(&key("gptq"), None).unwrap_err().is_out_of_memory());
    rig.assert_empties();
    let rig = Wishes::mib(16_000).rig();
    rig.cache.add(spec(false)).unwrap();
    let locked = rig.cache.lock(&key("gptq"), None).unwrap();
    assert!(locked.report().resident_bytes <= 16_000 * MIB && locked.report().resident_bytes >= 9_000 * MIB);
}

/// Report 43, https://github.com/huggingface/accelerate/pull/2994
#[test]
fn r43_what_an_offload_freed_goes_back_before_differently_sized_weights_come() {
    let blocks = |name: &str, count: u64, each: u64| {
        ModelSpec::synthetic(name, (0..count).map(|index| PieceSpec::new(format!("{index}"), each * MIB)))
    };
    for kind in [AllocatorKind::Native, AllocatorKind::ExpandableSegments] {
        let rig = Wishes::mib(8_000).allocator(kind).rig();
        rig.cache.add(blocks("a", 17, 300)).unwrap();
        rig.cache.add(blocks("b", 7, 714)).unwrap();
        rig.load("a");
        rig.cache.offload_unlocked().unwrap();
        assert_eq!(rig.card.held_bytes(), 0, "{kind}: the reserve was kept");
        let locked = rig.lock("b", 2_500);
        let working = rig.hold(2_500);
        assert!(rig.card.held_bytes() <= 7_540 * MIB, "{kind}");
        rig.device.free(working).unwrap();
        drop(locked);

        // The same by a lock that makes room for itself.
        rig.load("a");
        let locked = rig.lock("b", 2_500);
        assert!(rig.device.allocate(2_490 * MIB).is_ok(), "{kind}");
        assert_eq!(rig.device.counters().unwrap().num_alloc_retries, 0, "{kind}: the trim came too late");
        drop(locked);
    }
}

/// Report 45, https://github.com/leejet/stable-diffusion.cpp/pull/1621
#[test]
fn r45_a_plan_counts_every_buffer_and_a_cap_on_single_allocations_is_an_out_of_memory() {
    let terms = CapacityTerms {
        total_bytes: 16_384 * MIB,
        outside_now_bytes: 95 * MIB,
        outside_floor_bytes: 0,
        context_bytes: 300 * MIB,
        retained_bytes: Reading::Unknown,
        locked_weights_bytes: 0,
        cap: headroom_base::Cap::Unlimited,
    };
    for (needed, fits) in [(14_978, true), (14_978 + 1_210, false)] {
        let case = Case::image(Operation::VaeDecode, DType::Fp16, 1024, 1024);
        let line = LineKey {
            estimator: "r45".into(),
            estimator_version: 1,
            operation: case.operation,
            dtype: case.dtype,
            tiling: None,
            tokens: None,
        };
        let estimate = Estimate { reservation_bytes: needed * MIB, ..Estimate::new(0, 0, Source::BuiltIn) };
        let priced = PricedCase { case, line, cost_units: 1, estimate };
        let plan = Plan::new(Capacity::new(terms), vec![priced], 0, 0);
        assert_eq!(plan.cases[0].verdict == Verdict::Fits, fits, "{needed}");
    }

    let mut wishes = Wishes::mib(20_300);
    wishes.card.most_allocation_bytes = Some(2_048 * MIB);
    let rig = wishes.rig();
    rig.add("vae", 300);
    let scope = in_scope(0, |_| {
        let locked = rig.lock("vae", 2_560);
        let error = rig.device.allocate(2_560 * MIB).unwrap_err();
        assert!(error.is_out_of_memory());
        locked.operation_failed(error);
    });
    assert_eq!(only_window(&scope).2, Validity::Invalid(InvalidReason::OutOfMemory));
    assert!(rig.device.allocate(2_048 * MIB).is_ok());
}
