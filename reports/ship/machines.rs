//! Names the machine whose windows lie far from the others': a wrong card, a wrong driver, a wrong report.

use std::collections::{BTreeMap, BTreeSet};

use headroom_base::{DeviceClass, Window, mutant};
use headroom_calibration::Point;

use super::changes::LineId;

/// With fewer machines at a size nobody can say which of them is the odd one.
const LEAST_MACHINES: usize = 3;

/// Below a tenth no difference between machines is worth a name.
const LEAST_DEVIATION_PERMILLE: u64 = 100;

/// 3.5 scaled median absolute deviations, the usual limit for an outlier (3.5 ÷ 0.6745), in thousandths.
const DEVIATIONS_PERMILLE: u64 = 5_189;

/// One machine: a card by its hash, or a whole report where the card is not told apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Machine {
    /// The kind of card.
    pub device: DeviceClass,
    /// The hash of the card's UUID.
    pub uuid_hash: Option<String>,
    /// The report.
    pub report_id: String,
}

impl Machine {
    /// What tells it apart: reports of one card are one machine.
    fn identity(&self) -> (&DeviceClass, &str) {
        (&self.device, self.uuid_hash.as_deref().unwrap_or(&self.report_id))
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of report {}", self.device, self.report_id)
    }
}

/// A machine that stands apart on a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlier {
    /// The machine.
    pub machine: Machine,
    /// The line, with the software it was measured under.
    pub line: LineId,
    /// Its demand over the median of all machines at the same sizes, in thousandths.
    pub ratio_permille: u64,
    /// How far that may lie from the machines' median, in thousandths.
    pub allowed_permille: u64,
    /// How many machines were compared.
    pub machines: usize,
}

impl std::fmt::Display for Outlier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = |permille: u64| format!("{}.{} %", permille / 10, permille % 10);
        write!(
            f,
            "{} needs {} of what the {} machines of {} typically need ({} more or less is usual)",
            self.machine,
            percent(self.ratio_permille),
            self.machines,
            self.line,
            percent(self.allowed_permille)
        )
    }
}

/// The machines that stand apart, line by line. Each item of `groups` has the windows of one line under one
/// environment, with the machine of each.
pub fn outliers<'a>(groups: impl Iterator<Item = Vec<(Machine, &'a Window)>>) -> Vec<Outlier> {
    groups.flat_map(|windows| of_line(&windows)).collect()
}

fn of_line(windows: &[(Machine, &Window)]) -> Vec<Outlier> {
    let Some((_, first)) = windows.first() else { return Vec::new() };
    let mut names: BTreeMap<(&DeviceClass, &str), &Machine> = BTreeMap::new();
    let mut at_size: BTreeMap<u64, BTreeMap<(&DeviceClass, &str), u64>> = BTreeMap::new();
    for (machine, window) in windows {
        names.entry(machine.identity()).and_modify(|known| *known = (*known).min(machine)).or_insert(machine);
        let largest = at_size.entry(window.cost_units).or_default().entry(machine.identity()).or_default();
        *largest = Point::from(*window).remainder_bytes().max(*largest);
    }
    let mut ratios: BTreeMap<(&DeviceClass, &str), Vec<u64>> = BTreeMap::new();
    for needs in at_size.values().filter(|needs| needs.len() >= LEAST_MACHINES) {
        let typical = median(needs.values().copied().collect()).max(1);
        for (machine, bytes) in needs {
            let ratio = u128::from(*bytes) * 1000 / u128::from(typical);
            ratios.entry(*machine).or_default().push(u64::try_from(ratio).unwrap_or(u64::MAX));
        }
    }
    let scores: BTreeMap<_, u64> = ratios.into_iter().map(|(machine, ratios)| (machine, median(ratios))).collect();
    let middle = median(scores.values().copied().collect());
    let deviation = median(scores.values().map(|score| score.abs_diff(middle)).collect());
    let allowed_permille = (deviation.saturating_mul(DEVIATIONS_PERMILLE) / 1000).max(LEAST_DEVIATION_PERMILLE);
    let machines = scores.keys().collect::<BTreeSet<_>>().len();
    scores
        .into_iter()
        .filter(|(_, score)| {
            mutant!(
                "odd_machine_not_named",
                "one broken machine sets what everybody reserves and nobody learns which",
                right: score.abs_diff(middle) > allowed_permille,
                wrong: false,
            )
        })
        .map(|(machine, ratio_permille)| Outlier {
            machine: names[&machine].clone(),
            line: LineId { line: first.line.clone(), environment: first.environment.hard.clone() },
            ratio_permille,
            allowed_permille,
            machines,
        })
        .collect()
}

/// The middle of the values; of an even number the lower middle; 0 of none.
fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}
