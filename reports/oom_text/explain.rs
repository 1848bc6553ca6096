//! What the figures of a message mean, and what would help, in the order of how likely it is to.

use std::fmt;

use headroom_base::{Bytes, Reading};

use super::help::{Help, Short, Suggestion};
use super::{Api, OutOfMemory};

/// Below this no difference of two figures printed with two decimals means anything.
const PRINTED_PRECISION_BYTES: u64 = 11 << 20;

/// Something the figures say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// More was asked for than the device has.
    LargerThanDevice {
        /// What was asked for.
        requested_bytes: u64,
        /// What the device has.
        total_bytes: u64,
    },
    /// What the allocator holds unused would have been enough, in pieces that are too small or cannot be given back.
    Stranded {
        /// What was asked for.
        requested_bytes: u64,
        /// Reserved and not handed out.
        unallocated_bytes: u64,
        /// Free by the driver.
        free_bytes: Reading,
    },
    /// Even with every unused byte it would not have fitted.
    TooLittle {
        /// What was asked for.
        requested_bytes: u64,
        /// Free by the driver and unused by the allocator, together.
        unused_bytes: u64,
        /// What is missing.
        short_bytes: u64,
    },
    /// The driver had too little, and what the allocator held unused is not said.
    DriverHadTooLittle {
        /// What was asked for.
        requested_bytes: u64,
        /// Free by the driver.
        free_bytes: u64,
    },
    /// The driver had enough free memory, so something else refused.
    DriverHadEnough {
        /// What was asked for.
        requested_bytes: u64,
        /// Free by the driver.
        free_bytes: u64,
    },
    /// Other processes hold memory.
    OthersHold {
        /// How much.
        bytes: u64,
        /// How many they are, where the message names them.
        processes: usize,
    },
    /// The process holds memory that its allocator does not know: context, libraries, other allocators.
    OutsideAllocator {
        /// How much.
        bytes: u64,
    },
    /// A limit was set on this process.
    Limited {
        /// The limit.
        limit_bytes: u64,
        /// What the device has.
        total_bytes: Reading,
    },
    /// Private pools hold memory that nothing else can use.
    PrivatePools {
        /// How much.
        bytes: u64,
    },
    /// The process is said to hold more than the device has: memory was moved to the host, or the figure is wrong.
    MoreThanDevice {
        /// What it is said to hold.
        process_bytes: u64,
        /// What the device has.
        total_bytes: u64,
    },
    /// Figures that no device can have: the platform does not report them.
    Nonsense {
        /// As they were printed.
        figures: Vec<String>,
    },
    /// Figures in decimal units, read as the binary ones PyTorch prints.
    DecimalUnits,
}

/// What a message means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// What the figures say.
    pub findings: Vec<Finding>,
    /// What to try: first what can be enough by itself, the most promising first, then what cannot.
    pub help: Vec<Suggestion>,
}

/// Explains a message's figures.
pub fn explain(oom: &OutOfMemory) -> Explanation {
    let mut findings = Vec::new();
    let mut help = Vec::new();
    main_cause(oom, &mut findings, &mut help);
    held_elsewhere(oom, &mut findings, &mut help);
    if let Some(bytes) = oom.private_pools_bytes.known().filter(|bytes| *bytes > 0) {
        findings.push(Finding::PrivatePools { bytes });
    }
    if !oom.nonsense.is_empty() {
        findings.push(Finding::Nonsense { figures: oom.nonsense.clone() });
    }
    if oom.decimal_units {
        findings.push(Finding::DecimalUnits);
    }
    // Stable: what is equal in this stays in the order of its promise.
    help.sort_by_key(|suggestion| suggestion.short.is_some());
    if oom.api != Api::Mps {
        help.push(Help::RecordSnapshot.into());
    }
    Explanation { findings, help }
}

/// How much is missing with every unused byte counted; of equal messages the larger request is the harder to serve.
pub(super) fn missing_bytes(oom: &OutOfMemory) -> (u64, u64) {
    let unused = oom.unallocated_bytes().known().unwrap_or(0).saturating_add(reachable(oom).unwrap_or(0));
    (oom.requested_bytes.saturating_sub(unused), oom.requested_bytes)
}

