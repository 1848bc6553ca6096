//! Why a GPU did not do what was asked of it.

use headroom_base::{Bytes, MIB};
use headroom_device::DriverError;
use headroom_device::cuda::libraries::LibraryError;

use crate::runner::RunError;

/// Why a call to a GPU or one of its libraries failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CudaError {
    /// A library is missing or of the wrong version.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A library's call failed.
    #[error("{library} failed at {call} (code {code}: {name})")]
    Call {
        /// The library.
        library: &'static str,
        /// Its function, and on what.
        call: String,
        /// Its code.
        code: i64,
        /// The code's name.
        name: String,
    },
    /// A library failed in a way that it also fails where the device has no room, and there was little.
    #[error("{error}; the device had {} free, too little for it: free memory, or ask for less", Bytes(*free_bytes))]
    NoRoomLeft {
        /// What the library said.
        error: Box<CudaError>,
        /// What was free right afterwards.
        free_bytes: u64,
    },
    /// A kernel's source was refused.
    #[error("NVRTC refused the kernels {kernels}: {log}; please report this")]
    Compilation {
        /// The kernels that were to be made.
        kernels: String,
        /// What the compiler said.
        log: String,
    },
    /// The compiler came before the GPU.
    #[error(
        "{compiler} makes no code for compute capability {major}.{minor}, only for {known}: it is older than the GPU; put a \
         newer one before it on the library path"
    )]
    CompilerTooOld {
        /// The compiler, with its version.
        compiler: String,
        /// The GPU's major number.
        major: u32,
        /// Its minor number.
        minor: u32,
        /// The compute capabilities that the compiler knows.
        known: String,
    },
    /// No kernel here does it.
    #[error("no kernel for {what}; please report this with the command line")]
    NoKernel {
        /// What was to be computed.
        what: String,
    },
    /// The GPU is too old.
    #[error("compute capability {major}.{minor} is too old: the kernels need 8.0 or newer")]
    TooOld {
        /// Its major number.
        major: u32,
        /// Its minor number.
        minor: u32,
    },
    /// A launch failed.
    #[error("{kernel} at {place}: {error}")]
    Launch {
        /// The kernel.
        kernel: String,
        /// Where in the model.
        place: String,
        /// Why.
        error: Box<CudaError>,
    },
    /// Something that ran before failed, and nobody had waited for it yet.
    #[error(
        "{case} failed on the device: {error}; run it again with every launch waited for to learn which kernel did"
    )]
    Late {
        /// What ran.
        case: String,
        /// Why.
        error: DriverError,
    },
    /// A piece of the weights has contents of its own and does not lie on the device.
    #[error(
        "`{name}` ({}) is not on the device, and its contents are not at hand during a run; load the whole model",
        Bytes(*bytes)
    )]
    NotResident {
        /// The piece.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// Memory of a size other than what the operation needs.
    #[error("`{name}` has {} on the device and needs {}", Bytes(*bytes), Bytes(*needed_bytes))]
    WrongSize {
        /// What lies there.
        name: String,
        /// Its size.
        bytes: u64,
        /// What it should have.
        needed_bytes: u64,
    },
    /// Memory that this process has no address of.
    #[error("`{name}` is not in this process's memory of the device")]
    NoAddress {
        /// Whose memory.
        name: String,
    },
}

/// The codes by which the driver, cuBLAS and cuDNN say that the device has no room.
const OUT_OF_MEMORY_CODES: [(&str, i64); 3] = [("the CUDA driver", 2), ("cuBLAS", 3), ("cuDNN", 4004)];

/// The codes by which libraries say so no less than other things: cuBLAS and cuDNN that a handle was not made, cuDNN that
/// something in it failed.
const MAYBE_OUT_OF_MEMORY_CODES: [(&str, i64); 3] = [("cuBLAS", 1), ("cuDNN", 1001), ("cuDNN", 4000)];

/// Libraries take memory beside the workspaces they are given, and fail below this: a few pages of the driver's.
const FEW_PAGES_BYTES: u64 = 16 * MIB;

impl CudaError {
    /// Whether a library may have failed since the device had no room, although it does not say so.
    pub(super) fn may_be_out_of_memory(&self) -> bool {
        let code =
            |known: &(&str, i64)| matches!(self, Self::Call { library, code, .. } if *known == (*library, *code));
        MAYBE_OUT_OF_MEMORY_CODES.iter().any(code)
    }

    /// The same failure on a sound device with so much free, of a call that needs so much.
    pub(super) fn beside_free(self, free_bytes: u64, needed_bytes: u64) -> Self {
        if self.may_be_out_of_memory() && free_bytes < needed_bytes.max(FEW_PAGES_BYTES) {
            Self::NoRoomLeft { error: Box::new(self), free_bytes }
        } else {
            self
        }
    }

    /// Whether the device ran out of memory.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::NoRoomLeft { .. } => true,
            Self::Driver(error) => error.is_out_of_memory(),
            Self::Call { library, code, .. } => OUT_OF_MEMORY_CODES.contains(&(library, *code)),
            Self::Launch { error, .. } => error.is_out_of_memory(),
            _ => false,
        }
    }
}

impl From<CudaError> for RunError {
    fn from(error: CudaError) -> Self {
        let message = error.to_string();
        if error.is_out_of_memory() { Self::LibraryOutOfMemory { message } } else { Self::Failed { message } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_room_is_out_of_memory_and_another_failure_is_not() {
        let call = |library, code| {
            let error = CudaError::Call { library, call: "a call".to_owned(), code, name: "A_CODE".to_owned() };
            RunError::from(CudaError::Launch { kernel: "K".to_owned(), place: "here".to_owned(), error: error.into() })
        };
        for (library, code) in OUT_OF_MEMORY_CODES {
            assert!(call(library, code).is_out_of_memory(), "{library}");
            assert!(!call(library, code + 1).is_out_of_memory(), "{library}");
        }
        for (library, code) in MAYBE_OUT_OF_MEMORY_CODES {
            assert!(!call(library, code).is_out_of_memory(), "{library}");
        }
        let said = call("cuDNN", 5000).to_string();
        assert_eq!(said, "K at here: cuDNN failed at a call (code 5000: A_CODE)");
    }

    #[test]
    fn an_internal_failure_is_out_of_memory_where_less_is_free_than_the_call_needs_or_than_a_few_pages() {
        let failed = |library, code| CudaError::Call { library, call: "a call".to_owned(), code, name: "A".to_owned() };
        for (library, code, free, needed, is_out_of_memory) in [
            ("cuDNN", 4000, 0, 0, true),
            ("cuDNN", 4000, 15, 0, true),
            ("cuDNN", 4000, 16, 0, false),
            ("cuDNN", 4000, 99, 100, true),
            ("cuDNN", 4000, 100, 100, false),
            ("cuDNN", 1001, 2, 0, true),
            ("cuBLAS", 1, 2, 0, true),
            ("cuBLAS", 14, 0, 0, false),
            ("cuDNN", 5000, 0, 0, false),
            ("the CUDA driver", 700, 0, 0, false),
        ] {
            let error = failed(library, code).beside_free(free * MIB, needed * MIB);
            assert_eq!(error.is_out_of_memory(), is_out_of_memory, "{library} {code}, {free} free of {needed}");
        }
        let said = failed("cuDNN", 4000).beside_free(2 * MIB, 0).to_string();
        assert!(said.contains("code 4000") && said.contains("the device had 2 MiB free"), "{said}");
    }
}
