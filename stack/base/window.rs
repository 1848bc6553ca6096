//! One measured interval: what the probe saw, and what it was measured for.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Case, DType, DeviceClass, Environment, Operation, Reading, Tiling, mutant};

/// What several models may price on: equal lines share their calibration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LineKey {
    /// The estimator that prices the line ("autoencoder_kl").
    pub estimator: String,
    /// Its version: windows of another version do not count.
    pub estimator_version: u32,
    /// The operation.
    pub operation: Operation,
    /// The element type.
    pub dtype: DType,
    /// The tiling, where the operation runs tile by tile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiling: Option<Tiling>,
    /// The length of a text, where the operation does not grow with it in step: attention whose scores lie in memory
    /// grows with its square. Batches of one length share a line then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
}

impl fmt::Display for LineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} v{} {} {}", self.estimator, self.estimator_version, self.operation, self.dtype)?;
        if let Some(tokens) = self.tokens {
            write!(f, " {tokens} tokens")?;
        }
        match self.tiling {
            Some(tiling) => write!(f, " tile {} overlap {} %", tiling.tile_pixels, tiling.overlap_percent),
            None => Ok(()),
        }
    }
}

/// Whether a run is there to warm up or to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    /// The first run of a case: lazy initialisation and searches are in it.
    Warmup,
    /// A run that may count.
    Measured,
}

/// Why a window says nothing about working memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "reason")]
pub enum InvalidReason {
    /// A lock from outside the scope held the device when the window opened.
    ForeignLockAtOpen,
    /// A lock from outside the scope came while the window was open.
    ForeignLockDuring,
    /// The allocator ran out of memory.
    OutOfMemory,
    /// The allocator had to give memory back and try again.
    AllocatorRetry {
        /// How many times. In files it has a name of its own, since it stands beside the measurement's `retries`.
        #[serde(rename = "allocator_retries")]
        retries: u64,
    },
    /// The driver moved memory to the host and it stayed there.
    Spill {
        /// How much.
        bytes: u64,
    },
    /// The operation failed.
    OperationFailed {
        /// What it said.
        message: String,
    },
    /// A part of the probe failed: a hook, an observer, the close.
    ProbeFailed {
        /// Which and why.
        message: String,
    },
    /// A delta came out negative.
    NegativeDelta {
        /// Which ("driver", "reserved", "allocated").
        quantity: String,
    },
    /// The operation needed more than the device has: part of it was in host memory.
    Oversubscribed,
    /// Another window of the step opened in it and was still open when it closed, or it was that other one: neither
    /// lay inside the other, and whose memory was whose cannot be told.
    Overlapped,
    /// A published figure whose source leaves open what was measured.
    Unclear {
        /// What it leaves open.
        message: String,
    },
}

impl fmt::Display for InvalidReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForeignLockAtOpen => f.write_str("another lock held the device at the start"),
            Self::ForeignLockDuring => f.write_str("another lock came while it ran"),
            Self::OutOfMemory => f.write_str("out of memory"),
            Self::AllocatorRetry { retries } => write!(f, "the allocator retried {retries} times"),
            Self::Spill { bytes } => write!(f, "{} spilled to host memory", crate::Bytes(*bytes)),
            Self::OperationFailed { message } => write!(f, "the operation failed: {message}"),
            Self::ProbeFailed { message } => write!(f, "the probe failed: {message}"),
            Self::NegativeDelta { quantity } => write!(f, "the {quantity} delta is negative"),
            Self::Oversubscribed => f.write_str("it needed more than the device has"),
            Self::Overlapped => {
                f.write_str("it overlapped another operation of its step, and whose memory is whose cannot be told")
            }
            Self::Unclear { message } => write!(f, "its source leaves open what was measured: {message}"),
        }
    }
}

/// Whether a measurement can be believed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "validity")]
pub enum Validity {
    /// It can.
    Valid,
    /// It cannot.
    Invalid(InvalidReason),
}

impl Validity {
    /// Whether this is [`Validity::Valid`].
    pub const fn is_valid(&self) -> bool {
        matches!(self, Self::Valid)
    }
}

/// How much of the measured model was on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "residency")]
pub enum Residency {
    /// All of it.
    Full,
    /// Not all of it: such a window is kept and joins no fit.
    Partial {
        /// Bytes that were not on the device.
        missing_bytes: u64,
    },
}

