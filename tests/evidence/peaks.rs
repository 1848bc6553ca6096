//! Peaks on the card beside those of PyTorch and of the simulator.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use headroom::catalogue::Catalogue;
use headroom_base::AllocatorKind;

use super::beside::{Asked, Off, Peaks, Range, measured, recorded, recorded_names, simulated};
use super::kept::Runs;

/// Up to here two peaks are called equal: the small allocations beside an operation differ between programs.
const EQUAL: f64 = 0.0005;

/// How many cases were compared, how many are equal or near, and the worst of their peaks.
#[derive(Clone, Copy, Default)]
pub(crate) struct Compared {
    pub(crate) cases: usize,
    equal: usize,
    near: usize,
    allocated: f64,
    reserved: f64,
}

/// The columns of [`Compared::row`], behind those that say what is compared.
const COLUMNS: &str = "cases | equal | near | allocated, worst | reserved, worst |";

impl Compared {
    fn take(&mut self, allocator: AllocatorKind, off: Off) {
        self.cases += 1;
        self.equal += usize::from(off.allocated.abs() < EQUAL && off.reserved.abs() < EQUAL);
        let is_near = off.reserved.abs() <= 0.05 || off.reserved_bytes <= allocator.growth_step_bytes();
        self.near += usize::from(off.allocated.abs() <= 0.02 && is_near);
        for (worst, off) in [(&mut self.allocated, off.allocated), (&mut self.reserved, off.reserved)] {
            if off.abs() > worst.abs() {
                *worst = off;
            }
        }
    }

    pub(crate) fn row(&self, what: &str) -> String {
        let (allocated, reserved) = (100.0 * self.allocated, 100.0 * self.reserved);
        let Self { cases, equal, near, .. } = self;
        format!("| {what} | {cases} | {equal} | {near} | {allocated:+.2} % | {reserved:+.2} % |\n")
    }
}

/// How far the card's peaks lie from another's, by case, if that other has it.
pub(crate) type Beside = BTreeMap<Asked, Off>;

fn beside(runs: &Runs, other: impl Fn(&Asked) -> Option<Peaks>) -> Beside {
    let ours = measured(runs).into_iter();
    ours.filter_map(|(asked, peaks)| other(&asked).map(|other| (asked, other.off(peaks)))).collect()
}

/// Beside PyTorch's recordings of the same case of the same architecture.
pub(crate) fn beside_torch(catalogue: &Catalogue, runs: &Runs) -> Beside {
    let torch = recorded(catalogue);
    beside(runs, |asked| {
        let names = recorded_names(catalogue, asked);
        names.into_iter().find_map(|name| torch.get(&(name, asked.1, asked.2)).copied())
    })
}

/// Beside what the simulator says with its own table of workspaces.
pub(crate) fn beside_simulator(catalogue: &Catalogue, runs: &Runs) -> Beside {
    beside(runs, |asked| simulated(catalogue, asked))
}

/// Each case that PyTorch was recorded at: the card's peaks and PyTorch's, ranges where runs differ.
pub(crate) fn cases(catalogue: &Catalogue, runs: &Runs) -> String {
    let torch = recorded(catalogue);
    let mut table = String::from(
        "| model, case | allocator | allocated | by PyTorch | reserved | by PyTorch |\n|---|---|---:|---:|---:|---:|\n",
    );
    for (asked, own) in measured(runs) {
        let names = recorded_names(catalogue, &asked);
        let Some(theirs) = names.into_iter().find_map(|name| torch.get(&(name, asked.1, asked.2))) else { continue };
        let ((model, case, allocator), columns) =
            (&asked, [own.allocated, theirs.allocated, own.reserved, theirs.reserved]);
        let [allocated, by_torch, reserved, reserved_by_torch] = columns.map(Range::in_mib);
        let _ = writeln!(
            table,
            "| {model} {case} | {allocator} | {allocated} | {by_torch} | {reserved} | {reserved_by_torch} |"
        );
    }
    table
}

/// One row for each of what `name` makes of a case, and allocator. Equal is within 0.05 % in both peaks; near within 2 %
/// of the allocated one, and within 5 % or one growth step of the reserved one.
pub(crate) fn table(heading: &str, beside: &Beside, name: impl Fn(&Asked) -> String) -> String {
    let mut rows: BTreeMap<(String, AllocatorKind), Compared> = BTreeMap::new();
    for (asked, off) in beside {
        rows.entry((name(asked), asked.2)).or_default().take(asked.2, *off);
    }
    let mut table = format!("| {heading}allocator | {COLUMNS}\n");
    let named = if heading.is_empty() { "" } else { "|---" };
    let _ = writeln!(table, "{named}|---|---:|---:|---:|---:|---:|");
    for ((what, allocator), row) in &rows {
        let what = if heading.is_empty() { allocator.to_string() } else { format!("{what} | {allocator}") };
        table.push_str(&row.row(&what));
    }
    table
}

/// Cases of which the card took more of the driver's own pool than the simulator's bound on it.
pub(crate) fn above_the_bound(beside: &Beside) -> Vec<(&Asked, &Off)> {
    let pooled = beside.iter().filter(|((_, _, allocator), _)| *allocator == AllocatorKind::CudaMallocAsync);
    pooled.filter(|(_, off)| off.reserved > 0.0).collect()
}

#[test]
fn allocated_peaks_of_the_card_are_pytorchs_and_the_simulators_within_two_percent() {
    let catalogue = Catalogue::load(None).unwrap();
    let runs = super::kept::runs(&catalogue);
    for (least, beside) in [(150, beside_torch(&catalogue, &runs)), (300, beside_simulator(&catalogue, &runs))] {
        assert!(beside.len() > least, "{} cases", beside.len());
        for ((model, case, allocator), off) in &beside {
            assert!(off.allocated.abs() <= 0.02, "{model} {case} under {allocator}: {off:?}");
        }
    }
}

#[test]
fn no_window_of_a_real_pool_exceeds_its_bound() {
    let catalogue = Catalogue::load(None).unwrap();
    let beside = beside_simulator(&catalogue, &super::kept::runs(&catalogue));
    assert!(beside.keys().filter(|(_, _, allocator)| *allocator == AllocatorKind::CudaMallocAsync).count() > 100);
    assert!(above_the_bound(&beside).is_empty(), "{:?}", above_the_bound(&beside));
}
