//! Why an allocation, a free or a release failed.

use headroom_base::{Bytes, Reading};

use crate::driver::{Address, DriverError};

/// Where the allocator stood when something failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// Free by the driver, where it could still be asked.
    pub free: Reading,
    /// The device's memory by the driver, where it could still be asked.
    pub total: Reading,
    /// Handed out by this allocator.
    pub allocated_bytes: u64,
    /// Taken from the driver by this allocator.
    pub reserved_bytes: u64,
    /// The limit on what it may take from the driver.
    pub limit_bytes: Option<u64>,
}

impl std::fmt::Display for Situation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { free, total, allocated_bytes, reserved_bytes, limit_bytes } = *self;
        write!(f, "{free} free of {total}, ")?;
        write!(f, "{} in use and {} reserved by this allocator, ", Bytes(allocated_bytes), Bytes(reserved_bytes))?;
        match limit_bytes {
            Some(limit) => write!(f, "limit {}", Bytes(limit)),
            None => write!(f, "no limit"),
        }
    }
}

/// Why an allocation gave nothing, or memory could not be given back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// Neither the cache nor the driver has enough, or the limit is reached.
    #[error("out of memory: {} requested; {situation}. Free something, or choose another allocator setting", Bytes(*requested_bytes))]
    OutOfMemory {
        /// Bytes asked for.
        requested_bytes: u64,
        /// Where the allocator stood.
        situation: Situation,
    },
    /// The driver failed for another reason.
    #[error("{}; {situation}: {error}", Attempted(*requested_bytes))]
    Driver {
        /// Bytes asked for; 0 when memory was being given back.
        requested_bytes: u64,
        /// What the driver said.
        error: Box<DriverError>,
        /// Where the allocator stood.
        situation: Situation,
    },
}

/// What the driver was called for, by the bytes asked for.
struct Attempted(u64);

impl std::fmt::Display for Attempted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => f.write_str("giving memory back"),
            bytes => write!(f, "{} requested", Bytes(bytes)),
        }
    }
}

impl AllocationError {
    /// Whether more free memory would have helped.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. })
    }
}

/// A free of something that is not allocated: freed before, or from another allocator. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} at {address} is not allocated here: it was freed before, or belongs to another allocator", Bytes(*bytes))]
pub struct NotAllocated {
    /// The handle's address.
    pub address: Address,
    /// The handle's size.
    pub bytes: u64,
}
