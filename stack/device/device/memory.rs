//! What a device's memory must answer, whoever manages it: this program's allocator, or a worker that owns its own.

use headroom_base::{DeviceFigures, Reading, Reclaim};

use crate::allocator::{Allocation, AllocationError, Allocator, Counters, NotAllocated};
use crate::driver::{Driver, DriverError};

/// A piece of device memory that somebody holds. Dropping it frees nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holding {
    /// From an allocator of this process.
    Allocated(Allocation),
    /// From a worker process, by the number the worker gave it.
    Remote {
        /// The worker's number.
        id: u64,
        /// What it costs there.
        bytes: u64,
    },
}

impl Holding {
    /// What it costs on the device, rounded up from what was asked.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Allocated(allocation) => allocation.bytes(),
            Self::Remote { bytes, .. } => *bytes,
        }
    }
}

/// The contents of one piece of weights on their way up.
#[derive(Clone, Copy, Debug)]
pub struct UploadPart<'a> {
    /// Where they go.
    pub to: Holding,
    /// What they are.
    pub contents: &'a [u8],
}

/// How an upload ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uploaded {
    /// All of it is on the device.
    Whole,
    /// It was cancelled; some of it may be on the device.
    Cancelled,
}

/// The memory of one device, for one user at a time. No method concerns any other device.
pub trait DeviceMemory: Send {
    /// The figures of a budget, at this moment.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    fn figures(&mut self) -> Result<DeviceFigures, DriverError>;

    /// All counters with their peaks.
    ///
    /// # Errors
    /// When whoever counts cannot be asked.
    fn counters(&mut self) -> Result<Counters, DriverError>;

    /// Hands out memory for `requested_bytes`.
    ///
    /// # Errors
    /// [`AllocationError::OutOfMemory`] when there is too little, [`AllocationError::Driver`] otherwise; nothing is held
    /// then.
    fn allocate(&mut self, requested_bytes: u64) -> Result<Holding, AllocationError>;

    /// Takes memory back. The memory stays reserved until the cache is emptied.
    ///
    /// # Errors
    /// When it is not held here; nothing is changed then.
    fn free(&mut self, holding: Holding) -> Result<(), NotAllocated>;

    /// Gives reserved memory that nobody holds back to the driver.
    ///
    /// # Errors
    /// The first failure of the driver; what could be given back was.
    fn empty_cache(&mut self) -> Result<(), AllocationError>;

    /// Makes every peak the current figure.
    ///
    /// # Errors
    /// When whoever counts cannot be asked.
    fn reset_peaks(&mut self) -> Result<(), DriverError>;

    /// What the driver says this process holds on the device. Unknown is never 0.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    fn process_bytes(&mut self) -> Result<Reading, DriverError>;

    /// Bytes of this process that lie in host memory because the device was full.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    fn spilled_bytes(&mut self) -> Result<Reading, DriverError>;

    /// Copies weights up, given up where `is_cancelled` comes true before the end. Where memory keeps no contents (a
    /// simulated device) this asks once, and copies nothing.
    ///
    /// # Errors
    /// When a copy fails. The memory stays held.
    fn upload_unless(
        &mut self,
        parts: &[UploadPart<'_>],
        is_cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<Uploaded, DriverError> {
        let _ = parts;
        Ok(if is_cancelled() { Uploaded::Cancelled } else { Uploaded::Whole })
    }

    /// Copies weights up to the end.
    ///
    /// # Errors
    /// As [`upload_unless`](Self::upload_unless).
    fn upload(&mut self, parts: &[UploadPart<'_>]) -> Result<(), DriverError> {
        self.upload_unless(parts, &|| false).map(|_| ())
    }
}

/// The memory of a device under an allocator of this process.
#[derive(Debug)]
pub struct AllocatorMemory<D: Driver> {
    allocator: Allocator<D>,
    reclaim: Option<Reclaim>,
}

impl<D: Driver> AllocatorMemory<D> {
    /// The memory that `allocator` manages.
    pub fn new(allocator: Allocator<D>) -> Self {
        Self { allocator, reclaim: None }
    }

    /// The same, on a backend where something else is known about what can be given back.
    #[must_use]
    pub fn with_reclaim(self, reclaim: Reclaim) -> Self {
        Self { reclaim: Some(reclaim), ..self }
    }

    /// The allocator.
    pub fn allocator(&mut self) -> &mut Allocator<D> {
        &mut self.allocator
    }
}

impl<D: Driver> DeviceMemory for AllocatorMemory<D> {
    fn figures(&mut self) -> Result<DeviceFigures, DriverError> {
        let figures = self.allocator.figures()?;
        Ok(DeviceFigures { reclaim: self.reclaim.unwrap_or(figures.reclaim), ..figures })
    }

    fn counters(&mut self) -> Result<Counters, DriverError> {
        Ok(self.allocator.counters())
    }

    fn allocate(&mut self, requested_bytes: u64) -> Result<Holding, AllocationError> {
        self.allocator.allocate(requested_bytes).map(Holding::Allocated)
    }

    fn free(&mut self, holding: Holding) -> Result<(), NotAllocated> {
        match holding {
            Holding::Allocated(allocation) => self.allocator.free(allocation),
            Holding::Remote { bytes, id } => Err(NotAllocated { address: crate::driver::Address(id), bytes }),
        }
    }

    fn empty_cache(&mut self) -> Result<(), AllocationError> {
        self.allocator.empty_cache()
    }

    fn reset_peaks(&mut self) -> Result<(), DriverError> {
        self.allocator.reset_peaks();
        Ok(())
    }

    fn process_bytes(&mut self) -> Result<Reading, DriverError> {
        self.allocator.driver_mut().process_bytes()
    }

    fn spilled_bytes(&mut self) -> Result<Reading, DriverError> {
        self.allocator.driver_mut().spilled_bytes()
    }
}
