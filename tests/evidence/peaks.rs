//! Peaks on the card beside those of PyTorch and of the simulator.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use headroom::catalogue::Catalogue;
use headroom_base::{AllocatorKind, MIB};

use super::beside::{Asked, Off, Peaks, Range, copy_bytes, measured, of_torch, recorded, simulated};
use super::kept::Runs;

/// Up to here two peaks are called equal: the small allocations beside an operation differ between programs.
const EQUAL: f64 = 0.0005;

/// How many cases were measured and compared, how many are equal or near, and the worst of their peaks.
#[derive(Clone, Copy, Default)]
pub(crate) struct Compared {
    measured: usize,
    cases: usize,
    equal: usize,
    near: usize,
    allocated: f64,
    reserved: f64,
}

/// The columns of [`Compared::row`], behind those that say what is compared.
const COLUMNS: &str = "cases | of measured | equal | near | allocated, worst | reserved, worst |";

impl Compared {
    fn take(&mut self, allocator: AllocatorKind, off: Option<Off>) {
        self.measured += 1;
        let Some(off) = off else { return };
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

    fn row(&self, what: &str) -> String {
        let Self { measured, cases, equal, near, .. } = self;
        let worst = |share: f64| if *cases == 0 { "-".to_owned() } else { format!("{:+.2} %", 100.0 * share) };
        let (allocated, reserved) = (worst(self.allocated), worst(self.reserved));
        format!("| {what} | {cases} | {measured} | {equal} | {near} | {allocated} | {reserved} |\n")
    }
}

/// How far the card's peaks lie from another's, by every case that was measured; none where that other has it not.
pub(crate) type Beside = BTreeMap<Asked, Option<Off>>;

fn beside(runs: &Runs, other: impl Fn(&Asked) -> Option<Peaks>) -> Beside {
    let ours = measured(runs).into_iter();
    ours.map(|(asked, peaks)| (asked.clone(), other(&asked).map(|other| other.off(peaks)))).collect()
}

/// Those that were compared.
fn compared(beside: &Beside) -> impl Iterator<Item = (&Asked, Off)> {
    beside.iter().filter_map(|(asked, off)| Some((asked, (*off)?)))
}

/// Beside PyTorch's recordings of the same case of the same architecture.
pub(crate) fn beside_torch(catalogue: &Catalogue, runs: &Runs) -> Beside {
    let torch = recorded(catalogue);
    beside(runs, |asked| of_torch(catalogue, &torch, asked))
}

/// Beside what the simulator says with its own table of workspaces.
pub(crate) fn beside_simulator(catalogue: &Catalogue, runs: &Runs) -> Beside {
    beside(runs, |asked| simulated(catalogue, asked))
}

/// Each case that PyTorch was recorded at: the card's peaks and PyTorch's, ranges where runs differ.
pub(crate) fn cases(catalogue: &Catalogue, runs: &Runs) -> String {
    let torch = recorded(catalogue);
    let mut table = String::from(
        "| model, case | allocator | allocated | by PyTorch | reserved | by PyTorch | of which a copy of the weights |\n\
         |---|---|---:|---:|---:|---:|---:|\n",
    );
    for (asked, own) in measured(runs) {
        let Some(theirs) = of_torch(catalogue, &torch, &asked) else { continue };
        let copy = match copy_bytes(catalogue, &asked) {
            0 => String::new(),
            bytes => format!("{:.1}", bytes as f64 / MIB as f64),
        };
        let ((model, case, allocator), columns) =
            (&asked, [own.allocated, theirs.allocated, own.reserved, theirs.reserved]);
        let [allocated, by_torch, reserved, reserved_by_torch] = columns.map(Range::in_mib);
        let _ = writeln!(
            table,
            "| {model} {case} | {allocator} | {allocated} | {by_torch} | {reserved} | {reserved_by_torch} | {copy} |"
        );
    }
    table
}

/// How many cases are compared with PyTorch's, and how far the reserved peaks lie off at most, by allocator.
pub(crate) fn reserved_beside_torch(catalogue: &Catalogue, runs: &Runs) -> String {
    let beside = beside_torch(catalogue, runs);
    let said = AllocatorKind::ALL.map(|kind| {
        let of_kind = || compared(&beside).filter(|((.., allocator), _)| *allocator == kind);
        let (cases, all) = (of_kind().count(), beside.keys().filter(|(.., allocator)| *allocator == kind).count());
        let copies = of_kind().filter(|(asked, _)| copy_bytes(catalogue, asked) > 0).count();
        let end = |sign: f64| {
            let farthest = of_kind().max_by(|(_, left), (_, right)| {
                (sign * left.reserved).total_cmp(&(sign * right.reserved))
            });
            let farthest = farthest.filter(|(_, off)| sign * off.reserved > 0.0);
            farthest.map_or_else(
                || "nowhere".to_owned(),
                |((model, case, _), off)| format!("by {:+.2} % at most ({model} {case})", 100.0 * off.reserved),
            )
        };
        let (over, under) = (end(1.0), end(-1.0));
        format!(
            "- {kind}: {cases} of {all} measured cases are compared, {copies} of them with a copy of the weights; above \
             PyTorch's {over}, below it {under}\n"
        )
    });
    format!(
        "\nPyTorch was recorded with weights in the element type of the run. Where ours keep another, the copy that the run \
         holds is added to PyTorch's peaks: to the byte in allocated memory, while the segments that hold it may be larger. \
         Reserved peaks, by allocator:\n\n{}",
        said.concat()
    )
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
    let _ = writeln!(table, "{named}|---|---:|---:|---:|---:|---:|---:|");
    for ((what, allocator), row) in &rows {
        let what = if heading.is_empty() { allocator.to_string() } else { format!("{what} | {allocator}") };
        table.push_str(&row.row(&what));
    }
    table
}

#[test]
fn allocated_peaks_of_the_card_are_pytorchs_and_the_simulators_within_two_percent() {
    let catalogue = Catalogue::load(None).unwrap();
    let runs = super::kept::runs(&catalogue);
    for (least, beside) in [(150, beside_torch(&catalogue, &runs)), (300, beside_simulator(&catalogue, &runs))] {
        assert!(compared(&beside).count() > least, "{} cases", compared(&beside).count());
        for ((model, case, allocator), off) in compared(&beside) {
            assert!(off.allocated.abs() <= 0.02, "{model} {case} under {allocator}: {off:?}");
        }
    }
}

/// What is rule of reserved peaks: they grow in the allocator's steps, on the card as by PyTorch, and in the driver's own
/// pool neither lies above the bound. How far they lie from one another is told and not promised.
#[test]
fn reserved_peaks_are_whole_steps_of_the_allocator_and_both_below_the_bound_on_the_pool() {
    let catalogue = Catalogue::load(None).unwrap();
    let (own, torch) = (measured(&super::kept::runs(&catalogue)), recorded(&catalogue));
    for (asked, peaks) in &own {
        let theirs = of_torch(&catalogue, &torch, asked).filter(|_| copy_bytes(&catalogue, asked) == 0);
        let is_pool = asked.2 == AllocatorKind::CudaMallocAsync;
        let step_bytes = if is_pool { 32 * MIB } else { 2 * MIB };
        for peaks in [Some(*peaks), theirs].into_iter().flatten() {
            assert!(peaks.reserved.is_of_whole(step_bytes), "{asked:?}: {peaks:?}");
            if is_pool {
                let bound = simulated(&catalogue, asked).unwrap();
                assert!(bound.reserved.covers(peaks.reserved), "{asked:?}: {peaks:?} above {bound:?}");
            }
        }
    }
}
