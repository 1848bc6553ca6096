//! A plan is priced by what is known now and offers only what the card can hold.

use headroom_base::{Cap, CapacityTerms, Case, DType, GIB, Operation, Plan, PlanNote, Reading, Source, Verdict};
use headroom_calibration::{BuiltIns, CaseToPlan, Costs, Knowledge, PlanTerms, Record};

use crate::fixture::{MIB, context, device, finished, line, line_of, soft, straight, terms, units, windows};

crate::claims![
    a_plan_is_priced_by_the_store_of_now,
    what_the_driver_retains_is_taken_from_the_record,
    a_size_that_leaves_no_room_for_the_whole_model_is_not_planned,
    the_floor_for_others_is_kept_when_they_are_idle,
    a_case_needs_its_allowance_too_and_never_less_than_the_floor,
    two_types_of_three_sizes_make_eighteen_runs,
];

fn case_to_plan(dtype: DType, side: u32, predicted_bytes: u64) -> CaseToPlan {
    CaseToPlan {
        case: Case::image(Operation::VaeDecode, dtype, side, side),
        line: headroom_base::LineKey { dtype, ..line() },
        costs: Costs { units: units(side), analytic_bytes: 0, predicted_bytes: Some(predicted_bytes) },
    }
}

fn plan_of(record: Record, cases: Vec<CaseToPlan>, capacity: CapacityTerms) -> Plan {
    let mut knowledge = Knowledge::new(Record::empty(device()), context(), soft("driver 1"));
    let terms = PlanTerms { capacity, measuring_allowance_bytes: 0, floor_bytes: 0 };
    knowledge.plan(record, cases, &BuiltIns::default(), terms)
}

fn record() -> Record {
    Record::empty(device())
}

fn fits_with(capacity: CapacityTerms, predicted_bytes: u64) -> bool {
    let plan = plan_of(record(), vec![case_to_plan(DType::Fp16, 512, predicted_bytes)], capacity);
    plan.cases[0].verdict == Verdict::Fits
}

/// The bytes whose price with margin is exactly what `terms` leave.
fn all_of(capacity: CapacityTerms) -> u64 {
    let bytes = headroom_base::Capacity::new(capacity).capacity_bytes;
    u64::try_from(bytes).unwrap() * 20 / 21
}

fn a_plan_is_priced_by_the_store_of_now() {
    let measured = windows("a", &straight(1_000));
    let mut now = record();
    now.keep_attempt(finished("a", &measured));
    now.windows = measured;
    let plan = plan_of(now, vec![case_to_plan(DType::Fp16, 1024, MIB)], terms());
    let estimate = plan.cases[0].priced.estimate;
    assert_eq!((estimate.source, estimate.empirical_bytes), (Source::User, units(1024) * 1_000));
}

fn what_the_driver_retains_is_taken_from_the_record() {
    let mut kept = record();
    for bytes in [300 * MIB, 700 * MIB, 500 * MIB] {
        kept.note_retained(bytes);
    }
    let cases = || vec![case_to_plan(DType::Fp16, 512, all_of(terms()))];
    let first = plan_of(record(), cases(), terms());
    assert_eq!(first.cases[0].verdict, Verdict::Fits);
    assert!(first.notes().contains(&PlanNote::RetainedUnknown));
    let second = plan_of(kept, cases(), terms());
    assert_eq!(second.capacity.terms.retained_bytes, Reading::Bytes(700 * MIB));
    assert_eq!(first.capacity.capacity_bytes - second.capacity.capacity_bytes, 700 * MIB as i64);
    assert!(matches!(second.cases[0].verdict, Verdict::DoesNotFit { .. }));
    assert!(!second.notes().contains(&PlanNote::RetainedUnknown));
}

fn a_size_that_leaves_no_room_for_the_whole_model_is_not_planned() {
    assert!(fits_with(terms(), all_of(terms())));
    assert!(!fits_with(terms(), all_of(terms()) + 100 * MIB));
    let capped = CapacityTerms { cap: Cap::Bytes(4 * GIB), ..terms() };
    assert!(fits_with(capped, 2 * GIB));
    assert!(!fits_with(capped, 3 * GIB));
}

fn a_case_needs_its_allowance_too_and_never_less_than_the_floor() {
    let plan_with = |measuring_allowance_bytes, floor_bytes| {
        let mut knowledge = Knowledge::new(record(), context(), soft("driver 1"));
        let terms = PlanTerms { capacity: terms(), measuring_allowance_bytes, floor_bytes };
        let cases = vec![case_to_plan(DType::Fp16, 512, all_of(crate::fixture::terms()))];
        knowledge.plan(record(), cases, &BuiltIns::default(), terms).cases[0].verdict
    };
    assert_eq!(plan_with(0, 0), Verdict::Fits);
    assert!(matches!(plan_with(GIB, 0), Verdict::DoesNotFit { short_bytes, .. } if short_bytes <= GIB));
    let floor = 15 * GIB;
    assert!(matches!(plan_with(0, floor), Verdict::DoesNotFit { needed_bytes, .. } if needed_bytes == floor));
}

fn the_floor_for_others_is_kept_when_they_are_idle() {
    let idle = CapacityTerms { outside_now_bytes: 0, ..terms() };
    let busy = CapacityTerms { outside_now_bytes: terms().outside_floor_bytes, ..terms() };
    assert_eq!(all_of(idle), all_of(busy));
}

fn two_types_of_three_sizes_make_eighteen_runs() {
    let both = [DType::Fp16, DType::Fp32].into_iter();
    let cases = both.flat_map(|dtype| [512, 768, 1024].map(|side| case_to_plan(dtype, side, GIB))).collect();
    let plan = plan_of(record(), cases, terms());
    assert_eq!(plan.runs().len(), 18);
    let encode = CaseToPlan { line: line_of(Operation::VaeEncode), ..case_to_plan(DType::Fp16, 512, 100 * GIB) };
    let alone = plan_of(record(), vec![encode], terms());
    assert!(matches!(alone.cases[0].verdict, Verdict::DoesNotFit { needed_bytes, .. } if needed_bytes == 105 * GIB));
    assert!(alone.notes().iter().any(|note| matches!(note, PlanNote::TooFewSizes { fitting: 0, .. })));
}
