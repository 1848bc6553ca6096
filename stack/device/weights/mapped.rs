//! A safetensors file mapped into memory, its header checked before anything of it is used.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use rustc_hash::FxHashMap;
use safetensors::{SafeTensorError, SafeTensors};

/// Why a file of weights cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// It cannot be opened or mapped.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It is not a safetensors file, is cut short, or its header does not agree with its contents.
    #[error("{} is no usable safetensors file: {reason}; its length is {file_bytes} bytes. Fetch it again", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// How long it is.
        file_bytes: u64,
        /// What is wrong.
        reason: String,
    },
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpan {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    start: usize,
}

/// A mapped safetensors file. The map is read-only and lives as long as this.
#[derive(Debug)]
pub struct MappedWeights {
    map: Mmap,
    file: File,
    path: PathBuf,
    tensors: Vec<TensorSpan>,
    /// Name → place in `tensors`: a load asks for each of a few thousand by its name.
    places: FxHashMap<String, usize>,
}

impl MappedWeights {
    /// Maps `path` and checks its header against its length.
    ///
    /// # Errors
    /// [`WeightsError::Io`] when it cannot be opened or mapped; [`WeightsError::Malformed`] when it is cut short, is
    /// another kind of file, or its header names bytes that are not there.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let failed = |source| WeightsError::Io { path: path.to_owned(), source };
        // Asked before it is opened, since opening a pipe waits for somebody to write to it.
        let plain = std::fs::metadata(path).map_err(failed)?.is_file();
        if !plain {
            let reason = "it is no plain file".to_owned();
            return Err(WeightsError::Malformed { path: path.to_owned(), file_bytes: 0, reason });
        }
        let file = File::open(path).map_err(failed)?;
        let file_bytes = file.metadata().map_err(failed)?.len();
        let malformed = |reason: String| WeightsError::Malformed { path: path.to_owned(), file_bytes, reason };
        if file_bytes == 0 {
            return Err(malformed("it is empty".to_owned()));
        }
        // SAFETY: the map is read-only and private to this value, and nothing hands out a reference that outlives it.
        // Another program can still change or shorten the file meanwhile: a change shows up as other weights, and
        // reading behind a new end raises SIGBUS, which `check` makes unlikely and cannot exclude. Model files are
        // replaced, not edited, which leaves the mapped ones as they are; copying gigabytes to be safe from the rest
        // would cost every load.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        let tensors = spans(&map).map_err(|error| malformed(explain(&error, file_bytes)))?;
        let places = tensors.iter().enumerate().map(|(place, span)| (span.name.clone(), place)).collect();
        Ok(Self { map, file, path: path.to_owned(), tensors, places })
    }

    /// Whether the file is still as long as it was: reading behind a new end would end the process.
    ///
    /// A file that was replaced by another of its name is not concerned: the mapped one lives on.
    ///
    /// # Errors
    /// [`WeightsError::Malformed`] when it was cut short since; [`WeightsError::Io`] when it cannot be asked.
    pub fn check(&self) -> Result<(), WeightsError> {
        let failed = |source| WeightsError::Io { path: self.path.clone(), source };
        let file_bytes = self.file.metadata().map_err(failed)?.len();
        let mapped_bytes = self.map.len() as u64;
        if file_bytes >= mapped_bytes {
            return Ok(());
        }
        let reason = format!("it was cut short after it was mapped with {mapped_bytes} bytes");
        Err(WeightsError::Malformed { path: self.path.clone(), file_bytes, reason })
    }

    /// The tensors, in the order of their place in the file.
    pub fn tensors(&self) -> &[TensorSpan] {
        &self.tensors
    }

    /// The contents of one tensor.
    pub fn contents(&self, span: &TensorSpan) -> &[u8] {
        self.map.get(span.start..).and_then(|rest| rest.get(..span.bytes as usize)).unwrap_or_default()
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorSpan> {
        self.places.get(name).and_then(|place| self.tensors.get(*place))
    }
}

fn spans(map: &[u8]) -> Result<Vec<TensorSpan>, SafeTensorError> {
    let (header_bytes, metadata) = SafeTensors::read_metadata(map)?;
    let data_start = header_bytes + 8;
    let mut tensors: Vec<_> = metadata
        .tensors()
        .into_iter()
        .map(|(name, info)| {
            let (from, to) = info.data_offsets;
            TensorSpan { name, bytes: (to - from) as u64, start: data_start + from }
        })
        .collect();
    tensors.sort_by(|a, b| a.start.cmp(&b.start).then_with(|| a.name.cmp(&b.name)));
    // The header may be whole while the end of the file is missing.
    SafeTensors::deserialize(map)?;
    Ok(tensors)
}

/// The library's error in words that say what to suspect.
fn explain(error: &SafeTensorError, file_bytes: u64) -> String {
    match error {
        SafeTensorError::HeaderTooSmall => "it is too short to hold a header".to_owned(),
        SafeTensorError::InvalidHeaderLength => {
            format!("its header is longer than the file's {file_bytes} bytes: the file is cut short")
        }
        SafeTensorError::MetadataIncompleteBuffer => {
            "its header names more or fewer bytes than follow it: the file is cut short or has something appended"
                .to_owned()
        }
        SafeTensorError::InvalidOffset(name) => format!("tensor `{name}` overlaps another or leaves a gap before it"),
        SafeTensorError::TensorInvalidInfo => {
            "a tensor's shape and element type do not agree with its bytes".to_owned()
        }
        other => other.to_string(),
    }
}
