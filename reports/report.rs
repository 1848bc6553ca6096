//! A report: everything a run of headroom saw, as one value. All other formats are made from it.

use std::fmt;

use headroom_base::{DeviceClass, Window};
use headroom_calibration::{Attempt, Counted};
use serde::{Deserialize, Serialize};

use crate::family_summary::FamilySummary;
use crate::format::FormatVersion;

/// Whose word a report is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// A continuous-integration runner of the project.
    Ci,
    /// A maintainer's own machine.
    Maintainer,
    /// Anybody else's machine.
    Contributed,
    /// Figures somebody printed elsewhere.
    Published,
}

impl Trust {
    /// Every label, the most trusted first.
    pub const ALL: [Self; 4] = [Self::Ci, Self::Maintainer, Self::Contributed, Self::Published];

    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ci => "ci",
            Self::Maintainer => "maintainer",
            Self::Contributed => "contributed",
            Self::Published => "published",
        }
    }
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where a report comes from. A merged report has one for each of its parts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Provenance {
    /// Identifies the report, whatever it is merged into.
    pub report_id: String,
    /// The version of headroom that wrote it.
    pub tool_version: String,
    /// The commit it was built from, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// When it was written, as RFC 3339 ("2026-12-01T08:00:00Z").
    pub created: String,
    /// The command line without the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    /// Whose word it is.
    pub trust: Trust,
    /// Why it is not to be used any more. Adding this field by hand withdraws a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<String>,
    /// Whether the run was stopped before its end. Every report that is written while trials still run says so, and the
    /// last one takes its place; trials that had not ended stand in it as not run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

/// A device that windows were measured on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// The kind of card.
    pub class: DeviceClass,
    /// A hash of its UUID: tells two cards apart without naming them. None for a simulated device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid_hash: Option<String>,
    /// The driver's version.
    pub driver: String,
    /// Whether it exists only in software.
    pub simulated: bool,
}

/// One calibration that windows belong to, with where it ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// The attempt. Not flattened: its map of tries by run would not be read back.
    pub attempt: Attempt,
    /// The report it was first written to.
    pub report_id: String,
    /// The machine's card, by the hash of its UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_uuid_hash: Option<String>,
    /// Something a reader should know ("warm server: other tensors came and went").
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A window with the verdict on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowRecord {
    /// The window; `demand_bytes` is among its fields.
    #[serde(flatten)]
    pub window: Window,
    /// Whether it joins fits, and if not, why.
    pub counting: Counted,
    /// The same reason in words; none for a window that counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excluded_reason: Option<String>,
    /// The trial that opened it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<String>,
    /// The report it comes from, in a merged report, where no attempt says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_id: Option<String>,
    /// How long its operation took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// What a published figure's source says about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl WindowRecord {
    /// A window with its verdict, and the verdict's reason in words.
    pub fn new(window: Window, counting: Counted) -> Self {
        let excluded_reason = counting.reason().map(ToString::to_string);
        Self { window, counting, excluded_reason, trial: None, report_id: None, seconds: None, note: None }
    }

    /// Takes a new verdict.
    pub fn judge(&mut self, counting: Counted) {
        self.excluded_reason = counting.reason().map(ToString::to_string);
        self.counting = counting;
    }
}

/// What is said of a run that was stopped, and of its trials that had not ended.
pub const STOPPED: &str = "the run was stopped before its end";

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Something does not hold.
    Failed,
    /// The device was busy with another process's work, so nothing can be said.
    Busy,
    /// The run ended before this trial had: nothing can be said.
    NotRun,
    /// Not run: there is no such device here, or it was filtered out.
    Ignored,
    /// All of it holds.
    Passed,
}

impl Outcome {
    /// Every outcome, the ones to look at first.
    pub const ALL: [Self; 5] = [Self::Failed, Self::Busy, Self::NotRun, Self::Ignored, Self::Passed];

    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Busy => "busy",
            Self::NotRun => "not run",
            Self::Ignored => "ignored",
            Self::Passed => "passed",
        }
    }
}

/// One trial: a check of a family on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The family.
    pub family: String,
    /// The device, as trials are named.
    pub device: String,
    /// What is checked.
    pub check: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, unless it passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Things a reader should know that are no failure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// How long it took.
    pub seconds: f64,
    /// The report it comes from, in a merged report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_id: Option<String>,
}

impl Check {
    /// `family::device::check`.
    pub fn name(&self) -> String {
        format!("{}::{}::{}", self.family, self.device, self.check)
    }
}

/// What became of one wrong decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MutantGrade {
    /// Its name.
    pub name: String,
    /// What goes wrong in the world when this decision is wrong.
    pub harm: String,
    /// The file and line where the decision stands.
    #[serde(default)]
    pub place: String,
    /// The claims that it breaks: a check that failed for another reason has not seen it.
    #[serde(default)]
    pub claims: Vec<String>,
    /// The checks that saw it; none means that it survived.
    pub killed_by: Vec<String>,
    /// Checks that failed under it for another reason, each with what it said. They kill nothing.
    #[serde(default)]
    pub failed_otherwise: Vec<String>,
    /// The checks that passed its decision and should have seen it.
    pub reached_by: Vec<String>,
    /// How long its checks took.
    #[serde(default)]
    pub milliseconds: u64,
}

