//! From reports to lines: which windows are used, what each line is, and where its numbers come from.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use headroom_base::{
    AllocatorKind, AttemptId, Backend, HardEnvironment, InvalidReason, LineKey, Origin, Window, mutant,
};
use headroom_calibration::{
    Attempt, Counted, EstimatorVersions, Fit, FitError, NegativeRemainder, Point, Shipped, ShippedLine, ShippedSize,
    ShippedSource, Uncounted, fit,
};

use super::ALWAYS;
use super::machines::{Machine, Outlier, outliers};
use crate::merge::{MergeError, merge};
use crate::report::{AttemptRecord, Provenance, Report, Trust};
use crate::verdicts::verdicts;

/// What the builder is told beside the reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The estimators of this program: windows of other versions do not count.
    pub versions: EstimatorVersions,
    /// Whose reports are used.
    pub trusted: BTreeSet<Trust>,
    /// Ids of reports that are withdrawn, beside those that say so themselves, each with the reason.
    pub withdrawn: BTreeMap<String, String>,
}

impl Rules {
    /// Every label is trusted, nothing is withdrawn.
    pub fn new(versions: EstimatorVersions) -> Self {
        Self { versions, trusted: Trust::ALL.into(), withdrawn: BTreeMap::new() }
    }
}

/// Why a window of a report is not behind any line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOut {
    /// It does not count.
    Uncounted {
        /// The kind of reason, the same for every window of it.
        kind: &'static str,
        /// The reason in words, with this window's numbers.
        reason: String,
    },
    /// Its report was withdrawn: why.
    Withdrawn(String),
    /// Its report's label is not trusted.
    Untrusted(Trust),
    /// It was simulated: what is shipped comes from real devices.
    Simulated,
}

impl LeftOut {
    /// What windows left out for the same kind of reason have in common.
    pub fn kind(&self) -> String {
        match self {
            Self::Uncounted { kind, .. } => (*kind).to_owned(),
            Self::Withdrawn(_) => "its report was withdrawn".to_owned(),
            Self::Untrusted(_) | Self::Simulated => self.to_string(),
        }
    }
}

impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uncounted { reason, .. } => f.write_str(reason),
            Self::Withdrawn(reason) => write!(f, "its report was withdrawn: {reason}"),
            Self::Untrusted(trust) => write!(f, "reports labelled {trust} are not used here"),
            Self::Simulated => f.write_str("simulated"),
        }
    }
}

/// A line that has windows and no coefficients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotShipped {
    /// The line.
    pub line: LineKey,
    /// The software its windows were measured with.
    pub environment: HardEnvironment,
    /// Why.
    pub error: FitError,
}

/// What the builder made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The files, by backend and allocator.
    pub files: Vec<Shipped>,
    /// Lines with too few sizes.
    pub not_shipped: Vec<NotShipped>,
    /// How many windows were not used, by reason.
    pub left_out: BTreeMap<LeftOut, usize>,
    /// Machines whose windows lie far from the others'.
    pub outliers: Vec<Outlier>,
    /// Windows that needed less than their analytic part, by line.
    pub negative_remainders: Vec<(LineKey, NegativeRemainder)>,
}

/// A line's own place: what it prices, under which software.
type Group = (LineKey, HardEnvironment);

