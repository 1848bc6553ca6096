//! How small a card may be: the reservation is enough, a page less than the peak is not, and in between it is found.

use headroom_base::{AllocatorKind, Bytes, Case, DEFAULT_DEVICE_WORKING_BYTES, Estimate, MIB, Residency, Verdict};
use headroom_calibration::Record;
use headroom_device::probe::Scope;
use headroom_family::{CalibrationLine, Model};
use headroom_reports::WindowRecord;
use headroom_runners::StepRequest;

use super::apart::{apart, is_invalid_for_retries_alone, measure_apart, with_windows};
use super::{CheckError, Claim, Evidence, ensure, place, reserved_and_needed};
use crate::bench::{Bench, Calibration, Ground, MeasuredModel, PAGE_BYTES, Place, Setup, Subject, calibrate, lines_of};
use crate::checks::calibration::price_after;
use crate::trials::NOTHING_TO_SEE;

/// An attached card is tried at a few sizes only: each one loads the model again and runs twice.
const TRIALS_ON_A_GPU: u64 = 16;

/// For the largest calibrated case of every line (on an attached card, of the one line whose largest case takes least, which
/// the notes name): completes without a retry on weights + context + reservation, fails cleanly one page under weights +
/// context + peak allocated, and the least capacity that completes.
///
/// # Errors
/// The first thing that does not hold.
pub fn capacity(subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let mut evidence = Evidence::default();
    for (model, lines) in lines_to_try(subject, ground) {
        evidence.absorb_all(of_a_model(subject, MeasuredModel { model, lines: &lines }, ground))?;
    }
    if evidence.seen == 0 && !subject.place.is_simulated() {
        evidence.notes.push(format!("{NOTHING_TO_SEE}: {}: no case fits on this card", place(subject)));
    } else if let Place::Gpu(_) = subject.place {
        let lines: usize = lines_of(subject).iter().map(|(_, lines)| lines.len()).sum();
        let tried = "of each other line nothing was tried, since every size of a card loads the model again";
        evidence
            .notes
            .push(format!("{}: one of {lines} lines, whose largest case takes least; {tried}", place(subject)));
    }
    Ok(evidence)
}

fn of_a_model(subject: &Subject<'_>, measured: MeasuredModel<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let mut evidence = Evidence::default();
    let bench = subject.bench(&Setup::default())?;
    let calibration = calibrate(&bench, measured, Record::empty(subject.class()), ground, |_, _| {})?;
    // Two allocators at once would fight for an attached card.
    drop(bench);
    for line in measured.lines {
        let Some((smallest, largest)) = measured_ends(&calibration, line.cases.as_slice()) else { continue };
        let case = Tried { model: measured.model, case: largest, first: smallest };
        // The check's own calibration is no attempt of the report; what its peak is taken from is in it all the same.
        let of_the_case = calibration.windows.iter().filter(|window| window.case == largest);
        let windows = of_the_case.map(|window| apart(window.clone(), ground)).collect();
        let mut tries = Tries { subject, tried: case, ground, windows };
        let looked = check_case(&mut tries, &calibration);
        evidence.absorb_all(with_windows(subject, tries.windows, looked))?;
    }
    Ok(evidence)
}

/// Every line of the family; on an attached card only the one whose largest case is expected to take least.
fn lines_to_try<'a>(subject: &Subject<'a>, ground: Ground<'_>) -> Vec<(&'a Model, Vec<&'a CalibrationLine>)> {
    match subject.place {
        Place::Simulated(_) => lines_of(subject),
        Place::Gpu(_) => quickest_line(subject, ground).into_iter().map(|(model, line)| (model, vec![line])).collect(),
    }
}

/// The line whose largest case that fits is expected to take least.
fn quickest_line<'a>(subject: &Subject<'a>, ground: Ground<'_>) -> Option<(&'a Model, &'a CalibrationLine)> {
    quickest(subject, ground).map(|(model, line, ..)| (model, line))
}

/// A model's line with the largest of its cases that fit, and what is reserved for that one.
type Quickest<'a> = (&'a Model, &'a CalibrationLine, Case, Estimate);

