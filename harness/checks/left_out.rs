//! Sizes left out of recorded lines: each is priced by a line through the others, and the report says how that went.

use headroom_base::AllocatorKind;
use headroom_calibration::anchored::PredictionTerms;
use headroom_calibration::cross_validation::{HeldOut, Method, Sample, SampledLine, Score, leave_one_size_out};
use headroom_calibration::{Counted, Point};
use headroom_reports::WindowRecord;

use super::{CheckError, ensure};

/// Fewer sizes than this leave no line when one of them is left out.
const LEAST_SIZES: usize = 4;

/// Leaves each size of every line out in turn and prices it by the rest, margin included. Inside the range none may be
/// under for native and expandable segments; for the rest the notes say how many are, by how much at worst, and the
/// upper bound that so many trials allow.
///
/// # Errors
/// The first size inside the range that is under.
pub(super) fn left_out_sizes(
    family: &str,
    allocator: AllocatorKind,
    windows: &[WindowRecord],
    verdicts: &[Counted],
) -> Result<Vec<String>, CheckError> {
    let held_out: Vec<HeldOut> = lines(allocator, windows, verdicts)
        .iter()
        .flat_map(|line| leave_one_size_out(line, Method::Envelope))
        .collect();
    let promised = allocator != AllocatorKind::CudaMallocAsync;
    let broken = held_out.iter().find(|size| promised && size.inside && size.is_under());
    ensure(broken.is_none(), || {
        let size = broken.map(|size| format!("{} at {} units", size.line, size.units)).unwrap_or_default();
        format!("{allocator}: {size}, left out, is under the line through the other sizes")
    })?;
    let parts = [("inside the range", true), ("at its ends", false)];
    Ok(parts
        .into_iter()
        .filter_map(|(part, inside)| {
            let score = Score::of(held_out.iter().filter(|size| size.inside == inside))?;
            Some(format!(
                "{family} {allocator}, sizes left out {part}: {} of {} under (95 % bound {:.1} %), worst {:.1} % short; over: median {:.1} %, worst {:.1} %",
                score.under,
                score.held_out,
                score.under_rate_upper * 100.0,
                score.worst_short_share * 100.0,
                score.over_p50 * 100.0,
                score.over_worst * 100.0
            ))
        })
        .collect())
}

/// The lines that have sizes enough.
fn lines(allocator: AllocatorKind, windows: &[WindowRecord], verdicts: &[Counted]) -> Vec<SampledLine> {
    let predictions = PredictionTerms {
        step_bytes: allocator.growth_step_bytes(),
        is_upper_bound: allocator == AllocatorKind::CudaMallocAsync,
    };
    let mut lines: Vec<SampledLine> = Vec::new();
    for (kept, _) in windows.iter().zip(verdicts).filter(|(_, verdict)| verdict.counts()) {
        let name = kept.window.line.to_string();
        let sample = Sample { point: Point::from(&kept.window), predicted_bytes: None };
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.samples.push(sample),
            None => lines.push(SampledLine { name, predictions, samples: vec![sample] }),
        }
    }
    lines.retain(|line| {
        let mut sizes: Vec<u64> = line.samples.iter().map(|sample| sample.point.units).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes.len() >= LEAST_SIZES
    });
    lines
}
