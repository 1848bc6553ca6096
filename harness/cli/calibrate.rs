//! `calibrate`: measures a family's models on a device and shows each size measured, built in and calibrated.

use std::time::{SystemTime, UNIX_EPOCH};

use headroom_base::{AttemptId, Bytes, Estimate, LineKey, Plan, PlannedCase, PlannedRun, RunKind, Verdict, Window};
use headroom_calibration::{
    Attempt, BuiltIns, LineSummary, Platform, Record, SizeRow, Store, StoreError, summarize_line,
};
use headroom_family::Model;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::args::PlanArgs;
use super::error::CliError;
use super::exit::Exit;
use super::place::OnCard;
use super::plan::{note_text, plan_of, record_of};
use super::terminal::Terminal;
use crate::bench::{
    Calibration, Ground, Journal, MeasuredModel, Setup, Subject, calibrate_into as measure, lines_of, not_fitting,
};
use crate::catalogue::Catalogue;
use crate::pricing::estimator_versions;

/// What a model's calibration came to.
#[derive(Serialize)]
struct ModelAnswer {
    model: String,
    /// None where nothing of it fits on the device, so that nothing ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_id: Option<AttemptId>,
    runs: usize,
    not_fitting: Vec<String>,
    lines: Vec<LineSummary>,
}

#[derive(Serialize)]
struct Answer<'a> {
    family: &'a str,
    device: &'a str,
    allocator: headroom_base::AllocatorKind,
    models: Vec<ModelAnswer>,
    /// The file the measurements are kept in.
    #[serde(skip_serializing_if = "Option::is_none")]
    stored: Option<String>,
}

/// Calibrates every measured model of a family on a device.
///
/// # Errors
/// For names that are not known, a device on which nothing can run, a run that fails, and a store that cannot be used
/// or written.
pub(super) fn calibrate(args: &PlanArgs, catalogue: &Catalogue, terminal: &mut Terminal<'_>) -> Result<Exit, CliError> {
    let family = catalogue.family(&args.family)?;
    let card = OnCard::named(family, &args.device, &format!("a calibration of {}", family.name))?;
    let subject = Subject { layout: args.layout, ..Subject::usual(family, card.place(), args.allocator) };
    let versions = estimator_versions(catalogue.families());
    let ground = Ground { built_ins: BuiltIns::compiled_in(), versions: &versions };
    let lines = lines_of(&subject);
    let measured = || lines.iter().map(|(model, lines)| MeasuredModel { model, lines });
    let record = || record_of(args.store.as_deref(), &subject.class());
    let mut plans = Vec::new();
    for measured in measured() {
        plans.push(plan_of(&subject, measured, record()?, ground)?);
    }
    say_beforehand(&subject, measured().zip(&plans), terminal)?;
    let mut models = Vec::new();
    for (measured, plan) in measured().zip(&plans) {
        let model = measured.model;
        if plan.runs().is_empty() {
            models.push(not_run(&model.key, plan));
            continue;
        }
        let bench = subject.bench(&Setup::default())?;
        let progress = Progress::new(&model.key, terminal);
        let mut journal = Kept { store: args.store.as_deref().map(Store::open), subject, progress, kept: (0, 0) };
        let calibration = measure(&bench, measured, (name(&subject, model), record()?), ground, &mut journal);
        journal.finish(calibration.is_err());
        let calibration = calibration?;
        // A simulated card's figures are exact; of an attached one it is said whether a person saw its reader agree.
        let method_verified = bench.session.cache().device().reader_verified();
        let platform = Platform { supported: true, generation_devices: 1, method_verified };
        let answer = answer(&model.key, &calibration, platform, ground.built_ins);
        models.push(answer);
    }
    let stored = args.store.as_ref().map(|folder| Store::open(folder).path(&subject.class()).display().to_string());
    let answer =
        Answer { family: &family.name, device: subject.place.name(), allocator: args.allocator, models, stored };
    if args.json {
        terminal.json(&answer)?
    } else {
        print(&answer, terminal)?
    }
    Ok(Exit::Success)
}

/// Says what will not come of the calibrations, before anything runs.
///
/// # Errors
/// Where nothing of any of them fits on the device.
fn say_beforehand<'a>(
    subject: &Subject<'_>,
    plans: impl Iterator<Item = (MeasuredModel<'a>, &'a Plan)> + Clone,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    for (measured, plan) in plans.clone() {
        let cases = not_fitting(plan).into_iter().map(|case| format!("does not fit: {case}"));
        for text in cases.chain(plan.notes().iter().map(note_text)) {
            terminal.remark(format!("{}: {text}", measured.model.key));
        }
    }
    let short_bytes = |case: &PlannedCase| match case.verdict {
        Verdict::Fits => 0,
        Verdict::DoesNotFit { short_bytes, .. } => short_bytes,
    };
    let least_short_bytes = plans.flat_map(|(_, plan)| &plan.cases).map(short_bytes).min();
    if let Some(bytes @ 1..) = least_short_bytes {
        let (family, device, short) = (&subject.family.name, subject.place.name(), Bytes(bytes));
        let text =
            format!("nothing of the calibration of `{family}` fits on {device}, the least of it is {short} short");
        return Err(CliError::Unavailable(format!("{text}: nothing ran and nothing was kept")));
    }
    Ok(())
}

