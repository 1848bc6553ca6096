//! What a calibration will run: its cases, the runs of each, and which of them the device can hold.

use serde::{Deserialize, Serialize};

use crate::budget::{Cap, DeviceFigures, Reclaim, budget};
use crate::{Case, Estimate, LineKey, Reading, RunKind, mutant};

/// Measured runs of each case, after one warm-up.
pub const MEASURED_RUNS: u32 = 2;

/// Fewer distinct sizes than this on a line make no fit.
pub const LEAST_SIZES: usize = 3;

/// The terms of a device's capacity for one measured window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CapacityTerms {
    /// The device's memory by the driver.
    pub total_bytes: u64,
    /// What other processes hold now.
    pub outside_now_bytes: u64,
    /// What is kept for other processes whatever they hold now.
    pub outside_floor_bytes: u64,
    /// This process's own context and libraries.
    pub context_bytes: u64,
    /// What the driver keeps after this process's frees, the largest recorded; unknown on a first run.
    pub retained_bytes: Reading,
    /// Weights of all models locked in the window, the measured one too.
    pub locked_weights_bytes: u64,
    /// The cache's explicit limit.
    pub cap: Cap,
}

/// What a window may use beyond its models' weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Capacity {
    /// Where the number comes from.
    #[serde(flatten)]
    pub terms: CapacityTerms,
    /// The budget before working memory is taken off; negative where not even the weights fit.
    pub capacity_bytes: i64,
}

impl Capacity {
    /// The cache's own budget, in the state the calibration will make: every unlocked model gone, the
    /// reserve emptied, so that nothing is credited.
    pub fn new(terms: CapacityTerms) -> Self {
        let outside = mutant!(
            "plan_without_floor_for_others",
            "a size is planned that fits only while the neighbours happen to be idle",
            right: terms.outside_now_bytes.max(terms.outside_floor_bytes),
            wrong: terms.outside_now_bytes,
        );
        let retained = mutant!(
            "plan_without_retained_bytes",
            "a size is planned that the memory kept by the driver leaves no room for",
            right: terms.retained_bytes.known().unwrap_or(0),
            wrong: 0,
        );
        let taken = [outside, terms.context_bytes, retained, terms.locked_weights_bytes]
            .into_iter()
            .fold(0, u64::saturating_add);
        let figures = DeviceFigures {
            total_bytes: terms.total_bytes,
            driver_free_bytes: terms.total_bytes.saturating_sub(taken),
            allocated_bytes: terms.locked_weights_bytes,
            reserved_bytes: terms.locked_weights_bytes,
            inactive_split_bytes: 0,
            reclaim: Reclaim::WholeSegments,
        };
        let shortfall = i64::try_from(taken.saturating_sub(terms.total_bytes)).unwrap_or(i64::MAX);
        let before_working_bytes = budget(&figures, None, 0, terms.cap).before_working_bytes;
        // Where more is taken than there is, nothing is free, and the cap can only be lower still.
        let capacity_bytes = if shortfall > 0 { before_working_bytes.min(-shortfall) } else { before_working_bytes };
        Self { terms, capacity_bytes }
    }
}

/// A case with its price, before it is known whether the device can hold it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PricedCase {
    /// The case.
    pub case: Case,
    /// What it prices on.
    pub line: LineKey,
    /// Its cost units.
    pub cost_units: u64,
    /// What a lock would reserve for it now.
    pub estimate: Estimate,
}

/// Whether the device can hold a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Verdict {
    /// It can.
    Fits,
    /// It cannot.
    DoesNotFit {
        /// What a measured lock would ask for.
        needed_bytes: u64,
        /// How much more than the capacity that is.
        short_bytes: u64,
    },
}

/// A case of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlannedCase {
    /// The case with its price.
    #[serde(flatten)]
    pub priced: PricedCase,
    /// Whether the device can hold it.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Something a person should know before anything runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "note")]
pub enum PlanNote {
    /// The line cannot get a fit on this device.
    TooFewSizes {
        /// The line.
        line: LineKey,
        /// Distinct sizes that fit.
        fitting: usize,
    },
    /// Losing one more size would leave the line without a fit.
    OneExclusionVoids {
        /// The line.
        line: LineKey,
    },
    /// What the driver keeps after frees is unknown: the first calibration may lose its largest size.
    RetainedUnknown,
}

/// One run of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlannedRun {
    /// Its number, from 0.
    pub run: u32,
    /// Which case of the plan.
    pub case_index: usize,
    /// Warm-up or measured.
    pub kind: RunKind,
}

/// All cases of a calibration, sizes ascending within each line, and what the device can hold of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Plan {
    /// What the device can hold.
    pub capacity: Capacity,
    /// What a measured lock asks beyond its estimate.
    pub measuring_allowance_bytes: u64,
    /// The working memory that is kept free whatever an estimate says.
    pub floor_bytes: u64,
    /// The cases.
    pub cases: Vec<PlannedCase>,
}

