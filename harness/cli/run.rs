//! `run`: every family on its devices, with progress, a table per family, and the report.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use headroom_base::Bytes;
use headroom_reports::{Coverage, FamilySummary, Outcome, OutputFolder, Redaction, Report, Tally};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::annotations::annotate;
use super::args::RunArgs;
use super::error::CliError;
use super::exit::Exit;
use super::place::{is_gpu, recorded_name};
use super::redaction::redaction;
use super::terminal::Terminal;
use super::totals::{exit_of, print_totals};
use crate::catalogue::device_of;
use crate::gpu::{AttachedGpu, GpuNameError, Gpus};
use crate::run::{SoFar, begun, not_begun, provenance, run_trials};
use crate::shard::Shard;
use crate::trials::{Ended, Trial, trials};
use crate::world::World;

/// Trials between two lines of progress where nobody watches.
const PLAIN_PROGRESS_EVERY: usize = 50;

/// Writing what was seen while trials still run may take one part in so many of the time they run.
const WRITING_SHARE: u32 = 20;

/// Runs the chosen families, writes the report, prints a table per family and says where the report is.
///
/// # Errors
/// For names that are not known, and when the report cannot be written. A trial that fails is a result, not an error.
pub(super) fn run(args: &RunArgs, families: Option<&Path>, terminal: &mut Terminal<'_>) -> Result<Exit, CliError> {
    let (world, chosen, shard) = prepared(args, families).inspect_err(|_| terminal.remark_nothing_ran(&args.output))?;
    let folder = OutputFolder::open(&args.output)?;
    let (from, redaction) =
        (provenance(arguments_of(args)), redaction(world.catalogue.families(), families, &args.output));
    // What stands there from an earlier run says nothing of this one.
    if let Some(why) = missing_gpu(args, &world) {
        let report = not_begun(&chosen, &from, &why);
        folder.write_report(&report, &redaction)?;
        annotate(&report, args.json, terminal)?;
        return Err(CliError::Unavailable(why));
    }
    folder.write_report(&begun(&chosen, &from), &redaction)?;
    if chosen.is_empty() {
        // More machines than trials: the report of this one is merged with the others'.
        terminal.remark(format!("shard {shard} of what was chosen holds no trial"));
    } else if !args.json {
        terminal.line(devices_used(&world, &chosen))?;
    }
    let progress = Progress::new(chosen.len(), terminal.is_interactive());
    let interim = Interim { folder: &folder, redaction: &redaction, begun: Instant::now(), spent: Mutex::default() };
    let report = run_trials(&chosen, from, &|ended, so_far| {
        progress.told(ended, so_far.count());
        interim.told(so_far);
    });
    progress.finish();
    let written = folder.write_report(&report, &redaction)?;
    if args.json {
        terminal.json(&redaction.report(&report))?;
    } else {
        print(&report, terminal)?;
        let names = written.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        terminal.line(format!("\nReport: {names}"))?;
    }
    annotate(&report, args.json, terminal)?;
    Ok(exit_of(&report))
}

fn prepared(args: &RunArgs, families: Option<&Path>) -> Result<(Arc<World>, Vec<Trial>, Shard), CliError> {
    crate::variables::check().map_err(CliError::Value)?;
    let world = Arc::new(World::load(families)?);
    let (chosen, shard) = chosen_trials(args, &world)?;
    Ok((world, chosen, shard))
}

/// Why the GPU is not there that was asked for by name; none where it is, or none was asked for.
fn missing_gpu(args: &RunArgs, world: &World) -> Option<String> {
    let (name, reason) = (args.device.iter().find(|name| is_gpu(name))?, world.gpus.none_because()?);
    Some(format!("`--device {}`: no GPU to run on: {reason}", recorded_name(name)))
}

/// Which devices these trials run on, in a sentence.
fn devices_used(world: &World, chosen: &[Trial]) -> String {
    let mut cards: Vec<&str> = Vec::new();
    for card in chosen.iter().filter_map(Trial::card) {
        if !cards.contains(&card.name()) {
            cards.push(card.name());
        }
    }
    let simulated = chosen.iter().any(|trial| trial.card().is_none() && trial.ignored_because().is_none());
    let beside = if simulated { ", and on simulated devices" } else { "" };
    let of_cards = world.gpus.cards().iter().filter(|card| cards.contains(&card.name())).map(|card| {
        let facts = card.facts();
        format!("{} ({}, {}, driver {})", card.name(), facts.model, Bytes(facts.total_bytes), facts.driver)
    });
    match (of_cards.collect::<Vec<_>>(), world.gpus.none_because()) {
        (used, _) if !used.is_empty() => format!("Running on {}{beside}.", used.join(" and ")),
        (_, Some(reason)) => format!("Running on simulated devices; no GPU: {reason}."),
        (_, None) => "Running on simulated devices; the GPUs were not chosen.".to_owned(),
    }
}

