//! What is different from the data that stands, and which differences need somebody's word.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use headroom_base::{Bytes, DeviceClass, HardEnvironment, LineKey, mutant};
use headroom_calibration::{Shipped, ShippedLine};

/// A line under one environment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineId {
    /// The line.
    pub line: LineKey,
    /// The software.
    pub environment: HardEnvironment,
}

impl fmt::Display for LineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hard = &self.environment;
        write!(f, "{} ({} {}, {}", self.line, hard.backend, hard.allocator, hard.framework)?;
        if hard.attention != headroom_base::AttentionKernel::default() {
            write!(f, ", {} attention", hard.attention)?;
        }
        if hard.convolution_benchmark {
            f.write_str(", convolution benchmark")?;
        }
        if hard.memory_layout != headroom_base::MemoryLayout::default() {
            write!(f, ", {}", hard.memory_layout)?;
        }
        f.write_str(")")
    }
}

/// What became of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is new, with these devices.
    Added {
        /// The devices behind it.
        devices: Vec<DeviceClass>,
    },
    /// It is gone, with these devices.
    Removed {
        /// The devices that were behind it.
        devices: Vec<DeviceClass>,
    },
    /// Devices came or went.
    Devices {
        /// Those that came.
        gained: Vec<DeviceClass>,
        /// Those that went.
        lost: Vec<DeviceClass>,
    },
    /// It says something else at a size.
    Moved {
        /// The size, in cost units, where the change is largest as a share.
        units: u64,
        /// What stood.
        before_bytes: u64,
        /// What is to stand.
        after_bytes: u64,
    },
    /// Only what it says of itself is different: windows, ranges, sources.
    Described,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The line.
    pub id: LineId,
    /// What became of it.
    pub kind: ChangeKind,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.id)?;
        match &self.kind {
            ChangeKind::Added { devices } => write!(f, "new, from {}", list(devices)),
            ChangeKind::Removed { devices } => write!(f, "gone, was from {}", list(devices)),
            ChangeKind::Devices { gained, lost } if lost.is_empty() => write!(f, "now with {}", list(gained)),
            ChangeKind::Devices { gained, lost } if gained.is_empty() => write!(f, "now without {}", list(lost)),
            ChangeKind::Devices { gained, lost } => write!(f, "now with {} and without {}", list(gained), list(lost)),
            ChangeKind::Moved { units, before_bytes, after_bytes } => write!(
                f,
                "at {units} units {} where {} stood ({})",
                Bytes(*after_bytes),
                Bytes(*before_bytes),
                signed_percent(*before_bytes, *after_bytes)
            ),
            ChangeKind::Described => f.write_str("the same line from other windows"),
        }
    }
}

/// A difference that is not made without somebody's word.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A point that was measured would lie above the line.
    #[error("{id} would drop to {} at {units} units, below the {} measured there; keep its report, withdraw it, or pass --accept", Bytes(*after_bytes), Bytes(*measured_bytes))]
    BelowMeasured {
        /// The line.
        id: LineId,
        /// The size.
        units: u64,
        /// What was measured there, beyond the analytic part.
        measured_bytes: u64,
        /// What the line would say.
        after_bytes: u64,
    },
    /// A device would be lost.
    #[error("{id} would lose {device}; pass its report too, or --accept")]
    LosesDevice {
        /// The line.
        id: LineId,
        /// The device.
        device: DeviceClass,
    },
    /// A line would move far.
    #[error("{id} would go from {} to {} at {units} units, more than {limit_percent} %; look at the report it comes from, or pass --accept", Bytes(*before_bytes), Bytes(*after_bytes))]
    ChangesTooMuch {
        /// The line.
        id: LineId,
        /// The size.
        units: u64,
        /// What stood.
        before_bytes: u64,
        /// What would stand.
        after_bytes: u64,
        /// The largest change that needs no word.
        limit_percent: u64,
    },
}

type Lines<'a> = BTreeMap<LineId, &'a ShippedLine>;

fn by_id(files: &[Shipped]) -> Lines<'_> {
    let id = |line: &ShippedLine| LineId { line: line.line.clone(), environment: line.environment.clone() };
    files.iter().flat_map(|file| &file.lines).map(|line| (id(line), line)).collect()
}

fn devices(line: &ShippedLine) -> BTreeSet<DeviceClass> {
    line.sources.iter().map(|source| source.device.clone()).collect()
}

