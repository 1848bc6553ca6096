//! Traces of one operation: from a recorded state, every event in order.

use std::collections::HashMap;

use super::{Comparison, Figure, RecordedCounters};
use crate::allocator::{
    Allocation, Allocator, Event, EventKind, RecordedSegment, RecordedStateError, Settings, driver_placements,
};
use crate::driver::{Address, CardSettings, SimulatedCard};

/// What an event of a trace says, in PyTorch's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceAction {
    /// An allocation; the size is the requested one.
    Alloc,
    /// A free was asked for.
    FreeRequested,
    /// It took effect.
    FreeCompleted,
    /// Memory was taken from or given back to the driver.
    Segment(EventKind),
    /// An allocation failed.
    OutOfMemory,
    /// Nothing that concerns the allocator's state.
    Other,
}

impl TraceAction {
    /// What PyTorch's word for it means.
    pub fn of_word(word: &str) -> Self {
        match word {
            "alloc" => Self::Alloc,
            "free_requested" => Self::FreeRequested,
            "free_completed" => Self::FreeCompleted,
            "segment_alloc" => Self::Segment(EventKind::SegmentAlloc),
            "segment_free" => Self::Segment(EventKind::SegmentFree),
            "segment_map" => Self::Segment(EventKind::SegmentMap),
            "segment_unmap" => Self::Segment(EventKind::SegmentUnmap),
            "oom" => Self::OutOfMemory,
            _ => Self::Other,
        }
    }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// What happened.
    pub action: TraceAction,
    /// Where.
    pub address: Address,
    /// How much.
    pub bytes: u64,
}

/// A recorded trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The settings it ran under.
    pub settings: Settings,
    /// The limit on what the process could reserve, if there was one.
    pub limit_bytes: Option<u64>,
    /// The allocator's state when it began.
    pub start: Vec<RecordedSegment>,
    /// Every event in order.
    pub events: Vec<TraceEvent>,
    /// The counters when it ended.
    pub after: RecordedCounters,
    /// The peak of `allocated`, from the beginning of the trace.
    pub peak_allocated: u64,
    /// The peak of `reserved`.
    pub peak_reserved: u64,
    /// The peak of `active`.
    pub peak_active: u64,
}

/// What came of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceComparison {
    /// The address of every allocation, the counters at the end, the peaks.
    pub figures: Comparison,
    /// What was taken from and given back to the driver, event by event.
    pub segment_events: Comparison,
}

/// Runs a trace on a simulated device of `total_bytes`.
///
/// # Errors
/// When the state it starts from is not one that an allocator could have, or does not fit the device.
pub fn replay_trace(trace: &Trace, total_bytes: u64) -> Result<TraceComparison, RecordedStateError> {
    let card = SimulatedCard::new(CardSettings::new(total_bytes));
    let new_segments =
        trace.events.iter().filter(|event| event.action == TraceAction::Segment(EventKind::SegmentAlloc));
    let placements = driver_placements(&trace.start, &trace.settings, total_bytes);
    card.script_addresses(placements.into_iter().chain(new_segments.map(|event| (event.address, event.bytes))));
    let (mut allocator, live) = Allocator::from_recorded_state(card.driver(), trace.settings.clone(), &trace.start)?;
    allocator.set_memory_limit(trace.limit_bytes);
    allocator.log_events(true);
    let mut live: HashMap<Address, Allocation> =
        live.into_iter().map(|allocation| (allocation.address(), allocation)).collect();
    let mut figures = Comparison::default();
    for (step, event) in trace.events.iter().enumerate() {
        match event.action {
            TraceAction::Alloc => {
                let placed = allocator.allocate(event.bytes).ok();
                let replayed = placed.map(|allocation| allocation.address().0);
                figures.compare(step, Figure::Address, Some(event.address.0), replayed);
                // Kept under the recorded address, by which the trace frees it.
                live.extend(placed.map(|allocation| (event.address, allocation)));
            }
            TraceAction::FreeCompleted => {
                if let Some(allocation) = live.remove(&event.address) {
                    let _ = allocator.free(allocation);
                }
            }
            TraceAction::OutOfMemory => {
                let _ = allocator.allocate(event.bytes);
            }
            TraceAction::FreeRequested | TraceAction::Segment(_) | TraceAction::Other => {}
        }
    }
    let end = trace.events.len();
    let counters = allocator.counters();
    figures.compare_counters(end, &trace.after, &counters);
    for (figure, recorded, replayed) in [
        (Figure::PeakAllocated, trace.peak_allocated, counters.allocated.peak),
        (Figure::PeakReserved, trace.peak_reserved, counters.reserved.peak),
        (Figure::PeakActive, trace.peak_active, counters.active.peak),
    ] {
        figures.compare(end, figure, Some(recorded), Some(replayed));
    }
    Ok(TraceComparison { figures, segment_events: compare_segment_events(trace, &allocator.take_events()) })
}

fn compare_segment_events(trace: &Trace, replayed: &[Event]) -> Comparison {
    let recorded: Vec<_> = trace
        .events
        .iter()
        .filter_map(|event| match event.action {
            TraceAction::Segment(kind) => Some(Event { kind, address: event.address, bytes: event.bytes }),
            _ => None,
        })
        .collect();
    let mut comparison = Comparison::default();
    for step in 0..recorded.len().max(replayed.len()) {
        let (recorded, replayed) = (recorded.get(step), replayed.get(step));
        if recorded == replayed {
            comparison.compare(step, Figure::SegmentEvent, None, None);
        } else {
            let address = |event: Option<&Event>| event.map(|event| event.address.0);
            let (recorded, replayed) = (address(recorded), address(replayed));
            // The kinds or sizes may differ where the addresses do not: an absent figure makes that a difference too.
            let replayed = if recorded == replayed { None } else { replayed };
            comparison.compare(step, Figure::SegmentEvent, recorded, replayed);
        }
    }
    comparison
}
