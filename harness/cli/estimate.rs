//! `estimate`: how much to reserve for one operation, the parts of it, and where each comes from.

use std::path::Path;

use headroom_base::{
    AllocatorKind, AnalyticTerm, Bytes, Case, DEFAULT_DEVICE_WORKING_BYTES, Estimate, HardEnvironment, LineKey,
    SoftEnvironment, Source,
};
use headroom_calibration::{Basis, BuiltIns, Context, ShippedLine, resolve};
use headroom_runners::programs::{self, Peaks, PredictionError};
use serde::Serialize;

use super::args::EstimateArgs;
use super::chosen::Chosen;
use super::error::CliError;
use super::exit::Exit;
use super::place::is_gpu;
use super::plan::device_named;
use super::stored::Stored;
use super::terminal::Terminal;
use crate::bench::Subject;
use crate::catalogue::Catalogue;
use crate::gpu::Gpus;
use crate::pricing::{Priced, estimator_versions, price_case};

/// What is said of a reservation below the program's peaks.
const NOT_ENOUGH: &str = "by its program that is not enough";

/// What is printed as JSON: the reservation with its parts, and what it rests on.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    estimate: Estimate,
    family: &'a str,
    model: &'a str,
    case: Case,
    allocator: AllocatorKind,
    /// What it prices on, with its cost units; none where the model is known by its size alone.
    line: Option<LineKey>,
    cost_units: Option<u64>,
    analytic_terms: Vec<AnalyticTerm>,
    /// How close the shipped data comes to what was asked; none where nothing is shipped.
    basis: Option<Basis>,
    /// Cost units that were measured for the line, least and largest.
    measured_units: Option<(u64, u64)>,
    /// What the operation's program needs at its peaks: a reservation below them is what the data says, and not enough by
    /// the program. None where it has no program.
    program_allocated_peak_bytes: Option<u64>,
    program_reserved_peak_bytes: Option<u64>,
    /// Whether the reservation is no less than they are. None where it has no program, and where it is no less than is
    /// known for sure but only a bound is known of the rest.
    enough_by_program: Option<bool>,
    /// Whether windows that were left out of the shipped line needed more than it reserves.
    #[serde(skip)]
    left_out_needed_more: bool,
    /// Things a reader should know.
    notes: Vec<String>,
}

impl Answer<'_> {
    /// Holds the reservation against the program's peaks. The pool's reserved peak is an upper bound, and says nothing for
    /// sure.
    fn judge_by_program(&mut self, peaks: Peaks) {
        let Peaks { allocated_peak_bytes: allocated, reserved_peak_bytes: reserved, .. } = peaks;
        let is_bound = self.allocator == AllocatorKind::CudaMallocAsync;
        let needed = if is_bound { allocated } else { allocated.max(reserved) };
        let is_enough = needed <= self.estimate.reservation_bytes;
        self.program_allocated_peak_bytes = Some(allocated);
        self.program_reserved_peak_bytes = Some(reserved);
        self.enough_by_program = if is_enough && is_bound { None } else { Some(is_enough) };
        if !is_enough {
            self.notes.push(format!(
                "{NOT_ENOUGH}: it allocates {} and reserves {}{} at the peaks; where nothing may be \
                 retried, reserve {} at least",
                Bytes(allocated),
                if is_bound { "up to " } else { "" },
                Bytes(reserved),
                Bytes(needed)
            ));
        }
    }
}

/// Prices one operation.
///
/// # Errors
/// For names that are not known, a case that the model does not have, or when nothing can be printed.
pub(super) fn estimate(
    args: &EstimateArgs,
    catalogue: &Catalogue,
    terminal: &mut Terminal<'_>,
) -> Result<Exit, CliError> {
    let chosen = Chosen::of(&args.case, catalogue)?;
    let stored = match (&args.store, &args.device) {
        (Some(folder), Some(device)) => {
            Some(stored(&chosen, args.allocator, folder, device, Gpus::attached, catalogue)?)
        }
        _ => None,
    };
    let answer = answer(&chosen, args.allocator, BuiltIns::compiled_in(), stored.as_ref())?;
    if args.case.json {
        terminal.json(&answer)?;
    } else {
        print(&answer, &chosen, terminal)?;
    }
    Ok(Exit::Success)
}

/// What a store knows of a device, in the environment that the operation is asked about. An attached card is not opened
/// for that: it may be in use.
fn stored(
    chosen: &Chosen<'_>,
    allocator: AllocatorKind,
    folder: &Path,
    device: &str,
    gpus: impl FnOnce() -> Gpus,
    catalogue: &Catalogue,
) -> Result<Stored, CliError> {
    let versions = estimator_versions(catalogue.families());
    let hard = chosen.hard(allocator);
    if is_gpu(device) {
        let gpus = gpus();
        let facts = gpus.named(device)?.facts();
        let hard = HardEnvironment { framework: facts.framework.clone(), ..hard };
        let soft = SoftEnvironment { driver: facts.driver.clone() };
        return Stored::read(folder, Context { device: facts.class(), hard, versions }, soft);
    }
    let device = device_named(chosen.family, device)?;
    let subject = Subject::usual(chosen.family, (&device).into(), allocator);
    Stored::read(folder, Context { hard, ..subject.context(&versions) }, subject.environment().soft)
}

