//! What follows from a message's figures by arithmetic alone, with the digits in mind that were not printed.

use super::figure::Figure;
use super::{OtherProcess, OutOfMemory};

/// What a context alone may take: less than this beside the allocator is not worth a word.
pub(super) const CONTEXT_BYTES: u64 = 256 << 20;

/// Two figures of which the second cannot be larger than the first, and is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// What the first is.
    pub whole: &'static str,
    /// Its size.
    pub whole_bytes: u64,
    /// What the second is.
    pub part: &'static str,
    /// Its size.
    pub part_bytes: u64,
}

/// Figures that contradict each other. More reserved than the device has is none: drivers move memory to the host.
pub(super) fn contradictions(oom: &OutOfMemory) -> Vec<Contradiction> {
    let pairs = [("in total", oom.total, "free", oom.free), ("reserved", oom.reserved, "allocated", oom.allocated)];
    let contradicting = pairs.into_iter().filter_map(|(whole, of, part, held)| {
        let (of, held) = of.zip(held).filter(|(of, held)| held.surely_exceeds(*of))?;
        Some(Contradiction { whole, whole_bytes: of.bytes, part, part_bytes: held.bytes })
    });
    contradicting.collect()
}

/// What this process holds by the driver; a figure below what its own allocator holds is unknown.
pub(super) fn process(oom: &OutOfMemory) -> Option<Figure> {
    let is_impossible = |process: &Figure| oom.reserved.is_some_and(|reserved| reserved.surely_exceeds(*process));
    oom.process.filter(|process| !is_impossible(process))
}

/// What the process holds of a device that has less: memory that was moved to the host.
pub(super) fn beyond_device(oom: &OutOfMemory) -> Option<(Figure, Figure)> {
    let total = oom.total?;
    let held = [oom.reserved, oom.process].into_iter().flatten().max_by_key(|held| held.bytes)?;
    held.surely_exceeds(total).then_some((held, total))
}

/// Of the processes named by number the one that is this program itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Itself {
    /// None of them, as far as the figures say.
    NotNamed,
    /// This one.
    Named(OtherProcess),
    /// One of them, and more than one holds enough for it.
    OneOf,
}

/// Whether the named processes include this program, as they do where a container hides its number from it: with its own
/// memory counted beside theirs the figures would exceed the device.
pub(super) fn itself(oom: &OutOfMemory) -> Itself {
    let zero = Figure { bytes: 0, error_bytes: 0 };
    let (Some(reserved), Some(total), false) = (oom.reserved, oom.total, oom.names_this_process) else {
        return Itself::NotNamed;
    };
    let named = oom.others.iter().filter_map(|other| other.held).fold(zero, Figure::plus);
    if !reserved.plus(named).plus(oom.free.unwrap_or(zero)).surely_exceeds(total) {
        return Itself::NotNamed;
    }
    let holds_enough = |other: &&OtherProcess| other.held.is_some_and(|held| !reserved.surely_exceeds(held));
    let mut candidates = oom.others.iter().filter(holds_enough);
    match (candidates.next(), candidates.next()) {
        (Some(only), None) => Itself::Named(*only),
        (Some(_), Some(_)) => Itself::OneOf,
        (None, _) => Itself::NotNamed,
    }
}

/// What the driver could still give: what is free, and below the limit where there is one.
pub(super) fn reachable(oom: &OutOfMemory) -> Option<Figure> {
    let Some((limit, held)) = limit(oom).zip(oom.reserved) else { return oom.free };
    let room = limit.minus(held);
    Some(oom.free.filter(|free| free.bytes <= room.bytes).unwrap_or(room))
}

/// A limit that is one: the whole device is none.
pub(super) fn limit(oom: &OutOfMemory) -> Option<Figure> {
    oom.limit.filter(|limit| oom.total.is_none_or(|total| total.surely_exceeds(*limit)))
}

/// All of the device that is in no tensor of this process: nothing can be asked for beyond it.
pub(super) fn beside_tensors(oom: &OutOfMemory) -> Option<Figure> {
    oom.total.zip(oom.allocated).map(|(total, allocated)| total.minus(allocated))
}

/// The share of the device, in hundredths, at which the process stood: a limit at a round share that is not printed.
///
/// A process that grew up to it in steps is meant: where the request is most of it any share would do.
pub(super) fn round_share(oom: &OutOfMemory) -> Option<(u64, Figure)> {
    let (reserved, total) = oom.reserved.zip(oom.total)?;
    if !reserved.surely_exceeds(oom.requested) {
        return None;
    }
    let reached = reserved.plus(oom.requested);
    (1..20).map(|twentieth| twentieth * 5).find_map(|hundredths| {
        let part = |bytes: u64| (u128::from(bytes) * u128::from(hundredths) / 100) as u64;
        let share = Figure { bytes: part(total.bytes), error_bytes: part(total.error_bytes) };
        (!reached.surely_exceeds(share) && !share.surely_exceeds(reached)).then_some((hundredths, share))
    })
}

/// What Metal counts, with the request, and what it allows.
pub(super) fn metal(oom: &OutOfMemory) -> Option<(Figure, Figure, Figure)> {
    let (allocated, limit) = oom.allocated.zip(oom.limit)?;
    let held = oom.other_allocations.map_or(allocated, |other| allocated.plus(other));
    Some((held, held.plus(oom.requested), limit))
}

/// How much is missing with every unused byte counted; of equal messages the larger request is the harder to serve.
pub(super) fn missing_bytes(oom: &OutOfMemory) -> (u64, u64) {
    if let Some((_, needed, limit)) = metal(oom) {
        return (needed.minus(limit).bytes, oom.requested.bytes);
    }
    let unused = match (oom.unallocated, reachable(oom)) {
        (idle, Some(free)) => Some(idle.map_or(free, |idle| idle.plus(free))),
        (idle, None) => beside_tensors(oom).or(idle),
    };
    (unused.map_or(oom.requested, |unused| oom.requested.minus(unused)).bytes, oom.requested.bytes)
}
