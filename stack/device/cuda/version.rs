//! What version a library says it is, asked before anything of it is started.

use std::ffi::c_int;

use libloading::Library as Opened;

use super::libraries::Library;

/// A library's own version, "9.14.0"; nothing where it does not tell, or not before it was started.
pub(super) fn of(library: Library, opened: &Opened) -> Option<String> {
    match library {
        Library::Driver => cuda_interface(opened).map(cuda_version_text),
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
pub(super) fn cuda_interface(driver: &Opened) -> Option<c_int> {
    type DriverGetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
    let mut version = 0;
    // SAFETY: the function's type is the documented one; the place is valid for writing.
    let status = unsafe { driver.get::<DriverGetVersion>(c"cuDriverGetVersion").ok()?(&raw mut version) };
    (status == 0).then_some(version)
}

/// A CUDA version in words: 13000 is "13.0".
pub(super) fn cuda_version_text(version: c_int) -> String {
    format!("{}.{}", version / 1_000, version % 1_000 / 10)
}
