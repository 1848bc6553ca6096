//! A device's memory with everything written down that is asked of it, and all counters after each request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headroom_base::{Case, DeviceFigures, HardEnvironment, Reading};
use headroom_device::allocator::{AllocationError, Counters, NotAllocated};
use headroom_device::device::{DeviceMemory, Holding, UploadPart, Uploaded};
use headroom_device::{Device, DriverError};
use headroom_runners::programs::Execution;
use headroom_runners::{Inputs, RunError, Runner, Work};

use super::ChangeParts;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Memory was handed out, under a number of its own.
    Allocated {
        /// The number.
        number: u64,
        /// What was asked for.
        bytes: u64,
        /// Where it lies; not told by memory of another process.
        address: Option<u64>,
    },
    /// Memory was asked for in vain.
    Refused {
        /// What was asked for.
        bytes: u64,
    },
    /// Memory came back.
    Freed {
        /// Its number.
        number: u64,
    },
    /// The reserve was emptied.
    Emptied,
    /// Peaks were reset.
    PeaksReset,
    /// An operation began.
    Begun(Case),
    /// It ended.
    Ended,
}

/// A request, with all counters after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Noted {
    /// The request.
    pub asked: Asked,
    /// The counters; none where nobody could tell.
    pub counters: Option<Counters>,
}

#[derive(Debug, Default)]
struct Notes {
    noted: Vec<Noted>,
    numbers: HashMap<Holding, u64>,
    next: u64,
}

/// What was asked of a device. Clones are the same list.
#[derive(Clone, Debug, Default)]
pub struct Log {
    notes: Arc<Mutex<Notes>>,
}

impl Log {
    /// Everything so far.
    pub fn noted(&self) -> Vec<Noted> {
        self.notes().noted.clone()
    }

    /// A change of a device's parts after which its memory writes everything down here.
    pub fn watching(&self) -> ChangeParts {
        let log = self.clone();
        Arc::new(move |mut parts| {
            parts.memory = Box::new(Watched { memory: parts.memory, log: log.clone() });
            parts
        })
    }

    /// The same runner, whose operations' beginnings and ends are written down here.
    pub fn marking(&self, runner: Arc<dyn Runner>) -> Arc<dyn Runner> {
        Arc::new(Marked { runner, log: self.clone() })
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory that is watched.
struct Watched {
    memory: Box<dyn DeviceMemory>,
    log: Log,
}

impl Watched {
    fn note(&mut self, asked: Asked) {
        let counters = self.memory.counters().ok();
        self.log.notes().noted.push(Noted { asked, counters });
    }
}

impl DeviceMemory for Watched {
    fn figures(&mut self) -> Result<DeviceFigures, DriverError> {
        self.memory.figures()
    }

    fn counters(&mut self) -> Result<Counters, DriverError> {
        self.memory.counters()
    }

    fn allocate(&mut self, requested_bytes: u64) -> Result<Holding, AllocationError> {
        let outcome = self.memory.allocate(requested_bytes);
        let asked = match &outcome {
            Err(_) => Asked::Refused { bytes: requested_bytes },
            Ok(holding) => {
                let mut notes = self.log.notes();
                let number = notes.next;
                notes.next += 1;
                notes.numbers.insert(*holding, number);
                let address = match holding {
                    Holding::Allocated(allocation) => Some(allocation.address().0),
                    Holding::Remote { .. } => None,
                };
                Asked::Allocated { number, bytes: requested_bytes, address }
            }
        };
        self.note(asked);
        outcome
    }

    fn free(&mut self, holding: Holding) -> Result<(), NotAllocated> {
        self.memory.free(holding)?;
        let number = self.log.notes().numbers.remove(&holding);
        if let Some(number) = number {
            self.note(Asked::Freed { number });
        }
        Ok(())
    }

    fn empty_cache(&mut self) -> Result<(), AllocationError> {
        let outcome = self.memory.empty_cache();
        self.note(Asked::Emptied);
        outcome
    }

    fn reset_peaks(&mut self) -> Result<(), DriverError> {
        let outcome = self.memory.reset_peaks();
        self.note(Asked::PeaksReset);
        outcome
    }

    fn process_bytes(&mut self) -> Result<Reading, DriverError> {
        self.memory.process_bytes()
    }

    fn spilled_bytes(&mut self) -> Result<Reading, DriverError> {
        self.memory.spilled_bytes()
    }

    fn upload_unless(
        &mut self,
        parts: &[UploadPart<'_>],
        is_cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<Uploaded, DriverError> {
        self.memory.upload_unless(parts, is_cancelled)
    }
}

/// A runner whose operations are marked.
struct Marked {
    runner: Arc<dyn Runner>,
    log: Log,
}

impl Runner for Marked {
    fn name(&self) -> &'static str {
        self.runner.name()
    }

    fn prepare(&self, device: &Device, work: &Work<'_>) -> Result<Inputs, RunError> {
        self.runner.prepare(device, work)
    }

    fn run(&self, device: &Device, work: &Work<'_>) -> Result<(), RunError> {
        let mark = |asked| self.log.notes().noted.push(Noted { asked, counters: None });
        mark(Asked::Begun(work.case));
        let outcome = self.runner.run(device, work);
        mark(Asked::Ended);
        outcome
    }

    fn persistent_bytes(&self, device: &Device) -> u64 {
        self.runner.persistent_bytes(device)
    }

    fn execution(&self, environment: &HardEnvironment) -> Execution {
        self.runner.execution(environment)
    }
}
