//! Code loaded onto a device, its kernels and their launches, and the few copies that checks need.

use std::ffi::{CString, c_void};

use cudarc::driver::sys::{self, CUfunction, CUmodule, CUstream};
use headroom_device::cuda::libraries::Library;

use crate::cuda::error::CudaError;

use super::answer::{Answer, answer};
use super::compiler::Code;

/// Shared memory that every kernel may have without asking.
const SHARED_FOR_ALL_BYTES: u32 = 48 * 1024;

fn check(call: &str, answer: Answer) -> Result<(), CudaError> {
    super::answer::check(Library::Driver, call, answer)
}

/// Code on the device. Its context must be the thread's whenever it is used and when it is dropped.
pub(in crate::cuda) struct Module(CUmodule);

impl Module {
    /// Loads code that was made for this device.
    pub(in crate::cuda) fn load(code: &Code) -> Result<Self, CudaError> {
        let mut module = std::ptr::null_mut();
        // SAFETY: the code is whole, as the compiler wrote it; the driver copies it. The place is valid.
        check("cuModuleLoadData", unsafe {
            answer!(sys::cuModuleLoadData(&raw mut module, code.as_ptr().cast::<c_void>()))
        })?;
        Ok(Self(module))
    }

    /// A kernel of it, which may be launched with this much shared memory, as long as the module lives.
    pub(in crate::cuda) fn kernel(&self, name: &str, shared_bytes: u32) -> Result<Kernel, CudaError> {
        let missing = |_| CudaError::NoKernel { what: format!("the name {name:?}") };
        let text = CString::new(name).map_err(missing)?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends in a zero byte, the place is valid.
        let found = unsafe { answer!(sys::cuModuleGetFunction(&raw mut function, self.0, text.as_ptr())) };
        check(&format!("cuModuleGetFunction of {name}"), found)?;
        if shared_bytes > SHARED_FOR_ALL_BYTES {
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was just found; the driver refuses what the device does not have.
            let allowed = unsafe { answer!(sys::cuFuncSetAttribute(function, attribute, shared_bytes as i32)) };
            check(&format!("cuFuncSetAttribute of {name} to {shared_bytes} bytes of shared memory"), allowed)?;
        }
        Ok(Kernel(function))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the module is this value's own. After a failure of the device this may fail too; the process then ends
        // with it loaded.
        let _ = unsafe { answer!(sys::cuModuleUnload(self.0)) };
    }
}

/// A kernel of a module.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct Kernel(CUfunction);

impl Kernel {
    /// Puts a launch on the stream. Each argument is words of 64 bits, handed over as one value.
    ///
    /// # Safety
    /// The kernel's module is loaded. The arguments are what the kernel declares, in number, order and size, and every
    /// address among them is of memory of this device that stays allocated until the launch is done.
    pub(in crate::cuda) unsafe fn launch(
        self,
        stream: CUstream,
        blocks: [u32; 3],
        threads: u32,
        shared_bytes: u32,
        arguments: &mut [Vec<u64>],
    ) -> Result<(), CudaError> {
        let mut pointers: Vec<*mut c_void> =
            arguments.iter_mut().map(|argument| argument.as_mut_ptr().cast::<c_void>()).collect();
        let [x, y, z] = blocks;
        // SAFETY: the caller vouches for kernel and arguments; the driver copies them before it returns.
        let launched = unsafe {
            let (places, nothing) = (pointers.as_mut_ptr(), std::ptr::null_mut());
            answer!(sys::cuLaunchKernel(self.0, x, y, z, threads, 1, 1, shared_bytes, stream, places, nothing))
        };
        check("cuLaunchKernel", launched)
    }
}

/// Writes bytes to the device, and waits until they are there.
///
/// # Safety
/// `to` is memory of the bound context's device of at least so many bytes.
pub(in crate::cuda) unsafe fn upload(to: u64, contents: &[u8], stream: CUstream) -> Result<(), CudaError> {
    if contents.is_empty() {
        return Ok(());
    }
    // SAFETY: the caller vouches for the address; the contents live until the stream was waited for.
    unsafe {
        let copied = answer!(sys::cuMemcpyHtoDAsync_v2(to, contents.as_ptr().cast::<c_void>(), contents.len(), stream));
        check("cuMemcpyHtoDAsync", copied)?;
        check("cuStreamSynchronize", answer!(sys::cuStreamSynchronize(stream)))
    }
}

/// Reads bytes from the device, after everything on the stream.
///
/// # Safety
/// `from` is memory of the bound context's device of at least so many bytes.
pub(in crate::cuda) unsafe fn download(from: u64, contents: &mut [u8], stream: CUstream) -> Result<(), CudaError> {
    if contents.is_empty() {
        return Ok(());
    }
    // SAFETY: the caller vouches for the address; the contents live until the stream was waited for.
    unsafe {
        let copied =
            answer!(sys::cuMemcpyDtoHAsync_v2(contents.as_mut_ptr().cast::<c_void>(), from, contents.len(), stream));
        check("cuMemcpyDtoHAsync", copied)?;
        check("cuStreamSynchronize", answer!(sys::cuStreamSynchronize(stream)))
    }
}
