//! The books: what the cache holds is what the allocator handed out, and what it reserved is what the driver gave.

use headroom_base::{Bytes, Reading};

use super::{CheckError, Claim, Evidence, place};
use crate::bench::{Ground, Setup, Subject};
use crate::checks::pipeline::run_unmeasured;

/// Runs the pipeline and compares cache, allocator and driver; then empties everything and compares again.
///
/// # Errors
/// The first figure that differs.
pub fn reconcile(subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let bench = subject.bench(&Setup::default())?;
    run_unmeasured(&bench, ground)?;
    compare(&bench, "after the pipeline")?;
    bench.session.cache().offload_unlocked()?;
    compare(&bench, "after everything was moved off")?;
    let left: u64 = bench.session.cache().models().iter().map(|model| model.device_bytes).sum();
    Claim::BooksAgree.holds(left == 0, || {
        format!("{}: {} of weights stay after everything was moved off", place(subject), Bytes(left))
    })?;
    Ok(Evidence { seen: 2, ..Evidence::default() })
}

fn compare(bench: &crate::bench::Bench<'_>, when: &str) -> Result<(), CheckError> {
    let place = place(&bench.subject);
    let cache = bench.session.cache();
    let libraries = bench.runner.persistent_bytes(cache.device());
    let books = cache.reconcile(libraries)?;
    Claim::BooksAgree.holds(books.is_ok(), || {
        format!("{place} {when}: {}", books.map_or_else(|error| error.to_string(), |()| String::new()))
    })?;
    let counters = cache.device().counters().map_err(|error| CheckError::violated(error.to_string()))?;
    let held = bench.card.held_bytes();
    Claim::BooksAgree.holds(held == counters.reserved.current, || {
        format!("{place} {when}: {} reserved, the driver gave {}", Bytes(counters.reserved.current), Bytes(held))
    })?;
    let process = cache.device().process_bytes().map_err(|error| CheckError::violated(error.to_string()))?;
    let expected = held + bench.card.settings().context_bytes + bench.card.retained_bytes();
    Claim::BooksAgree.holds(process == Reading::Bytes(expected), || {
        format!("{place} {when}: the driver sees {process} of this process, the books say {}", Bytes(expected))
    })
}