/// The line whose largest case that fits is expected to take least; none where nothing fits.
pub(super) fn quickest<'a>(subject: &Subject<'a>, ground: Ground<'_>) -> Option<Quickest<'a>> {
    let lines = lines_of(subject).into_iter();
    let single = lines.flat_map(|(model, lines)| lines.into_iter().map(move |line| (model, line)));
    let card = (subject.place.memory_bytes(), DEFAULT_DEVICE_WORKING_BYTES);
    let largest = single.filter_map(|(model, line)| {
        let priced = line.cases.iter().filter_map(|case| {
            let (_, estimate) = super::built_in_price(subject, model, case, ground, 0)?;
            let verdict = super::verdict_on(subject, card, (model, case), estimate, ground);
            (verdict == Verdict::Fits).then_some((*case, estimate))
        });
        let (case, estimate) = priced.max_by_key(|(_, estimate)| estimate.reservation_bytes)?;
        Some((model, line, case, estimate))
    });
    largest.min_by_key(|(.., estimate)| estimate.reservation_bytes)
}

/// The smallest and the largest case of a line that were measured.
fn measured_ends(calibration: &Calibration, cases: &[Case]) -> Option<(Case, Case)> {
    let measured = || calibration.windows.iter().filter(|window| cases.contains(&window.case));
    let smallest = measured().min_by_key(|window| window.cost_units)?;
    let largest = measured().max_by_key(|window| window.cost_units)?;
    Some((smallest.case, largest.case))
}

/// What is tried: a case, after the case of its line that a calibration runs first has set the libraries up.
#[derive(Clone, Copy)]
struct Tried<'a> {
    model: &'a Model,
    case: Case,
    first: Case,
}

impl<'a> Tried<'a> {
    fn request(&self, case: Case, working_bytes: u64) -> StepRequest<'a> {
        StepRequest { model: &self.model.key, with: &[], case, working_bytes: Some(working_bytes) }
    }
}

/// The tries of a case, on cards of one size after another.
struct Tries<'t, 'a> {
    subject: &'t Subject<'a>,
    tried: Tried<'t>,
    ground: Ground<'t>,
    /// What they left, and what the case's peak is taken from.
    windows: Vec<WindowRecord>,
}

/// What a trial on a card of some size came to.
enum Trial {
    Completed,
    CompletedWithRetries,
    OutOfMemory,
    /// What is on the card before the operation does not fit already, so the operation was not run.
    NothingTried,
}

/// By how much the driver's pool grows, and the share of a reservation that it may need beyond it where it is short.
const POOL_STEP_BYTES: u64 = 32 * MIB;
const MOST_OF_A_POOL: u64 = 4;