fn answer<'a>(
    chosen: &Chosen<'a>,
    allocator: AllocatorKind,
    built_ins: &BuiltIns,
    stored: Option<&Stored>,
) -> Result<Answer<'a>, CliError> {
    let hard = chosen.hard(allocator);
    let (model, case) = (chosen.model, chosen.case);
    let mut answer = Answer {
        estimate: Estimate::floor(DEFAULT_DEVICE_WORKING_BYTES),
        family: &chosen.family.name,
        model: &model.key,
        case,
        allocator,
        line: None,
        cost_units: None,
        analytic_terms: Vec::new(),
        basis: None,
        measured_units: None,
        program_allocated_peak_bytes: None,
        program_reserved_peak_bytes: None,
        enough_by_program: None,
        left_out_needed_more: false,
        notes: Vec::new(),
    };
    let Some(Priced { line, costs }) = price_case(model, &case, &hard, built_ins) else {
        let key = &model.key;
        answer.notes.push(format!("model `{key}` is known by its size alone: give it an architecture to price it"));
        return Ok(answer);
    };
    let built_in = built_ins.find(&hard, &line);
    let user = stored.and_then(|stored| stored.knowledge.fits().get(&line)).map(|user| &user.fit);
    answer.estimate = resolve(&costs, user, built_in.as_ref(), DEFAULT_DEVICE_WORKING_BYTES);
    answer.cost_units = Some(costs.units);
    if let Some(stored) = stored {
        answer.notes.extend(stored.notes([(model.key.as_str(), &line)])?);
        answer.notes.extend(user.and_then(|_| own_kernels_note(&stored.knowledge.context().hard, &hard)));
    }
    let mut not_predicted = None;
    if let Some(architecture) = model.architecture() {
        answer.analytic_terms = programs::analytic_terms(architecture, &case, model.dtype);
        match programs::predict(architecture, &case, &chosen.execution(allocator), allocator) {
            Ok(predicted) => answer.judge_by_program(predicted.later),
            Err(error) => not_predicted = Some(error),
        }
    }
    if let Some(built_in) = built_in {
        let ranges = || built_in.lines().map(|shipped| shipped.range);
        let least = ranges().map(|range| range.least_units).min().unwrap_or(0);
        let largest = ranges().map(|range| range.largest_units).max().unwrap_or(0);
        answer.basis = Some(built_in.basis());
        answer.measured_units = Some((least, largest));
        if built_in.basis() != Basis::SameEnvironment {
            answer.notes.push(built_in.basis().to_string());
        }
        let worst = built_in.lines().filter_map(ShippedLine::worst_left_out);
        if let Some((size, share)) = worst.max_by(|(_, left), (_, right)| left.total_cmp(right)) {
            answer.left_out_needed_more = true;
            answer.notes.push(format!(
                "windows that were left out of the line as fragmented, in clean processes, needed up to {:.1} % more than it \
                 reserves ({}): calibrate it on your card, or reserve that much more",
                100.0 * share,
                size.labels.join(", ")
            ));
        }
        if costs.units < least || costs.units > largest {
            answer.notes.push(format!(
                "the size is outside the measured {least} to {largest} cost units: the line is prolonged"
            ));
        }
    } else if user.is_none() {
        answer.notes.push(not_shipped_note(chosen, answer.estimate.source, not_predicted)?);
    }
    answer.line = Some(line);
    Ok(answer)
}

/// What is said of a calibration by another software than the shipped data is of.
fn own_kernels_note(calibrated: &HardEnvironment, asked: &HardEnvironment) -> Option<String> {
    let framework = &calibrated.framework;
    let text =
        || format!("calibrated with {framework}, this program's own kernels; elsewhere other workspaces may be needed");
    (*framework != asked.framework).then(text)
}

/// Why there is no more than a prediction, or not even one.
///
/// # Errors
/// Where the operation needs more than any card: to reserve the usual working memory for it would be wrong.
fn not_shipped_note(
    chosen: &Chosen<'_>,
    source: Source,
    not_predicted: Option<PredictionError>,
) -> Result<String, CliError> {
    if source == Source::Predicted {
        return Ok("nothing was measured for this line: the program's own peak, with the margin".to_owned());
    }
    let reason = match not_predicted {
        Some(error @ PredictionError::TooLarge(_)) => {
            return Err(CliError::Value(format!("{}: {error}", chosen.name())));
        }
        Some(error) => error.to_string(),
        None => "no program".to_owned(),
    };
    Ok(format!("nothing was measured for this line and nothing is predicted ({reason}): the usual working memory"))
}

