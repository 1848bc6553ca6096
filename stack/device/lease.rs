//! One holder per device at a time, across processes: a file lock that a dead process does not hold.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Names another folder for the leases, for processes that must exclude each other and share no temporary folder.
pub const LEASE_FOLDER_VARIABLE: &str = "HEADROOM_LEASES";

/// How long to sleep before the second try, and at most between two tries.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// More than anybody's words need; what is longer was not written by this program.
const MOST_CONTENT_BYTES: u64 = 4096;

/// How many characters of a holder's words are shown.
const MOST_WORDS: usize = 200;

/// Who holds a device, as far as can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HolderInfo {
    /// What the holder wrote about itself.
    Known {
        /// What it is doing, in its own words.
        words: String,
        /// Its process id.
        process: u32,
        /// Since when it holds the device, in whole seconds.
        since: SystemTime,
    },
    /// It left nothing that can be read: it took the device this moment, or the platform lets nobody read a locked file.
    Unknown,
}

impl HolderInfo {
    fn new(words: &str) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs());
        Self::Known { words: printable(words), process: std::process::id(), since }
    }

    /// The lines of a lease's file; `None` for anything else that stands there.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix('=');
        let process = field("process")?.parse().ok()?;
        let since = Duration::from_secs(field("since")?.parse().ok()?);
        let words = printable(field("holder")?);
        Some(Self::Known { words, process, since: SystemTime::UNIX_EPOCH.checked_add(since)? })
    }

    fn read(path: &Path) -> Self {
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(MOST_CONTENT_BYTES).read_to_string(&mut text));
        read.ok().and_then(|_| Self::parse(&text)).unwrap_or(Self::Unknown)
    }

    fn write(&self, file: &mut File) -> io::Result<()> {
        let Self::Known { words, process, since } = self else { return Ok(()) };
        let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("process={process}\nsince={since}\nholder={words}\n").as_bytes())
    }
}

impl fmt::Display for HolderInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known { words, process, since } => {
                let held = since.elapsed().unwrap_or_default().as_secs();
                write!(f, "`{words}` (process {process}, for {held} s)")
            }
            Self::Unknown => f.write_str("a process that left no name"),
        }
    }
}

/// One line that a terminal can show, whoever wrote it.
fn printable(words: &str) -> String {
    words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST_WORDS).collect()
}

/// Why a device was not leased.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Somebody else held it all the while.
    #[error(
        "device {uuid} is leased to {holder}; waited {} s for it. Let that process end, or wait longer",
        waited.as_secs()
    )]
    Held {
        /// The device.
        uuid: String,
        /// Who held it at the end.
        holder: HolderInfo,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Leases cannot be kept here.
    #[error(
        "cannot keep a lease in {}: {source}; name a folder that can be written to in {LEASE_FOLDER_VARIABLE}",
        path.display()
    )]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The folder is another user's, who could keep this one from every device, or a link, which leads wherever its maker
    /// wants files made.
    #[error(
        "{} is another user's, or a link and no folder; name a folder of your own in {LEASE_FOLDER_VARIABLE}",
        path.display()
    )]
    NotOwn {
        /// The folder.
        path: PathBuf,
    },
}

/// A device that is this holder's alone until the lease is dropped, or its process ends in whatever way.
///
/// Two leases of one device exclude each other between processes and within one. They concern this user's programs that
/// ask for a lease, nobody else's. The file stays behind: removing it would let two holders lock two files of one name.
#[derive(Debug)]
pub struct DeviceLease {
    file: File,
    uuid: String,
}