/// The devices that a name of `--device` means.
enum Meant<'a> {
    /// Every attached card, or the trials that need one where there is none.
    EveryGpu,
    /// One attached card of several.
    Card(&'a Arc<AttachedGpu>),
    /// Simulated ones.
    Named(&'a str),
}

impl<'a> Meant<'a> {
    /// `gpu` is every attached card; where there is none, every name of a GPU means the trials that need one.
    fn by(name: &'a str, gpus: &'a Gpus) -> Result<Self, GpuNameError> {
        if !is_gpu(name) {
            return Ok(Self::Named(name));
        }
        if name.eq_ignore_ascii_case("gpu") || gpus.none_because().is_some() {
            return Ok(Self::EveryGpu);
        }
        gpus.named(name).map(Self::Card)
    }

    fn holds(&self, trial: &Trial) -> bool {
        match self {
            Self::EveryGpu => trial.card().is_some() || trial.ignored_because().is_some(),
            Self::Card(card) => trial.card().is_some_and(|of_trial| Arc::ptr_eq(of_trial, card)),
            Self::Named(name) => trial.device().eq_ignore_ascii_case(name),
        }
    }
}

fn chosen_trials(args: &RunArgs, world: &Arc<World>) -> Result<(Vec<Trial>, Shard), CliError> {
    for name in &args.family {
        world.catalogue.family(name)?;
    }
    let wanted =
        |family: &str| args.family.is_empty() || args.family.iter().any(|name| name.eq_ignore_ascii_case(family));
    let every = trials(world);
    let mut devices = Vec::new();
    for name in &args.device {
        let meant = Meant::by(name, &world.gpus)?;
        let known = |trial: &Trial| wanted(&trial.family().name) && meant.holds(trial);
        let first = world.catalogue.families().iter().find(|family| wanted(&family.name));
        if let (false, Some(family)) = (every.iter().any(known), first) {
            device_of(family, name).map_err(|unknown| match name.parse::<Bytes>() {
                Ok(_) => CliError::Unavailable(no_size(name, world, wanted)),
                Err(_) => unknown.into(),
            })?;
        }
        devices.push(meant);
    }
    let here = |trial: &Trial| devices.is_empty() || devices.iter().any(|meant| meant.holds(trial));
    let all = every.into_iter().filter(|trial| wanted(&trial.family().name) && here(trial));
    let shard = Shard::from_environment().map_err(|error| CliError::Value(error.to_string()))?;
    let chosen = shard.share(all.collect());
    Ok((chosen, shard))
}

/// What is said to a size that no chosen family lists: checks know what must hold on the listed devices alone.
fn no_size(name: &str, world: &World, wanted: impl Fn(&str) -> bool) -> String {
    let chosen = || world.catalogue.families().iter().filter(|family| wanted(&family.name));
    let mut listed: Vec<&str> = Vec::new();
    for device in chosen().flat_map(|family| &family.devices) {
        if !listed.contains(&device.name.as_str()) {
            listed.push(&device.name);
        }
    }
    if listed.is_empty() {
        let names: Vec<_> = chosen().map(|family| format!("`{}`", family.name)).collect();
        return format!(
            "`--device {name}`: {} has scenarios only, which bring their own cards: leave --device out",
            names.join(", ")
        );
    }
    format!(
        "`--device {name}`: `run` takes the devices that the families' own files list, here {}; \
         `plan` and `calibrate` take a card of any size as --device, and `advise` as --memory",
        listed.join(", ")
    )
}

fn arguments_of(args: &RunArgs) -> Vec<String> {
    let families = args.family.iter().map(|name| format!("--family={name}"));
    let devices = args.device.iter().map(|name| format!("--device={}", recorded_name(name)));
    std::iter::once("run".to_owned()).chain(families).chain(devices).collect()
}

/// Writes what was seen while trials still run, so that a run which is stopped loses little: after each trial, or where
/// that would slow the run, after as many as leave it the share of its time.
struct Interim<'a> {
    folder: &'a OutputFolder,
    redaction: &'a Redaction,
    begun: Instant,
    spent: Mutex<Duration>,
}

impl Interim<'_> {
    fn told(&self, so_far: &SoFar<'_>) {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        if *spent * WRITING_SHARE > self.begun.elapsed() {
            return;
        }
        let from = Instant::now();
        // A report that cannot be written now is written, or complained of, at the end.
        let _ = self.folder.write_report(&so_far.report(), self.redaction);
        *spent += from.elapsed();
    }
}

/// A bar where somebody watches, now and then a line where nobody does.
struct Progress {
    bar: ProgressBar,
    plain: Option<Mutex<io::Stderr>>,
    total: usize,
}

