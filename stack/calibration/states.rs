//! The state of a line as it is shown to people: one function from facts to states.

use std::fmt;

use headroom_base::{LineKey, Window, mutant};
use serde::{Deserialize, Serialize};

use crate::attempt::{Attempt, AttemptState};
use crate::counting::{Counted, Uncounted};
use crate::knowledge::Knowledge;

/// What a line's calibration is at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum State {
    /// Nothing can be measured on this platform.
    Unsupported,
    /// There is no GPU.
    NoGpu,
    /// More than one device generates: which of them would be measured is unknown.
    ManyGenerationDevices {
        /// How many.
        devices: usize,
    },
    /// An attempt of this model is running.
    Running {
        /// Runs that have finished.
        finished_runs: usize,
        /// Runs that are planned.
        planned_runs: u32,
    },
    /// The newest attempt of this model failed.
    Failed {
        /// What it said.
        message: String,
    },
    /// The newest attempt of this model was stopped or broke off.
    Incomplete {
        /// Runs that had finished.
        finished_runs: usize,
        /// Runs that were planned.
        planned_runs: u32,
        /// Whether somebody stopped it.
        stopped: bool,
    },
    /// The fit is used; the driver has changed since it was measured.
    MayBeOutdated,
    /// The fit is used.
    InUse,
    /// Windows count, but of too few sizes.
    TooFewSizes {
        /// How many.
        sizes: usize,
    },
    /// Measured under software that differs in a part that matters.
    NotUsed,
    /// Nothing was measured.
    NeverCalibrated,
    /// The store cannot be read, so that nothing measured is known.
    StoreUnreadable,
    /// The figures are read in a way that nobody has checked on this platform.
    MethodNotVerified,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported => f.write_str("not supported here"),
            Self::NoGpu => f.write_str("no GPU"),
            Self::ManyGenerationDevices { devices } => write!(f, "{devices} generation devices; one is needed"),
            Self::Running { finished_runs, planned_runs } => write!(f, "running, {finished_runs} of {planned_runs}"),
            Self::Failed { message } => write!(f, "failed: {message}"),
            Self::Incomplete { finished_runs, planned_runs, stopped } => {
                let how = if *stopped { "stopped" } else { "broke off" };
                write!(f, "incomplete, {how} after {finished_runs} of {planned_runs} runs")
            }
            Self::MayBeOutdated => f.write_str("in use, may be outdated (the driver has changed)"),
            Self::InUse => f.write_str("in use"),
            Self::TooFewSizes { sizes } => write!(f, "too few sizes ({sizes})"),
            Self::NotUsed => f.write_str("not used (measured with other software)"),
            Self::NeverCalibrated => f.write_str("never calibrated"),
            Self::StoreUnreadable => f.write_str("the measurements on disk cannot be read"),
            Self::MethodNotVerified => f.write_str("measurement method not verified on this platform"),
        }
    }
}

/// What is known of the machine, whatever was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Platform {
    /// Whether anything can be measured at all.
    pub supported: bool,
    /// GPUs that generate.
    pub generation_devices: usize,
    /// Whether a person saw the way figures are read agree with the allocator on this platform.
    pub method_verified: bool,
}

/// How the newest attempt of a model on a line went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Newest {
    /// There is none, or it finished.
    Nothing,
    /// It has not finished.
    Running {
        /// Runs that have finished.
        finished_runs: usize,
        /// Runs that are planned.
        planned_runs: u32,
    },
    /// It failed.
    Failed {
        /// What it said.
        message: String,
    },
    /// It was stopped or broke off.
    Incomplete {
        /// Runs that had finished.
        finished_runs: usize,
        /// Runs that were planned.
        planned_runs: u32,
        /// Whether somebody stopped it.
        stopped: bool,
    },
}

/// What a line has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// A fit.
    Fit {
        /// Whether the soft environment has changed since.
        may_be_outdated: bool,
    },
    /// Counted windows of too few sizes; of none at all where a calibration ran to its end and nothing of it counts.
    TooFew {
        /// How many.
        sizes: usize,
    },
    /// Windows that would count in another hard environment.
    ElsewhereOnly,
    /// Nothing.
    Nothing,
}

/// Everything a line's state depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The machine.
    pub platform: Platform,
    /// Whether the store can be read.
    pub store_readable: bool,
    /// The newest attempt of the model on the line, in the environment and estimator version of now.
    pub newest: Newest,
    /// What the line has of its own.
    pub own: Own,
}

/// A line's state, and what is to be said beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// The state.
    #[serde(flatten)]
    pub state: State,
    /// [`State::StoreUnreadable`] and [`State::MethodNotVerified`], where they hold beside another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<State>,
}

/// Maps facts to the state shown. The first that holds is the state, in this order: unsupported, no GPU, more
/// than one generation device, running, failed, incomplete, may be outdated, in use, too few sizes, not used,
/// never calibrated. An unreadable store is the state where it would otherwise read "never calibrated", which
/// nobody can know then; everywhere else it stands beside. An unverified method always stands beside.
pub fn state(facts: &Facts) -> Shown {
    let mut also = Vec::new();
    let mut state = alone(facts);
    if !facts.store_readable {
        if state == State::NeverCalibrated {
            state = State::StoreUnreadable;
        } else {
            also.push(State::StoreUnreadable);
        }
    }
    let can_measure = !matches!(state, State::Unsupported | State::NoGpu);
    if can_measure && !facts.platform.method_verified {
        also.push(State::MethodNotVerified);
    }
    Shown { state, also }
}

