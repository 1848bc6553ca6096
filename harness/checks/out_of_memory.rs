//! A card of which others have left just too little: the run fails cleanly, and the next one works.

use headroom_base::{Bytes, Case, InvalidReason, Validity};
use headroom_device::probe::Scope;
use headroom_family::Model;
use headroom_reports::WindowRecord;
use headroom_runners::{StepError, StepReport, StepRequest};

use super::apart::{is_invalid_for_retries_alone, measure_apart, undisturbed, with_windows};
use super::capacity::quickest;
use super::{CheckError, Claim, Evidence, ensure, place};
use crate::bench::{Bench, BenchError, Ground, PAGE_BYTES, Setup, Subject};
use crate::trials::NOTHING_TO_SEE;

/// Takes a card full beside a resident model: what is left is just less than the reservation, and then just less than
/// the peak, which must fail as out of memory and leave cache and books as they were. With the room back, the next run
/// is as valid as the first.
///
/// # Errors
/// The first thing that does not hold.
pub fn out_of_memory(subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let Some((model, _, case, estimate)) = quickest(subject, ground) else {
        let note = format!("{NOTHING_TO_SEE}: {}: no case fits on this card", place(subject));
        return Ok(Evidence { notes: vec![note], ..Evidence::default() });
    };
    let bench = subject.bench(&Setup { floor_bytes: Some(0), ..Setup::default() })?;
    let mut full = Full { bench: &bench, model, case, ground, windows: Vec::new() };
    let looked = fails_and_recovers(&mut full, estimate.reservation_bytes);
    with_windows(subject, full.windows, looked)
}

fn fails_and_recovers(full: &mut Full<'_, '_>, reserved: u64) -> Result<Evidence, CheckError> {
    let (subject, case) = (&full.bench.subject, full.case);
    // What libraries take once is none of the case's.
    full.bench.session.run(&full.request())?;
    let peak = full.valid_run("on an ample card")?;
    let less_than_reserved = match full.in_room_of(reserved.saturating_sub(PAGE_BYTES))? {
        Ok(report) => format!("completes{}", how(&report)?),
        Err(_) => "runs out of memory".to_owned(),
    };
    full.valid_run("after the memory was given back for the first time")?;
    let failed = full.in_room_of(peak.saturating_sub(PAGE_BYTES))?;
    let what = || format!("{} {case}", place(subject));
    let measurement = match failed {
        Ok(_) => {
            let text = format!("{}: it completed in a page less than the {} of its peak", what(), Bytes(peak));
            return Err(CheckError::violated(text));
        }
        Err(StepError::Run { measurement: Some(measurement), .. }) => measurement,
        Err(error) => return Err(CheckError::violated(format!("{}: it failed before it ran: {error}", what()))),
    };
    Claim::OutOfMemoryIsSeen.holds(measurement.validity == Validity::Invalid(InvalidReason::OutOfMemory), || {
        format!("{}: the window of a run without memory is {:?}", what(), measurement.validity)
    })?;
    full.valid_run("after the memory was given back again")?;
    let note = format!(
        "{}: {} reserved, {} allocated at the peak; in a page less than the reservation it {less_than_reserved}, in a page \
         less than the peak it runs out of memory, and after each it runs",
        what(),
        Bytes(reserved),
        Bytes(peak)
    );
    Ok(Evidence { seen: 6, notes: vec![note], ..Evidence::default() })
}

/// How a run completed that had less room than is reserved for it: it needed less, or memory had to be given back for it.
fn how(report: &StepReport) -> Result<String, CheckError> {
    let measured = report.measurement.as_ref().map(|measurement| (&measurement.validity, measurement.retries));
    match measured {
        Some((validity, retries)) if is_invalid_for_retries_alone(validity, retries) => {
            Ok(if retries == 0 { " with no retry".to_owned() } else { format!(" after retries ({retries})") })
        }
        other => Err(CheckError::violated(format!("a run in less room than its reservation ended as {other:?}"))),
    }
}

/// A case on a card that gets full.
struct Full<'s, 'a> {
    bench: &'s Bench<'a>,
    model: &'s Model,
    case: Case,
    ground: Ground<'s>,
    /// What its runs left.
    windows: Vec<WindowRecord>,
}

impl<'s> Full<'s, '_> {
    fn request(&self) -> StepRequest<'s> {
        StepRequest { model: &self.model.key, with: &[], case: self.case, working_bytes: Some(0) }
    }

    /// Runs the case, which states no working memory: nothing moves for it, and its own figure is not believed.
    fn run(&mut self) -> Result<StepReport, StepError> {
        measure_apart(self.bench, &Scope::new(0), &self.request(), self.ground, &mut self.windows)
    }

    /// Runs the case with room enough; what it allocates at its peak.
    fn valid_run(&mut self, when: &str) -> Result<u64, CheckError> {
        let report = self.run()?;
        let what = || format!("{} {} {when}", place(&self.bench.subject), self.case);
        let measurement = undisturbed(report, what)?;
        Ok(measurement.deltas.allocated_peak_bytes)
    }

    /// Runs the case with so much room beside its model, and gives the rest back afterwards.
    fn in_room_of(&mut self, room_bytes: u64) -> Result<Result<StepReport, StepError>, CheckError> {
        let cache = self.bench.session.cache();
        let device = cache.device();
        device.empty_cache().map_err(|error| CheckError::violated(error.to_string()))?;
        let counters = device.counters().map_err(BenchError::from)?;
        // What lies idle in segments of weights is room as well.
        let idle = counters.reserved.current.saturating_sub(counters.allocated.current);
        let before = cache.models();
        self.bench.card.leave_free(room_bytes.saturating_sub(idle))?;
        let outcome = self.run();
        self.bench.card.release();
        let what = || format!("{} {} in {}", place(&self.bench.subject), self.case, Bytes(room_bytes));
        if let Err(error) = &outcome {
            ensure(error.is_out_of_memory(), || format!("{}: {error}", what()))?;
            Claim::FailureLeavesTheCacheAsItWas
                .holds(cache.models() == before, || format!("{}: the cache changed", what()))?;
        }
        let books = cache.reconcile(self.bench.runner.persistent_bytes(device))?;
        Claim::BooksAgree.holds(books.is_ok(), || format!("{}: {books:?}", what()))?;
        Ok(outcome)
    }
}
