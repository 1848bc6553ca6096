//! Why a request failed, as far as its message tells.

use super::deduce::{self, CONTEXT_BYTES, beside_tensors, limit, reachable, round_share};
use super::explain::Explanation;
use super::figure::Figure;
use super::finding::{Finding, Possibility};
use super::help::{Help, Short, Suggestion};
use super::{Expandable, OutOfMemory};

/// Fewer unused bytes are not worth a setting: it is what one segment of PyTorch's allocator has.
const SEGMENT_BYTES: u64 = 20 << 20;

/// Finds why the driver or the allocator had no memory.
pub(super) fn main_cause(oom: &OutOfMemory, said: &mut Explanation) {
    let requested = oom.requested;
    let requested_bytes = requested.bytes;
    if let Some(total) = oom.total.filter(|total| requested.surely_exceeds(*total)) {
        said.find(Finding::LargerThanDevice { requested_bytes, total_bytes: total.bytes });
        said.help(Help::NeedLess { bytes: requested.minus(total).bytes });
        return;
    }
    if let Some(limit) = limit(oom) {
        let total_bytes = oom.total.map(|total| total.bytes);
        said.find(Finding::Limited { limit_bytes: limit.bytes, total_bytes });
        said.help.extend(raised_limit(oom, limit.bytes));
    }
    match (oom.unallocated, reachable(oom)) {
        (_, Some(free)) if free.surely_covers(requested) => driver_had_enough(oom, free, said),
        (Some(idle), free) if free.map_or(idle, |free| idle.plus(free)).surely_covers(requested) => {
            let free_bytes = oom.free.map(|free| free.bytes);
            said.find(Finding::Stranded { requested_bytes, unallocated_bytes: idle.bytes, free_bytes });
            said.join_pieces(oom, None);
        }
        (Some(idle), Some(free)) => nearly_or_too_little(oom, idle, free, said),
        (idle, None) => free_unknown(oom, idle, said),
        (None, Some(free)) => unused_unknown(oom, free, said),
    }
}

/// What is unused in all does not surely cover the request.
fn nearly_or_too_little(oom: &OutOfMemory, idle: Figure, free: Figure, said: &mut Explanation) {
    let (requested, unused) = (oom.requested, idle.plus(free));
    let (requested_bytes, unused_bytes) = (requested.bytes, unused.bytes);
    let is_worth_it = idle.bytes >= SEGMENT_BYTES;
    if !requested.surely_exceeds(unused) {
        said.find(Finding::TooClose { requested_bytes, unused_bytes });
        if is_worth_it {
            said.join_pieces(oom, None);
        }
        said.help(Help::NeedSomeLess { at_most_bytes: Some(requested.minus(free).bytes) });
        return;
    }
    let short_bytes = requested.minus(unused).bytes;
    said.find(Finding::TooLittle { requested_bytes, unused_bytes, short_bytes });
    said.help(Help::NeedLess { bytes: short_bytes });
    if is_worth_it {
        let short = Short::StillMissing { gives_bytes: idle.bytes, missing_bytes: short_bytes };
        said.join_pieces(oom, Some(short));
    }
}

/// The message does not say what the driver had free: only what is in tensors was surely not.
fn free_unknown(oom: &OutOfMemory, idle: Option<Figure>, said: &mut Explanation) {
    let requested_bytes = oom.requested.bytes;
    if let Some(most) = beside_tensors(oom).filter(|most| oom.requested.surely_exceeds(*most)) {
        let short_bytes = oom.requested.minus(most).bytes;
        said.find(Finding::BesideTensorsTooLittle { requested_bytes, at_most_bytes: most.bytes, short_bytes });
        said.help(Help::NeedLess { bytes: short_bytes });
        return;
    }
    said.find(Finding::FreeUnknown { requested_bytes });
    if idle.is_some_and(|idle| idle.bytes >= SEGMENT_BYTES) {
        said.join_pieces(oom, None);
    }
    said.help(Help::NeedSomeLess { at_most_bytes: None });
}

/// The message does not say what the allocator held unused, as the stream-ordered pool's does not.
fn unused_unknown(oom: &OutOfMemory, free: Figure, said: &mut Explanation) {
    let requested = oom.requested;
    said.find(Finding::DriverHadTooLittle { requested_bytes: requested.bytes, free_bytes: free.bytes });
    match beside_tensors(oom).filter(|most| requested.surely_exceeds(*most)) {
        Some(most) => {
            let missing_bytes = requested.minus(most).bytes;
            said.help(Help::NeedLess { bytes: missing_bytes });
            let gives_bytes = most.minus(free).bytes;
            said.join_pieces(oom, Some(Short::StillMissing { gives_bytes, missing_bytes }));
        }
        None => {
            said.join_pieces(oom, None);
            said.help(Help::NeedSomeLess { at_most_bytes: Some(requested.minus(free).bytes) });
        }
    }
}

