//! Scripts for the allocator, and what must hold after every step of any of them.

#![allow(dead_code, reason = "each test file uses a part of it")]

use headroom_base::{AllocatorKind, MIB};
use headroom_device::allocator::{BlockView, SegmentView};
use headroom_device::{Allocation, Allocator, Counters, Settings, SimulatedCard, SimulatedDriver};

pub(crate) type Simulated = Allocator<SimulatedDriver>;

/// One thing that a script does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Allocate(u64),
    /// Frees one of the live allocations, chosen by this number modulo their count.
    Free(usize),
    EmptyCache,
    ResetPeaks,
    /// Sets what other processes hold.
    Others(u64),
}

/// Sums over what [`Allocator::segments`] shows, as the counters should have them.
fn assert_counters_are_sums(allocator: &Simulated, segments: &[SegmentView]) {
    let counters = allocator.counters();
    let pooled = allocator.settings().kind == AllocatorKind::CudaMallocAsync;
    let (mut allocated, mut requested, mut reserved, mut inactive_split, mut fixed) = (0, 0, 0, 0, 0);
    for segment in segments {
        reserved += segment.bytes;
        fixed += u64::from(!segment.is_expandable);
        for block in &segment.blocks {
            requested += block.requested_bytes.unwrap_or(0);
            match block.requested_bytes {
                Some(bytes) => allocated += if pooled { bytes } else { block.bytes },
                None if !segment.is_expandable && segment.blocks.len() > 1 => inactive_split += block.bytes,
                None => {}
            }
        }
    }
    assert_eq!(counters.allocated.current, allocated);
    assert_eq!(counters.active.current, allocated);
    assert_eq!(counters.requested.current, requested);
    assert_eq!(counters.reserved.current, reserved + allocator.pool_excess_bytes());
    assert_eq!(counters.inactive_split.current, inactive_split);
    assert_eq!(counters.segments.current, fixed);
}

fn assert_blocks_tile(segments: &[SegmentView]) {
    let mut free_from = 0;
    for segment in segments {
        assert!(segment.address.0 >= free_from, "two segments overlap");
        let mut at = segment.address.0;
        let mut before_is_free = false;
        for block in &segment.blocks {
            assert_eq!(block.address.0, at, "a gap or an overlap inside a segment");
            assert!(block.bytes > 0 && block.bytes.is_multiple_of(512));
            assert!(block.requested_bytes.is_none_or(|requested| requested <= block.bytes));
            assert!(block.is_allocated() || !before_is_free, "two free neighbours were not merged");
            before_is_free = !block.is_allocated();
            at += block.bytes;
        }
        free_from = segment.address.0 + segment.bytes;
        assert_eq!(at, free_from, "the blocks do not fill their segment");
    }
}

fn assert_live_is_what_is_allocated(segments: &[SegmentView], live: &[Allocation], is_pool: bool) {
    let blocks = segments.iter().flat_map(|segment| &segment.blocks).filter(|block| block.is_allocated());
    // With the stream-ordered pool a handle has what was asked, as the counters do.
    let counted = |block: &BlockView| if is_pool { block.requested_bytes.unwrap_or(0) } else { block.bytes };
    let mut shown: Vec<_> = blocks.map(|block| (block.address, counted(block))).collect();
    let mut held: Vec<_> = live.iter().map(|allocation| (allocation.address(), allocation.bytes())).collect();
    shown.sort_unstable();
    held.sort_unstable();
    assert_eq!(shown, held);
}

/// What must hold at any time.
pub(crate) fn assert_sound(allocator: &Simulated, live: &[Allocation]) {
    let segments = allocator.segments();
    assert_blocks_tile(&segments);
    assert_counters_are_sums(allocator, &segments);
    let is_pool = allocator.settings().kind == AllocatorKind::CudaMallocAsync;
    assert_live_is_what_is_allocated(&segments, live, is_pool);
    let counters = allocator.counters();
    assert_eq!(allocator.driver().card().held_bytes(), counters.reserved.current);
    for counter in six(&counters) {
        assert!(counter.peak >= counter.current);
    }
}

fn six(counters: &Counters) -> [headroom_device::Counter; 6] {
    let Counters { requested, allocated, active, reserved, inactive_split, segments, .. } = *counters;
    [requested, allocated, active, reserved, inactive_split, segments]
}

/// No peak and no count fell.
pub(crate) fn assert_peaks_did_not_fall(before: &Counters, after: &Counters) {
    for (before, after) in six(before).into_iter().zip(six(after)) {
        assert!(after.peak >= before.peak);
    }
    assert!(after.num_alloc_retries >= before.num_alloc_retries && after.num_ooms >= before.num_ooms);
}

/// Frees everything, empties the cache, and finds that the driver has every byte back.
pub(crate) fn assert_everything_goes_back(allocator: &mut Simulated, live: &mut Vec<Allocation>) {
    for allocation in live.drain(..) {
        allocator.free(allocation).unwrap();
    }
    allocator.empty_cache().unwrap();
    assert_sound(allocator, &[]);
    assert!(allocator.segments().is_empty());
    assert_eq!(allocator.counters().reserved.current, 0);
    assert_eq!(allocator.driver().card().held_bytes(), 0);
}

/// Settings of every kind, and native ones with everything that can be set.
pub(crate) fn many_settings() -> Vec<Settings> {
    let native = Settings::default;
    vec![
        native(),
        native().with_max_split_mib(20),
        native().with_max_split_mib(64).with_divisions(4),
        native().with_garbage_collection_threshold(0.5),
        Settings { large_segment_bytes: 40 * MIB, ..native() },
        // A large segment above the split limit: what is left of it is oversize and yet part of a used segment.
        Settings { large_segment_bytes: 40 * MIB, ..native().with_max_split_mib(20) },
        Settings { most_unsplit_excess_bytes: 60 * MIB, memory_fraction: Some(0.5), ..native().with_max_split_mib(20) },
        parsed(
            "roundup_power2_divisions:[1:8,16:2,>:4],garbage_collection_threshold:0.4,per_process_memory_fraction:0.7",
        ),
        Settings::of_kind(AllocatorKind::ExpandableSegments),
        Settings { large_segment_bytes: 12 * MIB, ..Settings::of_kind(AllocatorKind::ExpandableSegments) },
        Settings::of_kind(AllocatorKind::ExpandableSegments)
            .with_max_split_mib(64)
            .with_garbage_collection_threshold(0.6),
        Settings::of_kind(AllocatorKind::CudaMallocAsync),
    ]
}

fn parsed(text: &str) -> Settings {
    Settings::parse("a test", text).unwrap()
}

/// An allocator on a card of its own, with a limit below the card's memory where asked.
pub(crate) fn allocator(settings: &Settings, card: &SimulatedCard, limit_bytes: Option<u64>) -> Simulated {
    let mut allocator = Allocator::new(card.driver(), settings.clone());
    allocator.set_memory_limit(limit_bytes);
    allocator
}
