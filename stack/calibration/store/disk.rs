//! The few file operations a store needs, so that a test can make any of them fail.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where files are.
pub trait Disk: fmt::Debug + Send + Sync {
    /// The whole of a file.
    ///
    /// # Errors
    /// As the operating system says; `NotFound` where there is none.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Writes a file and waits until it is on the disk.
    ///
    /// # Errors
    /// As the operating system says. A part of the file may have been written.
    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Renames a file over another.
    ///
    /// # Errors
    /// As the operating system says. Then neither file has changed.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Waits until a folder's entries are on the disk.
    ///
    /// # Errors
    /// As the operating system says.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;

    /// The files of a folder.
    ///
    /// # Errors
    /// As the operating system says.
    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>>;

    /// Removes a file.
    ///
    /// # Errors
    /// As the operating system says.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The real one.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        // Only Unix opens folders; elsewhere the rename itself is what there is.
        if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}