/// The name that an attempt asks for.
fn name(subject: &Subject<'_>, model: &Model) -> AttemptId {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (family, device) = (&subject.family.name, subject.place.name());
    AttemptId(format!("{family}-{}-{device}-{}-{now}", model.key, subject.allocator))
}

/// Shows how far a calibration is and keeps it after every run, where there is a store.
struct Kept<'s, 't, 'w> {
    store: Option<Store>,
    subject: Subject<'s>,
    progress: Progress<'t, 'w>,
    /// How many runs of the attempt are in the store, of how many planned.
    kept: (usize, u32),
}

impl Kept<'_, '_, '_> {
    /// Says what stays of an attempt that broke off.
    fn finish(self, broke_off: bool) {
        let Self { store, subject, progress, kept: (runs, planned) } = self;
        let model = progress.model.clone();
        let terminal = progress.finish();
        if let (true, Some(store)) = (broke_off && runs > 0, store) {
            let path = store.path(&subject.class());
            terminal.remark(format!(
                "{model}: {runs} of {planned} runs are kept in {} and join no fit, because the attempt broke off",
                path.display()
            ));
        }
    }
}

impl Journal for Kept<'_, '_, '_> {
    /// An attempt that an earlier process left running has broken off.
    fn opens(&mut self, attempt: Attempt, mut record: Record) -> Result<(Attempt, Record), StoreError> {
        let Some(store) = &self.store else { return Ok((record.begin_attempt(attempt), record)) };
        store.update(&self.subject.class(), |record| {
            record.break_off_all_but(&[]);
            (record.begin_attempt(attempt), record.clone())
        })
    }

    fn begins(&mut self, run: &PlannedRun, planned: usize) {
        self.progress.begins(run, planned);
    }

    fn stands(&mut self, attempt: &Attempt, windows: &[Window]) -> Result<(), StoreError> {
        let Some(store) = &self.store else { return Ok(()) };
        store.update(&self.subject.class(), |record| record.keep_progress(attempt.clone(), windows.to_vec()))??;
        self.kept = (windows.len(), attempt.planned_runs);
        Ok(())
    }
}

fn not_run(model: &str, plan: &Plan) -> ModelAnswer {
    let model = model.to_owned();
    ModelAnswer { model, attempt_id: None, runs: 0, not_fitting: not_fitting(plan), lines: Vec::new() }
}

fn answer(model: &str, calibration: &Calibration, platform: Platform, built_ins: &BuiltIns) -> ModelAnswer {
    let mut lines: Vec<&LineKey> = Vec::new();
    for window in &calibration.windows {
        if !lines.contains(&&window.line) {
            lines.push(&window.line);
        }
    }
    let summary = |line: &LineKey| summarize_line(&calibration.knowledge, line, model, platform, built_ins);
    ModelAnswer {
        model: model.to_owned(),
        attempt_id: Some(calibration.attempt.id.clone()),
        runs: calibration.windows.len(),
        not_fitting: not_fitting(&calibration.plan),
        lines: lines.into_iter().map(summary).collect(),
    }
}

fn print(answer: &Answer<'_>, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let Answer { family, device, allocator, .. } = answer;
    for model in &answer.models {
        terminal.line(format!("{} of {family} on {device} ({allocator}): {} runs", model.model, model.runs))?;
        for case in &model.not_fitting {
            terminal.line(format!("  does not fit: {case}"))?;
        }
        for summary in &model.lines {
            terminal.line(format!("{}: {}", summary.line, summary.shown.state))?;
            let rows: Vec<_> = summary.sizes.iter().map(row).collect();
            terminal.table(&["size", ">measured", ">built-in", ">calibrated", "counted"], &rows)?;
        }
    }
    if answer.models.is_empty() {
        terminal.line(format!("`{family}` calibrates nothing."))?;
    }
    if let Some(path) = &answer.stored {
        terminal.line(format!("Kept in {path}"))?;
    }
    Ok(())
}

fn row(size: &SizeRow) -> Vec<String> {
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "none".to_owned(), |bytes| Bytes(bytes).to_string());
    let reserved = |estimate: &Option<Estimate>| bytes(estimate.map(|estimate| estimate.reservation_bytes));
    let counted = size.excluded_reason.clone().unwrap_or_else(|| "yes".to_owned());
    vec![size.size.clone(), bytes(size.measured_bytes), reserved(&size.built_in), reserved(&size.calibrated), counted]
}

/// A bar where somebody watches, a line a case where nobody does.
struct Progress<'t, 'w> {
    bar: Option<ProgressBar>,
    model: String,
    terminal: &'t mut Terminal<'w>,
}

impl<'t, 'w> Progress<'t, 'w> {
    fn new(model: &str, terminal: &'t mut Terminal<'w>) -> Self {
        let bar = terminal.is_interactive().then(|| {
            let style = ProgressStyle::with_template("{msg} {bar:32} {pos}/{len} {elapsed}");
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { bar, model: model.to_owned(), terminal }
    }

    fn begins(&mut self, run: &PlannedRun, planned: usize) {
        match &self.bar {
            Some(bar) => {
                bar.set_length(planned as u64);
                bar.set_position(u64::from(run.run));
                bar.set_message(self.model.clone());
            }
            None if run.kind == RunKind::Warmup => {
                self.terminal.remark(format!("{}: run {} of {planned}", self.model, run.run + 1));
            }
            None => {}
        }
    }

    fn finish(self) -> &'t mut Terminal<'w> {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
        self.terminal
    }
}
