//! Measurements kept on disk: one file per device class, changed as a whole under a lock or not at all.

pub mod disk;
mod lock;
pub mod record;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headroom_base::{DeviceClass, mutant};

pub use disk::{Disk, RealDisk};
use lock::{Lock, LockFailure};
use record::Unusable;
pub use record::{MANY_WINDOWS, Record, STORE_VERSION};

use crate::attempt::AttemptError;

/// How long an update waits for another process's.
pub const LOCK_WAIT: Duration = Duration::from_secs(10);

/// How often a rename is tried: a virus scanner or a backup can hold the file for a moment.
pub const RENAME_TRIES: u32 = 6;

/// The pause after the first failed rename; each further one is twice as long.
const RENAME_PAUSE: Duration = Duration::from_millis(10);

/// A folder of records.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    disk: Box<dyn Disk>,
    lock_wait: Duration,
}

/// Why a record was not read or written. The file is as it was.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file is no record.
    #[error("{path} cannot be read as measurements: {source}; it is kept as it is, move it away to begin anew")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The file is of a later program.
    #[error(
        "{path} has format {found} and this program reads up to {STORE_VERSION}: it is kept as it is, use a newer program"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The format found.
        found: u32,
    },
    /// The file holds the measurements of another kind of card.
    #[error("{path} holds measurements of {found}, not of {expected}: it is kept as it is and nothing in it is used")]
    OtherDevice {
        /// The file.
        path: PathBuf,
        /// Whose measurements it holds.
        found: DeviceClass,
        /// Whose it should hold.
        expected: DeviceClass,
    },
    /// Another process held the lock all the while.
    #[error("{path} is held by another process, waited {waited:?}: try again when it is done")]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// How long was waited.
        waited: Duration,
    },
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}; what was kept there before is unchanged")]
    Io {
        /// What was to be done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The file was replaced, but the folder could not be synced.
    #[error("{path} is written, but may be lost if the power fails now: {source}")]
    NotSynced {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// An attempt cannot be kept as it is.
    #[error("{0}; what was kept before is unchanged")]
    Attempt(#[from] AttemptError),
}

impl Store {
    /// The records in `folder`, which is created with the first update.
    pub fn open(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), disk: Box::new(RealDisk), lock_wait: LOCK_WAIT }
    }

    /// The same store with another bound on waiting for the lock.
    #[must_use]
    pub fn with_lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = wait;
        self
    }

    /// The same store on another disk.
    #[must_use]
    pub fn with_disk(mut self, disk: impl Disk + 'static) -> Self {
        self.disk = Box::new(disk);
        self
    }

    /// The file of a device class.
    pub fn path(&self, device: &DeviceClass) -> PathBuf {
        self.folder.join(format!("{}.json", device.file_stem()))
    }

    /// What is kept of a device class; the empty record where there is no file. Takes no lock: a file is only
    /// ever replaced as a whole.
    ///
    /// # Errors
    /// For a file that cannot be read, is of a later format or of another card. It stays as it is.
    pub fn read(&self, device: &DeviceClass) -> Result<Record, StoreError> {
        self.load(device).map(|(record, _)| record)
    }

    /// Reads, changes and writes the record of a device class, alone among all processes and threads.
    /// Where nothing changes, nothing is written.
    ///
    /// # Errors
    /// As [`read`](Self::read); when the lock is not had in time; when the operating system refuses.
    pub fn update<T>(&self, device: &DeviceClass, change: impl FnOnce(&mut Record) -> T) -> Result<T, StoreError> {
        std::fs::create_dir_all(&self.folder).map_err(|source| StoreError::Io {
            action: "create",
            path: self.folder.clone(),
            source,
        })?;
        let _held = mutant!(
            "store_written_without_the_lock",
            "two processes measure at once and one of them loses its windows",
            right: Some(self.lock(device)?),
            wrong: None::<Lock>,
        );
        let (mut record, before) = self.load(device)?;
        let answer = change(&mut record);
        let after = record.to_json();
        let changed = mutant!(
            "unchanged_file_written_again",
            "every look at a page rewrites the file, and each of them is a chance to lose it",
            right: before.as_deref() != Some(after.as_bytes()),
            wrong: true,
        );
        if changed {
            self.replace(device, after.as_bytes())?;
        }
        Ok(answer)
    }

    /// The device classes that have a record here which this program can read, in no particular order.
    ///
    /// # Errors
    /// When the folder cannot be listed; a folder that does not exist yet holds none.
    pub fn devices(&self) -> Result<Vec<DeviceClass>, StoreError> {
        let files = match self.disk.list(&self.folder) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(StoreError::Io { action: "list", path: self.folder.clone(), source }),
        };
        let record = |path: PathBuf| Record::parse(&self.disk.read(&path).ok()?).ok();
        Ok(files.into_iter().filter_map(record).map(|record| record.device).collect())
    }

    fn load(&self, device: &DeviceClass) -> Result<(Record, Option<Vec<u8>>), StoreError> {
        let path = self.path(device);
        let bytes = match self.disk.read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((Record::empty(device.clone()), None));
            }
            Err(source) => return Err(StoreError::Io { action: "read", path, source }),
        };
        match Record::parse(&bytes) {
            Ok(record) if record.device != *device => mutant!(
                "other_device_file_used",
                "a file copied from another card prices this one and is overwritten by it",
                right: Err(StoreError::OtherDevice { path, found: record.device, expected: device.clone() }),
                wrong: Ok((record, Some(bytes))),
            ),
            Ok(record) => Ok((record, Some(bytes))),
            Err(unusable) => mutant!(
                "unreadable_file_overwritten",
                "a file that a newer program wrote, or that could be mended by hand, is lost",
                right: Err(match unusable {
                    Unusable::Unreadable(source) => StoreError::Unreadable { path, source },
                    Unusable::Newer { found } => StoreError::Newer { path, found },
                }),
                wrong: Ok((Record::empty(device.clone()), None)),
            ),
        }
    }

    fn lock(&self, device: &DeviceClass) -> Result<Lock, StoreError> {
        let path = self.folder.join(format!("{}.lock", device.file_stem()));
        Lock::take(&path, self.lock_wait).map_err(|failure| match failure {
            LockFailure::Held => StoreError::Locked { path, waited: self.lock_wait },
            LockFailure::Io(source) => StoreError::Io { action: "lock", path, source },
        })
    }

    /// Replaces the file as a whole: readers see the old one or the new one.
    fn replace(&self, device: &DeviceClass, bytes: &[u8]) -> Result<(), StoreError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let path = self.path(device);
        let prefix = format!(".{}.", device.file_stem());
        self.remove_orphans(&prefix);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let temporary = self.folder.join(format!("{prefix}{}-{number}.tmp", std::process::id()));
        let target = mutant!(
            "store_not_atomic",
            "a process killed while writing leaves half a file, and all measurements are lost",
            right: &temporary,
            wrong: &path,
        );
        self.disk.write_synced(target, bytes).map_err(|source| {
            self.discard(&temporary);
            StoreError::Io { action: "write", path: path.clone(), source }
        })?;
        if *target == temporary {
            self.rename(&temporary, &path).map_err(|source| {
                self.discard(&temporary);
                StoreError::Io { action: "replace", path: path.clone(), source }
            })?;
        }
        self.disk.sync_folder(&self.folder).map_err(|source| StoreError::NotSynced { path, source })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut pause = RENAME_PAUSE;
        for _ in 1..RENAME_TRIES {
            if self.disk.rename(from, to).is_ok() {
                return Ok(());
            }
            std::thread::sleep(pause);
            pause *= 2;
        }
        self.disk.rename(from, to)
    }

    /// Removes what killed writers left: whoever holds the lock is the only writer alive.
    fn remove_orphans(&self, prefix: &str) {
        let Ok(files) = self.disk.list(&self.folder) else { return };
        // What is between prefix and end is numbers: another card's name may begin with the whole of this one's.
        let is_orphan = |path: &&PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            let between = name.and_then(|name| name.strip_prefix(prefix)?.strip_suffix(".tmp"));
            between.is_some_and(|between| between.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-'))
        };
        for orphan in files.iter().filter(is_orphan) {
            self.discard(orphan);
        }
    }

    /// A temporary file that cannot be removed is in nobody's way; the next update tries again.
    fn discard(&self, temporary: &Path) {
        let _ = self.disk.remove(temporary);
    }
}
