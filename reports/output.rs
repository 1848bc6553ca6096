//! The one owner of an output folder: every file in it is written whole or not at all.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use headroom_base::mutant;

use crate::redact::Redaction;
use crate::report::Report;
use crate::{html, junit, summary};

/// Names the file whose lock makes a folder ours. It stays behind; only the system's lock on it counts.
const LOCK_NAME: &str = ".headroom-lock";

/// How the name of a file begins that is being written. Its writer holds a lock on it until it has its own name.
const TEMPORARY: &str = ".headroom-";

/// Why a report was not written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// Another process writes there.
    #[error("another headroom writes to {}: wait for it or choose another --output", .folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The system refused.
    #[error("cannot write {}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The report cannot be put into this format.
    #[error("cannot put the report into {name}: {message}")]
    Format {
        /// The file.
        name: &'static str,
        /// Why.
        message: String,
    },
}

/// A folder that this process alone writes to, as long as the value lives.
#[derive(Debug)]
pub struct OutputFolder {
    folder: PathBuf,
    _lock: File,
}

impl OutputFolder {
    /// Makes the folder if need be, takes its lock, and removes what killed writers left in the middle.
    ///
    /// # Errors
    /// When another process holds it, or the system refuses.
    pub fn open(folder: &Path) -> Result<Self, OutputError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| OutputError::Io { path, source }
        };
        std::fs::create_dir_all(folder).map_err(io(folder))?;
        let lock_path = folder.join(LOCK_NAME);
        let lock = File::create(&lock_path).map_err(io(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {
                remove_orphans(folder);
                Ok(Self { folder: folder.to_owned(), _lock: lock })
            }
            Err(TryLockError::WouldBlock) => Err(OutputError::InUse { folder: folder.to_owned() }),
            Err(TryLockError::Error(source)) => Err(OutputError::Io { path: lock_path, source }),
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Writes a file under a temporary name and renames it: a reader sees the old file or the new one.
    ///
    /// # Errors
    /// When the system refuses; the old file is then untouched.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<PathBuf, OutputError> {
        write_whole(&self.folder.join(name), content)
    }

    /// Writes `report.json` and its companions, without the names and paths that `redaction` knows.
    ///
    /// # Errors
    /// When the system refuses, or a value has no place in a format.
    pub fn write_report(&self, report: &Report, redaction: &Redaction) -> Result<Vec<PathBuf>, OutputError> {
        let report = redaction.report(report);
        let files: [(&str, String); 4] = [
            ("report.json", to_json(&report)?),
            ("junit.xml", junit::to_xml(&report).map_err(|e| format_error("junit.xml", &e))?),
            ("summary.md", summary::to_markdown(&report)),
            ("index.html", html::to_html(&report)),
        ];
        files.iter().map(|(name, content)| self.write(name, content.as_bytes())).collect()
    }
}

/// Writes a file whole or not at all: temporary name beside it, synced, renamed. A link is followed: the file that it leads
/// to is replaced, and the link stays; who may read the file stays as it was. What is there and no regular file (a pipe, a
/// device) is written into as it is.
///
/// # Errors
/// When the system refuses; a file that stood there is then untouched.
pub fn write_whole(path: &Path, content: &[u8]) -> Result<PathBuf, OutputError> {
    let io = |source| OutputError::Io { path: path.to_owned(), source };
    let permissions = match std::fs::metadata(path) {
        Ok(there) if !there.is_file() => {
            let mut open = File::options().write(true).open(path).map_err(io)?;
            open.write_all(content).map_err(io)?;
            return Ok(path.to_owned());
        }
        Ok(there) => Some(there.permissions()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(io(error)),
    };
    let target = followed(path);
    let folder = folder_of(&target);
    mutant!(
        "report_not_atomic",
        "a reader finds half a report when the writer is killed",
        right: {
            let mut file = temporary(folder).map_err(io)?;
            // Where there are no locks, nobody takes the file for an orphan either.
            let _ = file.as_file().try_lock();
            file.write_all(content).map_err(io)?;
            if let Some(permissions) = permissions {
                file.as_file().set_permissions(permissions).map_err(io)?;
            }
            file.as_file().sync_all().map_err(io)?;
            file.persist(&target).map_err(|error| io(error.error))?;
        },
        wrong: {
            let mut file = File::create(path).map_err(io)?;
            file.write_all(content).map_err(io)?;
        },
    );
    Ok(path.to_owned())
}

/// The folder that a file is in, also where its path names none.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Where links lead from `path`, to a file or to none yet. The system has found that they end.
fn followed(path: &Path) -> PathBuf {
    let mut target = path.to_owned();
    while let Ok(link) = std::fs::read_link(&target) {
        target = target.parent().unwrap_or(Path::new("")).join(link);
    }
    target
}

/// A temporary file that others may read, as they may any other file of the folder.
fn temporary(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
    builder.prefix(TEMPORARY).tempfile_in(folder)
}

/// Removes temporary files whose writers are gone: the system has given up their locks. One that cannot be removed
/// harms nobody.
fn remove_orphans(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_temporary = name.to_str().is_some_and(|name| name.starts_with(TEMPORARY) && name != LOCK_NAME);
        if !is_temporary || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let dead = File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
        if dead {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The report's own text, ending in a line break.
///
/// # Errors
/// When a value has no place in JSON.
pub fn to_json(report: &Report) -> Result<String, OutputError> {
    let mut text = serde_json::to_string_pretty(report).map_err(|e| format_error("report.json", &e))?;
    text.push('\n');
    Ok(text)
}

fn format_error(name: &'static str, error: &dyn std::fmt::Display) -> OutputError {
    OutputError::Format { name, message: error.to_string() }
}
