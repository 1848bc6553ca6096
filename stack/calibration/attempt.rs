//! One calibration: its planned runs, how far it came, and the rule that nothing of it joins before all of it has.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use headroom_base::{AttemptId, DeviceClass, Environment, Plan, mutant};
use serde::{Deserialize, Serialize};

/// How far an attempt came.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum AttemptState {
    /// It is running.
    Running,
    /// Every planned run has finished: its windows may join.
    Finished,
    /// Somebody stopped it.
    Stopped,
    /// A run failed.
    Failed {
        /// What it said.
        message: String,
    },
    /// It ended without saying how, in the middle: the process was killed or the machine went down.
    Incomplete,
}

impl fmt::Display for AttemptState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => f.write_str("is still running"),
            Self::Finished => f.write_str("has finished"),
            Self::Stopped => f.write_str("was stopped"),
            Self::Failed { message } => write!(f, "failed: {message}"),
            Self::Incomplete => f.write_str("broke off in the middle and is incomplete"),
        }
    }
}

/// An attempt as it is kept: what was planned, under what, and how far it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its name, the same in each of its windows.
    pub id: AttemptId,
    /// Who is measured: the model's key.
    pub model: String,
    /// On which kind of card.
    pub device: DeviceClass,
    /// Under which software.
    pub environment: Environment,
    /// How many runs were planned.
    pub planned_runs: u32,
    /// The plan as it was shown; none for an attempt read from a recording.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// The runs that have finished.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub finished_runs: BTreeSet<u32>,
    /// The last try of each run that was tried more than once, counted from 0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub last_tries: BTreeMap<u32, u32>,
    /// When it began, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_unix_seconds: Option<u64>,
    /// When it ended, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_seconds: Option<u64>,
    /// How far it came.
    #[serde(flatten)]
    pub state: AttemptState,
}

/// Why an attempt cannot go on as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttemptError {
    /// It has ended.
    #[error("attempt {attempt} {state}: begin a new one")]
    Ended {
        /// Which attempt.
        attempt: AttemptId,
        /// How it ended.
        state: AttemptState,
    },
    /// A run that was never planned.
    #[error("attempt {attempt} has no run {run}: it planned {planned_runs}, counted from 0")]
    NoSuchRun {
        /// Which attempt.
        attempt: AttemptId,
        /// The run named.
        run: u32,
        /// How many were planned.
        planned_runs: u32,
    },
    /// It was to be finished before all of it had run.
    #[error("attempt {attempt} cannot finish: {} of {planned_runs} runs are missing, the first is run {}", missing.len(), missing[0])]
    RunsMissing {
        /// Which attempt.
        attempt: AttemptId,
        /// The runs that have not finished; at least one.
        missing: Vec<u32>,
        /// How many were planned.
        planned_runs: u32,
    },
    /// It is to be kept where it was not begun, or was removed meanwhile.
    #[error("attempt {attempt} is not in the store, where it was never begun or was reset meanwhile: begin a new one")]
    NotBegun {
        /// Which attempt.
        attempt: AttemptId,
    },
    /// It is to be kept in the place of another.
    #[error("attempt {attempt} in the store is another one, and is kept as it is: begin a new one")]
    OfAnother {
        /// Which attempt.
        attempt: AttemptId,
    },
}

impl Attempt {
    /// An attempt that begins now, with the plan it shows.
    pub fn begin(
        id: AttemptId,
        model: impl Into<String>,
        device: DeviceClass,
        environment: Environment,
        plan: Plan,
    ) -> Self {
        let planned_runs = u32::try_from(plan.runs().len()).unwrap_or(u32::MAX);
        let running = Self::recorded(id, model, device, environment, planned_runs);
        Self { plan: Some(plan), finished_runs: BTreeSet::new(), state: AttemptState::Running, ..running }
    }

    /// A finished attempt of which only the windows are known, such as a recording's.
    pub fn recorded(
        id: AttemptId,
        model: impl Into<String>,
        device: DeviceClass,
        environment: Environment,
        planned_runs: u32,
    ) -> Self {
        Self {
            id,
            model: model.into(),
            device,
            environment,
            planned_runs,
            plan: None,
            finished_runs: (0..planned_runs).collect(),
            last_tries: BTreeMap::new(),
            started_unix_seconds: None,
            ended_unix_seconds: None,
            state: AttemptState::Finished,
        }
    }