impl DeviceLease {
    /// Leases the device `uuid`, trying until `patience` has passed, and at least once.
    ///
    /// `holder_words` is what others are told who wait for this lease. `on_wait` is told for whom this call waits: once
    /// when it begins to wait, and again whenever the holder is another one.
    ///
    /// # Errors
    /// [`LeaseError::Held`] when somebody else held it all the while; [`LeaseError::Io`] when the folder cannot be made
    /// or written to.
    pub fn acquire(
        folder: &Path,
        uuid: &str,
        holder_words: &str,
        patience: Duration,
        mut on_wait: impl FnMut(&HolderInfo),
    ) -> Result<Self, LeaseError> {
        make(folder).map_err(|source| LeaseError::Io { path: folder.to_owned(), source })?;
        let path = folder.join(file_name(uuid));
        let failed = |source| LeaseError::Io { path: path.clone(), source };
        // Not truncated: until it is locked its content is somebody else's.
        let options = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let mut file = options.map_err(failed)?;
        let began = Instant::now();
        let mut waits_for = None;
        let mut pause = PAUSES.0;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(source)) => return Err(failed(source)),
                Err(TryLockError::WouldBlock) => {}
            }
            let holder = HolderInfo::read(&path);
            let waited = began.elapsed();
            if waited >= patience {
                return Err(LeaseError::Held { uuid: uuid.to_owned(), holder, waited });
            }
            if waits_for.as_ref() != Some(&holder) {
                on_wait(&holder);
                waits_for = Some(holder);
            }
            std::thread::sleep(pause.min(patience.saturating_sub(waited)));
            pause = (pause * 2).min(PAUSES.1);
        }
        // The lock is what counts; a full disk takes only the name away.
        let _ = HolderInfo::new(holder_words).write(&mut file);
        Ok(Self { file, uuid: uuid.to_owned() })
    }

    /// The device.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Where leases are kept: the folder that [`LEASE_FOLDER_VARIABLE`] names, or one per user among the temporary
    /// files, which is made. Never the session's own runtime folder, which differs between a login and a service of the
    /// same user.
    ///
    /// # Errors
    /// [`LeaseError::NotOwn`] when what lies among the temporary files under that name is another user's, or a link;
    /// [`LeaseError::Io`] when it cannot be made.
    pub fn default_folder() -> Result<PathBuf, LeaseError> {
        if let Some(named) = std::env::var_os(LEASE_FOLDER_VARIABLE).filter(|folder| !folder.is_empty()) {
            return Ok(named.into());
        }
        let own = own_user();
        let name = own.map_or_else(|| "headroom-leases".to_owned(), |user| format!("headroom-leases-{user}"));
        let path = std::env::temp_dir().join(name);
        own_folder(&path, own)?;
        Ok(path)
    }
}

impl Drop for DeviceLease {
    fn drop(&mut self) {
        // Nobody is told of a holder that is gone. Closing the file releases it as well; nothing is lost if these fail.
        let _ = self.file.set_len(0);
        let _ = self.file.unlock();
    }
}

/// The file of a device: one in the folder itself whatever the name holds, and another one for another name.
fn file_name(uuid: &str) -> String {
    let mut name = String::with_capacity(uuid.len() + 6);
    for byte in uuid.bytes() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' => name.push(char::from(byte)),
            other => name.push_str(&format!("%{other:02X}")),
        }
    }
    name + ".lease"
}

/// Makes the folder where it is not there, for this user alone.
fn make(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Makes a folder where others may make things too, and makes sure that it is this user's. Looked at only once it is
/// there: before that another user could put one of theirs in its place.
fn own_folder(path: &Path, own: Option<u32>) -> Result<(), LeaseError> {
    let failed = |source| LeaseError::Io { path: path.to_owned(), source };
    let made = make(path);
    // A link that leads nowhere cannot be made a folder; that it is a link says more.
    let found = fs::symlink_metadata(path).map_err(|source| failed(made.as_ref().err().map_or(source, copy_of)))?;
    let is_link = found.file_type().is_symlink();
    if is_link || own.is_some() && owner(&found) != own {
        return Err(LeaseError::NotOwn { path: path.to_owned() });
    }
    made.map_err(failed)
}

fn copy_of(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

/// The number of the user this process acts as, where the system shows it as a file's owner.
fn own_user() -> Option<u32> {
    owner(&fs::metadata("/proc/self").ok()?)
}

#[cfg(unix)]
fn owner(metadata: &fs::Metadata) -> Option<u32> {
    Some(std::os::unix::fs::MetadataExt::uid(metadata))
}

#[cfg(not(unix))]
fn owner(_metadata: &fs::Metadata) -> Option<u32> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_folder_is_made_for_this_user_alone_and_may_be_there_already() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leases");
        for _ in 0..2 {
            own_folder(&path, own_user()).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
            assert_eq!(mode & 0o777, 0o700);
        }
    }

    #[test]
    fn a_link_is_refused_wherever_it_leads_and_nothing_is_made_behind_it() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("a-folder-of-this-user");
        fs::create_dir(&own).unwrap();
        for (name, target) in [("to-own", own.as_path()), ("nowhere", &folder.path().join("nothing"))] {
            let link = folder.path().join(name);
            symlink(target, &link).unwrap();
            let refused = own_folder(&link, own_user()).unwrap_err();
            assert!(matches!(&refused, LeaseError::NotOwn { path } if *path == link), "{refused}");
            assert!(refused.to_string().contains("HEADROOM_LEASES"), "{refused}");
        }
        assert!(!folder.path().join("nothing").exists());
        assert_eq!(fs::read_dir(own).unwrap().count(), 0);
    }

    #[test]
    fn another_users_folder_is_refused_and_so_is_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let another = own_user().map(|user| user + 1);
        let refused = own_folder(&folder.path().join("leases"), another).unwrap_err();
        assert!(matches!(refused, LeaseError::NotOwn { .. }), "{refused}");
        let file = folder.path().join("a-file");
        fs::write(&file, b"").unwrap();
        let refused = own_folder(&file, own_user()).unwrap_err();
        assert!(matches!(refused, LeaseError::Io { .. }), "{refused}");
    }
}
