//! Which of NVIDIA's libraries are there, from where and in which version: asked before anything calls into them, since
//! the bindings panic where one is missing.

use std::collections::HashSet;
use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::Library as Opened;

/// A library that is loaded at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// The CUDA driver.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// Matrix products.
    Cublas,
    /// Convolutions.
    Cudnn,
    /// The management library.
    Nvml,
}

impl Library {
    /// Every library, the driver first.
    pub const ALL: [Self; 5] = [Self::Driver, Self::Nvrtc, Self::Cublas, Self::Cudnn, Self::Nvml];

    /// Its name, as NVIDIA writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "CUDA driver",
            Self::Nvrtc => "NVRTC",
            Self::Cublas => "cuBLAS",
            Self::Cudnn => "cuDNN",
            Self::Nvml => "NVML",
        }
    }

    /// The major version whose interface this build was made for; nothing where any will do or the version is no such
    /// number.
    const fn major(self) -> Option<u32> {
        match self {
            Self::Nvrtc | Self::Cublas => Some(13),
            Self::Cudnn => Some(9),
            Self::Driver | Self::Nvml => None,
        }
    }

    const fn remedy(self) -> &'static str {
        match self {
            Self::Driver | Self::Nvml => {
                "it comes with NVIDIA's driver (in a container: start it with the GPUs handed in)"
            }
            Self::Nvrtc | Self::Cublas => {
                "it comes with the CUDA 13 toolkit or its Python packages; put its folder on the library path \
                 (LD_LIBRARY_PATH)"
            }
            Self::Cudnn => {
                "it comes with cuDNN 9 for CUDA 13 or its Python package; put its folder on the library path \
                 (LD_LIBRARY_PATH)"
            }
        }
    }

    /// The file names that are tried, in this order. They are the ones the bindings try, so that both find the same file.
    pub fn file_names(self) -> Vec<String> {
        let mut names = self.candidates();
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names
    }

    fn candidates(self) -> Vec<String> {
        match self {
            Self::Driver => ["cuda", "nvcuda"].into_iter().flat_map(cudarc::get_lib_name_candidates).collect(),
            Self::Nvrtc => cudarc::get_lib_name_candidates("nvrtc"),
            Self::Cublas => cudarc::get_lib_name_candidates("cublas"),
            Self::Cudnn => cudarc::get_lib_name_candidates("cudnn"),
            Self::Nvml if cfg!(windows) => vec!["nvml.dll".to_owned()],
            Self::Nvml => vec!["libnvidia-ml.so.1".to_owned(), "libnvidia-ml.so".to_owned()],
        }
    }

    /// A function that every version of it has.
    const fn known_function(self) -> &'static CStr {
        match self {
            Self::Driver => c"cuDriverGetVersion",
            Self::Nvrtc => c"nvrtcVersion",
            Self::Cublas => c"cublasGetProperty",
            Self::Cudnn => c"cudnnGetVersion",
            Self::Nvml => c"nvmlInit_v2",
        }
    }

    /// Finds and loads it, once per process; it stays loaded.
    ///
    /// # Errors
    /// When it is not there, cannot be used, or is of another major version than this build was made for.
    pub fn find(self) -> Result<&'static LoadedLibrary, LibraryError> {
        static FOUND: [OnceLock<Result<LoadedLibrary, LibraryError>>; Library::ALL.len()] =
            [const { OnceLock::new() }; Library::ALL.len()];
        FOUND[self as usize].get_or_init(|| load(self)).as_ref().map_err(Clone::clone)
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::Driver {
            f.write_str("the ")?;
        }
        f.write_str(self.name())
    }
}

/// A library that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedLibrary {
    /// Which.
    pub library: Library,
    /// The file name by which it was found.
    pub file_name: String,
    /// The file, where the system tells.
    pub path: Option<PathBuf>,
    /// Its own version, "9.14.0"; for the driver the newest CUDA version that it knows, "13.0". Nothing where it has
    /// none, or does not tell before it was started.
    pub version: Option<String>,
    /// What may go wrong with it later.
    pub remark: Option<String>,
}

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// No file of its names could be loaded.
    #[error("{library} was not found (tried {}); {}", some_of(*library, tried), library.remedy())]
    Missing {
        /// Which.
        library: Library,
        /// The names that were tried.
        tried: Vec<String>,
    },
    /// Files of its names are there, and none could be loaded.
    #[error("{library} cannot be loaded: {reason}; {}", library.remedy())]
    Broken {
        /// Which.
        library: Library,
        /// The loader's words.
        reason: String,
    },
    /// It has another interface than this build was made for.
    #[error("{library} {found} ({place}) cannot be used: this build needs version {needed}; {}", library.remedy())]
    OtherVersion {
        /// Which.
        library: Library,
        /// Its version.
        found: String,
        /// Its file.
        place: String,
        /// The major version that is needed.
        needed: u32,
    },
}

/// The names that are commonly met, and how many others: a list of thirty helps nobody.
fn some_of(library: Library, tried: &[String]) -> String {
    let version = format!(".so.{}", library.major().unwrap_or(1));
    let is_common = |name: &&String| (name.ends_with(".so") && !name.contains("64")) || name.ends_with(&version);
    let mut common: Vec<&str> = tried.iter().filter(is_common).map(String::as_str).collect();
    if common.is_empty() {
        common.extend(tried.iter().take(2).map(String::as_str));
    }
    let others = tried.len() - common.len();
    let common = common.join(", ");
    if others == 0 { common } else { format!("{common} and {others} other names") }
}

