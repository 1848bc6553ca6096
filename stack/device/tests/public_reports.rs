//! What people reported of PyTorch's allocator, with the numbers they gave.

use headroom_base::budget::credit_bytes;
use headroom_base::{AllocatorKind, Bytes, MIB};
use headroom_device::driver::CardSettings;
use headroom_device::{Allocator, Settings, SimulatedCard, SimulatedDriver};

/// <https://github.com/pytorch/pytorch/issues/35901>: a segment of 11,104 MiB, used once, takes 476 MiB of small blocks
/// in; a second such request fails although it would fit twice into what is reserved and not allocated.
fn a_large_block_again_after_small_ones(settings: Settings) -> (Allocator<SimulatedDriver>, bool) {
    let card = SimulatedCard::new(CardSettings::new((11_104 + 2_000) * MIB));
    let mut allocator = Allocator::new(card.driver(), settings);
    let first = allocator.allocate(11_104 * MIB).unwrap();
    allocator.free(first).unwrap();
    for index in 0..30 {
        allocator.allocate((if index < 26 { 16 } else { 15 }) * MIB).unwrap();
    }
    assert_eq!(allocator.counters().requested.current, 476 * MIB);
    let again = allocator.allocate(11_104 * MIB).is_ok();
    (allocator, again)
}

#[test]
fn a_live_block_pins_its_whole_segment_and_nothing_of_it_is_credited() {
    let (mut allocator, fits_again) = a_large_block_again_after_small_ones(Settings::default());
    assert!(!fits_again);
    let counters = allocator.counters();
    assert_eq!(counters.reserved.current - counters.allocated.current, 10_628 * MIB);
    assert_eq!((counters.num_alloc_retries, counters.num_ooms), (1, 1));
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.counters().reserved, counters.reserved, "something of it could be released");
    assert_eq!(credit_bytes(&allocator.figures().unwrap()), 0);
    let stranded: u64 = allocator.segments().iter().map(|segment| segment.stranded_bytes()).sum();
    assert_eq!(stranded, 10_628 * MIB);
}

#[test]
fn a_split_limit_or_expandable_segments_keep_the_small_blocks_from_stranding_it() {
    let (_, fits_again) = a_large_block_again_after_small_ones(Settings::default().with_max_split_mib(512));
    assert!(fits_again, "with a split limit the small blocks get segments of their own");
    let expandable = Settings::of_kind(AllocatorKind::ExpandableSegments);
    let (_, fits_again) = a_large_block_again_after_small_ones(expandable);
    assert!(fits_again, "with expandable segments the pages around them are mapped elsewhere");
}

/// <https://github.com/Comfy-Org/ComfyUI/pull/11154>: a load that fits by a few MiB does not, since the stream-ordered
/// pool grows in steps of 32 MiB. There it was the step of each chunk; the recorded pools fill a step before the next.
#[test]
fn a_load_that_fits_by_less_than_a_pool_step_does_not_fit() {
    for (free_mib, resident) in [(992, 10), (991, 9), (970, 9)] {
        let card = SimulatedCard::new(CardSettings::new(free_mib * MIB));
        let mut allocator = Allocator::new(card.driver(), Settings::of_kind(AllocatorKind::CudaMallocAsync));
        let loaded = (0..10).take_while(|_| allocator.allocate(97 * MIB).is_ok()).count();
        assert_eq!(loaded, resident, "{} free", Bytes(free_mib * MIB));
        assert!(allocator.counters().reserved.current.is_multiple_of(32 * MIB));
    }
}
