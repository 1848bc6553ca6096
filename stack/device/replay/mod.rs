//! What was recorded of PyTorch's allocator, run through this one and compared figure by figure.

mod requests;
mod script;
mod trace;

use serde::Serialize;

pub use requests::{Request, Requests, Run, least_capacity_bytes, run_requests};
pub use script::{Script, ScriptAction, ScriptStep, replay_script, replay_script_on};
pub use trace::{Trace, TraceAction, TraceComparison, TraceEvent, replay_trace};

use crate::allocator::Counters;

/// The counters of a recording at one moment, in bytes where not counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RecordedCounters {
    /// What live allocations got.
    pub allocated: u64,
    /// What was taken from the driver.
    pub reserved: u64,
    /// Free blocks with a neighbour in their segment.
    pub inactive_split: u64,
    /// Blocks that are not free.
    pub active: u64,
    /// What live allocations asked for.
    pub requested: u64,
    /// Segments.
    pub segments: u64,
    /// Allocator retries.
    pub num_alloc_retries: u64,
    /// Failed allocations.
    pub num_ooms: u64,
}

impl RecordedCounters {
    /// What an allocator's counters are now, in a recording's form.
    pub fn of(counters: &Counters) -> Self {
        Self {
            allocated: counters.allocated.current,
            reserved: counters.reserved.current,
            inactive_split: counters.inactive_split.current,
            active: counters.active.current,
            requested: counters.requested.current,
            segments: counters.segments.current,
            num_alloc_retries: counters.num_alloc_retries,
            num_ooms: counters.num_ooms,
        }
    }

    /// What a recording has under the names of its counters.
    ///
    /// # Errors
    /// The first that `counter` has for one of the eight names.
    pub fn read<E>(mut counter: impl FnMut(&'static str) -> Result<u64, E>) -> Result<Self, E> {
        Ok(Self {
            allocated: counter("allocated")?,
            reserved: counter("reserved")?,
            inactive_split: counter("inactive_split")?,
            active: counter("active")?,
            requested: counter("requested")?,
            segments: counter("segments")?,
            num_alloc_retries: counter("retries")?,
            num_ooms: counter("ooms")?,
        })
    }

    /// Every counter with its name, always in the same order.
    fn named(&self) -> [(Figure, u64); 8] {
        [
            (Figure::Allocated, self.allocated),
            (Figure::Reserved, self.reserved),
            (Figure::InactiveSplit, self.inactive_split),
            (Figure::Active, self.active),
            (Figure::Requested, self.requested),
            (Figure::Segments, self.segments),
            (Figure::NumAllocRetries, self.num_alloc_retries),
            (Figure::NumOoms, self.num_ooms),
        ]
    }
}

/// What can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// The counter of that name.
    Allocated,
    /// The counter of that name.
    Reserved,
    /// The counter of that name.
    InactiveSplit,
    /// The counter of that name.
    Active,
    /// The counter of that name.
    Requested,
    /// The counter of that name.
    Segments,
    /// The counter of that name.
    NumAllocRetries,
    /// The counter of that name.
    NumOoms,
    /// Where an allocation was placed.
    Address,
    /// The peak of the counter of that name.
    PeakAllocated,
    /// The peak of the counter of that name.
    PeakReserved,
    /// The peak of the counter of that name.
    PeakActive,
    /// What was taken from or given back to the driver, and where.
    SegmentEvent,
}

/// A figure that came out otherwise than recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The step or event, counted from 0; the number of events for what is compared at the end.
    pub step: usize,
    /// What differs.
    pub figure: Figure,
    /// As recorded; `None` where nothing was.
    pub recorded: Option<u64>,
    /// As it came out; `None` where nothing did.
    pub replayed: Option<u64>,
}

/// How much was compared and how much of it was equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Comparison {
    /// Figures compared.
    pub compared: u64,
    /// Figures equal.
    pub equal: u64,
    /// The first that was not.
    pub first_difference: Option<Difference>,
}

impl Comparison {
    /// Whether something was compared and all of it was equal.
    pub fn is_exact(&self) -> bool {
        self.compared > 0 && self.equal == self.compared
    }

    fn compare(&mut self, step: usize, figure: Figure, recorded: Option<u64>, replayed: Option<u64>) {
        self.compared += 1;
        if recorded == replayed {
            self.equal += 1;
        } else {
            self.first_difference.get_or_insert(Difference { step, figure, recorded, replayed });
        }
    }

    fn compare_counters(&mut self, step: usize, recorded: &RecordedCounters, replayed: &Counters) {
        let replayed = RecordedCounters::of(replayed);
        for ((figure, recorded), (_, replayed)) in recorded.named().into_iter().zip(replayed.named()) {
            self.compare(step, figure, Some(recorded), Some(replayed));
        }
    }
}
