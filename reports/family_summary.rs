//! What became of one family on one device: its plans, fits and estimates, and how many demands those cover.

use headroom_base::{Case, DeviceClass, Environment, Estimate, LineKey, Origin, Plan};
use headroom_calibration::{Coefficients, UnitRange};
use serde::{Deserialize, Serialize};

/// A line's fits over the range that was measured, without margin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FitRecord {
    /// The line.
    pub line: LineKey,
    /// The software it holds for.
    pub environment: Environment,
    /// The sizes it was measured at.
    #[serde(flatten)]
    pub range: UnitRange,
    /// The user's fit; none where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Coefficients>,
    /// The shipped fit; none where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built_in: Option<Coefficients>,
}

/// What is reserved for a case, beside what it needed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EstimateRecord {
    /// The case.
    pub case: Case,
    /// What it prices on.
    pub line: LineKey,
    /// Its cost units.
    pub cost_units: u64,
    /// The software.
    pub environment: Environment,
    /// What is reserved, with the source of the number.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// The largest demand that was measured at this case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand_bytes: Option<u64>,
    /// Where that demand comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand_origin: Option<Origin>,
}

impl EstimateRecord {
    /// Reservation over demand in thousandths; none without a demand.
    pub fn reserved_permille(&self) -> Option<u64> {
        let demand = self.demand_bytes.filter(|bytes| *bytes > 0)?;
        u64::try_from(u128::from(self.estimate.reservation_bytes) * 1000 / u128::from(demand)).ok()
    }
}

/// How many of a number of cases were covered by their reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Cases whose demand was within the reservation.
    pub covered: u64,
    /// Cases looked at.
    pub of: u64,
}

/// Coverage by where the demand comes from, so that a simulation cannot hide behind itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Demands of simulated programs.
    pub simulated: Tally,
    /// Demands recorded or measured on real devices.
    pub recorded: Tally,
}

impl Coverage {
    /// Counts the estimates that have a demand beside them.
    pub fn of(estimates: &[EstimateRecord]) -> Self {
        let mut coverage = Self::default();
        for estimate in estimates {
            let (Some(demand), Some(origin)) = (estimate.demand_bytes, estimate.demand_origin) else { continue };
            let tally = match origin {
                Origin::Simulated => &mut coverage.simulated,
                Origin::Recorded | Origin::Measured | Origin::Published => &mut coverage.recorded,
            };
            tally.of += 1;
            tally.covered += u64::from(demand <= estimate.estimate.reservation_bytes);
        }
        coverage
    }
}

/// What became of one family on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FamilySummary {
    /// The family.
    pub family: String,
    /// The device, as trials are named.
    pub device: String,
    /// Its class.
    pub class: DeviceClass,
    /// Whether it exists only in software.
    pub simulated: bool,
    /// The plans that were shown before anything ran.
    #[serde(default)]
    pub plans: Vec<Plan>,
    /// The fits.
    #[serde(default)]
    pub fits: Vec<FitRecord>,
    /// The estimates, each with its source.
    #[serde(default)]
    pub estimates: Vec<EstimateRecord>,
}

impl FamilySummary {
    /// How many demands their reservations cover.
    pub fn coverage(&self) -> Coverage {
        Coverage::of(&self.estimates)
    }

    /// The largest reservation over its demand, in thousandths.
    pub fn largest_reserved_permille(&self) -> Option<u64> {
        self.estimates.iter().filter_map(EstimateRecord::reserved_permille).max()
    }
}
