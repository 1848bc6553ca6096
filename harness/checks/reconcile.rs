//! The books: what the cache holds is what the allocator handed out, and what it reserved is what the driver gave.

use headroom_base::{Bytes, Reading};

use super::{CheckError, Claim, Evidence, place};
use crate::bench::{Bench, BenchError, Card, Ground, Place, Setup, Subject};
use crate::checks::pipeline::run_unmeasured;
use crate::gpu::OpenGpu;
use crate::trials::NOTHING_TO_SEE;

/// What the parts of an attached card's books may miss of what the driver sees, in percent.
const RESIDUE_PERCENT: u64 = 1;

/// Runs the pipeline and compares cache, allocator and driver; then empties everything and compares again. On a
/// simulated card they agree to the byte, on an attached one but for a residue of 1 % that is named. Where the driver does
/// not tell what the process holds (a divided card, some containers) its side is not compared, and the notes say so.
///
/// # Errors
/// The first figure that differs.
pub fn reconcile(subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let bench = subject.bench(&Setup::default())?;
    run_unmeasured(&bench, ground)?;
    let mut evidence = compare(&bench, "after the pipeline")?;
    everything_off(&bench)?;
    evidence.absorb(compare(&bench, "after everything was moved off")?);
    Ok(evidence)
}

fn everything_off(bench: &Bench<'_>) -> Result<(), CheckError> {
    let cache = bench.session.cache();
    cache.offload_unlocked()?;
    let left: u64 = cache.models().iter().map(|model| model.device_bytes).sum();
    Claim::BooksAgree.holds(left == 0, || {
        format!("{}: {} of weights stay after everything was moved off", place(&bench.subject), Bytes(left))
    })
}

fn compare(bench: &Bench<'_>, when: &str) -> Result<Evidence, CheckError> {
    let at = format!("{} {when}", place(&bench.subject));
    let cache = bench.session.cache();
    let libraries = bench.runner.persistent_bytes(cache.device());
    let books = cache.reconcile(libraries)?;
    Claim::BooksAgree.holds(books.is_ok(), || {
        format!("{at}: {}", books.map_or_else(|error| error.to_string(), |()| String::new()))
    })?;
    let reserved = cache.device().counters().map_err(BenchError::from)?.reserved.current;
    let process = cache.device().process_bytes().map_err(|error| CheckError::violated(error.to_string()))?;
    let mut evidence = Evidence { seen: 1, ..Evidence::default() };
    match (&bench.card, bench.subject.place) {
        (Card::Simulated { card, .. }, _) => {
            let held = card.held_bytes();
            Claim::BooksAgree.holds(held == reserved, || {
                format!("{at}: {} reserved, the driver gave {}", Bytes(reserved), Bytes(held))
            })?;
            let expected = held + card.settings().context_bytes + card.retained_bytes();
            Claim::BooksAgree.holds(process == Reading::Bytes(expected), || {
                format!("{at}: the driver sees {process} of this process, the books say {}", Bytes(expected))
            })?;
        }
        (Card::Attached(_), Place::Gpu(gpu)) => evidence.notes.push(match process {
            Reading::Bytes(own) => residue(gpu, own, reserved, &at)?,
            Reading::Unknown => not_compared(&at, "the driver does not tell what this process holds"),
        }),
        (Card::Attached(_), Place::Simulated(_)) => {}
    }
    Ok(evidence)
}

fn not_compared(at: &str, why: &str) -> String {
    format!("{NOTHING_TO_SEE}: {at}: {why}, so its books were not compared with the allocator's")
}

/// What the driver sees of this process beside context, segments and libraries, each by name; a hundredth at most.
fn residue(gpu: &OpenGpu, own: u64, reserved: u64, at: &str) -> Result<String, CheckError> {
    let Reading::Bytes(context) = gpu.attached().context_bytes() else {
        return Ok(not_compared(at, "the driver did not tell what this process held when the card was opened"));
    };
    let libraries = gpu.attached().libraries();
    let known = context + reserved + libraries.iter().map(|(_, bytes)| bytes).sum::<u64>();
    let named: String = libraries.iter().map(|(name, bytes)| format!(" + {} {name}", Bytes(*bytes))).collect();
    let residue = i128::from(own) - i128::from(known);
    let text = format!(
        "{at}: {} of this process by the driver = {} context{named} + {} segments, residue {} KiB",
        Bytes(own),
        Bytes(context),
        Bytes(reserved),
        residue / 1024
    );
    let small = residue.unsigned_abs() * 100 <= u128::from(own) * u128::from(RESIDUE_PERCENT);
    Claim::BooksAgree.holds(small, || format!("{text}: more than {RESIDUE_PERCENT} %"))?;
    Ok(text)
}
