//! Who else holds the device's memory, as far as a message tells.

use super::OutOfMemory;
use super::causes::given;
use super::deduce::{CONTEXT_BYTES, Itself, itself, process, reachable};
use super::explain::Explanation;
use super::figure::Figure;
use super::finding::Finding;
use super::help::{Help, Suggestion};

/// Finds what is held outside this process's allocator, and what of it closing other programs would give.
pub(super) fn held_elsewhere(oom: &OutOfMemory, said: &mut Explanation) {
    if let Some((process, reserved)) = oom.process.zip(oom.reserved).filter(|_| process(oom).is_none()) {
        let (process_bytes, reserved_bytes) = (process.bytes, reserved.bytes);
        said.find(Finding::ProcessImpossible { process_bytes, reserved_bytes });
    }
    let itself = itself(oom);
    let own = match itself {
        Itself::Named(own) => own.held,
        Itself::OneOf | Itself::NotNamed => process(oom),
    };
    if let Some(reserved) = oom.reserved.filter(|_| itself != Itself::NotNamed) {
        let pid = if let Itself::Named(own) = itself { Some(own.pid) } else { None };
        said.find(Finding::NamedIsItself { pid, reserved_bytes: reserved.bytes });
    }
    let outside = own.zip(oom.reserved).map(|(own, reserved)| own.minus(reserved));
    if let Some(outside) = outside.filter(|outside| outside.least() > 0) {
        said.find(Finding::OutsideAllocator { bytes: outside.bytes });
    }
    if itself == Itself::OneOf {
        return;
    }
    let named = oom.others.iter().filter(|other| itself != Itself::Named(**other));
    let named: Vec<Figure> = named.filter_map(|other| other.held).collect();
    let sum = named.iter().copied().reduce(Figure::plus);
    if let Some(sum) = sum {
        others_hold(oom, sum, named.len(), said);
    }
    if let Some(own) = own {
        if let Some(rest) = beside(oom, own).filter(|_| oom.others.is_empty()) {
            others_hold(oom, rest, 0, said);
        }
    } else if let Some(rest) = oom.reserved.and_then(|reserved| beside(oom, reserved)) {
        unaccounted(oom, sum.map_or(rest, |sum| rest.minus(sum)), said);
    }
}

/// What is neither free nor this.
fn beside(oom: &OutOfMemory, own: Figure) -> Option<Figure> {
    oom.total.zip(oom.free).map(|(total, free)| total.minus(free).minus(own))
}

fn others_hold(oom: &OutOfMemory, held: Figure, processes: usize, said: &mut Explanation) {
    let bytes = held.bytes;
    if held.least() == 0 {
        return;
    }
    said.find(Finding::OthersHold { bytes, processes });
    if is_wanted(oom) {
        let short = given(oom, if is_limited(oom) { 0 } else { bytes });
        said.help.push(Suggestion { help: Help::FreeOthers { bytes }, short });
    }
}

fn unaccounted(oom: &OutOfMemory, rest: Figure, said: &mut Explanation) {
    let bytes = rest.bytes;
    if rest.least() < CONTEXT_BYTES || !can_fit(oom) {
        return;
    }
    said.find(Finding::Unaccounted { bytes });
    if is_wanted(oom) && !is_limited(oom) {
        said.help.push(Suggestion { help: Help::FindOthers { bytes }, short: given(oom, bytes) });
    }
}

/// More free memory is of use where there was too little, and where the request can fit at all.
fn is_wanted(oom: &OutOfMemory) -> bool {
    let had_enough = reachable(oom).is_some_and(|free| free.surely_covers(oom.requested));
    !had_enough && can_fit(oom)
}

fn can_fit(oom: &OutOfMemory) -> bool {
    oom.total.is_none_or(|total| !oom.requested.surely_exceeds(total))
}

/// Below a limit of its own nothing that others give back reaches this process.
fn is_limited(oom: &OutOfMemory) -> bool {
    oom.free.zip(reachable(oom)).is_some_and(|(free, reachable)| reachable.bytes < free.bytes)
}