/// Peaks over a window's baseline, corrected for weights that came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Deltas {
    /// Peak allocated minus baseline.
    pub allocated_peak_bytes: u64,
    /// Peak reserved minus baseline.
    pub reserved_peak_bytes: u64,
    /// Growth of the own process as the driver sees it.
    pub driver_bytes: Reading,
}

impl Deltas {
    /// What the operation needed: the largest of the deltas that are known.
    pub fn demand_bytes(&self) -> u64 {
        let driver = mutant!(
            "driver_growth_left_out_of_the_demand",
            "what the driver rounds up and libraries take beside the allocator is missing from every reservation",
            right: self.driver_bytes.known().unwrap_or(0),
            wrong: 0,
        );
        let reserved = mutant!(
            "reserved_growth_left_out_of_the_demand",
            "segments that an operation cannot use twice are missing from its reservation",
            right: self.reserved_peak_bytes,
            wrong: 0,
        );
        self.allocated_peak_bytes.max(reserved).max(driver)
    }
}

/// What the probe saw between a lock and its unlock. It knows nothing of lines or fits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Measurement {
    /// The working memory the lock asked for, without the measuring allowance.
    pub estimate_bytes: u64,
    /// Peaks over the baseline.
    #[serde(flatten)]
    pub deltas: Deltas,
    /// The largest known delta: what a reservation must cover.
    pub demand_bytes: u64,
    /// How many stretches of constant residency the window had.
    pub stretches: u32,
    /// Allocator retries inside the window.
    pub retries: u64,
    /// How much of the measured model was on the device.
    #[serde(flatten)]
    pub residency: Residency,
    /// Whether it can be believed.
    #[serde(flatten)]
    pub validity: Validity,
}

/// Where a window's numbers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A program on a simulated device.
    Simulated,
    /// A recording of a real device, read from a file.
    Recorded,
    /// A real device, just now.
    Measured,
    /// Somebody's published figure.
    Published,
}

/// Identifies an attempt: one calibration, all planned runs of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptId(pub String);

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A measurement together with what it was a measurement of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Window {
    /// Who measured: the model's key.
    pub model: String,
    /// What it prices.
    pub line: LineKey,
    /// The case.
    pub case: Case,
    /// The case's cost units, as the estimator of this version counts them.
    pub cost_units: u64,
    /// The part of the demand that is known exactly.
    pub analytic_bytes: u64,
    /// The device.
    pub device: DeviceClass,
    /// The software.
    pub environment: Environment,
    /// The attempt it belongs to; a window of none never counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_id: Option<AttemptId>,
    /// Which planned run of the attempt, from 0.
    pub run: u32,
    /// Which try of that run, from 0: only the last one counts.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retry: u32,
    /// Warm-up or measured.
    pub kind: RunKind,
    /// Where the numbers come from.
    pub origin: Origin,
    /// What was measured.
    #[serde(flatten)]
    pub measurement: Measurement,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_invalid_for_any_reason_keeps_its_shape_in_json() {
        let message = "no".to_owned();
        let reasons = [
            InvalidReason::AllocatorRetry { retries: 2 },
            InvalidReason::Spill { bytes: 3 },
            InvalidReason::OperationFailed { message: message.clone() },
            InvalidReason::ProbeFailed { message: message.clone() },
            InvalidReason::NegativeDelta { quantity: message },
            InvalidReason::OutOfMemory,
            InvalidReason::Overlapped,
        ];
        for reason in reasons {
            let deltas = Deltas { allocated_peak_bytes: 1, reserved_peak_bytes: 2, driver_bytes: Reading::Unknown };
            let measurement = Measurement {
                estimate_bytes: 1,
                deltas,
                demand_bytes: 2,
                stretches: 1,
                retries: 5,
                residency: Residency::Partial { missing_bytes: 7 },
                validity: Validity::Invalid(reason),
            };
            let json = serde_json::to_string(&measurement).unwrap();
            assert_eq!(serde_json::from_str::<Measurement>(&json).unwrap(), measurement, "{json}");
        }
    }

    #[test]
    fn demand_is_the_largest_delta_and_an_unknown_driver_is_not_zero_growth() {
        let deltas = |allocated, reserved, driver| Deltas {
            allocated_peak_bytes: allocated,
            reserved_peak_bytes: reserved,
            driver_bytes: driver,
        };
        assert_eq!(deltas(1, 2, Reading::Bytes(3)).demand_bytes(), 3);
        assert_eq!(deltas(1, 4, Reading::Bytes(3)).demand_bytes(), 4);
        assert_eq!(deltas(5, 4, Reading::Unknown).demand_bytes(), 5);
    }
}
