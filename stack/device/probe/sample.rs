//! One look at a device's figures, and the difference between two.

use headroom_base::{Reading, mutant};

use super::hooks::{Hook, HookPoint, call_hook};
use super::windows::WindowStack;
use crate::device::{Core, DeviceMemory};

/// Current figures with nothing idle in the reserve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) allocated: i64,
    pub(super) reserved: i64,
    pub(super) process: Reading,
}

/// Peaks since they were last reset, and the driver's figure now. The driver has no peak; what it lent stays in the
/// reserve until the cache is emptied, so a look at the end of a stretch sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peaks {
    pub(super) allocated: i64,
    pub(super) reserved: i64,
    pub(super) process: Reading,
    pub(super) retries: u64,
    pub(super) ooms: u64,
}

/// Figures come from devices, whose sizes are far below 2^63; a nonsense one saturates.
pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Core {
    /// Peaks of the stretch that ends now.
    pub(super) fn peaks(&mut self) -> Result<Peaks, String> {
        let counters = self.memory.counters().map_err(|error| error.to_string())?;
        Ok(Peaks {
            allocated: signed(counters.allocated.peak),
            reserved: signed(counters.reserved.peak),
            process: self.process()?,
            retries: counters.num_alloc_retries,
            ooms: counters.num_ooms,
        })
    }

    /// Empties the allocator's cache and looks.
    pub(super) fn released(&mut self) -> Result<Sample, String> {
        mutant!(
            "baseline_not_released",
            "what earlier steps left in the reserve hides what the operation takes from the driver",
            right: self.memory.empty_cache().map_err(|error| error.to_string())?,
            wrong: (),
        );
        let counters = self.memory.counters().map_err(|error| error.to_string())?;
        Ok(Sample {
            allocated: signed(counters.allocated.current),
            reserved: signed(counters.reserved.current),
            process: self.process()?,
        })
    }

    pub(super) fn process(&mut self) -> Result<Reading, String> {
        self.reader.read(self.memory.as_mut()).map_err(|error| error.to_string())
    }

    pub(super) fn spilled(&mut self) -> Result<Reading, String> {
        self.memory.spilled_bytes().map_err(|error| error.to_string())
    }

    pub(super) fn reset_peaks(&mut self) -> Result<(), String> {
        self.memory.reset_peaks().map_err(|error| error.to_string())
    }

    /// Runs `change` between two stretches of the open windows.
    ///
    /// Nobody else moves in between, since the device is held. What cannot be looked at makes every open window
    /// invalid; the change happens all the same.
    pub(crate) fn change_under_windows<T>(
        &mut self,
        hook: Option<&dyn Hook>,
        change: impl FnOnce(&mut dyn DeviceMemory) -> T,
    ) -> T {
        self.end_stretch();
        self.note(call_hook(hook, HookPoint::StretchEnded).map_err(|error| error.0));
        let before = self.released();
        let value = change(self.memory.as_mut());
        // A load that had to retry or ran out of memory tells of a device that was too full to measure on.
        match self.memory.counters() {
            Ok(counters) => self.windows.count(counters.num_alloc_retries, counters.num_ooms),
            Err(error) => self.windows.fail_all(&error.to_string()),
        }
        let after = self.released();
        match (before, after) {
            (Ok(before), Ok(after)) => self.windows.shift(&before, &after),
            (Err(reason), _) | (_, Err(reason)) => self.windows.fail_all(&reason),
        }
        self.begin_stretch();
        self.note(call_hook(hook, HookPoint::StretchBegun).map_err(|error| error.0));
        value
    }

    /// Adds the peaks of the stretch that ends to the window that is being measured.
    pub(super) fn end_stretch(&mut self) {
        if self.windows.is_empty() {
            return;
        }
        match self.peaks() {
            Ok(peaks) => self.windows.fold(&peaks),
            Err(reason) => self.windows.fail_all(&reason),
        }
    }

    /// Starts a stretch of the window that is being measured.
    pub(super) fn begin_stretch(&mut self) {
        let counted = self.memory.counters().map_err(|error| error.to_string());
        let begun = self.reset_peaks().and(counted);
        match begun {
            Ok(counters) => self.windows.begin(counters.num_alloc_retries, counters.num_ooms),
            Err(reason) => self.windows.fail_all(&reason),
        }
    }

    /// Marks every open window where something of the probe failed.
    pub(crate) fn note(&mut self, outcome: Result<(), String>) {
        if let Err(reason) = outcome {
            self.windows.fail_all(&reason);
        }
    }
}

impl WindowStack {
    /// Moves the baseline of every open window by what a change of residency cost.
    fn shift(&mut self, before: &Sample, after: &Sample) {
        let driver = after.process.growth_since(before.process);
        for window in self.all_mut() {
            mutant!(
                "colock_not_subtracted",
                "the weights of a model that was loaded meanwhile are billed to the operation",
                right: window.move_baseline(after.allocated - before.allocated, after.reserved - before.reserved, driver),
                wrong: (),
            );
        }
    }
}
