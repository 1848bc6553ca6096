//! The libraries for kernels, for when a test puts this library in their place: they tell their versions and compute
//! nothing.

use std::ffi::c_char;

use crate::table::{Status, number_of, put};

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcVersion(major: *mut i32, minor: *mut i32) -> Status {
    put(major, 13).and_then(|()| put(minor, 0)).err().unwrap_or(0)
}

/// The architectures of the real one of this version.
const ARCHITECTURES: [i32; 12] = [75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121];

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetNumSupportedArchs(count: *mut i32) -> Status {
    put(count, ARCHITECTURES.len() as i32).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetSupportedArchs(architectures: *mut [i32; 12]) -> Status {
    put(architectures, ARCHITECTURES).err().unwrap_or(0)
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

/// Functions that refuse whatever they are given, with this code.
macro_rules! refusing {
    ($code:literal: $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> Status {
            $code
        }
    )*};
}

// Not supported.
refusing! { 801:
    cuFuncSetAttribute cuLaunchKernel cuMemcpyDtoHAsync_v2 cuModuleGetFunction cuModuleLoadData cuModuleUnload
}

// An internal error.
refusing! { 11:
    nvrtcCompileProgram nvrtcCreateProgram nvrtcDestroyProgram nvrtcGetCUBIN nvrtcGetCUBINSize nvrtcGetProgramLog
    nvrtcGetProgramLogSize
}

// An internal error.
refusing! { 14:
    cublasCreate_v2 cublasDestroy_v2 cublasGemmEx cublasGemmStridedBatchedEx cublasSetMathMode cublasSetStream_v2
    cublasSetWorkspace_v2
}

// An internal error.
refusing! { 4000:
    cudnnConvolutionForward cudnnCreate cudnnCreateConvolutionDescriptor cudnnCreateFilterDescriptor
    cudnnCreateTensorDescriptor cudnnDestroy cudnnDestroyConvolutionDescriptor cudnnDestroyFilterDescriptor
    cudnnDestroyTensorDescriptor cudnnGetConvolutionForwardAlgorithm_v7 cudnnGetConvolutionForwardWorkspaceSize
    cudnnSetConvolutionMathType cudnnSetConvolutionNdDescriptor cudnnSetFilterNdDescriptor cudnnSetStream
    cudnnSetTensorNdDescriptor
}

/// One name for every code.
macro_rules! naming {
    ($($name:ident: $text:literal)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(_code: u32) -> *const c_char {
            $text.as_ptr()
        }
    )*};
}

naming! {
    nvrtcGetErrorString: c"NVRTC_STAND_IN"
    cublasGetStatusName: c"CUBLAS_STAND_IN"
    cudnnGetErrorString: c"CUDNN_STAND_IN"
}