/// Every difference, by line.
pub fn changes(standing: &[Shipped], built: &[Shipped]) -> Vec<Change> {
    let (before, after) = (by_id(standing), by_id(built));
    let ids: BTreeSet<&LineId> = before.keys().chain(after.keys()).collect();
    let mut changes = Vec::new();
    for id in ids {
        let kinds = match (before.get(id), after.get(id)) {
            (None, Some(line)) => vec![ChangeKind::Added { devices: devices(line).into_iter().collect() }],
            (Some(line), None) => vec![ChangeKind::Removed { devices: devices(line).into_iter().collect() }],
            (Some(before), Some(after)) => between(before, after),
            (None, None) => Vec::new(),
        };
        changes.extend(kinds.into_iter().map(|kind| Change { id: id.clone(), kind }));
    }
    changes
}

fn between(before: &ShippedLine, after: &ShippedLine) -> Vec<ChangeKind> {
    let mut kinds = Vec::new();
    let (old, new) = (devices(before), devices(after));
    if old != new {
        let (gained, lost) = (new.difference(&old).cloned().collect(), old.difference(&new).cloned().collect());
        kinds.push(ChangeKind::Devices { gained, lost });
    }
    if let Some((units, before_bytes, after_bytes)) = largest_move(before, after) {
        kinds.push(ChangeKind::Moved { units, before_bytes, after_bytes });
    }
    if kinds.is_empty() && before != after {
        kinds.push(ChangeKind::Described);
    }
    kinds
}

/// The measured size where the line moves most, as a share of what stood; none where it moves nowhere.
fn largest_move(before: &ShippedLine, after: &ShippedLine) -> Option<(u64, u64, u64)> {
    let units: BTreeSet<u64> = before.sizes.iter().chain(&after.sizes).map(|size| size.units).collect();
    units
        .into_iter()
        .map(|units| (units, before.coefficients.bytes_at(units), after.coefficients.bytes_at(units)))
        .filter(|(_, before, after)| before != after)
        .max_by_key(|(units, before, after)| {
            (u128::from(before.abs_diff(*after)) * 1_000_000 / u128::from((*before).max(1)), *units)
        })
}

/// The differences that need somebody's word: a line below a measured point, a device lost, a change of more
/// than `limit_percent`.
pub fn refusals(standing: &[Shipped], built: &[Shipped], limit_percent: u64) -> Vec<Refusal> {
    let (before, after) = (by_id(standing), by_id(built));
    let mut refusals = Vec::new();
    for (id, old) in before {
        let new = after.get(&id).copied();
        let kept = new.map(devices).unwrap_or_default();
        let lost = devices(old).into_iter().filter(|device| !kept.contains(device));
        mutant!(
            "lost_device_accepted",
            "a card that many people have silently loses the figures it was covered by",
            right: refusals.extend(lost.map(|device| Refusal::LosesDevice { id: id.clone(), device })),
            wrong: drop(lost),
        );
        let Some(new) = new else { continue };
        mutant!(
            "drop_below_a_measured_point_accepted",
            "a reservation falls below what somebody's card was seen to need",
            right: refusals.extend(below_measured(&id, old, new)),
            wrong: (),
        );
        if let Some((units, before_bytes, after_bytes)) = largest_move(old, new) {
            let change = u128::from(before_bytes.abs_diff(after_bytes)) * 100;
            let far = mutant!(
                "large_change_accepted",
                "one bad report doubles what everybody reserves and nobody is asked",
                right: change > u128::from(before_bytes) * u128::from(limit_percent),
                wrong: false,
            );
            if far {
                let id = id.clone();
                refusals.push(Refusal::ChangesTooMuch { id, units, before_bytes, after_bytes, limit_percent });
            }
        }
    }
    refusals
}

fn below_measured(id: &LineId, old: &ShippedLine, new: &ShippedLine) -> Option<Refusal> {
    old.sizes
        .iter()
        .map(|size| (size.units, size.largest_remainder_bytes, new.coefficients.bytes_at(size.units)))
        .find(|(_, measured, after)| after < measured)
        .map(|(units, measured_bytes, after_bytes)| Refusal::BelowMeasured {
            id: id.clone(),
            units,
            measured_bytes,
            after_bytes,
        })
}

fn list(devices: &[DeviceClass]) -> String {
    devices.iter().map(DeviceClass::to_string).collect::<Vec<_>>().join(", ")
}

fn signed_percent(before: u64, after: u64) -> String {
    let tenths = u128::from(before.abs_diff(after)) * 1000 / u128::from(before.max(1));
    format!("{}{}.{} %", if after < before { '-' } else { '+' }, tenths / 10, tenths % 10)
}
