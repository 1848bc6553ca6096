//! The version calls of the libraries for kernels, for when a test puts this library in their place.

use crate::table::{Status, number_of, put};

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcVersion(major: *mut i32, minor: *mut i32) -> Status {
    put(major, 13).and_then(|()| put(minor, 0)).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetProperty(property: i32, value: *mut i32) -> Status {
    let numbers = [number_of("HEADROOM_STUB_CUBLAS", 13) as i32, 1, 2];
    numbers.get(property as usize).map_or(Err(1), |number| put(value, *number)).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetVersion() -> usize {
    number_of("HEADROOM_STUB_CUDNN", 91_400) as usize
}
