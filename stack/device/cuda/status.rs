//! What the driver answered, as this program's errors.

use std::ffi::{CStr, c_char};

use cudarc::driver::sys::{self, CUresult};

use crate::driver::{DriverCall, DriverError};

/// Makes an answer other than success an error of `call`, with the driver's code, name and words.
///
/// The bindings hand every answer of the driver over as an enum of the codes of CUDA 13.0, and one that is not among them
/// would be undefined behaviour before this function saw it. That is accepted for the driver's own calls, of which there
/// are many: the driver keeps its interface, each function called here exists since CUDA 13.0 or earlier under the version
/// of its name, and none is given anything that came later, so that none has a reason to answer what it could not answer
/// then. What is not so limited, libraries that come apart from the driver and in other versions, is called with numbers
/// for answers where the runner calls it.
///
/// Running out of memory is such an error too ([`DriverError::is_out_of_memory`]); whoever knows what was asked turns it
/// into [`DriverError::OutOfMemory`].
///
/// # Errors
/// When the answer is not success.
pub fn check(call: DriverCall, answer: CUresult) -> Result<(), DriverError> {
    match answer {
        CUresult::CUDA_SUCCESS => Ok(()),
        failed => Err(DriverError::Failed { call, code: failed as i64, reason: words(failed) }),
    }
}

/// Gives something back where nobody is left to be told of a failure. What the driver refuses is offered once more: what
/// made it refuse may have passed, and after this nobody remembers it.
pub(super) fn give_back(mut call: impl FnMut() -> CUresult) {
    if call() != CUresult::CUDA_SUCCESS {
        let answer = call();
        if answer != CUresult::CUDA_SUCCESS {
            tracing::debug!(code = answer as i64, "the driver did not take something back");
        }
    }
}

/// The driver's name for an answer, and what it says of it: "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected".
pub(super) fn words(answer: CUresult) -> String {
    let mut name: *const c_char = std::ptr::null();
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: both places are valid for writing; where the driver does not know the code it leaves them null.
    unsafe {
        let _ = sys::cuGetErrorName(answer, &raw mut name);
        let _ = sys::cuGetErrorString(answer, &raw mut text);
    }
    let name = string(name).unwrap_or_else(|| format!("{answer:?}"));
    match string(text) {
        Some(text) => format!("{name}: {text}"),
        None => name,
    }
}

fn string(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the driver's own strings end in a zero byte and live as long as the driver, which is never unloaded.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
