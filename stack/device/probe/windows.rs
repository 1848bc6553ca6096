//! The open windows of one device: the innermost is measured, the others are suspended.
//!
//! That bills each its own memory where they nest. Windows of one scope that overlap otherwise are worthless, all of
//! them: while both are open the inner one is billed whatever either operation takes.

use headroom_base::{Deltas, InvalidReason, Reading, mutant};

use super::sample::{Peaks, Sample, signed};
use super::scope::ScopeId;
use crate::device::Core;
use crate::weights::HostPin;

/// Names an open window of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WindowId(u64);

/// Allocated, reserved and driver bytes over the baseline; a driver's figure may be unknown.
#[derive(Clone, Copy, Debug, Default)]
struct Over {
    allocated: Option<i64>,
    reserved: Option<i64>,
    driver: Option<i64>,
}

/// One interval between a lock and its unlock.
#[derive(Debug)]
pub(crate) struct OpenWindow {
    id: WindowId,
    scope: ScopeId,
    /// What the figures would be if the operation had taken nothing: moved whenever weights come or go.
    baseline: Sample,
    /// The largest of the stretches that have ended.
    best: Over,
    /// The most that was reserved at once, weights and others' blocks included.
    highest_reserved: i64,
    stretches: u32,
    retries: u64,
    ooms: u64,
    /// The allocator's counts when the present stretch began.
    retries_mark: u64,
    ooms_mark: u64,
    spilled_at_open: Reading,
    driver_known: bool,
    invalid: Option<InvalidReason>,
    /// The models that must stay in host memory.
    pins: Vec<HostPin>,
}

/// What a window came to.
#[derive(Debug)]
pub(crate) struct Closed {
    pub(crate) pins: Vec<HostPin>,
    pub(crate) deltas: Deltas,
    pub(crate) stretches: u32,
    pub(crate) retries: u64,
    pub(crate) invalid: Option<InvalidReason>,
}

/// The open windows, outermost first.
#[derive(Debug, Default)]
pub(crate) struct WindowStack {
    open: Vec<OpenWindow>,
    opened: u64,
}

impl OpenWindow {
    /// The first failure is the reason; later ones are its consequences.
    fn fail(&mut self, reason: InvalidReason) {
        self.invalid.get_or_insert(reason);
    }

    pub(super) fn move_baseline(&mut self, allocated: i64, reserved: i64, driver: Option<i64>) {
        self.baseline.allocated += allocated;
        self.baseline.reserved += reserved;
        match (driver, self.baseline.process.known()) {
            (Some(growth), Some(bytes)) => {
                self.baseline.process = Reading::Bytes(bytes.saturating_add_signed(growth));
            }
            _ => self.driver_known = false,
        }
    }

    fn fold(&mut self, peaks: &Peaks) {
        let larger = |best: Option<i64>, over: i64| Some(best.map_or(over, |best| best.max(over)));
        self.best.allocated = larger(self.best.allocated, peaks.allocated - self.baseline.allocated);
        self.best.reserved = larger(self.best.reserved, peaks.reserved - self.baseline.reserved);
        self.highest_reserved = self.highest_reserved.max(peaks.reserved);
        match peaks.process.growth_since(self.baseline.process) {
            Some(growth) => self.best.driver = larger(self.best.driver, growth),
            None => self.driver_known = false,
        }
        self.count(peaks.retries, peaks.ooms);
    }

    /// Adds what the allocator counted since the last time.
    fn count(&mut self, retries: u64, ooms: u64) {
        self.retries += retries.saturating_sub(self.retries_mark);
        self.ooms += ooms.saturating_sub(self.ooms_mark);
        (self.retries_mark, self.ooms_mark) = (retries, ooms);
    }

    fn begin(&mut self, retries: u64, ooms: u64) {
        self.stretches += 1;
        (self.retries_mark, self.ooms_mark) = (retries, ooms);
    }

    /// The deltas, and the reason in them for which they say nothing.
    fn deltas(&self) -> (Deltas, Option<InvalidReason>) {
        let driver = self.best.driver.filter(|_| self.driver_known);
        let parts = [("allocated", self.best.allocated), ("reserved", self.best.reserved), ("driver", driver)];
        let negative = parts.into_iter().find(|(_, delta)| delta.is_some_and(|delta| delta < 0));
        let reason = negative.map(|(quantity, _)| InvalidReason::NegativeDelta { quantity: quantity.to_owned() });
        let positive = |delta: Option<i64>| u64::try_from(delta.unwrap_or(0)).unwrap_or(0);
        let deltas = Deltas {
            allocated_peak_bytes: positive(self.best.allocated),
            reserved_peak_bytes: positive(self.best.reserved),
            driver_bytes: driver.and_then(|delta| u64::try_from(delta).ok()).into(),
        };
        (deltas, reason)
    }
}

impl WindowStack {
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut OpenWindow> {
        self.open.iter_mut()
    }

    pub(super) fn fold(&mut self, peaks: &Peaks) {
        if let Some(window) = self.open.last_mut() {
            window.fold(peaks);
        }
    }

    pub(super) fn count(&mut self, retries: u64, ooms: u64) {
        if let Some(window) = self.open.last_mut() {
            window.count(retries, ooms);
        }
    }

    pub(super) fn begin(&mut self, retries: u64, ooms: u64) {
        if let Some(window) = self.open.last_mut() {
            window.begin(retries, ooms);
        }
    }

    pub(crate) fn fail_all(&mut self, reason: &str) {
        let blind = mutant!(
            "probe_failure_ignored",
            "a window is believed although nobody could look at what it took",
            right: self.open.as_mut_slice(),
            wrong: &mut [],
        );
        for window in blind {
            window.fail(InvalidReason::ProbeFailed { message: reason.to_owned() });
        }
    }

