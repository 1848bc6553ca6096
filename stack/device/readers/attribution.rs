//! Whose the device's used memory is: this process's or others', from figures that may be missing or contradict.

use headroom_base::{DeviceFigures, Reading};

/// What the own process's share was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Basis {
    /// The driver's figure for the process.
    Driver,
    /// The allocator's reserve and the context: the driver did not say.
    Allocator,
    /// The same, because the driver's figure was below what the allocator holds, which cannot be.
    Contradicted,
}

/// The device's used memory by owner. Own and others' bytes never exceed what is used together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attribution {
    /// This process's.
    pub own_bytes: u64,
    /// Other processes'; never negative, and never more than what is used.
    pub others_bytes: u64,
    /// What this process holds beyond its allocator and context: other pools of the driver, libraries.
    pub unaccounted_bytes: u64,
    /// Where the own share comes from.
    pub basis: Basis,
}

/// Divides what is used on a device.
///
/// `process` is the driver's figure for this process, `context_bytes` what its context is known to cost.
/// Unaccounted bytes are for people to read: driver-free already excludes them, so no budget takes them off again.
pub fn attribute(figures: &DeviceFigures, process: Reading, context_bytes: u64) -> Attribution {
    let used = figures.total_bytes.saturating_sub(figures.driver_free_bytes);
    let least_own = figures.reserved_bytes.saturating_add(context_bytes);
    let (own, basis) = match process.known() {
        None => (least_own, Basis::Allocator),
        Some(bytes) if bytes < figures.reserved_bytes.max(figures.allocated_bytes) => (least_own, Basis::Contradicted),
        Some(bytes) => (bytes, Basis::Driver),
    };
    let own_bytes = own.min(used);
    Attribution {
        own_bytes,
        others_bytes: used - own_bytes,
        unaccounted_bytes: own_bytes.saturating_sub(least_own),
        basis,
    }
}