impl Plan {
    /// Orders the cases (lines as first given, sizes ascending) and judges each against the capacity.
    pub fn new(capacity: Capacity, priced: Vec<PricedCase>, allowance_bytes: u64, floor_bytes: u64) -> Self {
        let mut lines: Vec<LineKey> = Vec::new();
        for case in &priced {
            if !lines.contains(&case.line) {
                lines.push(case.line.clone());
            }
        }
        let mut ordered = priced;
        ordered.sort_by_key(|case| (lines.iter().position(|line| *line == case.line), case.cost_units));
        let room_bytes = mutant!(
            "plan_with_partly_resident_sizes",
            "a size is planned for which its own model has to leave the card in part, and never counts",
            right: capacity.capacity_bytes,
            wrong: capacity.capacity_bytes.saturating_add_unsigned(capacity.terms.locked_weights_bytes),
        );
        let cases = ordered
            .into_iter()
            .map(|priced| {
                let added_bytes = mutant!(
                    "plan_without_the_measuring_allowance",
                    "a size is planned whose measured lock asks for more than the card has",
                    right: allowance_bytes,
                    wrong: 0,
                );
                let asked_bytes = priced.estimate.reservation_bytes.saturating_add(added_bytes);
                let needed_bytes = mutant!(
                    "plan_below_the_floor",
                    "a size is planned for which the cache would have to break into the card's own working memory",
                    right: asked_bytes.max(floor_bytes),
                    wrong: asked_bytes,
                );
                PlannedCase { verdict: judge(needed_bytes, room_bytes), priced }
            })
            .collect();
        Self { capacity, measuring_allowance_bytes: allowance_bytes, floor_bytes, cases }
    }

    /// The runs, in order: one warm-up and [`MEASURED_RUNS`] of every case that fits.
    pub fn runs(&self) -> Vec<PlannedRun> {
        let mut runs = Vec::new();
        for (case_index, planned) in self.cases.iter().enumerate() {
            if planned.verdict != Verdict::Fits {
                continue;
            }
            for number in 0..=MEASURED_RUNS {
                let kind = if number == 0 { RunKind::Warmup } else { RunKind::Measured };
                runs.push(PlannedRun { run: u32::try_from(runs.len()).unwrap_or(u32::MAX), case_index, kind });
            }
        }
        runs
    }

    /// What a person should know before anything runs.
    pub fn notes(&self) -> Vec<PlanNote> {
        let mut notes = Vec::new();
        if self.capacity.terms.retained_bytes == Reading::Unknown {
            notes.push(PlanNote::RetainedUnknown);
        }
        let mut seen: Vec<&LineKey> = Vec::new();
        for planned in &self.cases {
            let line = &planned.priced.line;
            if seen.contains(&line) {
                continue;
            }
            seen.push(line);
            let fitting = self.fitting_sizes(line);
            match fitting.cmp(&LEAST_SIZES) {
                std::cmp::Ordering::Less => notes.push(PlanNote::TooFewSizes { line: line.clone(), fitting }),
                std::cmp::Ordering::Equal => notes.push(PlanNote::OneExclusionVoids { line: line.clone() }),
                std::cmp::Ordering::Greater => {}
            }
        }
        notes
    }

    /// Distinct sizes of a line that fit.
    pub fn fitting_sizes(&self, line: &LineKey) -> usize {
        let mut units: Vec<u64> = self
            .cases
            .iter()
            .filter(|planned| planned.priced.line == *line && planned.verdict == Verdict::Fits)
            .map(|planned| planned.priced.cost_units)
            .collect();
        units.sort_unstable();
        units.dedup();
        units.len()
    }
}

