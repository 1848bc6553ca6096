//! A sequence of requests, whoever recorded or predicted it, run under any settings on a device of any size.

use std::collections::HashMap;

use super::{Trace, TraceAction};
use crate::allocator::{AllocationError, Allocator, Counters, Settings};
use crate::driver::{Address, CardSettings, SimulatedCard};

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Memory, to be freed by this number.
    Allocate {
        /// The number.
        id: u64,
        /// What is asked for.
        bytes: u64,
    },
    /// A free.
    Free {
        /// The number given at allocation.
        id: u64,
    },
}

/// What lives when an operation begins, and what it asks for in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// What is allocated before the operation, as number and bytes: weights and inputs.
    pub live: Vec<(u64, u64)>,
    /// The operation.
    pub operation: Vec<Request>,
}

impl From<&Trace> for Requests {
    fn from(trace: &Trace) -> Self {
        let mut requests = Self::default();
        let mut numbers: HashMap<Address, u64> = HashMap::new();
        for segment in &trace.start {
            let mut address = segment.address.0;
            for block in &segment.blocks {
                if let Some(bytes) = block.requested_bytes {
                    let id = requests.live.len() as u64;
                    numbers.insert(Address(address), id);
                    requests.live.push((id, bytes));
                }
                address += block.bytes;
            }
        }
        let first = requests.live.len() as u64;
        for (index, event) in trace.events.iter().enumerate() {
            let id = first + index as u64;
            match event.action {
                TraceAction::Alloc => {
                    numbers.insert(event.address, id);
                    requests.operation.push(Request::Allocate { id, bytes: event.bytes });
                }
                TraceAction::FreeCompleted => {
                    requests.operation.extend(numbers.remove(&event.address).map(|id| Request::Free { id }));
                }
                _ => {}
            }
        }
        requests
    }
}

/// What came of running requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The counters when the operation began, the cache emptied and the peaks reset.
    pub before: Counters,
    /// The counters and peaks when it ended, or failed.
    pub after: Counters,
    /// Why it failed, if it did, and at which request of the operation, counted from 0.
    pub failure: Option<(usize, AllocationError)>,
}

impl Run {
    /// The peak of what was taken from the driver, beyond what was when the operation began.
    pub fn reserved_peak_delta_bytes(&self) -> u64 {
        self.after.reserved.peak.saturating_sub(self.before.reserved.current)
    }

    /// The peak of what was handed out, beyond what was when the operation began.
    pub fn allocated_peak_delta_bytes(&self) -> u64 {
        self.after.allocated.peak.saturating_sub(self.before.allocated.current)
    }
}

/// Runs requests under `settings` on a simulated device of `total_bytes` that nobody else uses.
///
/// What lives before the operation is allocated in its order, then the cache is emptied and the peaks are reset: the
/// baseline from which windows are measured. A free of something unknown is passed over.
///
/// # Errors
/// When even what lives before the operation does not fit.
pub fn run_requests(requests: &Requests, settings: &Settings, total_bytes: u64) -> Result<Run, AllocationError> {
    let card = SimulatedCard::new(CardSettings::new(total_bytes));
    let mut allocator = Allocator::new(card.driver(), settings.clone());
    let mut live = HashMap::new();
    for &(id, bytes) in &requests.live {
        live.insert(id, allocator.allocate(bytes)?);
    }
    allocator.empty_cache()?;
    allocator.reset_peaks();
    let before = allocator.counters();
    let mut failure = None;
    for (index, request) in requests.operation.iter().enumerate() {
        match *request {
            Request::Allocate { id, bytes } => match allocator.allocate(bytes) {
                Ok(allocation) => {
                    live.insert(id, allocation);
                }
                Err(error) => {
                    failure = Some((index, error));
                    break;
                }
            },
            Request::Free { id } => {
                if let Some(allocation) = live.remove(&id) {
                    // A handle of this allocator that is live: it cannot be refused.
                    let _ = allocator.free(allocation);
                }
            }
        }
    }
    Ok(Run { before, after: allocator.counters(), failure })
}

/// The least memory, in whole steps of `step_bytes`, on which the requests complete under `settings`, retries allowed.
///
/// Found by bisection between what is live at once and `most_bytes`; `None` when they do not complete on that either.
/// Whether they complete can change back and forth over a few steps, as fragmentation does: of such steps one is found.
pub fn least_capacity_bytes(requests: &Requests, settings: &Settings, most_bytes: u64, step_bytes: u64) -> Option<u64> {
    let completes =
        |steps: u64| run_requests(requests, settings, steps * step_bytes).is_ok_and(|run| run.failure.is_none());
    let (mut fails, mut fits) = (0, most_bytes / step_bytes);
    if !completes(fits) {
        return None;
    }
    while fits - fails > 1 {
        let middle = fails + (fits - fails) / 2;
        if completes(middle) { fits = middle } else { fails = middle }
    }
    Some(fits * step_bytes)
}