fn alone(facts: &Facts) -> State {
    if !facts.platform.supported {
        return State::Unsupported;
    }
    match facts.platform.generation_devices {
        0 => return State::NoGpu,
        1 => {}
        devices => return State::ManyGenerationDevices { devices },
    }
    match &facts.newest {
        Newest::Running { finished_runs, planned_runs } => {
            return State::Running { finished_runs: *finished_runs, planned_runs: *planned_runs };
        }
        Newest::Failed { message } => return State::Failed { message: message.clone() },
        Newest::Incomplete { finished_runs, planned_runs, stopped } => {
            let (finished_runs, planned_runs, stopped) = (*finished_runs, *planned_runs, *stopped);
            return State::Incomplete { finished_runs, planned_runs, stopped };
        }
        Newest::Nothing => {}
    }
    match facts.own {
        Own::Fit { may_be_outdated: true } => State::MayBeOutdated,
        Own::Fit { may_be_outdated: false } => State::InUse,
        Own::TooFew { sizes } => State::TooFewSizes { sizes },
        Own::ElsewhereOnly => State::NotUsed,
        Own::Nothing => State::NeverCalibrated,
    }
}

impl Facts {
    /// The facts of a model's line; `None` for the knowledge where the store cannot be read.
    pub fn gather(knowledge: Option<&Knowledge>, line: &LineKey, model: &str, platform: Platform) -> Self {
        let newest = knowledge.map_or(Newest::Nothing, |knowledge| newest(knowledge, line, model));
        let own = knowledge.map_or(Own::Nothing, |knowledge| own(knowledge, line));
        let store_readable = mutant!(
            "unreadable_store_shown_as_empty",
            "people measure again what lies in a file that only has to be mended",
            right: knowledge.is_some(),
            wrong: true,
        );
        Self { platform, store_readable, newest, own }
    }
}

/// The newest attempt of the model that has to do with the line, in the environment of now.
fn newest(knowledge: &Knowledge, line: &LineKey, model: &str) -> Newest {
    let context = knowledge.context();
    let here = |attempt: &&Attempt| {
        attempt.model == model
            && attempt.device == context.device
            && mutant!(
                "other_software_colours_the_state",
                "a line that works is shown as failed because it failed under another allocator last year",
                right: attempt.environment.hard == context.hard,
                wrong: true,
            )
            && concerns(knowledge, attempt, line)
    };
    let mut attempts = knowledge.record().attempts.iter().rev().filter(here);
    let shown = mutant!(
        "stale_failure_shown",
        "a calibration that succeeded is shown as failed because an earlier one was",
        right: attempts.next(),
        wrong: attempts.find(|attempt| matches!(attempt.state, AttemptState::Failed { .. })),
    );
    let Some(attempt) = shown else { return Newest::Nothing };
    let (finished_runs, planned_runs) = (attempt.finished_runs.len(), attempt.planned_runs);
    match &attempt.state {
        AttemptState::Finished => Newest::Nothing,
        AttemptState::Running => Newest::Running { finished_runs, planned_runs },
        AttemptState::Failed { message } => Newest::Failed { message: message.clone() },
        AttemptState::Stopped => Newest::Incomplete { finished_runs, planned_runs, stopped: true },
        AttemptState::Incomplete => Newest::Incomplete { finished_runs, planned_runs, stopped: false },
    }
}

/// Whether an attempt planned the line or measured it.
fn concerns(knowledge: &Knowledge, attempt: &Attempt, line: &LineKey) -> bool {
    match &attempt.plan {
        Some(plan) => plan.cases.iter().any(|planned| planned.priced.line == *line),
        None => {
            let windows = &knowledge.record().windows;
            windows.iter().any(|window| window.attempt_id.as_ref() == Some(&attempt.id) && window.line == *line)
        }
    }
}

fn own(knowledge: &Knowledge, line: &LineKey) -> Own {
    if let Some(user) = knowledge.fits().get(line) {
        return Own::Fit { may_be_outdated: user.may_be_outdated };
    }
    if let Some(crate::fit::FitError::TooFewSizes { sizes }) = knowledge.fits().why_not(line) {
        return Own::TooFew { sizes };
    }
    let windows =
        || knowledge.record().windows.iter().zip(knowledge.verdicts()).filter(|(window, _)| window.line == *line);
    if windows().any(|(window, verdict)| was_measured_here_in_vain(knowledge, window, verdict)) {
        return Own::TooFew { sizes: 0 };
    }
    let elsewhere = |verdict: &Counted| matches!(verdict.reason(), Some(Uncounted::OtherEnvironment { .. }));
    if windows().any(|(_, verdict)| elsewhere(verdict)) { Own::ElsewhereOnly } else { Own::Nothing }
}

/// Whether a calibration of now ran to its end and this window of it does not count because of what it measured.
fn was_measured_here_in_vain(knowledge: &Knowledge, window: &Window, verdict: &Counted) -> bool {
    let spoilt = matches!(
        verdict.reason(),
        Some(
            Uncounted::Invalid { .. }
                | Uncounted::PartlyResident { .. }
                | Uncounted::InRoomLeft { .. }
                | Uncounted::Fragmented(_)
        )
    );
    let context = knowledge.context();
    spoilt
        && window.device == context.device
        && window.environment.hard == context.hard
        && context.versions.is_current(&window.line)
        && knowledge
            .record()
            .attempts
            .iter()
            .any(|attempt| window.attempt_id.as_ref() == Some(&attempt.id) && attempt.state == AttemptState::Finished)
}
