//! Calls of NVIDIA's libraries whose answers arrive as plain numbers.
//!
//! The bindings type an answer as an enum of the codes that their version of a library has. A newer library may answer
//! with another one, and an enum that holds none of its values is undefined behaviour the moment it exists. So a function
//! is called at its address, with the bindings' own argument types and a number for the answer.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

use cudarc::cublas::sys::cublasStatus_t;
use cudarc::cudnn::sys::cudnnStatus_t;
use cudarc::driver::sys::CUresult;
use cudarc::nvrtc::sys::nvrtcResult;
use headroom_device::cuda::libraries::{Library, LibraryError};

use crate::cuda::error::CudaError;

/// What every library answers where all is well.
pub(super) const SUCCESS: u32 = 0;

/// A library's answer, or that it lacks the function.
pub(super) type Answer = Result<u32, LibraryError>;

/// An answer's type in the bindings, which has the size and the passing of a `u32`.
pub(super) trait Status: Copy {
    /// Whose answers these are.
    const LIBRARY: Library;
}

macro_rules! statuses {
    ($($status:ty => $library:ident;)*) => {$(
        const _: () = assert!(size_of::<$status>() == size_of::<u32>());
        impl Status for $status {
            const LIBRARY: Library = Library::$library;
        }
    )*};
}

// All four are declared `repr(u32)`.
statuses! {
    CUresult => Driver;
    nvrtcResult => Nvrtc;
    cublasStatus_t => Cublas;
    cudnnStatus_t => Cudnn;
}

/// A function of the bindings, of whichever number of arguments.
pub(super) trait Bound {
    /// The same function, answering with a number.
    type Numbered;

    /// The library that has it.
    const LIBRARY: Library;

    /// # Safety
    /// At the address lies the function that these bindings are of.
    unsafe fn numbered(self, address: NonNull<c_void>) -> Self::Numbered;
}

/// Implements [`Bound`] for so many arguments and for each smaller number of them but none.
macro_rules! bound {
    () => {};
    ($first:ident $($rest:ident)*) => {
        impl<$first, $($rest,)* Answered: Status> Bound for unsafe fn($first, $($rest),*) -> Answered {
            type Numbered = unsafe extern "C" fn($first, $($rest),*) -> u32;
            const LIBRARY: Library = Answered::LIBRARY;

            unsafe fn numbered(self, address: NonNull<c_void>) -> Self::Numbered {
                // SAFETY: the caller vouches for the address. The bindings call it with these arguments in the same
                // convention, and their answer's type is passed as a `u32` is.
                unsafe { std::mem::transmute::<*mut c_void, Self::Numbered>(address.as_ptr()) }
            }
        }
        bound!($($rest)*);
    };
}

bound!(A B C D E F G H I J K L M N O P Q R S T U V W X);

/// Where a function of the bindings lies.
pub(super) fn address_of<Function: Bound>(_: &Function, name: &CStr) -> Result<NonNull<c_void>, LibraryError> {
    Function::LIBRARY.find()?.address(name)
}

/// Calls a function of the bindings, written as they name it: `answer!(sys::cuInit(0))` is a [`Answer`]. As unsafe as the
/// function itself.
macro_rules! answer {
    (@any $argument:expr) => { _ };
    (sys::$function:ident($($argument:expr),+ $(,)?)) => {{
        let bound: unsafe fn($(answer!(@any $argument)),+) -> _ = sys::$function;
        let name = const {
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($function), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("names of functions hold no zero byte"),
            }
        };
        $crate::cuda::library::answer::address_of(&bound, name).map(|address| {
            use $crate::cuda::library::answer::Bound as _;
            // The address is that of the function of this name.
            bound.numbered(address)($($argument),+)
        })
    }};
}
pub(super) use answer;

/// Makes an answer other than success an error of `call`, with the library's own name for the code.
///
/// # Errors
/// When the answer is not success, or the library lacks the function.
pub(super) fn check(library: Library, call: &str, answer: Answer) -> Result<(), CudaError> {
    match answer? {
        SUCCESS => Ok(()),
        code => Err(failed(library, call, code)),
    }
}

/// The first code that is no success.
///
/// # Errors
/// When the library lacks one of the functions.
pub(super) fn first_failure<const COUNT: usize>(answers: [Answer; COUNT]) -> Result<Option<u32>, CudaError> {
    let codes = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(codes.into_iter().find(|code| *code != SUCCESS))
}

/// The error of a call that was answered with this code.
pub(super) fn failed(library: Library, call: &str, code: u32) -> CudaError {
    let name = name_of(library, code).unwrap_or_else(|| "a code without a name".to_owned());
    let library = if library == Library::Driver { "the CUDA driver" } else { library.name() };
    CudaError::Call { library, call: call.to_owned(), code: code.into(), name }
}

/// The library's own name for a code, which also knows those that came after the bindings.
fn name_of(library: Library, code: u32) -> Option<String> {
    type Named = unsafe extern "C" fn(u32) -> *const c_char;
    type NamedInto = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;
    let function = match library {
        Library::Driver => c"cuGetErrorName",
        Library::Nvrtc => c"nvrtcGetErrorString",
        Library::Cublas => c"cublasGetStatusName",
        Library::Cudnn => c"cudnnGetErrorString",
        Library::Nvml => return None,
    };
    let address = library.find().and_then(|library| library.address(function)).ok()?.as_ptr();
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: the functions' types are the documented ones, with a number for the code, which they take by value; the
    // place is valid for writing.
    unsafe {
        if library == Library::Driver {
            let _ = std::mem::transmute::<*mut c_void, NamedInto>(address)(code, &raw mut text);
        } else {
            text = std::mem::transmute::<*mut c_void, Named>(address)(code);
        }
    }
    // SAFETY: where there is a text it is the library's own, ends in a zero byte and lives as long as the library, which
    // is never unloaded.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use cudarc::driver::sys;

    use super::*;

    extern "C" fn answers_as_nobody_did_before(argument: u32) -> u32 {
        argument + 70_000
    }

    #[test]
    fn a_code_that_the_bindings_do_not_know_arrives_as_the_number_it_is() {
        let bound: unsafe fn(u32) -> CUresult = sys::cuInit;
        let address = NonNull::new(answers_as_nobody_did_before as *mut c_void).unwrap();
        // SAFETY: at the address lies a function of this type.
        assert_eq!(unsafe { bound.numbered(address)(7) }, 70_007);
    }

    #[test]
    fn a_failure_names_the_library_the_call_and_the_code_also_where_no_library_is_there_to_name_it() {
        let error = check(Library::Nvml, "a call", Ok(70_007)).unwrap_err().to_string();
        assert_eq!(error, "NVML failed at a call (code 70007: a code without a name)");
        assert!(check(Library::Nvml, "a call", Ok(SUCCESS)).is_ok());
    }
}