fn main_cause(oom: &OutOfMemory, findings: &mut Vec<Finding>, help: &mut Vec<Suggestion>) {
    let requested_bytes = oom.requested_bytes;
    if let Some(total_bytes) = oom.total_bytes.known().filter(|total| requested_bytes > *total) {
        findings.push(Finding::LargerThanDevice { requested_bytes, total_bytes });
        help.push(Help::NeedLess { bytes: requested_bytes - total_bytes }.into());
        return;
    }
    if let Some(limit_bytes) = limit(oom) {
        findings.push(Finding::Limited { limit_bytes, total_bytes: oom.total_bytes });
        help.extend(raised_limit(oom, limit_bytes));
    }
    match (oom.unallocated_bytes().known(), reachable(oom)) {
        (_, Some(free_bytes)) if free_bytes >= requested_bytes => {
            findings.push(Finding::DriverHadEnough { requested_bytes, free_bytes });
        }
        (Some(idle), free) if idle.saturating_add(free.unwrap_or(0)) >= requested_bytes => {
            let (unallocated_bytes, free_bytes) = (idle, oom.free_bytes);
            findings.push(Finding::Stranded { requested_bytes, unallocated_bytes, free_bytes });
            help.extend(against_stranding(oom).map(Suggestion::from));
        }
        (Some(idle), free) => {
            let unused_bytes = idle.saturating_add(free.unwrap_or(0));
            let short_bytes = requested_bytes - unused_bytes;
            findings.push(Finding::TooLittle { requested_bytes, unused_bytes, short_bytes });
            help.push(Help::NeedLess { bytes: short_bytes }.into());
            if idle > PRINTED_PRECISION_BYTES {
                let short = Short::StillMissing { gives_bytes: idle, missing_bytes: short_bytes };
                help.extend(against_stranding(oom).map(|help| Suggestion { help, short: Some(short) }));
            }
        }
        (None, Some(free_bytes)) => {
            findings.push(Finding::DriverHadTooLittle { requested_bytes, free_bytes });
            help.push(Help::NeedLess { bytes: requested_bytes - free_bytes }.into());
            help.extend(against_stranding(oom).map(Suggestion::from));
        }
        (None, None) => help.push(Help::NeedLess { bytes: requested_bytes }.into()),
    }
}

/// Raising the limit, where that gives something: below the limit nothing may be free either.
fn raised_limit(oom: &OutOfMemory, limit_bytes: u64) -> Option<Suggestion> {
    let help = Help::RaiseLimit { limit_bytes };
    let Some((free, reachable)) = oom.free_bytes.known().zip(reachable(oom)) else { return Some(help.into()) };
    let gives_bytes = free.saturating_sub(reachable);
    (gives_bytes > 0).then(|| Suggestion { help, short: given(oom, gives_bytes) })
}

/// Whether this much more from the driver would have been enough; none where it would, or nothing is known of it.
fn given(oom: &OutOfMemory, gives_bytes: u64) -> Option<Short> {
    let from_driver = oom.requested_bytes.saturating_sub(reachable(oom)?);
    let idle = oom.unallocated_bytes().known().filter(|idle| *idle > PRINTED_PRECISION_BYTES).unwrap_or(0);
    match from_driver.saturating_sub(idle) {
        _ if gives_bytes >= from_driver => None,
        // The pieces would have done, were they one: then what is missing is missing because they are not.
        0 => Some(Short::OfMissing { gives_bytes, missing_bytes: from_driver }),
        missing if gives_bytes >= missing => Some(Short::WithUnused { unused_bytes: idle }),
        missing_bytes => Some(Short::OfMissing { gives_bytes, missing_bytes }),
    }
}

/// What the driver could still give: what is free, and below the limit where there is one.
fn reachable(oom: &OutOfMemory) -> Option<u64> {
    let free = oom.free_bytes.known();
    let Some((limit, held)) = limit(oom).zip(oom.reserved_bytes.known()) else { return free };
    // Both are printed with two decimals: a room smaller than that may be none.
    let room = limit.saturating_sub(held).saturating_sub(PRINTED_PRECISION_BYTES);
    Some(free.map_or(room, |free| free.min(room)))
}

/// A limit that is one: the whole device is none.
fn limit(oom: &OutOfMemory) -> Option<u64> {
    let limit = oom.limit_bytes.known()?;
    let whole = oom.total_bytes.known().is_some_and(|total| limit >= total);
    (!whole).then_some(limit)
}

fn against_stranding(oom: &OutOfMemory) -> Option<Help> {
    let variable = oom.api.variable();
    if oom.api == Api::Mps {
        return None;
    }
    Some(if oom.stream_ordered {
        let why = "the driver's pool grows in steps of 32 MiB and keeps them; PyTorch's own growing ranges do not";
        Help::Environment { line: format!("{variable}=backend:native,expandable_segments:True"), why }
    } else {
        let why = "in ranges that grow, free pieces join and their whole pages go back";
        Help::Environment { line: format!("{variable}=expandable_segments:True"), why }
    })
}