/// Builds the files.
///
/// # Errors
/// When the reports cannot be merged.
pub fn build(reports: &[Report], rules: &Rules) -> Result<Built, MergeError> {
    let merged = merge(reports)?;
    let pool = Pool::of(&merged);
    let mut left_out: BTreeMap<LeftOut, usize> = BTreeMap::new();
    let mut groups: BTreeMap<Group, Vec<&Window>> = BTreeMap::new();
    let mut fragmented: BTreeMap<Group, Vec<&Window>> = BTreeMap::new();
    let windows: Vec<Window> = merged.windows.iter().map(|record| record.window.clone()).collect();
    for (window, verdict) in windows.iter().zip(verdicts(&windows, &pool.attempts, &rules.versions)) {
        match pool.refused(window, &verdict, rules) {
            Some(reason) => {
                *left_out.entry(reason).or_default() += 1;
                let is_flagged = matches!(verdict.reason(), Some(Uncounted::Fragmented(_)));
                if is_flagged && pool.refused(window, &Counted::Counts, rules).is_none() {
                    fragmented.entry(group_of(window)).or_default().push(window);
                }
            }
            None => groups.entry(group_of(window)).or_default().push(window),
        }
    }
    let mut built = Built {
        files: Vec::new(),
        not_shipped: Vec::new(),
        left_out,
        outliers: outliers(groups.values().map(|windows| windows.iter().map(|w| (pool.machine(w), *w)).collect())),
        negative_remainders: Vec::new(),
    };
    let mut files: BTreeMap<(Backend, AllocatorKind), Vec<ShippedLine>> =
        ALWAYS.into_iter().map(|pair| (pair, Vec::new())).collect();
    for ((line, environment), windows) in groups {
        let points: Vec<Point> = windows.iter().map(|window| Point::from(*window)).collect();
        match fit(&points) {
            Ok(fit) => {
                built.negative_remainders.extend(fit.negative_remainders.iter().map(|n| (line.clone(), *n)));
                let file = files.entry((environment.backend, environment.allocator)).or_default();
                let flagged = fragmented.remove(&(line.clone(), environment.clone())).unwrap_or_default();
                let shipped = pool.shipped_line(line, environment, &fit, &windows);
                file.push(with_left_out(shipped, &flagged));
            }
            Err(error) => built.not_shipped.push(NotShipped { line, environment, error }),
        }
    }
    built.files =
        files.into_iter().map(|((backend, allocator), lines)| Shipped::new(backend, allocator, lines)).collect();
    Ok(built)
}

/// The line with the sizes of those flagged windows that needed more than it reserves.
fn with_left_out(line: ShippedLine, flagged: &[&Window]) -> ShippedLine {
    let above = |window: &&Window| Point::from(*window).remainder_bytes() > line.reserved_bytes(window.cost_units);
    let above: Vec<&Window> = flagged.iter().copied().filter(above).collect();
    ShippedLine { left_out_above: sizes(&above), ..line }
}

fn group_of(window: &Window) -> Group {
    let environment = mutant!(
        "hard_environments_pooled",
        "one machine's materialised attention raises what everybody else reserves",
        right: window.environment.hard.clone(),
        wrong: HardEnvironment {
            attention: headroom_base::AttentionKernel::Fused,
            convolution_benchmark: false,
            memory_layout: headroom_base::MemoryLayout::Contiguous,
            ..window.environment.hard.clone()
        },
    );
    (window.line.clone(), environment)
}

/// The merged reports, indexed.
struct Pool<'a> {
    attempts: Vec<Attempt>,
    records: HashMap<&'a AttemptId, &'a AttemptRecord>,
    provenance: HashMap<&'a str, &'a Provenance>,
}

impl<'a> Pool<'a> {
    fn of(merged: &'a Report) -> Self {
        Self {
            attempts: merged.attempts.iter().map(|record| record.attempt.clone()).collect(),
            records: merged.attempts.iter().map(|record| (&record.attempt.id, record)).collect(),
            provenance: merged.provenance.iter().map(|from| (from.report_id.as_str(), from)).collect(),
        }
    }

