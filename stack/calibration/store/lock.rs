//! The operating system's lock beside a store file, waited for a bounded time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long to sleep between two tries.
const PAUSE: Duration = Duration::from_millis(2);

/// A held lock, released when dropped or when the process ends in whatever way.
///
/// The file itself stays: what a killed process leaves behind is a file that nobody holds, which blocks nobody.
/// Removing it would let two processes lock two files of one name.
#[derive(Debug)]
pub(super) struct Lock(File);

/// Why a lock was not had.
#[derive(Debug)]
pub(super) enum LockFailure {
    /// Somebody else held it all the while.
    Held,
    /// It cannot be had here at all.
    Io(io::Error),
}

impl Lock {
    /// Takes the lock, trying until `wait` has passed, and at least once.
    pub(super) fn take(path: &Path, wait: Duration) -> Result<Self, LockFailure> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(LockFailure::Io)?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                Err(TryLockError::WouldBlock) if began.elapsed() >= wait => return Err(LockFailure::Held),
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
                Err(TryLockError::Error(error)) => return Err(LockFailure::Io(error)),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file releases it as well; nothing is lost if this fails.
        let _ = self.0.unlock();
    }
}