fn held_elsewhere(oom: &OutOfMemory, findings: &mut Vec<Finding>, help: &mut Vec<Suggestion>) {
    let (total, free) = (oom.total_bytes.known(), oom.free_bytes.known());
    let process = oom.process_bytes.known().max(oom.reserved_bytes.known());
    if let Some((process_bytes, total_bytes)) = process.zip(total).filter(|(process, total)| process > total) {
        findings.push(Finding::MoreThanDevice { process_bytes, total_bytes });
        return;
    }
    let process = oom.process_bytes.known();
    if let Some((process, reserved)) = process.zip(oom.reserved_bytes.known()) {
        let bytes = process.saturating_sub(reserved);
        if bytes > PRINTED_PRECISION_BYTES {
            findings.push(Finding::OutsideAllocator { bytes });
        }
    }
    let named: u64 = oom.others.iter().filter_map(|other| other.bytes.known()).sum();
    let rest = total.zip(free).zip(process).map(|((total, free), own)| total.saturating_sub(free).saturating_sub(own));
    let bytes = if oom.others.is_empty() { rest.unwrap_or(0) } else { named };
    if bytes > PRINTED_PRECISION_BYTES {
        findings.push(Finding::OthersHold { bytes, processes: oom.others.len() });
        // Below a limit of its own nothing that others give back reaches this process.
        let is_limited = free.zip(reachable(oom)).is_some_and(|(free, reachable)| reachable < free);
        let short = given(oom, if is_limited { 0 } else { bytes });
        help.push(Suggestion { help: Help::FreeOthers { bytes }, short });
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LargerThanDevice { requested_bytes, total_bytes } => write!(
                f,
                "one request of {} can never fit: the device has {}",
                Bytes(*requested_bytes),
                Bytes(*total_bytes)
            ),
            Self::Stranded { requested_bytes, unallocated_bytes, free_bytes } => write!(
                f,
                "{} were asked for while the allocator held {} unused and the driver had {free_bytes} free: the unused \
                 memory lies in pieces that are too small and cannot be given back",
                Bytes(*requested_bytes),
                Bytes(*unallocated_bytes)
            ),
            Self::TooLittle { requested_bytes, unused_bytes, short_bytes } => write!(
                f,
                "{} were asked for and {} were unused in all, free or in the allocator: {} are missing whatever the \
                 allocator does",
                Bytes(*requested_bytes),
                Bytes(*unused_bytes),
                Bytes(*short_bytes)
            ),
            Self::DriverHadEnough { requested_bytes, free_bytes } => write!(
                f,
                "the driver says {} are free, enough for the {} asked for: another process or a limit outside PyTorch \
                 took them in between",
                Bytes(*free_bytes),
                Bytes(*requested_bytes)
            ),
            Self::DriverHadTooLittle { requested_bytes, free_bytes } => write!(
                f,
                "{} were asked for and the driver had {} free; how much the allocator held unused is not said",
                Bytes(*requested_bytes),
                Bytes(*free_bytes)
            ),
            Self::OthersHold { bytes, processes: 0 } => write!(f, "other processes hold {}", Bytes(*bytes)),
            Self::OthersHold { bytes, processes } => write!(f, "{processes} named processes hold {}", Bytes(*bytes)),
            Self::OutsideAllocator { bytes } => write!(
                f,
                "{} of this process are outside PyTorch's allocator: the context, libraries and their workspaces",
                Bytes(*bytes)
            ),
            Self::Limited { limit_bytes, total_bytes } => {
                write!(f, "this process may use {} of {total_bytes}", Bytes(*limit_bytes))
            }
            Self::PrivatePools { bytes } => {
                write!(f, "{} are in private pools (CUDA graphs), where nothing else can use them", Bytes(*bytes))
            }
            Self::MoreThanDevice { process_bytes, total_bytes } => write!(
                f,
                "this process is said to hold {} of {}: the driver moved memory to the host, or does not know",
                Bytes(*process_bytes),
                Bytes(*total_bytes)
            ),
            Self::Nonsense { figures } => {
                write!(f, "{} is no size: the platform does not report it, and it is ignored", figures.join(", "))
            }
            Self::DecimalUnits => f.write_str("figures in decimal units are read as the binary ones PyTorch means"),
        }
    }
}