/// The driver had enough: what else may have refused, the likeliest first.
fn driver_had_enough(oom: &OutOfMemory, free: Figure, said: &mut Explanation) {
    said.find(Finding::DriverHadEnough { requested_bytes: oom.requested.bytes, free_bytes: free.bytes });
    if oom.limit.is_none() {
        let share = round_share(oom);
        let hundredths = share.map(|(hundredths, _)| hundredths);
        said.find(Finding::Perhaps(Possibility::Limit { hundredths }));
        said.help.extend(share.map(|(_, limit)| Help::RaiseLimit { limit_bytes: limit.bytes }.into()));
    }
    let host = Finding::Perhaps(Possibility::HostMemory { is_said: oom.host_ran_out });
    if oom.host_ran_out {
        said.find(host.clone());
    }
    said.find(Finding::Perhaps(Possibility::NotContiguous));
    let idle = oom.unallocated.filter(|idle| idle.bytes >= CONTEXT_BYTES);
    if let Some(idle) = idle {
        said.find(Finding::Perhaps(Possibility::Unused { bytes: idle.bytes }));
    }
    let is_windows = oom.expandable == Expandable::Windows;
    if is_windows && !oom.host_ran_out {
        said.find(host);
    }
    said.find(Finding::Perhaps(Possibility::GivenBackSince));
    if idle.is_some() || oom.stream_ordered {
        said.join_pieces(oom, None);
    } else {
        said.map_pieces(oom);
    }
    if is_windows || oom.host_ran_out {
        said.help(Help::FreeHost);
    }
}

/// Metal counts other allocations too, and allows so much of both.
pub(super) fn metal(oom: &OutOfMemory, said: &mut Explanation) {
    let Some((held, needed, limit)) = deduce::metal(oom) else {
        said.help(Help::NeedSomeLess { at_most_bytes: None });
        said.help(Help::LiftWatermark);
        return;
    };
    let (requested_bytes, held_bytes, limit_bytes) = (oom.requested.bytes, held.bytes, limit.bytes);
    let short_bytes = needed.surely_exceeds(limit).then(|| needed.minus(limit).bytes);
    said.find(Finding::OverWatermark { requested_bytes, held_bytes, limit_bytes, short_bytes });
    said.help(match short_bytes {
        Some(bytes) => Help::NeedLess { bytes },
        None => Help::NeedSomeLess { at_most_bytes: None },
    });
    said.help(Help::LiftWatermark);
}

/// The process holds more than the device has already: first it must need less than the device.
pub(super) fn moved_to_host(oom: &OutOfMemory, held: Figure, total: Figure, said: &mut Explanation) {
    said.find(Finding::MoreThanDevice { process_bytes: held.bytes, total_bytes: total.bytes });
    if oom.requested.surely_exceeds(total) {
        said.find(Finding::LargerThanDevice { requested_bytes: oom.requested.bytes, total_bytes: total.bytes });
    }
    let needed = oom.allocated.map(|allocated| allocated.plus(oom.requested));
    let over = needed.filter(|needed| needed.surely_exceeds(total)).map(|needed| needed.minus(total));
    said.help(match over {
        Some(over) => Help::NeedLess { bytes: over.bytes },
        None => Help::NeedSomeLess { at_most_bytes: None },
    });
}

/// Raising the limit, where that gives something: below the limit nothing may be free either.
fn raised_limit(oom: &OutOfMemory, limit_bytes: u64) -> Option<Suggestion> {
    let help = Help::RaiseLimit { limit_bytes };
    let Some((free, reachable)) = oom.free.zip(reachable(oom)) else { return Some(help.into()) };
    let gives = free.minus(reachable).bytes;
    (gives > 0).then(|| Suggestion { help, short: given(oom, gives) })
}

/// Whether this much more from the driver would have been enough; none where it would, or nothing is known of it.
pub(super) fn given(oom: &OutOfMemory, gives_bytes: u64) -> Option<Short> {
    let from_driver = oom.requested.minus(reachable(oom)?).bytes;
    let idle = oom.unallocated.map_or(0, |idle| idle.bytes);
    let idle = if idle >= SEGMENT_BYTES { idle } else { 0 };
    match from_driver.saturating_sub(idle) {
        _ if gives_bytes >= from_driver => None,
        // The pieces would have done, were they one: then what is missing is missing because they are not.
        0 => Some(Short::OfMissing { gives_bytes, missing_bytes: from_driver }),
        missing if gives_bytes >= missing => Some(Short::WithUnused { unused_bytes: idle }),
        missing_bytes => Some(Short::OfMissing { gives_bytes, missing_bytes }),
    }
}