    /// The same attempt with the moment it began.
    #[must_use]
    pub fn started_at(mut self, unix_seconds: u64) -> Self {
        self.started_unix_seconds = Some(unix_seconds);
        self
    }

    /// Notes that a run has finished.
    ///
    /// # Errors
    /// For an attempt that has ended, and for a run that was not planned.
    pub fn run_finished(&mut self, run: u32) -> Result<(), AttemptError> {
        self.check(run)?;
        self.finished_runs.insert(run);
        Ok(())
    }

    /// Begins a run once more and returns the number of the new try; windows of earlier tries never count.
    ///
    /// # Errors
    /// For an attempt that has ended, and for a run that was not planned.
    pub fn retry(&mut self, run: u32) -> Result<u32, AttemptError> {
        self.check(run)?;
        self.finished_runs.remove(&run);
        let last_try = self.last_tries.entry(run).or_insert(0);
        *last_try += 1;
        Ok(*last_try)
    }

    /// Ends the attempt as finished, if every planned run has.
    ///
    /// # Errors
    /// For an attempt that has ended, and while runs are missing: then it stays as it is.
    pub fn finish(&mut self, unix_seconds: u64) -> Result<(), AttemptError> {
        self.check_running()?;
        let missing: Vec<u32> = (0..self.planned_runs).filter(|run| !self.finished_runs.contains(run)).collect();
        let complete = mutant!(
            "attempt_finished_with_runs_missing",
            "a calibration that lost its large sizes joins as if it had measured them",
            right: missing.is_empty(),
            wrong: true,
        );
        if !complete {
            let planned_runs = self.planned_runs;
            return Err(AttemptError::RunsMissing { attempt: self.id.clone(), missing, planned_runs });
        }
        self.end(AttemptState::Finished, unix_seconds)
    }

    /// Ends the attempt on somebody's wish.
    ///
    /// # Errors
    /// For an attempt that has ended.
    pub fn stop(&mut self, unix_seconds: u64) -> Result<(), AttemptError> {
        self.end(AttemptState::Stopped, unix_seconds)
    }

    /// Ends the attempt because a run failed.
    ///
    /// # Errors
    /// For an attempt that has ended.
    pub fn fail(&mut self, message: impl Into<String>, unix_seconds: u64) -> Result<(), AttemptError> {
        self.end(AttemptState::Failed { message: message.into() }, unix_seconds)
    }

    /// The attempt as it is read back by a process that is not running it: what was running then broke off.
    pub fn broke_off(&mut self) {
        if self.state == AttemptState::Running {
            self.state = AttemptState::Incomplete;
        }
    }

    /// Whether both are one attempt, however far each came.
    pub(crate) fn began_as(&self, other: &Self) -> bool {
        let begun = |attempt: &Self| Self {
            finished_runs: BTreeSet::new(),
            last_tries: BTreeMap::new(),
            ended_unix_seconds: None,
            state: AttemptState::Running,
            ..attempt.clone()
        };
        begun(self) == begun(other)
    }

    /// What became of it, with the number of runs, for people.
    pub fn outcome(&self) -> String {
        let (finished, planned) = (self.finished_runs.len(), self.planned_runs);
        format!("{} ({finished} of {planned} runs finished)", self.state)
    }

    fn check(&self, run: u32) -> Result<(), AttemptError> {
        self.check_running()?;
        if run < self.planned_runs {
            return Ok(());
        }
        Err(AttemptError::NoSuchRun { attempt: self.id.clone(), run, planned_runs: self.planned_runs })
    }

    pub(crate) fn check_running(&self) -> Result<(), AttemptError> {
        match &self.state {
            AttemptState::Running => Ok(()),
            state => Err(AttemptError::Ended { attempt: self.id.clone(), state: state.clone() }),
        }
    }

    fn end(&mut self, state: AttemptState, unix_seconds: u64) -> Result<(), AttemptError> {
        self.check_running()?;
        self.state = state;
        self.ended_unix_seconds = Some(unix_seconds);
        Ok(())
    }
}