fn print(answer: &Answer<'_>, chosen: &Chosen<'_>, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let Estimate { reservation_bytes, analytic_bytes, empirical_bytes, margin_bytes, source } = answer.estimate;
    let name = chosen.name();
    let is_too_little = answer.enough_by_program == Some(false);
    let by_program = if is_too_little { format!("; {NOT_ENOUGH}") } else { String::new() };
    terminal.line(format!("Reserve {} for {name} ({}){by_program}.", Bytes(reservation_bytes), answer.allocator))?;
    let terms: Vec<_> =
        answer.analytic_terms.iter().map(|term| format!("{}, {}", term.name, Bytes(term.bytes))).collect();
    let row = |part: &str, bytes: u64, from: String| vec![part.to_owned(), Bytes(bytes).to_string(), from];
    let rows = [
        row("analytic", analytic_bytes, terms.join("; ")),
        row("empirical", empirical_bytes, source.name().to_owned()),
        row("margin", margin_bytes, "5 % of the empirical part".to_owned()),
        row("reservation", reservation_bytes, String::new()),
    ];
    terminal.table(&["part", ">bytes", "from"], &rows)?;
    // Promised only where the program bears it out, and no recorded window is known to have needed more.
    let is_promised = answer.enough_by_program == Some(true) && !answer.left_out_needed_more;
    terminal.line(if is_promised {
        "Beside weights and context, so that nothing is retried; `headroom advise` says what smaller card completes."
    } else {
        "Beside weights and context."
    })?;
    for note in &answer.notes {
        terminal.line(note)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headroom_base::Operation;
    use headroom_calibration::{Record, Store};

    use super::*;
    use crate::bench::{Ground, MeasuredModel, Setup, calibrate, lines_of};
    use crate::cli::args::SizedArgs;
    use crate::gpu::posing::Posing;

    const UUID: &str = "GPU-55555555-estimated";

    /// A store with a calibration of TAESD on the only one of `gpus`.
    fn calibrated(gpus: &Gpus, catalogue: &Catalogue, folder: &Path) {
        let (family, versions) = (catalogue.family("taesd").unwrap(), estimator_versions(catalogue.families()));
        let turn = gpus.cards()[0].turn("a calibration", folder, Duration::ZERO).unwrap();
        let subject = Subject::usual(family, (&**turn.open().unwrap()).into(), AllocatorKind::Native);
        let ground = Ground { built_ins: BuiltIns::compiled_in(), versions: &versions };
        let lines = lines_of(&subject);
        let (model, lines) = lines.first().unwrap();
        let bench = subject.bench(&Setup::default()).unwrap();
        let measured = MeasuredModel { model, lines };
        let record = Record::empty(subject.class());
        let calibration = calibrate(&bench, measured, record, ground, |_, _| {}).unwrap();
        Store::open(folder).update(&subject.class(), |kept| *kept = calibration.knowledge.record().clone()).unwrap();
    }

    #[test]
    fn an_attached_cards_own_calibration_prices_on_it_while_it_is_in_use_and_nowhere_else() {
        let (catalogue, folder) = (Catalogue::load(None).unwrap(), tempfile::tempdir().unwrap());
        let card = Posing::with_gib(24);
        let gpus = || Gpus::of(vec![card.listed(UUID)]);
        calibrated(&gpus(), &catalogue, folder.path());
        let sized =
            SizedArgs { model: None, size: Some((512, 512)), frames: 1, batch: 1, tokens: None, options: Vec::new() };
        let chosen = Chosen::named(("taesd", Operation::VaeDecode, None), &sized, &catalogue).unwrap();
        let in_use = gpus();
        let _turn = in_use.cards()[0].turn("an image server", folder.path(), Duration::ZERO).unwrap();
        let source = |device: &str, gpus: Gpus| {
            let stored = stored(&chosen, AllocatorKind::Native, folder.path(), device, || gpus, &catalogue).unwrap();
            let answer = answer(&chosen, AllocatorKind::Native, BuiltIns::compiled_in(), Some(&stored)).unwrap();
            let says = |words: &str| answer.notes.iter().any(|note| note.contains(words));
            assert_eq!(says("calibrated with posing 0.1"), answer.estimate.source == Source::User);
            (answer.estimate.source, says("prices nothing"))
        };
        assert_eq!(source("gpu", gpus()), (Source::User, false));
        let (other, says_nothing_prices) = source("gpu", Gpus::of(vec![Posing::with_gib(48).listed(UUID)]));
        assert!(other != Source::User && says_nothing_prices, "a card of another size: {other:?}");
        let (other, says_nothing_prices) = source("24GiB", gpus());
        assert!(other != Source::User && says_nothing_prices, "a simulated card: {other:?}");
        let none = stored(&chosen, AllocatorKind::Native, folder.path(), "gpu", || Gpus::none("no driver"), &catalogue);
        assert!(none.is_err_and(|error| error.exit() == Exit::Unavailable && error.to_string().contains("no driver")));
    }
}
