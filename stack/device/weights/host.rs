//! Copies of weights in host memory: shared between caches, and pinned while a window needs them to stay.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::SystemTime;

use headroom_base::mutant;

use super::mapped::{MappedWeights, WeightsError};

/// A model's weights in host memory.
#[derive(Debug)]
pub struct HostCopy {
    mapped: Option<MappedWeights>,
}

impl HostCopy {
    /// Weights that have sizes and no contents.
    pub fn synthetic() -> Arc<Self> {
        Arc::new(Self { mapped: None })
    }

    /// The file behind them, if they come from one.
    pub fn mapped(&self) -> Option<&MappedWeights> {
        self.mapped.as_ref()
    }

    /// Whether the contents can still be read: a file that was cut short since it was mapped cannot.
    ///
    /// # Errors
    /// As [`MappedWeights::check`].
    pub fn check(&self) -> Result<(), WeightsError> {
        self.mapped.as_ref().map_or(Ok(()), MappedWeights::check)
    }

    /// The contents of one piece; none where they are synthetic.
    pub fn contents(&self, piece: &str) -> Option<&[u8]> {
        let mapped = self.mapped.as_ref()?;
        mapped.tensor(piece).map(|span| mapped.contents(span))
    }
}

/// What tells a file from another, and from itself after it was replaced.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Identity {
    path: PathBuf,
    file_bytes: u64,
    modified: Option<SystemTime>,
    node: (u64, u64),
}

impl Identity {
    fn of(path: &Path) -> std::io::Result<Self> {
        let path = fs::canonicalize(path)?;
        let metadata = fs::metadata(&path)?;
        Ok(Self { file_bytes: metadata.len(), modified: metadata.modified().ok(), node: node(&metadata), path })
    }
}

#[cfg(unix)]
fn node(metadata: &fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

#[cfg(not(unix))]
fn node(_metadata: &fs::Metadata) -> (u64, u64) {
    (0, 0)
}

/// The copies of a process. Two caches that load the same file share one map of it.
#[derive(Debug, Default)]
pub struct HostStore {
    copies: Mutex<HashMap<Identity, Weak<HostCopy>>>,
}

impl HostStore {
    /// The process's own store.
    pub fn shared() -> &'static Arc<Self> {
        static SHARED: OnceLock<Arc<HostStore>> = OnceLock::new();
        SHARED.get_or_init(Arc::default)
    }

    /// The copy of a file: the one that is already there, or a new one. A file that was replaced since is another one.
    ///
    /// # Errors
    /// As [`MappedWeights::open`].
    pub fn open(&self, path: &Path) -> Result<Arc<HostCopy>, WeightsError> {
        let failed = |source| WeightsError::Io { path: path.to_owned(), source };
        let identity = Identity::of(path).map_err(failed)?;
        // Held while mapping, so that two caches that open the same file at once do not map it twice.
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = copies.get(&identity).and_then(Weak::upgrade) {
            return Ok(copy);
        }
        let copy = Arc::new(HostCopy { mapped: Some(MappedWeights::open(path)?) });
        copies.retain(|_, copy| copy.strong_count() > 0);
        copies.insert(identity, Arc::downgrade(&copy));
        Ok(copy)
    }

    /// How many different copies somebody holds.
    pub fn copies(&self) -> usize {
        let copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        copies.values().filter(|copy| copy.strong_count() > 0).count()
    }
}

/// How many windows need an entry's host copy to stay.
#[derive(Clone, Debug, Default)]
pub(crate) struct PinCount {
    pins: Arc<AtomicU32>,
}

impl PinCount {
    pub(crate) fn get(&self) -> u32 {
        self.pins.load(Ordering::SeqCst)
    }

    /// Keeps `host` where it is until the pin is dropped.
    pub(crate) fn pin(&self, host: &Arc<HostCopy>) -> HostPin {
        self.pins.fetch_add(1, Ordering::SeqCst);
        HostPin { pins: Arc::clone(&self.pins), _host: Arc::clone(host) }
    }
}

/// Keeps a model's host copy in place. Dropping it is the one way to release it, so it is released exactly once.
#[derive(Debug)]
pub struct HostPin {
    pins: Arc<AtomicU32>,
    _host: Arc<HostCopy>,
}

impl Drop for HostPin {
    fn drop(&mut self) {
        mutant!(
            "host_pin_not_released",
            "every calibrated model stays in host memory for as long as the server runs",
            right: {
                self.pins.fetch_sub(1, Ordering::SeqCst);
            },
            wrong: (),
        );
    }
}
