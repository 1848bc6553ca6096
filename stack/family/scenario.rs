//! Scripted cache scenarios: what happens on a simulated device, and the bytes that must come out.

use std::collections::BTreeMap;
use std::str::FromStr;

use headroom_base::{AllocatorKind, Bytes, Cap, InvalidReason, Measurement, Residency, Validity};
use schemars::JsonSchema;
use serde::Deserialize;

/// A script with its expectations.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scenario {
    /// Its name in trials.
    pub name: String,
    /// What it shows, and what went wrong in the world.
    pub about: String,
    /// Where it was reported.
    pub source: Option<String>,
    /// The device.
    pub device: ScenarioDevice,
    /// The models that its cache knows.
    pub models: Vec<ScenarioModel>,
    /// What happens, in order.
    pub steps: Vec<ScenarioStep>,
}

/// The device of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScenarioDevice {
    /// Its memory.
    pub total_bytes: u64,
    /// What other processes hold at the start.
    pub outside_bytes: u64,
    /// What this process's context costs.
    pub context_bytes: u64,
    /// The allocator.
    pub allocator: AllocatorKind,
    /// The working memory that is kept free when nobody asks for more.
    pub floor_bytes: u64,
    /// An explicit limit on what the cache may use.
    pub cap: Cap,
    /// Whether the driver moves memory to the host when the device is full.
    pub spill: bool,
    /// The largest single allocation, where the driver has such a limit.
    pub largest_allocation_bytes: Option<u64>,
    /// A second, idle device of this size in the same process, of which nothing may be read.
    pub idle_neighbour_bytes: Option<u64>,
}

/// A model of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScenarioModel {
    /// Its key: `model`, or `model:submodel`.
    pub key: String,
    /// How many pieces it has.
    pub pieces: u32,
    /// The size of each.
    pub piece_bytes: u64,
    /// How many of them, from the first, must be on the device to run.
    pub required_pieces: u32,
    /// Whether it may run with a part of its pieces on the device.
    pub partial_loading: bool,
}

impl ScenarioModel {
    /// All its pieces.
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.pieces) * self.piece_bytes
    }
}

/// One thing that happens, and what must come out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScenarioStep {
    /// What happens.
    pub action: Action,
    /// What must come out.
    pub expect: Expectation,
    /// The line of the family file it stands on, for reports.
    pub line: usize,
}

/// What happens in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Blocks are allocated beside the cache, one after the other.
    Allocate {
        /// Their names.
        blocks: Vec<String>,
        /// The size of each.
        bytes: u64,
    },
    /// Blocks that [`Action::Allocate`] made are freed.
    Free {
        /// Their names.
        blocks: Vec<String>,
    },
    /// The allocator gives back what it can.
    EmptyCache,
    /// An operation takes blocks until it has all of them, and frees them whatever happens.
    Run {
        /// How many.
        blocks: u32,
        /// The size of each.
        bytes: u64,
    },
    /// A model is locked.
    Lock {
        /// Which.
        model: String,
        /// The working memory it states.
        working_bytes: Option<u64>,
        /// Whether it is made inside the scenario's calibration scope. With a working memory it opens a window then;
        /// without, it is a lock beside the measured one.
        measured: bool,
    },
    /// A model is unlocked.
    Unlock {
        /// Which.
        model: String,
    },
    /// A model leaves the cache.
    Drop {
        /// Which.
        model: String,
    },
    /// From now on other processes hold this much.
    SetOutside {
        /// How much.
        bytes: u64,
    },
    /// Nothing: only the expectations are looked at.
    Observe,
}

/// What must come out of a step. `None` and absent models are not looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Expectation {
    /// Why the step fails; `None` means that it must succeed.
    pub error: Option<ScenarioError>,
    /// Exactly these models were moved off the device, each by so many bytes.
    pub offloaded_bytes: Option<BTreeMap<String, u64>>,
    /// What of a model is on the device afterwards.
    pub resident: BTreeMap<String, Resident>,
    /// The budget for the lock's working memory (the floor for other steps) before the step.
    pub budget_before_bytes: Option<i64>,
    /// The same after it.
    pub budget_after_bytes: Option<i64>,
    /// What of the reserve counts as free afterwards.
    pub credit_bytes: Option<u64>,
    /// What the allocator has handed out afterwards.
    pub allocated_bytes: Option<u64>,
    /// What the allocator has taken from the driver afterwards.
    pub reserved_bytes: Option<u64>,
    /// What the driver says is free afterwards.
    pub driver_free_bytes: Option<u64>,
    /// Allocator retries in this step.
    pub retries: Option<u64>,
    /// The warnings of the step.
    pub warnings: Option<Vec<ExpectedWarning>>,
    /// Whether the request was reported as more than the device could ever give.
    pub beyond_device: Option<bool>,
    /// What the window that closes with this unlock came to.
    pub window: Option<ExpectedWindow>,
    /// What that window measured.
    pub demand_bytes: Option<u64>,
}

