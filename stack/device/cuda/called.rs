//! The functions of NVIDIA's libraries that this program calls. A library that lacks one is not used at all: the bindings
//! panic where a function is missing, in the middle of whatever was begun.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use libloading::Library as Opened;

use super::libraries::Library;

/// Where each function lies, as a number: what is called there is up to the caller.
pub(super) type Addresses = HashMap<&'static CStr, usize>;

const DRIVER: &[&CStr] = &[
    c"cuCtxGetCurrent",
    c"cuCtxSetCurrent",
    c"cuDeviceGet",
    c"cuDeviceGetAttribute",
    c"cuDeviceGetCount",
    c"cuDeviceGetName",
    c"cuDeviceGetUuid_v2",
    c"cuDevicePrimaryCtxRelease_v2",
    c"cuDevicePrimaryCtxRetain",
    c"cuDeviceTotalMem_v2",
    c"cuDriverGetVersion",
    c"cuEventCreate",
    c"cuEventDestroy_v2",
    c"cuEventRecord",
    c"cuEventSynchronize",
    c"cuFuncSetAttribute",
    c"cuGetErrorName",
    c"cuGetErrorString",
    c"cuInit",
    c"cuLaunchKernel",
    c"cuMemAddressFree",
    c"cuMemAddressReserve",
    c"cuMemAllocFromPoolAsync",
    c"cuMemAlloc_v2",
    c"cuMemCreate",
    c"cuMemFreeAsync",
    c"cuMemFreeHost",
    c"cuMemFree_v2",
    c"cuMemGetAllocationGranularity",
    c"cuMemGetInfo_v2",
    c"cuMemHostAlloc",
    c"cuMemMap",
    c"cuMemPoolCreate",
    c"cuMemPoolDestroy",
    c"cuMemPoolGetAttribute",
    c"cuMemPoolSetAttribute",
    c"cuMemPoolTrimTo",
    c"cuMemRelease",
    c"cuMemSetAccess",
    c"cuMemUnmap",
    c"cuMemcpyBatchAsync_v2",
    c"cuMemcpyDtoHAsync_v2",
    c"cuMemcpyDtoH_v2",
    c"cuMemcpyHtoDAsync_v2",
    c"cuMemcpyHtoD_v2",
    c"cuMemsetD8_v2",
    c"cuModuleGetFunction",
    c"cuModuleLoadData",
    c"cuModuleUnload",
    c"cuStreamCreate",
    c"cuStreamDestroy_v2",
    c"cuStreamSynchronize",
    c"cuStreamWaitEvent",
];

const NVRTC: &[&CStr] = &[
    c"nvrtcCompileProgram",
    c"nvrtcCreateProgram",
    c"nvrtcDestroyProgram",
    c"nvrtcGetCUBIN",
    c"nvrtcGetCUBINSize",
    c"nvrtcGetErrorString",
    c"nvrtcGetNumSupportedArchs",
    c"nvrtcGetProgramLog",
    c"nvrtcGetProgramLogSize",
    c"nvrtcGetSupportedArchs",
    c"nvrtcVersion",
];

const CUBLAS: &[&CStr] = &[
    c"cublasCreate_v2",
    c"cublasDestroy_v2",
    c"cublasGemmEx",
    c"cublasGemmStridedBatchedEx",
    c"cublasGetProperty",
    c"cublasGetStatusName",
    c"cublasSetMathMode",
    c"cublasSetStream_v2",
    c"cublasSetWorkspace_v2",
];

const CUDNN: &[&CStr] = &[
    c"cudnnConvolutionForward",
    c"cudnnCreate",
    c"cudnnCreateConvolutionDescriptor",
    c"cudnnCreateFilterDescriptor",
    c"cudnnCreateTensorDescriptor",
    c"cudnnDestroy",
    c"cudnnDestroyConvolutionDescriptor",
    c"cudnnDestroyFilterDescriptor",
    c"cudnnDestroyTensorDescriptor",
    c"cudnnGetConvolutionForwardAlgorithm_v7",
    c"cudnnGetConvolutionForwardWorkspaceSize",
    c"cudnnGetErrorString",
    c"cudnnGetVersion",
    c"cudnnSetConvolutionMathType",
    c"cudnnSetConvolutionNdDescriptor",
    c"cudnnSetFilterNdDescriptor",
    c"cudnnSetStream",
    c"cudnnSetTensorNdDescriptor",
];

/// Its bindings return an error where they miss a function, so that one that every version has is enough.
const NVML: &[&CStr] = &[c"nvmlInit_v2"];

/// The functions that this program calls of a library.
pub(super) const fn functions_of(library: Library) -> &'static [&'static CStr] {
    match library {
        Library::Driver => DRIVER,
        Library::Nvrtc => NVRTC,
        Library::Cublas => CUBLAS,
        Library::Cudnn => CUDNN,
        Library::Nvml => NVML,
    }
}

/// Where these functions lie, or the first that is not there.
pub(super) fn find(functions: &[&'static CStr], opened: &Opened) -> Result<Addresses, &'static CStr> {
    let found = |function: &&'static CStr| {
        // SAFETY: the symbol is taken as the address it is and neither called nor read through.
        let symbol = unsafe { opened.get::<*mut c_void>(*function) }.map_err(|_| *function)?;
        let address = NonNull::new(*symbol).ok_or(*function)?;
        Ok((*function, address.addr().get()))
    };
    functions.iter().map(found).collect()
}