impl Progress {
    fn new(total: usize, interactive: bool) -> Self {
        let bar = ProgressBar::new(total as u64);
        let style = ProgressStyle::with_template("{bar:32} {pos}/{len} {elapsed} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        if !interactive {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Self { bar, plain: (!interactive).then(|| Mutex::new(io::stderr())), total }
    }

    fn told(&self, ended: &Ended, count: usize) {
        self.bar.set_position(count as u64);
        self.bar.set_message(ended.check.name());
        let failed = ended.check.outcome == Outcome::Failed;
        let Some(plain) = &self.plain else { return };
        if failed || count.is_multiple_of(PLAIN_PROGRESS_EVERY) || count == self.total {
            use io::Write as _;
            let mut stream = plain.lock().unwrap_or_else(PoisonError::into_inner);
            // Progress that cannot be shown must not stop the run.
            let why = ended.check.message.as_deref().filter(|_| failed).map(|text| format!(": {text}"));
            let (outcome, name) = (ended.check.outcome.name(), ended.check.name());
            let _ = writeln!(stream, "{count}/{} {outcome} {name}{}", self.total, why.unwrap_or_default());
        }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn print(report: &Report, terminal: &mut Terminal<'_>) -> io::Result<()> {
    let mut families: Vec<&str> = report.trials.iter().map(|trial| trial.family.as_str()).collect();
    families.dedup();
    for family in families {
        terminal.line(format!("\n{family}"))?;
        print_outcomes(report, family, terminal)?;
        print_reservations(report, family, terminal)?;
    }
    print_totals(report, terminal)
}

fn print_outcomes(report: &Report, family: &str, terminal: &mut Terminal<'_>) -> io::Result<()> {
    let mut checks: Vec<&str> = Vec::new();
    let mut devices: Vec<&str> = Vec::new();
    let mut outcomes: BTreeMap<(&str, &str), Outcome> = BTreeMap::new();
    let trials: Vec<_> = report.trials.iter().filter(|trial| trial.family == family).collect();
    for trial in &trials {
        if !checks.contains(&trial.check.as_str()) {
            checks.push(&trial.check);
        }
        if !devices.contains(&trial.device.as_str()) {
            devices.push(&trial.device);
        }
        outcomes.insert((&trial.device, &trial.check), trial.outcome);
    }
    if devices == ["scripted"] {
        let rows = trials.iter().map(|trial| vec![trial.check.clone(), trial.outcome.name().to_owned()]);
        return terminal.table(&["scenario", "outcome"], &rows.collect::<Vec<_>>());
    }
    let header: Vec<&str> = std::iter::once("device").chain(checks.iter().copied()).collect();
    let rows: Vec<Vec<String>> = devices
        .iter()
        .map(|device| {
            let cells =
                checks.iter().map(|check| outcomes.get(&(*device, *check)).map_or("", |outcome| outcome.name()));
            std::iter::once(*device).chain(cells).map(str::to_owned).collect()
        })
        .collect();
    terminal.table(&header, &rows)
}

/// How many sizes are covered, and how far reservations lie over what was needed, per device.
fn print_reservations(report: &Report, family: &str, terminal: &mut Terminal<'_>) -> io::Result<()> {
    let mut by_device: BTreeMap<(u64, &str), Vec<&FamilySummary>> = BTreeMap::new();
    for summary in report.families.iter().filter(|summary| summary.family == family) {
        by_device.entry((u64::from(summary.class.total_gib), &summary.device)).or_default().push(summary);
    }
    let rows: Vec<Vec<String>> = by_device
        .into_iter()
        .map(|((_, device), summaries)| {
            let estimates: Vec<_> = summaries.iter().flat_map(|summary| summary.estimates.clone()).collect();
            let coverage = Coverage::of(&estimates);
            let mut over: Vec<u64> = estimates.iter().filter_map(|record| record.reserved_permille()).collect();
            over.sort_unstable();
            let percent = |permille: Option<&u64>| {
                permille.map_or(String::new(), |value| format!("{:+.1} %", *value as f64 / 10.0 - 100.0))
            };
            let runs: usize = summaries.iter().flat_map(|summary| &summary.plans).map(|plan| plan.runs().len()).sum();
            vec![
                device.to_owned(),
                runs.to_string(),
                covered(coverage.simulated),
                covered(coverage.recorded),
                percent(over.get(over.len() / 2)),
                percent(over.last()),
            ]
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let header = ["device", ">runs", ">covered, simulated", ">recorded", ">reserved over needed, median", ">worst"];
    terminal.table(&header, &rows)
}

/// Sizes whose demand is within its reservation, of those that were looked at.
fn covered(tally: Tally) -> String {
    if tally.of == 0 { String::new() } else { format!("{} of {}", tally.covered, tally.of) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::posing::Posing;

    #[test]
    fn of_two_cards_that_begin_alike_the_whole_identity_means_one() {
        let uuids = ["GPU-a0a1a2a3-0000", "GPU-a0a1a2a3-1111"];
        let cards = uuids.map(|uuid| Posing::with_gib(24).listed(uuid));
        let gpus = Gpus::of(cards.into_iter().collect());
        let world = Arc::new(World::with_gpus(None, gpus).unwrap());
        for (uuid, card) in uuids.into_iter().zip(world.gpus.cards()) {
            let meant = Meant::by(uuid, &world.gpus).unwrap();
            let trials: Vec<Trial> = trials(&world).into_iter().filter(|trial| meant.holds(trial)).collect();
            assert!(!trials.is_empty());
            for trial in trials {
                assert!(trial.card().is_some_and(|own| Arc::ptr_eq(own, card)), "{} is not on {uuid}", trial.name());
            }
        }
        assert!(Meant::by("gpu-a0a1a2a3", &world.gpus).is_err(), "it means both");
    }
}
