//! Runs a calibration: the plan's cases, warm-up and measured, as one attempt.

use std::time::{SystemTime, UNIX_EPOCH};

use headroom_base::{AttemptId, Bytes, Case, Measurement, Plan, PlannedRun, Validity, Verdict, Window};
use headroom_calibration::{
    Attempt, AttemptError, CaseToPlan, Counted, Knowledge, PlanTerms, Record, RunningAttempt, StoreError, count,
};
use headroom_device::probe::Scope;
use headroom_family::{CalibrationLine, Model};
use headroom_runners::{StepError, StepRequest, model_spec};

use super::{Bench, Ground, MEASURING_ALLOWANCE_BYTES, Subject};
use crate::pricing::price_case;

/// A calibration that ran to its end.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The plan as it was shown.
    pub plan: Plan,
    /// The attempt.
    pub attempt: Attempt,
    /// Its windows.
    pub windows: Vec<Window>,
    /// Whether each of them counts.
    pub verdicts: Vec<Counted>,
    /// What is known afterwards.
    pub knowledge: Knowledge,
}

/// Who is measured, and with what.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredModel<'a> {
    /// The model.
    pub model: &'a Model,
    /// What its calibration measures.
    pub lines: &'a [&'a CalibrationLine],
}

/// Why a calibration did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// A case cannot be priced: the model is known by its size alone.
    #[error("{case} of `{model}` cannot be priced: give the model an architecture that runs it")]
    Unpriced {
        /// The model.
        model: String,
        /// The case.
        case: Case,
    },
    /// A run failed.
    #[error("run {run} of {planned} ({case}): {source}")]
    Step {
        /// The run, from 1.
        run: u32,
        /// How many were planned.
        planned: usize,
        /// Its case.
        case: Case,
        /// Why.
        #[source]
        source: Box<StepError>,
    },
    /// A run left no window.
    #[error("run {run} ({case}) left no window")]
    NoWindow {
        /// The run, from 1.
        run: u32,
        /// Its case.
        case: Case,
    },
    /// What has finished of it cannot be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The attempt's own rules were broken.
    #[error(transparent)]
    Attempt(#[from] AttemptError),
}

/// The models of a family that its calibration measures, each with its lines.
pub fn lines_of<'a>(subject: &Subject<'a>) -> Vec<(&'a Model, Vec<&'a CalibrationLine>)> {
    let mut models: Vec<(&Model, Vec<&CalibrationLine>)> = Vec::new();
    for line in &subject.family.calibration.lines {
        match models.iter_mut().find(|(model, _)| model.key == line.model) {
            Some((_, lines)) => lines.push(line),
            None => models.extend(subject.family.model(&line.model).map(|model| (model, vec![line]))),
        }
    }
    models
}

/// The cases a calibration could measure, priced as they stand.
///
/// # Errors
/// For a case that no estimator prices.
pub fn cases_to_plan(
    subject: &Subject<'_>,
    measured: MeasuredModel<'_>,
    ground: Ground<'_>,
) -> Result<Vec<CaseToPlan>, CalibrationError> {
    let hard = subject.environment().hard;
    let cases = measured.lines.iter().flat_map(|line| &line.cases);
    cases
        .map(|case| {
            let priced = price_case(measured.model, case, &hard, ground.built_ins)
                .ok_or_else(|| CalibrationError::Unpriced { model: measured.model.key.clone(), case: *case })?;
            Ok(CaseToPlan { case: *case, line: priced.line, costs: priced.costs })
        })
        .collect()
}

/// The bytes of a model's weights on a device.
pub fn weights_bytes(model: &Model) -> u64 {
    match model_spec(model).weights {
        headroom_device::cache::WeightsSource::Synthetic(pieces) => pieces.iter().map(|piece| piece.bytes).sum(),
        headroom_device::cache::WeightsSource::Safetensors { path, .. } => {
            std::fs::metadata(path).map(|file| file.len()).unwrap_or(0)
        }
    }
}

/// Watches a calibration, and keeps what has finished of it.
pub trait Journal {
    /// The attempt begins, knowing `record`: returns it under the name it is kept under, and the record it is kept in.
    ///
    /// # Errors
    /// When it cannot be kept: nothing runs then.
    fn opens(&mut self, attempt: Attempt, record: Record) -> Result<(Attempt, Record), StoreError> {
        let mut record = record;
        Ok((record.begin_attempt(attempt), record))
    }

    /// A run begins; `planned` runs are there in all.
    fn begins(&mut self, run: &PlannedRun, planned: usize);

    /// The attempt as it stands, after each run, and when it ends.
    ///
    /// # Errors
    /// When it cannot be kept: the calibration ends there.
    fn stands(&mut self, attempt: &Attempt, windows: &[Window]) -> Result<(), StoreError>;
}

/// A journal that keeps nothing.
struct Unkept<F>(F);

impl<F: FnMut(&PlannedRun, usize)> Journal for Unkept<F> {
    fn begins(&mut self, run: &PlannedRun, planned: usize) {
        (self.0)(run, planned);
    }