    /// Marks one window; it may have been closed before.
    pub(crate) fn fail(&mut self, id: WindowId, reason: InvalidReason) {
        if let Some(window) = self.open.iter_mut().find(|window| window.id == id) {
            window.fail(reason);
        }
    }

    /// Marks the windows of the same scope that opened inside the one at this place and are still open when it closes;
    /// whether there are any. Windows of other scopes are foreign to it, and say so.
    fn fail_overlapped(&mut self, position: usize) -> bool {
        let (closing, inner) = self.open.split_at_mut(position + 1);
        let inside = mutant!(
            "overlapping_windows_believed",
            "an operation that ran beside another one of its step is believed to need nothing",
            right: inner,
            wrong: &mut inner[..0],
        );
        let mut overlapped = false;
        for window in inside.iter_mut().filter(|window| window.scope == closing[position].scope) {
            window.fail(InvalidReason::Overlapped);
            overlapped = true;
        }
        overlapped
    }

    /// Keeps a model in host memory for as long as the windows of this scope are open.
    pub(crate) fn pin(&mut self, scope: ScopeId, pin: impl Fn() -> HostPin) {
        for window in self.open.iter_mut().filter(|window| window.scope == scope) {
            window.pins.push(pin());
        }
    }
}

impl Core {
    /// Opens a window inside those that are open, from a released baseline. What cannot be looked at makes it invalid.
    pub(super) fn open_window(&mut self, scope: ScopeId, pins: Vec<HostPin>) -> WindowId {
        mutant!(
            "outer_peak_lost_to_the_reset",
            "what an operation needed before an inner one began is forgotten",
            right: self.end_stretch(),
            wrong: (),
        );
        let looked = self.released().and_then(|sample| self.spilled().map(|spilled| (sample, spilled)));
        self.windows.opened += 1;
        let id = WindowId(self.windows.opened);
        let nothing = Sample { allocated: 0, reserved: 0, process: Reading::Unknown };
        let (baseline, spilled_at_open, failure) = match looked {
            Ok((sample, spilled)) => (sample, spilled, None),
            Err(reason) => (nothing, Reading::Unknown, Some(reason)),
        };
        let mut window = OpenWindow {
            id,
            scope,
            baseline,
            best: Over::default(),
            highest_reserved: 0,
            stretches: 0,
            retries: 0,
            ooms: 0,
            retries_mark: 0,
            ooms_mark: 0,
            spilled_at_open,
            driver_known: baseline.process.known().is_some(),
            invalid: None,
            pins,
        };
        if let Some(message) = failure {
            window.fail(InvalidReason::ProbeFailed { message });
        }
        self.windows.open.push(window);
        self.begin_stretch();
        id
    }

    /// Ends a window: its last stretch, its deltas, what makes them worthless. The window around it resumes.
    pub(super) fn close_window(&mut self, id: WindowId) -> Option<Closed> {
        let position = self.windows.open.iter().position(|window| window.id == id)?;
        let is_measured = position + 1 == self.windows.open.len();
        let peaks = if is_measured { Some(self.peaks()) } else { None };
        let looked = self.spilled().and_then(|spilled| {
            let total = self.memory.figures().map_err(|error| error.to_string())?.total_bytes;
            Ok((spilled, total))
        });
        match peaks {
            Some(Ok(peaks)) => {
                mutant!(
                    "nested_outer_not_suspended",
                    "the inner operation's peak is billed to the outer one as well",
                    right: self.windows.fold(&peaks),
                    wrong: self.windows.open.iter_mut().for_each(|window| window.fold(&peaks)),
                );
            }
            Some(Err(reason)) => self.windows.fail_all(&reason),
            None => {}
        }
        let overlapped = self.windows.fail_overlapped(position);
        let mut window = self.windows.open.remove(position);
        match looked {
            Ok((spilled, total_bytes)) => window.judge(spilled, total_bytes),
            Err(message) => window.fail(InvalidReason::ProbeFailed { message }),
        }
        if overlapped {
            window.fail(InvalidReason::Overlapped);
        }
        if is_measured && !self.windows.is_empty() {
            let released = self.released().map(|_| ());
            self.note(released);
            self.begin_stretch();
        }
        let (deltas, negative) = window.deltas();
        if let Some(reason) = negative {
            window.fail(reason);
        }
        let OpenWindow { stretches, retries, invalid, pins, .. } = window;
        Some(Closed { pins, deltas, stretches, retries, invalid })
    }
}

impl OpenWindow {
    /// What the counts at the end say of the measurement. The gravest is named.
    fn judge(&mut self, spilled: Reading, total_bytes: u64) {
        let ran_out = mutant!(
            "out_of_memory_ignored",
            "an operation that caught a refusal and went on with less says how little it needs",
            right: self.ooms > 0,
            wrong: false,
        );
        if ran_out && matches!(self.invalid, None | Some(InvalidReason::OperationFailed { .. })) {
            self.invalid = Some(InvalidReason::OutOfMemory);
        }
        if self.highest_reserved > signed(total_bytes) {
            self.fail(InvalidReason::Oversubscribed);
        }
        let growth = mutant!(
            "spill_ignored",
            "memory that the driver moved to the host is missing from what was measured",
            right: spilled.growth_since(self.spilled_at_open),
            wrong: None,
        );
        if let Some(bytes) = growth.and_then(|growth| u64::try_from(growth).ok())
            && bytes > 0
        {
            self.fail(InvalidReason::Spill { bytes });
        }
        let retried = mutant!(
            "retry_ignored",
            "a run that only passed because everything idle was given back counts as what it needs",
            right: self.retries > 0,
            wrong: false,
        );
        if retried {
            self.fail(InvalidReason::AllocatorRetry { retries: self.retries });
        }
    }
}