fn check_case(tries: &mut Tries<'_, '_>, calibration: &Calibration) -> Result<Evidence, CheckError> {
    let Tries { subject, tried, ground, .. } = *tries;
    let Tried { model, case, .. } = tried;
    let (estimate, _) = price_after(subject, model, &case, calibration, ground)?;
    let base = baseline(subject, tried)?;
    let what = || format!("{} {case}", place(subject));
    let mut evidence = Evidence::default();
    let mut reserved = estimate.reservation_bytes;
    if subject.allocator == AllocatorKind::CudaMallocAsync {
        // What the pool's bound charges depends on what ran before, which is not what ran before in the calibration.
        let here = demand_after_first(tries)?;
        if here > reserved {
            let note =
                "more is needed after another history of the stream-ordered pool, of which only a bound is known";
            evidence.notes.push(format!("{} {case}: {note} ({})", place(subject), reserved_and_needed(reserved, here)));
            reserved = here;
        }
    }
    let working_bytes = estimate.reservation_bytes;
    let mut enough = base.taken_bytes + reserved;
    let mut outcome = try_on(tries, enough, working_bytes)?;
    if subject.allocator == AllocatorKind::CudaMallocAsync && matches!(subject.place, Place::Gpu(_)) {
        let most_bytes = reserved / MOST_OF_A_POOL;
        let (more_bytes, with_more) = more_of_the_pool(tries, (enough, most_bytes), working_bytes, outcome)?;
        if more_bytes > 0 {
            let text = "the driver's pool, where it was short, needed this beyond the reservation";
            evidence.notes.push(format!("{}: {text}: {}", what(), Bytes(more_bytes)));
        }
        enough += more_bytes;
        outcome = with_more;
    }
    Claim::ReservationIsEnough.holds(matches!(outcome, Trial::Completed), || {
        let source = estimate.source.name();
        format!("{}: weights, context and reservation ({}, {source}) are not enough", what(), Bytes(enough))
    })?;
    let windows = calibration.windows.iter().filter(|window| window.case == case);
    let peak = windows.map(|window| window.measurement.deltas.allocated_peak_bytes).min().unwrap_or(0);
    let too_little = (base.allocated_bytes + peak).saturating_sub(PAGE_BYTES) / PAGE_BYTES * PAGE_BYTES;
    match try_on(tries, too_little, 0)? {
        Trial::OutOfMemory => {}
        Trial::NothingTried => evidence.notes.push(format!(
            "{}: weights' and inputs' segments alone take more than {}, a page less than what is allocated at the peak",
            what(),
            Bytes(too_little)
        )),
        Trial::Completed | Trial::CompletedWithRetries => Err(CheckError::violated(format!(
            "{}: it completed on {}, a page less than what is allocated at the peak",
            what(),
            Bytes(too_little)
        )))?,
    }
    let (fails, completes) = (too_little / PAGE_BYTES, enough.div_ceil(PAGE_BYTES));
    let resolution = match subject.place {
        Place::Simulated(_) => 1,
        Place::Gpu(_) => completes.saturating_sub(fails).div_ceil(TRIALS_ON_A_GPU).max(1),
    };
    let Found { completes, trials, with_retries } = between(tries, (fails, completes), resolution)?;
    let seen = trials + 2;
    let least = completes * PAGE_BYTES;
    let bound =
        if subject.allocator == AllocatorKind::CudaMallocAsync { " by the rules of a bound on the pool" } else { "" };
    let note = format!(
        "{}: the least capacity that completes{bound} is {} beside the context and the segments of weights, where room may lie idle (to {}), {} allocated at the peak, {} reserved for it; {with_retries} of {seen} trials completed with retries",
        what(),
        Bytes(least.saturating_sub(base.taken_bytes)),
        Bytes(resolution * PAGE_BYTES),
        Bytes(peak),
        Bytes(estimate.reservation_bytes)
    );
    evidence.notes.push(note);
    evidence.seen += seen;
    Ok(evidence)
}

/// What the driver's own pool takes beyond what was enough, step by step up to `most_bytes`: where it is short it takes
/// more than it was seen to take. How the last try ended.
fn more_of_the_pool(
    tries: &mut Tries<'_, '_>,
    (enough, most_bytes): (u64, u64),
    working_bytes: u64,
    mut outcome: Trial,
) -> Result<(u64, Trial), CheckError> {
    let mut more_bytes = 0;
    while !matches!(outcome, Trial::Completed) && more_bytes < most_bytes {
        more_bytes += POOL_STEP_BYTES;
        outcome = try_on(tries, enough + more_bytes, working_bytes)?;
    }
    Ok((more_bytes, outcome))
}

/// What a bisection came to, in pages.
struct Found {
    completes: u64,
    trials: usize,
    with_retries: usize,
}

/// Looks for the least card that completes between one that fails and one that completes, in pages.
fn between(
    tries: &mut Tries<'_, '_>,
    (mut fails, mut completes): (u64, u64),
    resolution: u64,
) -> Result<Found, CheckError> {
    let (mut trials, mut with_retries) = (0, 0);
    while completes.saturating_sub(fails) > resolution {
        let middle = fails.midpoint(completes);
        trials += 1;
        match try_on(tries, middle * PAGE_BYTES, 0)? {
            Trial::OutOfMemory | Trial::NothingTried => fails = middle,
            Trial::Completed => completes = middle,
            Trial::CompletedWithRetries => {
                with_retries += 1;
                completes = middle;
            }
        }
    }
    Ok(Found { completes, trials, with_retries })
}

/// What the case needs on an ample card after the first case of its line.
fn demand_after_first(tries: &mut Tries<'_, '_>) -> Result<u64, CheckError> {
    let Tries { subject, tried, ground, .. } = *tries;
    let bench = lone(subject, subject.place.memory_bytes())?;
    bench.session.run(&tried.request(tried.first, 0))?;
    let request = tried.request(tried.case, 0);
    let report = measure_apart(&bench, &Scope::new(0), &request, ground, &mut tries.windows)?;
    let measurement = report.measurement.ok_or_else(|| CheckError::violated(format!("{}: no window", tried.case)))?;
    Ok(measurement.demand_bytes)
}

