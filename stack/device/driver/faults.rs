//! The calls a driver answers, how often each was made, and faults planted at one of them.

use std::fmt;

/// The calls of a [`Driver`](super::Driver).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum DriverCall {
    /// Free and total bytes.
    Memory,
    /// Taking memory.
    Allocate,
    /// Giving memory back.
    Free,
    /// Setting addresses apart.
    Reserve,
    /// Giving addresses back.
    Release,
    /// Putting memory behind addresses.
    Map,
    /// Taking it away again.
    Unmap,
    /// Asking what the own process holds.
    ProcessBytes,
    /// Asking what lies in host memory.
    SpilledBytes,
    /// Opening the device, or making it the calling thread's.
    Context,
    /// Copying to or from it.
    Copy,
    /// Waiting for what was asked of it.
    Synchronize,
    /// Pinning memory of the host, for copies.
    Pin,
}

impl DriverCall {
    /// Every call, in the order of the enum.
    pub const ALL: [Self; 13] = [
        Self::Memory,
        Self::Allocate,
        Self::Free,
        Self::Reserve,
        Self::Release,
        Self::Map,
        Self::Unmap,
        Self::ProcessBytes,
        Self::SpilledBytes,
        Self::Context,
        Self::Copy,
        Self::Synchronize,
        Self::Pin,
    ];
}

impl fmt::Display for DriverCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "tell its free memory",
            Self::Allocate => "allocate",
            Self::Free => "free",
            Self::Reserve => "reserve addresses",
            Self::Release => "release addresses",
            Self::Map => "map memory",
            Self::Unmap => "unmap memory",
            Self::ProcessBytes => "tell the process's bytes",
            Self::SpilledBytes => "tell the spilled bytes",
            Self::Context => "open the device",
            Self::Copy => "copy",
            Self::Synchronize => "finish its work",
            Self::Pin => "pin host memory",
        })
    }
}

/// A failure planted in a simulated driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The calls that count; `None` counts every call.
    pub call: Option<DriverCall>,
    /// The first call that fails: 1 is the next one that counts.
    pub at: u64,
    /// Whether every later call fails as well.
    pub persistent: bool,
}

/// How often each call was made, and the faults still waiting.
#[derive(Debug, Default)]
pub(super) struct CallLog {
    counts: [u64; DriverCall::ALL.len()],
    faults: Vec<Fault>,
}

impl CallLog {
    pub(super) fn plant(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    pub(super) fn clear_faults(&mut self) {
        self.faults.clear();
    }

    pub(super) fn count(&self, call: DriverCall) -> u64 {
        self.counts[call as usize]
    }

    pub(super) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Counts the call; true when a planted fault makes it fail.
    pub(super) fn fails(&mut self, call: DriverCall) -> bool {
        self.counts[call as usize] += 1;
        let mut failed = false;
        self.faults.retain_mut(|fault| {
            if fault.call.is_some_and(|only| only != call) {
                return true;
            }
            fault.at = fault.at.saturating_sub(1);
            let fires = fault.at == 0;
            failed |= fires;
            !fires || fault.persistent
        });
        failed
    }
}