    fn stands(&mut self, _: &Attempt, _: &[Window]) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Runs the calibration of one model on a bench, beginning with what `record` knows, and keeps it nowhere.
///
/// # Errors
/// As [`calibrate_into`].
pub fn calibrate(
    bench: &Bench<'_>,
    measured: MeasuredModel<'_>,
    record: Record,
    ground: Ground<'_>,
    progress: impl FnMut(&PlannedRun, usize),
) -> Result<Calibration, CalibrationError> {
    let subject = &bench.subject;
    let (family, device) = (&subject.family.name, subject.place.name());
    let id = AttemptId(format!("{family}-{}-{device}-{}", measured.model.key, subject.allocator));
    calibrate_into(bench, measured, (id, record), ground, &mut Unkept(progress))
}

/// Runs the calibration of one model on a bench as the attempt `id` (or what its journal makes of that name), beginning
/// with what the record beside it knows.
///
/// # Errors
/// When a case cannot be priced, a run fails, or the journal cannot keep it: the attempt has failed then, and nothing of
/// it counts.
pub fn calibrate_into(
    bench: &Bench<'_>,
    measured: MeasuredModel<'_>,
    (id, record): (AttemptId, Record),
    ground: Ground<'_>,
    journal: &mut dyn Journal,
) -> Result<Calibration, CalibrationError> {
    let subject = &bench.subject;
    let environment = subject.environment();
    let mut knowledge = Knowledge::new(record.clone(), subject.context(ground.versions), environment.soft.clone());
    let terms = PlanTerms {
        capacity: subject.capacity_terms(bench.card.total_bytes(), subject.locked_weights_bytes(measured.model)),
        measuring_allowance_bytes: MEASURING_ALLOWANCE_BYTES,
        floor_bytes: bench.floor_bytes,
    };
    let cases = cases_to_plan(subject, measured, ground)?;
    let plan = knowledge.plan(record.clone(), cases, ground.built_ins, terms);
    let attempt = Attempt::begin(id, measured.model.key.clone(), subject.class(), environment, plan.clone());
    let (attempt, mut record) = journal.opens(attempt.started_at(now()), record)?;
    let mut running = RunningAttempt::begin(attempt, knowledge.fits())?;
    let runs = plan.runs();
    for run in &runs {
        journal.begins(run, runs.len());
        match measure_run(bench, measured, &running, &plan, run, ground) {
            Ok(window) => running.run_finished(run.run, vec![window])?,
            Err(error) => {
                let (failed, windows) = running.fail(error.to_string(), now());
                journal.stands(&failed, &windows)?;
                return Err(error);
            }
        }
        journal.stands(running.attempt(), running.windows())?;
    }
    let (attempt, windows) = running.finish(now()).map_err(|(_, error)| error)?;
    journal.stands(&attempt, &windows)?;
    record.keep_progress(attempt.clone(), windows.clone())?;
    knowledge.refresh(record);
    let verdicts = count(&windows, std::slice::from_ref(&attempt), knowledge.context());
    Ok(Calibration { plan, attempt, windows, verdicts, knowledge })
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// One run of an attempt, priced by the fits that were frozen when it began.
pub(crate) fn measure_run(
    bench: &Bench<'_>,
    measured: MeasuredModel<'_>,
    running: &RunningAttempt,
    plan: &Plan,
    run: &PlannedRun,
    ground: Ground<'_>,
) -> Result<Window, CalibrationError> {
    let subject = &bench.subject;
    let case = plan.cases[run.case_index].priced.case;
    let hard = subject.environment().hard;
    let priced = price_case(measured.model, &case, &hard, ground.built_ins)
        .ok_or_else(|| CalibrationError::Unpriced { model: measured.model.key.clone(), case })?;
    let built_in = ground.built_ins.find(&hard, &priced.line);
    let estimate = running.price(&priced.line, &priced.costs, built_in.as_ref(), bench.floor_bytes);
    let scope = Scope::new(plan.measuring_allowance_bytes);
    let beside = subject.locked_beside(measured.model);
    let request = StepRequest {
        model: &measured.model.key,
        with: &beside,
        case,
        working_bytes: Some(estimate.reservation_bytes),
    };
    let report = bench.session.measure(&scope, &request).map_err(|source| CalibrationError::Step {
        run: run.run + 1,
        planned: plan.runs().len(),
        case,
        source: Box::new(source),
    })?;
    let measurement = report.measurement.ok_or(CalibrationError::NoWindow { run: run.run + 1, case })?;
    let attempt_id = Some(running.attempt().id.clone());
    let window = subject.window(measured.model, case, priced, measurement);
    Ok(Window { attempt_id, run: run.run, kind: run.kind, ..window })
}

/// A window in a few words, for the messages of checks.
pub fn describe(window: &Window) -> String {
    let Measurement { demand_bytes, validity, .. } = &window.measurement;
    let validity = match validity {
        Validity::Valid => "valid".to_owned(),
        Validity::Invalid(reason) => format!("invalid: {reason}"),
    };
    format!("{} run {} needed {} ({validity})", window.case, window.run, Bytes(*demand_bytes))
}

/// The cases of a plan that the device cannot hold, with the numbers.
pub fn not_fitting(plan: &Plan) -> Vec<String> {
    plan.cases
        .iter()
        .filter_map(|planned| match planned.verdict {
            Verdict::Fits => None,
            Verdict::DoesNotFit { needed_bytes, short_bytes } => {
                Some(format!("{}: needs {}, {} short", planned.priced.case, Bytes(needed_bytes), Bytes(short_bytes)))
            }
        })
        .collect()
}
