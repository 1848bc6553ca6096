//! A warm server: what a calibration comes to after other models were loaded and dropped.

use std::collections::BTreeMap;

use headroom_base::{AllocatorKind, Bytes, RunKind, Window};
use headroom_calibration::{Attempt, EstimatorVersions, Uncounted};
use headroom_reports::verdicts::verdicts;

use super::kept::Runs;
use super::summary::{bytes_of, notes};

pub(crate) fn block(runs: &Runs) -> String {
    by_the_rules(runs) + &prices(runs)
}

/// What today's rules say of measured windows after other models were loaded and dropped, whatever those of the run said.
fn by_the_rules(runs: &Runs) -> String {
    let mut counts: BTreeMap<AllocatorKind, [usize; 3]> = BTreeMap::new();
    for (_, report) in runs {
        let windows: Vec<Window> = report.windows.iter().map(|record| record.window.clone()).collect();
        let attempts: Vec<Attempt> = report.attempts.iter().map(|record| record.attempt.clone()).collect();
        let versions = EstimatorVersions::newest_of(windows.iter().map(|window| &window.line));
        for (record, verdict) in report.windows.iter().zip(verdicts(&windows, &attempts, &versions)) {
            let of_the_trial = record.trial.as_deref().is_some_and(|trial| trial.ends_with("::warm_server"));
            // A window of no attempt is one of the fresh process that is compared with it.
            let is_warm = of_the_trial && record.window.attempt_id.is_some();
            if !is_warm || record.window.kind != RunKind::Measured {
                continue;
            }
            let [all, in_room, fragmented] = counts.entry(record.window.environment.hard.allocator).or_default();
            *all += 1;
            *in_room += usize::from(matches!(verdict.reason(), Some(Uncounted::InRoomLeft { .. })));
            *fragmented += usize::from(matches!(verdict.reason(), Some(Uncounted::Fragmented(_))));
        }
    }
    assert!(!counts.is_empty(), "no windows of warm servers");
    let said = counts.iter().map(|(allocator, [all, in_room, fragmented])| {
        format!(
            "{allocator}: {in_room} of {all} ran in room that others left, and {fragmented} of the rest look fragmented"
        )
    });
    let said = said.collect::<Vec<_>>().join("; ");
    format!("On a warm server (other models loaded and dropped before), measured windows by today's rules: {said}.\n\n")
}

/// A size's price after a warm calibration.
struct Warm<'a> {
    family: &'a str,
    allocator: AllocatorKind,
    case: &'a str,
    needed_bytes: u64,
    reserved_bytes: u64,
    /// What the price rests on.
    source: &'a str,
}

impl<'a> Warm<'a> {
    /// From a note: `after the warm calibration, PLACE ALLOCATOR: CASE: N needed, M reserved (SOURCE), …`.
    fn of(family: &'a str, note: &'a str) -> Option<Self> {
        let (place, rest) = note.strip_prefix("after the warm calibration, ")?.split_once(": ")?;
        let (case, rest) = rest.split_once(": ")?;
        let (needed, rest) = rest.split_once(" needed, ")?;
        let (reserved, rest) = rest.split_once(" reserved (")?;
        let allocator = AllocatorKind::ALL.into_iter().find(|kind| place.ends_with(&format!(" {kind}")))?;
        let (needed_bytes, reserved_bytes) = (bytes_of(needed)?, bytes_of(reserved)?);
        Some(Self { family, allocator, case, needed_bytes, reserved_bytes, source: rest.split_once(')')?.0 })
    }

    fn short_bytes(&self) -> u64 {
        self.needed_bytes.saturating_sub(self.reserved_bytes)
    }
}

/// What is reserved after calibrations on a warm card beside what a fresh process needed.
fn prices(runs: &Runs) -> String {
    let told: Vec<_> = notes(runs, "warm_server").filter(|(_, note)| note.starts_with("after the warm")).collect();
    let warm: Vec<Warm<'_>> = told.iter().filter_map(|(family, note)| Warm::of(family, note)).collect();
    assert!(warm.len() == told.len() && warm.len() > 50, "{} of {} notes are read", warm.len(), told.len());
    let said = [AllocatorKind::Native, AllocatorKind::ExpandableSegments].map(|kind| {
        let of_kind: Vec<&Warm<'_>> = warm.iter().filter(|price| price.allocator == kind).collect();
        let own = of_kind.iter().filter(|price| price.source == "user").count();
        let short: Vec<_> = of_kind.iter().filter(|price| price.short_bytes() > 0).collect();
        let share = |price: &Warm<'_>| price.short_bytes() as f64 / price.needed_bytes as f64;
        let worst = short.iter().max_by(|left, right| share(left).total_cmp(&share(right)));
        let worst = worst.map_or_else(String::new, |worst| {
            let (family, case, missing) = (worst.family, worst.case, Bytes(worst.short_bytes()));
            format!(", the worst by {:.1} % ({missing}, {family} {case})", 100.0 * share(worst))
        });
        format!("{kind}: {} of {} below it{worst}; {own} priced by the warm calibration", short.len(), of_kind.len())
    });
    format!(
        "Reserved after such a calibration, beside what a fresh process needs: {}. The others fall back to what is shipped or \
         predicted. Calibrate in a fresh process.\n\n",
        said.join("; ")
    )
}
