//! Scripts of allocations and frees with every counter after every step.

use std::collections::BTreeMap;

use super::{Comparison, Figure, RecordedCounters};
use crate::allocator::{Allocation, Allocator, Settings};
use crate::driver::{Address, CardSettings, Driver, SimulatedCard};

/// One thing a script does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptAction {
    /// Allocates; the script frees it by this number.
    Allocate {
        /// The script's number for it.
        id: u64,
        /// What is asked for.
        bytes: u64,
        /// Where it was placed, if it was recorded and succeeded.
        address: Option<Address>,
    },
    /// Frees by number.
    Free {
        /// The number given at allocation.
        id: u64,
    },
    /// Empties the allocator's cache.
    EmptyCache,
    /// Frees everything live, by ascending number.
    FreeAll,
}

/// A step and the counters after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptStep {
    /// What is done.
    pub action: ScriptAction,
    /// What was counted then.
    pub counters: RecordedCounters,
}

/// A recorded script.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// The settings it ran under.
    pub settings: Settings,
    /// The limit on what the process could reserve.
    pub limit_bytes: Option<u64>,
    /// Where the driver placed each new segment, in order, if it was recorded.
    pub segments: Vec<(Address, u64)>,
    /// The steps.
    pub steps: Vec<ScriptStep>,
}

/// Runs a script on a simulated device of `total_bytes` and compares all counters after every step, and every recorded
/// address.
pub fn replay_script(script: &Script, total_bytes: u64) -> Comparison {
    let card = SimulatedCard::new(CardSettings::new(total_bytes));
    card.script_addresses(script.segments.iter().copied());
    replay_script_on(script, card.driver())
}

/// Runs a script on any driver and compares likewise. Where the script's addresses come from another driver, those of
/// fixed segments differ, and with them which of two equal free blocks is chosen.
pub fn replay_script_on(script: &Script, driver: impl Driver) -> Comparison {
    let mut allocator = Allocator::new(driver, script.settings.clone());
    allocator.set_memory_limit(script.limit_bytes);
    let mut live = BTreeMap::new();
    let mut comparison = Comparison::default();
    for (step, ScriptStep { action, counters }) in script.steps.iter().enumerate() {
        if let ScriptAction::Allocate { id, bytes, address: recorded } = *action {
            let placed = allocator.allocate(bytes).ok();
            live.extend(placed.map(|allocation| (id, allocation)));
            if let Some(recorded) = recorded {
                let replayed = placed.map(|allocation| allocation.address().0);
                comparison.compare(step, Figure::Address, Some(recorded.0), replayed);
            }
        } else {
            give_back(&mut allocator, &mut live, action);
        }
        comparison.compare_counters(step, counters, &allocator.counters());
    }
    comparison
}

/// What fails here shows in the counters, which are compared after every step.
fn give_back<D: Driver>(allocator: &mut Allocator<D>, live: &mut BTreeMap<u64, Allocation>, action: &ScriptAction) {
    match action {
        ScriptAction::Allocate { .. } => {}
        ScriptAction::Free { id } => {
            if let Some(allocation) = live.remove(id) {
                let _ = allocator.free(allocation);
            }
        }
        ScriptAction::EmptyCache => {
            let _ = allocator.empty_cache();
        }
        ScriptAction::FreeAll => {
            for allocation in std::mem::take(live).into_values() {
                let _ = allocator.free(allocation);
            }
        }
    }
}
