//! What sits under an allocator: the memory of one named device, and nothing that reads "the current device".

mod addresses;
mod card;
mod faults;
mod perturbation;
mod simulated;

use std::fmt;

use headroom_base::{Bytes, Reading};

pub use card::{CardSettings, RetainedPool, SimulatedCard};
pub use faults::{DriverCall, Fault};
pub use perturbation::Perturbation;
pub use simulated::SimulatedDriver;

/// An address in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// What the driver says of a device's memory, for everyone who uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that an allocation could still get.
    pub free_bytes: u64,
    /// Bytes the device has.
    pub total_bytes: u64,
}

/// Why a driver call gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The device has too little memory left.
    #[error(
        "the device is out of memory: {} asked, {} free of {}; free memory, or ask for less",
        Bytes(*requested_bytes), Bytes(*free_bytes), Bytes(*total_bytes)
    )]
    OutOfMemory {
        /// Bytes the call asked for.
        requested_bytes: u64,
        /// Bytes that were free.
        free_bytes: u64,
        /// Bytes the device has.
        total_bytes: u64,
    },
    /// The driver has no such call.
    #[error("this driver cannot {call}; choose an allocator setting that does not need it")]
    Unsupported {
        /// What was asked of it.
        call: DriverCall,
    },
    /// The call failed for another reason.
    #[error("the driver failed to {call} (code {code}): {reason}")]
    Failed {
        /// What was asked of it.
        call: DriverCall,
        /// The driver's own code.
        code: i64,
        /// The driver's own words, or what was wrong with the arguments.
        reason: String,
    },
}

impl DriverError {
    /// CUDA's code of too little memory, which calls that hand out none of it answer too: for a stream, or a context.
    const OUT_OF_MEMORY_CODE: i64 = 2;

    /// Whether more free memory of the device would have helped.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory { .. } => true,
            Self::Failed { call, code, .. } => *code == Self::OUT_OF_MEMORY_CODE && *call != DriverCall::Pin,
            Self::Unsupported { .. } => false,
        }
    }

    /// Whether host memory that could be pinned was what lacked.
    pub fn is_out_of_host_memory(&self) -> bool {
        matches!(self, Self::Failed { call: DriverCall::Pin, code: Self::OUT_OF_MEMORY_CODE, .. })
    }
}

/// The memory of one named device. Every method concerns that device alone.
///
/// Sizes are in bytes. Whether a method may be called from another thread than the one that made the driver is the
/// implementation's business; it is never called from two at once.
pub trait Driver: Send {
    /// Free and total bytes of the device, whoever uses it.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    fn memory(&mut self) -> Result<MemoryInfo, DriverError>;

    /// The unit in which the device's memory is handed out, in bytes (2 MiB on the devices known so far).
    fn granularity_bytes(&self) -> u64;

    /// Takes `bytes` of device memory and returns where they lie.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] when there is too little; [`DriverError::Failed`] otherwise. Nothing is taken then.
    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError>;

    /// Gives back what [`allocate`](Self::allocate) returned.
    ///
    /// # Errors
    /// When `address` is not such an address, or the driver fails. The memory is still held then.
    fn free(&mut self, address: Address) -> Result<(), DriverError>;

    /// Sets `bytes` of addresses apart, with no memory behind them.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] where the driver has no virtual-memory calls.
    fn reserve(&mut self, bytes: u64) -> Result<Address, DriverError> {
        let _ = bytes;
        Err(DriverError::Unsupported { call: DriverCall::Reserve })
    }

    /// Gives a reserved range of addresses back. Nothing may be mapped in it.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`], or [`DriverError::Failed`] when the range was not reserved so or is still in use.
    fn release(&mut self, address: Address, bytes: u64) -> Result<(), DriverError> {
        let _ = (address, bytes);
        Err(DriverError::Unsupported { call: DriverCall::Release })
    }

    /// Puts memory behind `bytes` of reserved addresses, in pages of `page_bytes`: all of it, or none.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] when there is too little; [`DriverError::Unsupported`] or
    /// [`DriverError::Failed`] otherwise. Nothing is mapped then.
    fn map(&mut self, address: Address, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        let _ = (address, bytes, page_bytes);
        Err(DriverError::Unsupported { call: DriverCall::Map })
    }

    /// Takes the memory behind `bytes` of mapped addresses away again, whole pages of `page_bytes`.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] or [`DriverError::Failed`]. All of it is still mapped then.
    fn unmap(&mut self, address: Address, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        let _ = (address, bytes, page_bytes);
        Err(DriverError::Unsupported { call: DriverCall::Unmap })
    }

    /// Bytes of the device that this process holds, by the driver's own account: context, memory and what the driver
    /// keeps. Unknown is never 0.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    fn process_bytes(&mut self) -> Result<Reading, DriverError> {
        Ok(Reading::Unknown)
    }

    /// Bytes of this process that the driver placed in the host's memory because the device was full.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    fn spilled_bytes(&mut self) -> Result<Reading, DriverError> {
        Ok(Reading::Unknown)
    }
}

impl<D: Driver + ?Sized> Driver for Box<D> {
    fn memory(&mut self) -> Result<MemoryInfo, DriverError> {
        (**self).memory()
    }
    fn granularity_bytes(&self) -> u64 {
        (**self).granularity_bytes()
    }
    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError> {
        (**self).allocate(bytes)
    }
    fn free(&mut self, address: Address) -> Result<(), DriverError> {
        (**self).free(address)
    }
    fn reserve(&mut self, bytes: u64) -> Result<Address, DriverError> {
        (**self).reserve(bytes)
    }
    fn release(&mut self, address: Address, bytes: u64) -> Result<(), DriverError> {
        (**self).release(address, bytes)
    }
    fn map(&mut self, address: Address, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        (**self).map(address, bytes, page_bytes)
    }
    fn unmap(&mut self, address: Address, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        (**self).unmap(address, bytes, page_bytes)
    }
    fn process_bytes(&mut self) -> Result<Reading, DriverError> {
        (**self).process_bytes()
    }
    fn spilled_bytes(&mut self) -> Result<Reading, DriverError> {
        (**self).spilled_bytes()
    }
}
