//! Which windows of an attempt measured the allocator's history instead of the operation.
//!
//! On a warm server the allocator can hold far more than it hands out: reserved bytes were seen to rise to
//! 1.3–1.47 times the allocated ones while those stayed the same. Two limits follow from judging an attempt by
//! itself. A reference that is fragmented already cannot be seen. And a window that is flagged wrongly leaves
//! its line with fewer sizes, so that estimates fall back towards the built-in ones.

use std::collections::BTreeMap;
use std::fmt;

use headroom_base::{AttemptId, LineKey, Window, mutant};
use serde::{Deserialize, Serialize};

/// What a fragmented window held beyond what its attempt's smallest size lets expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Surplus {
    /// Reserved bytes beyond the reference's ratio to allocated.
    pub surplus_bytes: u64,
    /// Reserved ÷ allocated of the window, in thousandths.
    pub ratio_thousandths: u64,
    /// Reserved ÷ allocated of the reference, in thousandths.
    pub reference_thousandths: u64,
}

impl fmt::Display for Surplus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ratio = |thousandths: u64| format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
        write!(
            f,
            "fragmented: reserved is {} times allocated where the smallest size had {} ({} more than expected)",
            ratio(self.ratio_thousandths),
            ratio(self.reference_thousandths),
            headroom_base::Bytes(self.surplus_bytes)
        )
    }
}

/// The three figures of a window that the rule looks at.
#[derive(Clone, Copy, Debug)]
struct Peaks {
    units: u128,
    allocated: u128,
    reserved: u128,
    step: u128,
}

impl Peaks {
    /// Nothing for a window below one growth step: there the ratio says only how segments are rounded.
    fn of(window: &Window) -> Option<Self> {
        let deltas = &window.measurement.deltas;
        let step = window.environment.hard.allocator.growth_step_bytes();
        // No device has 2^60 bytes; up to there every product below stays within 128 bits.
        let bounded = |figure: u64| u128::from(figure.min(1 << 60));
        (deltas.allocated_peak_bytes >= step).then_some(Self {
            units: bounded(window.cost_units),
            allocated: bounded(deltas.allocated_peak_bytes),
            reserved: bounded(deltas.reserved_peak_bytes),
            step: u128::from(step),
        })
    }

    /// Compares `reserved ÷ allocated` without dividing.
    fn ratio_is_below(&self, other: &Self) -> bool {
        self.reserved * other.allocated < other.reserved * self.allocated
    }

    /// Reserved is more than 1.10 times what the reference's ratio gives for these allocated bytes.
    fn ratio_grew(&self, reference: &Self) -> bool {
        10 * self.reserved * reference.allocated > 11 * reference.reserved * self.allocated
    }

    /// Allocated bytes per cost unit are within 5 % of the reference's.
    fn allocated_is_flat(&self, reference: &Self) -> bool {
        let (here, there) = (20 * self.allocated * reference.units, reference.allocated * self.units);
        19 * there <= here && here <= 21 * there
    }

    /// Reserved bytes beyond the reference's ratio.
    fn surplus_bytes(&self, reference: &Self) -> u128 {
        self.reserved.saturating_sub(reference.reserved * self.allocated / reference.allocated)
    }

    fn thousandths(&self) -> u64 {
        u64::try_from((1000 * self.reserved + self.allocated / 2) / self.allocated).unwrap_or(u64::MAX)
    }
}

/// Judges windows that would count otherwise, each against the smallest size of its own attempt and line;
/// the answers stand in the order of the windows.
///
/// Windows below one growth step are not judged and are no reference, so that the smallest size that can be
/// judged is the reference. Windows of no attempt are not judged.
pub fn judge(windows: &[&Window]) -> Vec<Option<Surplus>> {
    let mut groups: BTreeMap<(Option<&AttemptId>, &LineKey), Vec<usize>> = BTreeMap::new();
    for (index, window) in windows.iter().enumerate() {
        let Some(id) = &window.attempt_id else { continue };
        let attempt = mutant!(
            "fragmentation_pools_attempts",
            "a card's clean first calibration makes all later ones look fragmented, or hides that they are",
            right: Some(id),
            wrong: None,
        );
        groups.entry((attempt, &window.line)).or_default().push(index);
    }
    let mut surpluses = vec![None; windows.len()];
    for members in groups.values() {
        let peaks: Vec<(usize, Peaks)> =
            members.iter().filter_map(|index| Some((*index, Peaks::of(windows[*index])?))).collect();
        let Some(reference) = reference(peaks.iter().map(|(_, peaks)| peaks)) else { continue };
        for (index, peaks) in &peaks {
            surpluses[*index] = surplus(peaks, &reference);
        }
    }
    surpluses
}

/// The smallest ratio of the smallest size.
fn reference<'a>(peaks: impl Iterator<Item = &'a Peaks>) -> Option<Peaks> {
    peaks.copied().reduce(|best, next| match next.units.cmp(&best.units) {
        std::cmp::Ordering::Less => next,
        std::cmp::Ordering::Equal if next.ratio_is_below(&best) => next,
        _ => best,
    })
}

fn surplus(peaks: &Peaks, reference: &Peaks) -> Option<Surplus> {
    let flat = mutant!(
        "fragmentation_ignores_flat_allocated",
        "a size that needs another kernel's workspace is taken for fragmentation and left out",
        right: peaks.allocated_is_flat(reference),
        wrong: true,
    );
    let surplus_bytes = peaks.surplus_bytes(reference);
    let beyond_a_step = mutant!(
        "fragmentation_ignores_growth_step",
        "small sizes whose reserve is rounded up by one segment are left out",
        right: surplus_bytes > peaks.step,
        wrong: true,
    );
    let fragmented = mutant!(
        "fragmentation_rule_off",
        "what a warm server's allocator happens to hold is reserved for ever after",
        right: peaks.ratio_grew(reference) && flat && beyond_a_step,
        wrong: false,
    );
    fragmented.then(|| Surplus {
        surplus_bytes: u64::try_from(surplus_bytes).unwrap_or(u64::MAX),
        ratio_thousandths: peaks.thousandths(),
        reference_thousandths: reference.thousandths(),
    })
}