/// What a card holds before the operation.
struct Baseline {
    /// Context, what libraries took beside the allocator, and the segments of weights, inputs and libraries.
    taken_bytes: u64,
    /// The same, and of these segments what is handed out.
    allocated_bytes: u64,
}

fn baseline(subject: &Subject<'_>, tried: Tried<'_>) -> Result<Baseline, CheckError> {
    let bench = ready(subject, tried)?;
    let device = bench.session.cache().device();
    let inputs = bench.session.prepare(&tried.model.key, tried.case)?;
    let counters = device.counters().map_err(|error| CheckError::violated(error.to_string()))?;
    let taken_bytes = bench.card.own_bytes()?;
    inputs.release(device).map_err(|error| CheckError::violated(error.to_string()))?;
    let idle_bytes = counters.reserved.current.saturating_sub(counters.allocated.current);
    Ok(Baseline { taken_bytes, allocated_bytes: taken_bytes.saturating_sub(idle_bytes) })
}

/// An ample card after the first case, its cache emptied: what is tried begins there, so that the inputs take the same
/// segments each time.
fn ready<'a>(subject: &Subject<'a>, tried: Tried<'_>) -> Result<Bench<'a>, CheckError> {
    let bench = lone(subject, subject.place.memory_bytes())?;
    bench.session.run(&tried.request(tried.first, 0))?;
    bench.session.cache().device().empty_cache().map_err(|error| CheckError::violated(error.to_string()))?;
    Ok(bench)
}

/// A card whose cache keeps nothing free on its own account; a simulated one with nobody else on it.
fn lone<'a>(subject: &Subject<'a>, memory_bytes: u64) -> Result<Bench<'a>, CheckError> {
    let bench = subject.bench(&Setup { memory_bytes: Some(memory_bytes), floor_bytes: Some(0), ..Setup::default() })?;
    if let Place::Simulated(_) = subject.place {
        bench.card.simulated()?.set_others_bytes(0);
    }
    Ok(bench)
}

/// Runs the case on a card of `memory_bytes` whose libraries are warm.
fn try_on(tries: &mut Tries<'_, '_>, memory_bytes: u64, working_bytes: u64) -> Result<Trial, CheckError> {
    let Tries { subject, tried, ground, .. } = *tries;
    let case = tried.case;
    let bench = ready(subject, tried)?;
    if bench.card.own_bytes()? > memory_bytes {
        return Ok(Trial::NothingTried);
    }
    bench.card.limit(memory_bytes)?;
    let before = bench.session.cache().models();
    let request = tried.request(case, working_bytes);
    let outcome = measure_apart(&bench, &Scope::new(0), &request, ground, &mut tries.windows);
    let what = || format!("{} {case} on {}", place(subject), Bytes(memory_bytes));
    match outcome {
        Ok(report) => {
            let measurement =
                report.measurement.ok_or_else(|| CheckError::violated(format!("{}: no window", what())))?;
            ensure(measurement.residency == Residency::Full, || {
                format!("{}: it completed with a part of the model elsewhere", what())
            })?;
            ensure(is_invalid_for_retries_alone(&measurement.validity, measurement.retries), || {
                format!("{}: {} retries, {:?}", what(), measurement.retries, measurement.validity)
            })?;
            Ok(if measurement.retries > 0 { Trial::CompletedWithRetries } else { Trial::Completed })
        }
        Err(error) if error.is_out_of_memory() => {
            let same = bench.session.cache().models() == before;
            Claim::FailureLeavesTheCacheAsItWas.holds(same, || format!("{}: the cache changed", what()))?;
            let books =
                bench.session.cache().reconcile(bench.runner.persistent_bytes(bench.session.cache().device()))?;
            Claim::BooksAgree.holds(books.is_ok(), || format!("{}: {books:?}", what()))?;
            Ok(Trial::OutOfMemory)
        }
        Err(error) => Err(error.into()),
    }
}