/// What a window came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExpectedWindow {
    /// It is valid, and its model was fully resident.
    Valid,
    /// It is valid, and its model was partly resident.
    PartlyResident,
    /// A lock from outside the scope held the device when it opened.
    ForeignLockAtOpen,
    /// A lock from outside the scope came while it was open.
    ForeignLockDuring,
    /// The allocator ran out of memory.
    OutOfMemory,
    /// The allocator had to give memory back and try again.
    AllocatorRetry,
    /// The driver moved memory to the host.
    Spill,
    /// The operation needed more than the device has.
    Oversubscribed,
    /// It overlapped another window of its scope, and neither lay inside the other.
    Overlapped,
    /// A delta came out negative.
    NegativeDelta,
    /// It is invalid for a reason that no script brings about.
    Other,
    /// None was open.
    None,
}

impl ExpectedWindow {
    /// What a measurement, or its absence, came to.
    pub const fn of(measurement: Option<&Measurement>) -> Self {
        let Some(measurement) = measurement else { return Self::None };
        match (&measurement.validity, &measurement.residency) {
            (Validity::Valid, Residency::Full) => Self::Valid,
            (Validity::Valid, Residency::Partial { .. }) => Self::PartlyResident,
            (Validity::Invalid(reason), _) => match reason {
                InvalidReason::ForeignLockAtOpen => Self::ForeignLockAtOpen,
                InvalidReason::ForeignLockDuring => Self::ForeignLockDuring,
                InvalidReason::OutOfMemory => Self::OutOfMemory,
                InvalidReason::AllocatorRetry { .. } => Self::AllocatorRetry,
                InvalidReason::Spill { .. } => Self::Spill,
                InvalidReason::Oversubscribed => Self::Oversubscribed,
                InvalidReason::Overlapped => Self::Overlapped,
                InvalidReason::NegativeDelta { .. } => Self::NegativeDelta,
                _ => Self::Other,
            },
        }
    }
}

/// A warning that the cache gives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpectedWarning {
    /// Every model it names, with its full key, sorted.
    pub names: Vec<String>,
    /// The effective working memory it names.
    pub working_bytes: u64,
}

/// How much of a model is on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resident {
    /// So many bytes.
    Bytes(u64),
    /// Such a share, in tenths of a percent, rounded down.
    Permille(u32),
}

impl Resident {
    /// Whether `resident_bytes` of `total_bytes` are that much.
    pub fn is(self, resident_bytes: u64, total_bytes: u64) -> bool {
        match self {
            Self::Bytes(bytes) => resident_bytes == bytes,
            Self::Permille(permille) => {
                let share = u128::from(resident_bytes) * 1000 / u128::from(total_bytes.max(1));
                share == u128::from(permille)
            }
        }
    }
}

/// A text that is neither a number of bytes nor a share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is neither a number of bytes (`12GiB`) nor a share (`77.1%`)")]
pub struct ParseResidentError {
    text: String,
}

impl FromStr for Resident {
    type Err = ParseResidentError;

    fn from_str(text: &str) -> Result<Self, ParseResidentError> {
        let refused = || ParseResidentError { text: text.to_owned() };
        let Some(share) = text.strip_suffix('%') else {
            return text.parse::<Bytes>().map(|bytes| Self::Bytes(bytes.0)).map_err(|_| refused());
        };
        let (whole, tenths) = share.trim().split_once('.').unwrap_or((share.trim(), "0"));
        let whole: u32 = whole.parse().map_err(|_| refused())?;
        let tenths: u32 = tenths.parse().map_err(|_| refused())?;
        let permille = whole.saturating_mul(10).saturating_add(tenths);
        if tenths > 9 || permille > 1000 { Err(refused()) } else { Ok(Self::Permille(permille)) }
    }
}

/// Why a step of a scenario fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScenarioError {
    /// The device has too little memory: for a block, or for the pieces that a model cannot do without.
    OutOfMemory,
    /// The cache has no such model (any more).
    UnknownModel,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_compared_by_tenths_of_a_percent() {
        let share: Resident = "77.1%".parse().unwrap();
        assert!(share.is(771, 1000) && share.is(77_190, 100_000) && !share.is(770, 1000) && !share.is(772, 1000));
        assert!("100%".parse::<Resident>().unwrap().is(5, 5));
        assert!("12MiB".parse::<Resident>().unwrap().is(12 << 20, 1 << 40));
    }

    #[test]
    fn shares_beyond_all_and_nonsense_are_refused() {
        for text in ["101%", "7.55%", "-1%", "x%", "%", "12 parsecs"] {
            assert!(text.parse::<Resident>().is_err(), "{text}");
        }
    }
}
