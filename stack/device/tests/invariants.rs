//! Whatever is asked of the allocator, in any order and under any settings, its books stay right.

mod scripts;

use headroom_base::MIB;
use headroom_device::driver::CardSettings;
use headroom_device::{Settings, SimulatedCard};
use proptest::prelude::*;
use scripts::{Step, allocator, assert_everything_goes_back, assert_peaks_did_not_fall, assert_sound, many_settings};

const CARD_BYTES: u64 = 512 * MIB;

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..4_096_u64,
        3 => 4_096..2 * MIB,
        3 => MIB..24 * MIB,
        1 => 20 * MIB..160 * MIB,
        1 => Just(600 * MIB),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => sizes().prop_map(Step::Allocate),
        9 => any::<prop::sample::Index>().prop_map(|index| Step::Free(index.index(1 << 20))),
        1 => Just(Step::EmptyCache),
        1 => Just(Step::ResetPeaks),
        1 => (0..4_u64).prop_map(|quarter| Step::Others(quarter * CARD_BYTES / 8)),
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    prop::sample::select(many_settings())
}

/// Runs a script and checks everything after every step.
fn run(settings: &Settings, limit_bytes: Option<u64>, script: &[Step]) {
    let card = SimulatedCard::new(CardSettings::new(CARD_BYTES));
    let mut allocator = allocator(settings, &card, limit_bytes);
    let mut live = Vec::new();
    for step in script {
        let before = allocator.counters();
        match *step {
            Step::Allocate(bytes) => match allocator.allocate(bytes) {
                Ok(allocation) => live.push(allocation),
                Err(error) => {
                    assert!(error.is_out_of_memory(), "{error}");
                    let after = allocator.counters();
                    assert_eq!(after.allocated, before.allocated);
                    assert_eq!(after.active, before.active);
                    assert_eq!(after.requested, before.requested);
                    assert_eq!(after.num_ooms, before.num_ooms + 1);
                }
            },
            Step::Free(number) if !live.is_empty() => {
                let allocation = live.swap_remove(number % live.len());
                allocator.free(allocation).unwrap();
                let counters = allocator.counters();
                assert!(allocator.free(allocation).is_err(), "a second free was accepted");
                assert_eq!(allocator.counters(), counters, "a refused free changed something");
            }
            Step::Free(_) => {}
            Step::EmptyCache => allocator.empty_cache().unwrap(),
            Step::ResetPeaks => allocator.reset_peaks(),
            Step::Others(bytes) => card.set_others_bytes(bytes),
        }
        assert_sound(&allocator, &live);
        if !matches!(step, Step::ResetPeaks) {
            assert_peaks_did_not_fall(&before, &allocator.counters());
        }
        if let Some(limit) = limit_bytes.filter(|_| settings.kind != headroom_base::AllocatorKind::CudaMallocAsync) {
            // Under expandable segments a page can be larger than the segment that was compared with the limit.
            let page = settings.large_segment_bytes;
            assert!(allocator.counters().reserved.current <= limit + page);
        }
    }
    assert_everything_goes_back(&mut allocator, &mut live);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_books_stay_right(
        settings in settings(),
        limit_mib in prop::option::of(60..400_u64),
        script in prop::collection::vec(steps(), 1..160),
    ) {
        run(&settings, limit_mib.map(|mib| mib * MIB), &script);
    }

    #[test]
    fn a_handle_of_one_allocator_frees_nothing_of_another(sizes in prop::collection::vec(sizes(), 1..20)) {
        let (first_card, second_card) = (SimulatedCard::with_gib(64), SimulatedCard::with_gib(64));
        let mut first = allocator(&Settings::default(), &first_card, None);
        let mut second = allocator(&Settings::default(), &second_card, None);
        for bytes in sizes {
            let (mine, other) = (first.allocate(bytes).unwrap(), second.allocate(bytes).unwrap());
            prop_assert_eq!(mine.address(), other.address());
            let before = second.counters();
            prop_assert!(second.free(mine).is_err());
            prop_assert_eq!(second.counters(), before);
        }
    }
}

#[test]
fn requests_that_no_device_can_hold_are_out_of_memory_and_never_a_panic() {
    let card = SimulatedCard::with_gib(1);
    for settings in many_settings() {
        let mut allocator = allocator(&settings, &card, None);
        for bytes in [1 << 40, (1 << 60) - 1, 1 << 60, u64::MAX - 511, u64::MAX] {
            let error = allocator.allocate(bytes).unwrap_err();
            assert!(error.is_out_of_memory(), "{settings:?} {error}");
        }
        assert_sound(&allocator, &[]);
        assert_everything_goes_back(&mut allocator, &mut Vec::new());
    }
}