/// The mutation checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MutantReport {
    /// Every mutant graded.
    pub grades: Vec<MutantGrade>,
}

impl MutantReport {
    /// Mutants that no check saw.
    pub fn survivors(&self) -> impl Iterator<Item = &MutantGrade> {
        self.grades.iter().filter(|grade| grade.killed_by.is_empty())
    }

    /// `N graded, K killed, S survived`.
    pub fn verdict(&self) -> String {
        let survived = self.survivors().count();
        format!("{} graded, {} killed, {survived} survived", self.grades.len(), self.grades.len() - survived)
    }
}

/// Everything a run saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What can read it.
    #[serde(flatten)]
    pub format: FormatVersion,
    /// Where it comes from: one entry, or one for each report merged into it.
    pub provenance: Vec<Provenance>,
    /// The devices.
    #[serde(default)]
    pub devices: Vec<DeviceRecord>,
    /// The attempts windows belong to.
    #[serde(default)]
    pub attempts: Vec<AttemptRecord>,
    /// Every window, those that do not count with their reason.
    #[serde(default)]
    pub windows: Vec<WindowRecord>,
    /// The trials.
    #[serde(default)]
    pub trials: Vec<Check>,
    /// Per family and device.
    #[serde(default)]
    pub families: Vec<FamilySummary>,
    /// The mutation checks, where they ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutants: Option<MutantReport>,
}

impl Report {
    /// An empty report of the current format.
    pub fn new(provenance: Provenance) -> Self {
        Self::of(vec![provenance])
    }

    /// An empty report of what comes from several places.
    pub(crate) fn of(provenance: Vec<Provenance>) -> Self {
        Self {
            format: FormatVersion::CURRENT,
            provenance,
            devices: Vec::new(),
            attempts: Vec::new(),
            windows: Vec::new(),
            trials: Vec::new(),
            families: Vec::new(),
            mutants: None,
        }
    }

    /// How many trials ended so.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.trials.iter().filter(|trial| trial.outcome == outcome).count()
    }

    /// How many trials ended how, what to look at first before the rest: `1 failed`, `0 busy` and so on. Trials that were
    /// not run are named only where there are any: in a whole report there are none.
    pub fn counts(&self) -> Vec<String> {
        let named = Outcome::ALL.into_iter().filter(|o| *o != Outcome::NotRun || self.count(*o) > 0);
        named.map(|outcome| format!("{} {}", self.count(outcome), outcome.name())).collect()
    }

    /// Why a run that was stopped was: what its trials say that were not run.
    pub fn why_stopped(&self, from: &Provenance) -> &str {
        let of_it = |trial: &&Check| trial.report_id.as_ref().is_none_or(|id| *id == from.report_id);
        let not_run = self.trials.iter().filter(of_it).find(|trial| trial.outcome == Outcome::NotRun);
        not_run.and_then(|trial| trial.message.as_deref()).unwrap_or(STOPPED)
    }

    /// What the first trial says that ended so: of trials that were not run or ignored, mostly why all of them were.
    pub fn first_message(&self, outcome: Outcome) -> Option<&str> {
        self.trials.iter().find(|trial| trial.outcome == outcome)?.message.as_deref()
    }

    /// Whether everything was looked at that was to be, and nothing failed: no trial, and no mutant survived.
    pub fn holds(&self) -> bool {
        !self.has_failed() && !self.is_stopped()
    }

    /// Whether a trial failed or a mutant survived.
    fn has_failed(&self) -> bool {
        let survived = self.mutants.as_ref().is_some_and(|mutants| mutants.survivors().next().is_some());
        survived || self.count(Outcome::Failed) > 0
    }

    /// Whether a part of it is of a run that was stopped before its end.
    pub fn is_stopped(&self) -> bool {
        self.provenance.iter().any(|from| from.stopped)
    }

    /// Whether it has trials and none of them could be run: nothing failed, and nothing is known to hold.
    pub fn only_ignored(&self) -> bool {
        !self.trials.is_empty() && self.count(Outcome::Ignored) == self.trials.len()
    }

    /// Whether it has trials and none of them came to its end.
    fn none_was_run(&self) -> bool {
        !self.trials.is_empty() && self.count(Outcome::NotRun) == self.trials.len()
    }

    /// Whether it looked at nothing, as that of a shard does where there are fewer trials than shards.
    fn is_of_nothing(&self) -> bool {
        self.trials.is_empty() && self.windows.is_empty() && self.mutants.is_none()
    }

    /// What stands at the head of every file that is made of it.
    pub fn headline(&self) -> &'static str {
        match (self.has_failed(), self.is_stopped()) {
            (true, true) => "something does not hold, and the run was stopped before its end",
            (true, false) => "something does not hold",
            (false, true) if self.none_was_run() => "nothing was run: no trial came to its end",
            (false, true) => STOPPED,
            (false, false) if self.count(Outcome::Busy) > 0 => "nothing failed, and a device was busy",
            (false, false) if self.only_ignored() => "nothing could be run: every trial was ignored",
            (false, false) if self.is_of_nothing() => "no trial was to be run",
            (false, false) => "all holds",
        }
    }
}