fn judge(needed_bytes: u64, capacity_bytes: i64) -> Verdict {
    let short = i128::from(needed_bytes) - i128::from(capacity_bytes);
    match u64::try_from(short) {
        Err(_) | Ok(0) => Verdict::Fits,
        Ok(short_bytes) => Verdict::DoesNotFit { needed_bytes, short_bytes },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, GIB, MIB, Operation, Source};

    const TERMS: CapacityTerms = CapacityTerms {
        total_bytes: 16 * GIB,
        outside_now_bytes: GIB,
        outside_floor_bytes: 2 * GIB,
        context_bytes: 512 * MIB,
        retained_bytes: Reading::Bytes(512 * MIB),
        locked_weights_bytes: GIB,
        cap: Cap::Unlimited,
    };

    fn priced(dtype: DType, side: u32, reservation_bytes: u64) -> PricedCase {
        let case = Case::image(Operation::VaeDecode, dtype, side, side);
        let line = LineKey {
            estimator: "test".into(),
            estimator_version: 1,
            operation: case.operation,
            dtype,
            tiling: None,
            tokens: None,
        };
        let cost_units = u64::from(side) * u64::from(side) * dtype.element_bytes();
        let estimate = Estimate { reservation_bytes, ..Estimate::new(0, 0, Source::BuiltIn) };
        PricedCase { case, line, cost_units, estimate }
    }

    #[test]
    fn capacity_is_the_total_less_everything_that_is_not_free() {
        let gib = |terms: CapacityTerms| Capacity::new(terms).capacity_bytes * 2 / GIB as i64;
        assert_eq!(gib(TERMS), 24);
        assert_eq!(gib(CapacityTerms { outside_now_bytes: 4 * GIB, ..TERMS }), 20);
        assert_eq!(gib(CapacityTerms { retained_bytes: Reading::Unknown, ..TERMS }), 25);
        assert_eq!(gib(CapacityTerms { cap: Cap::Bytes(8 * GIB), ..TERMS }), 14);
        assert_eq!(gib(CapacityTerms { locked_weights_bytes: 15 * GIB, ..TERMS }), -4);
        // With a cap the lower of the two shortfalls is the answer, not their sum.
        let capped = |cap| CapacityTerms { locked_weights_bytes: 15 * GIB, cap: Cap::Bytes(cap), ..TERMS };
        assert_eq!((gib(capped(14 * GIB)), gib(capped(12 * GIB))), (-4, -6));
    }

    #[test]
    fn figures_that_no_device_has_leave_nothing_and_do_not_overflow() {
        let retained_bytes = Reading::Bytes(u64::MAX);
        let nonsense = CapacityTerms { retained_bytes, cap: Cap::Bytes(0), ..TERMS };
        assert!(Capacity::new(nonsense).capacity_bytes < -(1 << 62));
    }

    #[test]
    fn two_types_and_three_sizes_make_eighteen_runs_sizes_ascending() {
        let sides = [1024, 512, 768];
        let cases =
            [DType::Fp16, DType::Fp32].into_iter().flat_map(|d| sides.map(|side| priced(d, side, GIB))).collect();
        let plan = Plan::new(Capacity::new(TERMS), cases, 0, 3 * GIB);
        let runs = plan.runs();
        assert_eq!(runs.len(), 18);
        assert_eq!(runs.iter().filter(|run| run.kind == RunKind::Warmup).count(), 6);
        let labels: Vec<_> = plan.cases.iter().map(|planned| planned.priced.case.to_string()).collect();
        let expected =
            ["fp16 512x512", "fp16 768x768", "fp16 1024x1024", "fp32 512x512", "fp32 768x768", "fp32 1024x1024"];
        assert_eq!(labels, expected.map(|size| format!("vae_decode {size}")));
    }

    #[test]
    fn a_case_fits_up_to_the_last_byte_and_is_listed_with_the_number_beyond() {
        let capacity = Capacity::new(TERMS);
        let all = u64::try_from(capacity.capacity_bytes).unwrap();
        let cases = vec![priced(DType::Fp16, 512, all - MIB), priced(DType::Fp16, 768, all - MIB + 1)];
        let plan = Plan::new(capacity, cases, MIB, 3 * GIB);
        assert_eq!(plan.cases[0].verdict, Verdict::Fits);
        assert_eq!(plan.cases[1].verdict, Verdict::DoesNotFit { needed_bytes: all + 1, short_bytes: 1 });
        assert!(plan.runs().iter().all(|run| run.case_index == 0));
    }

    #[test]
    fn the_floor_decides_for_small_estimates() {
        let terms = CapacityTerms { locked_weights_bytes: 11 * GIB, ..TERMS };
        let plan = Plan::new(Capacity::new(terms), vec![priced(DType::Fp16, 64, MIB)], 0, 3 * GIB);
        assert!(matches!(plan.cases[0].verdict, Verdict::DoesNotFit { needed_bytes, .. } if needed_bytes == 3 * GIB));
    }

    #[test]
    fn too_few_sizes_are_said_before_anything_runs() {
        let sizes = |sides: &[u32]| sides.iter().map(|side| priced(DType::Fp16, *side, GIB)).collect::<Vec<_>>();
        let notes = |sides: &[u32]| Plan::new(Capacity::new(TERMS), sizes(sides), 0, GIB).notes();
        assert!(matches!(notes(&[512, 768, 768])[..], [PlanNote::TooFewSizes { fitting: 2, .. }]));
        assert!(matches!(notes(&[512, 768, 1024])[..], [PlanNote::OneExclusionVoids { .. }]));
        assert!(notes(&[512, 640, 768, 1024]).is_empty());
    }
}
