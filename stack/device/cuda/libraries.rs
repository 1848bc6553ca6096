//! Which of NVIDIA's libraries are there and whole, from where and in which version: asked before anything calls into
//! them, since the bindings panic where a library or a function of it is missing.

use std::collections::HashSet;
use std::ffi::{CStr, c_void};
use std::fmt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::OnceLock;

use libloading::Library as Opened;

use super::called::{self, Addresses};
use super::gpus::OLDEST_INTERFACE;
use super::version;

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
                "it comes with the CUDA 13 toolkit or its Python packages; put its folder (of the packages: \
                 site-packages/nvidia/cu13/lib) on the library path (LD_LIBRARY_PATH)"
            }
            Self::Cudnn => {
                "it comes with cuDNN 9 for CUDA 13 or its Python package; put its folder (of the package: \
                 site-packages/nvidia/cudnn/lib) on the library path (LD_LIBRARY_PATH)"
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

    /// The functions of it that this program calls.
    pub const fn called_functions(self) -> &'static [&'static CStr] {
        called::functions_of(self)
    }

    /// Finds and loads it, once per process; it stays loaded.
    ///
    /// # Errors
    /// When it is not there, cannot be loaded, lacks a function that this program calls, does not tell its version, or is
    /// of another major version than this build was made for.
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
    /// Where the functions lie that this program calls.
    functions: Addresses,
}

impl LoadedLibrary {
    /// Its file, or where the system does not tell, the name by which it was found.
    pub fn place(&self) -> String {
        self.path.as_ref().map_or_else(|| self.file_name.clone(), |path| path.display().to_string())
    }

    /// Where a function of it lies. The library is never unloaded.
    ///
    /// # Errors
    /// For a function that is not among [`Library::called_functions`].
    pub fn address(&self, function: &CStr) -> Result<NonNull<c_void>, LibraryError> {
        let address = self.functions.get(function).and_then(|address| NonNull::new(*address as *mut c_void));
        address.ok_or_else(|| LibraryError::LacksFunction {
            library: self.library,
            place: self.place(),
            function: function.to_string_lossy().into_owned(),
        })
    }
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
    /// It has its name and not all that is called of it: a stand-in, or a copy that was cut short.
    #[error(
        "{library} ({place}) cannot be used: it lacks the function {function}; put a whole one before it on the library \
         path: {}", library.remedy()
    )]
    LacksFunction {
        /// Which.
        library: Library,
        /// Its file.
        place: String,
        /// The first function that is missing.
        function: String,
    },
    /// Whether it is one that this build can call is not known.
    #[error(
        "{library} ({place}) cannot be used: it does not tell its version; put a whole one before it on the library \
         path: {}", library.remedy()
    )]
    NoVersion {
        /// Which.
        library: Library,
        /// Its file.
        place: String,
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
            Self::Broken { .. } | Self::OtherVersion { .. } | Self::LacksFunction { .. } | Self::NoVersion { .. } => {
                &[]
            }
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
                let (opened, path) = path_of(opened);
                let loaded = describe(library, file_name, path, &opened);
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

fn describe(
    library: Library,
    file_name: &str,
    path: Option<PathBuf>,
    opened: &Opened,
) -> Result<LoadedLibrary, LibraryError> {
    let remark = (library == Library::Nvrtc).then(|| missing_builtins(path.as_ref())).flatten();
    let mut loaded = LoadedLibrary {
        library,
        file_name: file_name.to_owned(),
        path,
        version: None,
        remark,
        functions: Addresses::default(),
    };
    let place = loaded.place();
    let lacks = |function: &CStr| {
        let function = function.to_string_lossy().into_owned();
        LibraryError::LacksFunction { library, place: place.clone(), function }
    };
    called::find(&[library.known_function()], opened).map_err(lacks)?;
    loaded.version = version::of(library, opened);
    if loaded.version.is_none() && library != Library::Nvml {
        return Err(LibraryError::NoVersion { library, place });
    }
    let found: Option<u32> = loaded.version.as_ref().and_then(|version| version.split('.').next()?.parse().ok());
    if let (Some(needed), Some(major)) = (library.major(), found)
        && needed != major
    {
        let found = loaded.version.unwrap_or_default();
        return Err(LibraryError::OtherVersion { library, found, place, needed });
    }
    // That it is too old says more than which function it therefore lacks. Who lists GPUs refuses it and calls nothing.
    let outdated = library == Library::Driver && version::cuda_interface(opened) < Some(OLDEST_INTERFACE);
    if !outdated {
        loaded.functions = called::find(library.called_functions(), opened).map_err(lacks)?;
    }
    Ok(loaded)
}

/// The compiler loads a second library that lies beside it, and fails at its first kernel where that is missing.
fn missing_builtins(path: Option<&PathBuf>) -> Option<String> {
    let folder = path?.parent()?;
    let mut entries = std::fs::read_dir(folder).ok()?.flatten();
    let is_there = entries.any(|entry| entry.file_name().to_string_lossy().contains("nvrtc-builtins"));
    (!is_there).then(|| "libnvrtc-builtins is not beside it, and it may fail to compile".to_owned())
}

/// The file that a name was loaded from.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn path_of(opened: Opened) -> (Opened, Option<PathBuf>) {
    /// How the loader's public record of a library begins.
    #[repr(C)]
    struct Record {
        _offset: usize,
        name: *const std::ffi::c_char,
    }
    let handle = libloading::os::unix::Library::from(opened).into_raw();
    let mut record: *const Record = std::ptr::null();
    // SAFETY: the handle is an open library's; this request writes one pointer to where it is told.
    let answer = unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut record).cast::<c_void>()) };
    // SAFETY: the handle was just taken from such a library and is used by nobody else.
    let opened = unsafe { libloading::os::unix::Library::from_raw(handle) };
    let path = (answer == 0 && !record.is_null()).then(|| {
        // SAFETY: the loader keeps the record and its text, which ends in a zero byte, while the library is open.
        PathBuf::from(unsafe { CStr::from_ptr((*record).name) }.to_string_lossy().into_owned())
    });
    (opened.into(), path.map(|path| path.canonicalize().unwrap_or(path)))
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn path_of(opened: Opened) -> (Opened, Option<PathBuf>) {
    (opened, None)
}