impl LibraryError {
    /// Every name that was tried.
    pub fn tried(&self) -> &[String] {
        match self {
            Self::Missing { tried, .. } => tried,
            Self::Broken { .. } | Self::OtherVersion { .. } => &[],
        }
    }
}

fn load(library: Library) -> Result<LoadedLibrary, LibraryError> {
    let tried = library.file_names();
    let mut broken = None;
    for file_name in &tried {
        // SAFETY: loading runs the initialisers of NVIDIA's library, which ask nothing of the program.
        match unsafe { Opened::new(file_name) } {
            Ok(opened) => {
                let loaded = describe(library, file_name, &opened);
                // The bindings open it again by name and must find this very one.
                std::mem::forget(opened);
                return loaded;
            }
            Err(error) => {
                // A name that is not there is only one of many. One that is there and does not load, perhaps for want of
                // another library that it needs, is the reason.
                let reason = words(&error);
                let is_absent = cfg!(windows) || reason.contains("No such file") && reason.contains(file_name.as_str());
                if !is_absent {
                    broken.get_or_insert(reason);
                }
            }
        }
    }
    Err(match broken {
        Some(reason) => LibraryError::Broken { library, reason },
        None => LibraryError::Missing { library, tried },
    })
}

/// The loader's own words, which lie below the error's.
fn words(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), words)
}

fn describe(library: Library, file_name: &str, opened: &Opened) -> Result<LoadedLibrary, LibraryError> {
    let path = path_of(library, opened);
    let version = version_of(library, opened);
    let place = path.as_ref().map_or_else(|| file_name.to_owned(), |path| path.display().to_string());
    let found: Option<u32> = version.as_ref().and_then(|version| version.split('.').next()?.parse().ok());
    if let (Some(needed), Some(major)) = (library.major(), found)
        && needed != major
    {
        let found = version.unwrap_or_default();
        return Err(LibraryError::OtherVersion { library, found, place, needed });
    }
    let remark = (library == Library::Nvrtc).then(|| missing_builtins(path.as_ref())).flatten();
    Ok(LoadedLibrary { library, file_name: file_name.to_owned(), path, version, remark })
}

/// The compiler loads a second library that lies beside it, and fails at its first kernel where that is missing.
fn missing_builtins(path: Option<&PathBuf>) -> Option<String> {
    let folder = path?.parent()?;
    let mut entries = std::fs::read_dir(folder).ok()?.flatten();
    let is_there = entries.any(|entry| entry.file_name().to_string_lossy().contains("nvrtc-builtins"));
    (!is_there).then(|| "libnvrtc-builtins is not beside it, and it may fail to compile".to_owned())
}

#[cfg(unix)]
fn path_of(library: Library, opened: &Opened) -> Option<PathBuf> {
    // SAFETY: the symbol is taken as the address it is and never called or read through.
    let symbol = unsafe { opened.get::<*const c_void>(library.known_function()) }.ok()?;
    // SAFETY: an all-zero Dl_info is a valid one, of null pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is valid for writing, and any address may be asked for.
    if unsafe { libc::dladdr(*symbol, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, which lives as long as the library, and that is never unloaded.
    let path = PathBuf::from(unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned());
    Some(path.canonicalize().unwrap_or(path))
}

#[cfg(not(unix))]
fn path_of(_library: Library, _opened: &Opened) -> Option<PathBuf> {
    None
}

fn version_of(library: Library, opened: &Opened) -> Option<String> {
    match library {
        Library::Driver => cuda_version(opened).map(cuda_version_text),
        Library::Nvrtc => {
            type NvrtcVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
            let (mut major, mut minor) = (0, 0);
            // SAFETY: the function's type is the documented one; both places are valid for writing.
            let status = unsafe { opened.get::<NvrtcVersion>(c"nvrtcVersion").ok()?(&raw mut major, &raw mut minor) };
            (status == 0).then(|| format!("{major}.{minor}"))
        }
        Library::Cublas => {
            type GetProperty = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
            // Major, minor, patch level are properties 0, 1 and 2, and can be asked without a handle.
            let numbers = [0, 1, 2].map(|property| {
                let mut value = 0;
                // SAFETY: the function's type is the documented one; the place is valid for writing.
                let status = unsafe { opened.get::<GetProperty>(c"cublasGetProperty").ok()?(property, &raw mut value) };
                (status == 0).then(|| value.to_string())
            });
            Some(numbers.into_iter().collect::<Option<Vec<_>>>()?.join("."))
        }
        Library::Cudnn => {
            type GetVersion = unsafe extern "C" fn() -> usize;
            // SAFETY: the function's type is the documented one.
            let version = unsafe { opened.get::<GetVersion>(c"cudnnGetVersion").ok()?() };
            // Up to version 8 the minor version had one digit less.
            let major = if version < 10_000 { 1_000 } else { 10_000 };
            Some(format!("{}.{}.{}", version / major, version % major / 100, version % 100))
        }
        Library::Nvml => None,
    }
}

/// The newest CUDA version the driver knows, as it writes it: 13000 is 13.0. It can be asked before anything is started.
fn cuda_version(driver: &Opened) -> Option<c_int> {
    type DriverGetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
    let mut version = 0;
    // SAFETY: the function's type is the documented one; the place is valid for writing.
    let status = unsafe { driver.get::<DriverGetVersion>(c"cuDriverGetVersion").ok()?(&raw mut version) };
    (status == 0).then_some(version)
}

fn cuda_version_text(version: c_int) -> String {
    format!("{}.{}", version / 1_000, version % 1_000 / 10)
}
