//! An attempt on a stage, run by run, so that something can happen between two runs.

use headroom_base::{AttemptId, Bytes, Plan, PlannedRun, Window};
use headroom_calibration::{Attempt, Knowledge, PlanTerms, Record, RunningAttempt};

use super::stage::Stage;
use crate::bench::{Bench, CalibrationError, MEASURING_ALLOWANCE_BYTES, MeasuredModel, cases_to_plan, measure_run};
use crate::checks::CheckError;

/// An attempt under way.
pub(super) struct UnderWay<'s, 'a> {
    stage: &'s Stage<'a>,
    bench: &'s Bench<'a>,
    pub(super) plan: Plan,
    pub(super) running: RunningAttempt,
}

impl<'a> Stage<'a> {
    /// What follows from a record here.
    pub(super) fn knowledge(&self, record: &Record) -> Knowledge {
        Knowledge::new(record.clone(), self.subject.context(self.ground().versions), self.subject.environment().soft)
    }

    /// What a plan on this bench is made for.
    pub(super) fn plan_terms(&self, bench: &Bench<'_>) -> PlanTerms {
        let total_bytes = bench.card.total_bytes();
        PlanTerms {
            capacity: self.subject.capacity_terms(total_bytes, self.subject.locked_weights_bytes(self.model)),
            measuring_allowance_bytes: MEASURING_ALLOWANCE_BYTES,
            floor_bytes: bench.floor_bytes,
        }
    }

    /// The plan a calibration of the line shows, from knowledge that was opened earlier and a record of now.
    pub(super) fn plan(
        &self,
        knowledge: &mut Knowledge,
        record: &Record,
        terms: PlanTerms,
    ) -> Result<Plan, CalibrationError> {
        let lines = [self.line];
        let measured = MeasuredModel { model: self.model, lines: &lines };
        let cases = cases_to_plan(&self.subject, measured, self.ground())?;
        Ok(knowledge.plan(record.clone(), cases, self.ground().built_ins, terms))
    }

    /// Begins an attempt of this name with what a record knows.
    ///
    /// # Errors
    /// When the model leaves no room for a run even on the stage's card: there is nothing to see then.
    pub(super) fn begin<'s>(
        &'s self,
        bench: &'s Bench<'a>,
        record: &Record,
        id: &str,
    ) -> Result<UnderWay<'s, 'a>, CheckError> {
        let mut knowledge = self.knowledge(record);
        let plan = self.plan(&mut knowledge, record, self.plan_terms(bench))?;
        if plan.runs().is_empty() {
            let weights = Bytes(self.subject.locked_weights_bytes(self.model));
            let (key, card) = (&self.model.key, Bytes(bench.card.total_bytes()));
            return Err(CheckError::violated(format!(
                "no run of `{key}` can be planned beside its {weights} of weights on a card of {card}, larger than any"
            )));
        }
        let (id, model, environment) = (AttemptId(id.to_owned()), &self.model.key, self.subject.environment());
        let attempt = Attempt::begin(id, model, self.subject.class(), environment, plan.clone());
        let running = RunningAttempt::begin(attempt, knowledge.fits()).map_err(CalibrationError::from)?;
        Ok(UnderWay { stage: self, bench, plan, running })
    }

    /// Adds a whole attempt of this name to a record.
    pub(super) fn calibrate(&self, bench: &Bench<'a>, record: &mut Record, id: &str) -> Result<(), CheckError> {
        let mut attempt = self.begin(bench, record, id)?;
        attempt.run_all()?;
        attempt.finish_into(record)
    }

    /// An empty record of this stage's card.
    pub(super) fn record(&self) -> Record {
        Record::empty(self.subject.class())
    }
}

impl UnderWay<'_, '_> {
    /// Measures a run and keeps its window.
    pub(super) fn run(&mut self, run: &PlannedRun, retry: u32) -> Result<Window, CheckError> {
        let lines = [self.stage.line];
        let measured = MeasuredModel { model: self.stage.model, lines: &lines };
        let window = measure_run(self.bench, measured, &self.running, &self.plan, run, self.stage.ground())?;
        let window = Window { retry, ..window };
        self.running.run_finished(run.run, vec![window.clone()]).map_err(CalibrationError::from)?;
        Ok(window)
    }

    /// Measures every run of the plan.
    pub(super) fn run_all(&mut self) -> Result<(), CheckError> {
        self.plan.runs().iter().try_for_each(|run| self.run(run, 0).map(drop))
    }

    /// Finishes, and keeps attempt and windows.
    pub(super) fn finish_into(self, record: &mut Record) -> Result<(), CheckError> {
        let (attempt, windows) = self.running.finish(0).map_err(|(_, error)| CalibrationError::from(error))?;
        keep(record, attempt, windows);
        Ok(())
    }

    /// What a process that writes after every run would have in its record.
    pub(super) fn so_far(&self, record: &Record) -> Record {
        let mut record = record.clone();
        keep(&mut record, self.running.attempt().clone(), self.running.windows().to_vec());
        record
    }
}

/// Keeps an attempt and its windows.
pub(super) fn keep(record: &mut Record, attempt: Attempt, windows: Vec<Window>) {
    record.keep_attempt(attempt);
    record.windows.extend(windows);
}