    fn record(&self, window: &Window) -> Option<&'a AttemptRecord> {
        self.records.get(window.attempt_id.as_ref()?).copied()
    }

    fn provenance(&self, window: &Window) -> Option<&'a Provenance> {
        self.provenance.get(self.record(window)?.report_id.as_str()).copied()
    }

    fn machine(&self, window: &Window) -> Machine {
        let record = self.record(window);
        Machine {
            device: window.device.clone(),
            report_id: record.map_or_else(String::new, |record| record.report_id.clone()),
            uuid_hash: record.and_then(|record| record.device_uuid_hash.clone()),
        }
    }

    /// Why a window is not used, if it is not.
    fn refused(&self, window: &Window, verdict: &Counted, rules: &Rules) -> Option<LeftOut> {
        let simulated = mutant!(
            "simulated_windows_shipped",
            "what is shipped says what the simulation believes, and the simulation then agrees with it",
            right: window.origin == Origin::Simulated,
            wrong: false,
        );
        if simulated {
            return Some(LeftOut::Simulated);
        }
        if let Some(reason) = verdict.reason() {
            return Some(LeftOut::Uncounted { kind: kind_of(reason), reason: reason.to_string() });
        }
        let Some(from) = self.provenance(window) else {
            let kind = "its report does not say where it comes from";
            return Some(LeftOut::Uncounted { kind, reason: kind.to_owned() });
        };
        let withdrawn = mutant!(
            "withdrawn_report_used",
            "figures that were found to be wrong stay in every release",
            right: from.withdrawn.clone().or_else(|| rules.withdrawn.get(&from.report_id).cloned()),
            wrong: None,
        );
        withdrawn
            .map(LeftOut::Withdrawn)
            .or_else(|| (!rules.trusted.contains(&from.trust)).then_some(LeftOut::Untrusted(from.trust)))
    }

    fn shipped_line(&self, line: LineKey, environment: HardEnvironment, fit: &Fit, windows: &[&Window]) -> ShippedLine {
        let mut sources: BTreeMap<_, usize> = BTreeMap::new();
        for window in windows {
            let source = (window.device.clone(), window.origin, self.source_text(window));
            *sources.entry(source).or_default() += 1;
        }
        ShippedLine {
            line,
            environment,
            coefficients: fit.coefficients,
            range: fit.range,
            windows: windows.len(),
            sizes: sizes(windows),
            left_out_above: Vec::new(),
            sources: sources
                .into_iter()
                .map(|((device, origin, text), windows)| ShippedSource { device, origin, text, windows })
                .collect(),
        }
    }

    /// Who measured what with what: a web address for a published figure.
    fn source_text(&self, window: &Window) -> String {
        let (model, driver) = (&window.model, &window.environment.soft.driver);
        match self.provenance(window) {
            Some(from) if from.trust == Trust::Published => format!("{model}: {}", from.report_id),
            Some(from) => format!("{model}: report {} ({}), driver {driver}", from.report_id, from.trust),
            None => format!("{model}: driver {driver}"),
        }
    }
}

/// A reason without the numbers and names of one window.
const fn kind_of(reason: &Uncounted) -> &'static str {
    match reason {
        Uncounted::WarmUp => "warm-up run",
        Uncounted::Invalid { why } => kind_of_invalid(why),
        Uncounted::PartlyResident { .. } => "part of the model was not on the device",
        Uncounted::InRoomLeft { .. } => "it ran in room left by others",
        Uncounted::SupersededTry { .. } => "the run was tried again",
        Uncounted::NoAttempt => "it belongs to no calibration",
        Uncounted::UnknownAttempt { .. } => "its calibration is not known here",
        Uncounted::AttemptRunning => "its calibration has not finished",
        Uncounted::AttemptStopped => "its calibration was stopped",
        Uncounted::AttemptFailed { .. } => "its calibration failed",
        Uncounted::AttemptIncomplete { .. } => "its calibration broke off",
        Uncounted::OtherDevice { .. } => "measured on another device",
        Uncounted::OtherEnvironment { .. } => "measured with other software",
        Uncounted::OtherEstimatorVersion { .. } => "priced by another version of its estimator",
        Uncounted::Fragmented(_) => "fragmented",
    }
}

const fn kind_of_invalid(why: &InvalidReason) -> &'static str {
    match why {
        InvalidReason::ForeignLockAtOpen | InvalidReason::ForeignLockDuring => "another lock held the device",
        InvalidReason::OutOfMemory => "out of memory",
        InvalidReason::AllocatorRetry { .. } => "the allocator retried",
        InvalidReason::Spill { .. } => "spilled to host memory",
        InvalidReason::OperationFailed { .. } => "the operation failed",
        InvalidReason::ProbeFailed { .. } => "the probe failed",
        InvalidReason::NegativeDelta { .. } => "a delta is negative",
        InvalidReason::Oversubscribed => "it needed more than the device has",
        InvalidReason::Overlapped => "it overlapped another operation of its step",
        InvalidReason::Unclear { .. } => "its source leaves open what was measured",
    }
}

fn sizes(windows: &[&Window]) -> Vec<ShippedSize> {
    let mut by_units: BTreeMap<u64, (BTreeSet<String>, u64, usize)> = BTreeMap::new();
    for window in windows {
        let (labels, largest, count) = by_units.entry(window.cost_units).or_default();
        labels.insert(window.case.size_label());
        *largest = Point::from(*window).remainder_bytes().max(*largest);
        *count += 1;
    }
    by_units
        .into_iter()
        .map(|(units, (labels, largest_remainder_bytes, windows))| ShippedSize {
            units,
            labels: labels.into_iter().collect(),
            largest_remainder_bytes,
            windows,
        })
        .collect()
}
