//! Matrix products through cuBLAS: one handle on one stream, with the workspace it is given.

use std::ffi::c_void;

use cudarc::cublas::sys::{
    self, cublasComputeType_t, cublasGemmAlgo_t, cublasHandle_t, cublasMath_t, cublasOperation_t, cudaDataType,
};
use cudarc::driver::sys::CUstream;
use headroom_base::DType;
use headroom_device::cuda::libraries::Library;

use crate::cuda::error::CudaError;
use crate::cuda::plan::call::ProductCall;

use super::answer::{Answer, SUCCESS, answer};

/// A handle of cuBLAS. Its context must be the thread's whenever it is used and when it is dropped.
pub(in crate::cuda) struct Blas {
    handle: cublasHandle_t,
    workspace: Option<(u64, u64)>,
}

fn check(call: &str, answer: Answer) -> Result<(), CudaError> {
    super::answer::check(Library::Cublas, call, answer)
}

impl Blas {
    /// A handle whose work goes to `stream`, in the arithmetic that PyTorch asks for: sums in single precision, and
    /// single precision not shortened.
    pub(in crate::cuda) fn new(stream: CUstream) -> Result<Self, CudaError> {
        let mut own = Self { handle: std::ptr::null_mut(), workspace: None };
        // SAFETY: the place is valid; a context is bound.
        check("cublasCreate", unsafe { answer!(sys::cublasCreate_v2(&raw mut own.handle)) })?;
        // SAFETY: the handle was just made; a stream of the driver is one of the runtime, which names the same structure.
        check("cublasSetStream", unsafe { answer!(sys::cublasSetStream_v2(own.handle, stream.cast())) })?;
        // SAFETY: the handle was just made.
        check("cublasSetMathMode", unsafe {
            answer!(sys::cublasSetMathMode(own.handle, cublasMath_t::CUBLAS_DEFAULT_MATH))
        })?;
        Ok(own)
    }

    /// Gives it device memory to work in; it needs none of its own then.
    ///
    /// # Safety
    /// The memory is this device's and stays allocated until another workspace is given or the handle is dropped.
    pub(in crate::cuda) unsafe fn work_in(&mut self, address: u64, bytes: u64) -> Result<(), CudaError> {
        if self.workspace == Some((address, bytes)) {
            return Ok(());
        }
        // SAFETY: the handle lives; the caller vouches for the memory, which the allocator aligns to 512 bytes.
        let given = unsafe { answer!(sys::cublasSetWorkspace_v2(self.handle, address as *mut c_void, bytes as usize)) };
        check("cublasSetWorkspace", given)?;
        self.workspace = Some((address, bytes));
        Ok(())
    }

    /// Lets it use memory of its own again, in place of what it was given.
    pub(in crate::cuda) fn work_alone(&mut self, stream: CUstream) -> Result<(), CudaError> {
        if self.workspace.take().is_some() {
            // Setting the stream takes back a workspace.
            // SAFETY: handle and stream live.
            check("cublasSetStream", unsafe { answer!(sys::cublasSetStream_v2(self.handle, stream.cast())) })?;
        }
        Ok(())
    }

    /// Puts products on the stream, at these addresses of first operand, second operand and output.
    ///
    /// # Safety
    /// The addresses are of memory of this device that the call's sizes and strides stay within, and which stays
    /// allocated until the products are done.
    pub(in crate::cuda) unsafe fn multiply(&self, call: &ProductCall, [a, b, c]: [u64; 3]) -> Result<(), CudaError> {
        let gemm = &call.gemm;
        let (alpha, beta) = (1.0_f32, if call.adds { 1.0_f32 } else { 0.0 });
        let (alpha, beta) = ((&raw const alpha).cast::<c_void>(), (&raw const beta).cast::<c_void>());
        let [first, second] = gemm.transposed.map(operation);
        let [m, n, k] = gemm.sizes;
        let [lead_a, lead_b, lead_c] = gemm.leading;
        let [stride_a, stride_b, stride_c] = gemm.strides;
        let kind = data_type(call.dtype);
        let (a, b, c) = (a as *const c_void, b as *const c_void, c as *mut c_void);
        let (sums, choice) = (cublasComputeType_t::CUBLAS_COMPUTE_32F, choice(call.dtype));
        // SAFETY: the handle lives, factors are read before the calls return (they lie on the host), and the caller
        // vouches for the addresses.
        let (name, answer) = unsafe {
            if gemm.count == 1 {
                let answer = answer!(sys::cublasGemmEx(
                    self.handle,
                    first,
                    second,
                    m,
                    n,
                    k,
                    alpha,
                    a,
                    kind,
                    lead_a,
                    b,
                    kind,
                    lead_b,
                    beta,
                    c,
                    kind,
                    lead_c,
                    sums,
                    choice,
                ));
                ("cublasGemmEx", answer)
            } else {
                let answer = answer!(sys::cublasGemmStridedBatchedEx(
                    self.handle,
                    first,
                    second,
                    m,
                    n,
                    k,
                    alpha,
                    a,
                    kind,
                    lead_a,
                    stride_a,
                    b,
                    kind,
                    lead_b,
                    stride_b,
                    beta,
                    c,
                    kind,
                    lead_c,
                    stride_c,
                    gemm.count,
                    sums,
                    choice,
                ));
                ("cublasGemmStridedBatchedEx", answer)
            }
        };
        // The product is put into words only where it fails.
        if matches!(answer, Ok(SUCCESS)) {
            return Ok(());
        }
        check(&format!("{name} of {gemm:?}"), answer)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle is this value's own.
            let _ = unsafe { answer!(sys::cublasDestroy_v2(self.handle)) };
        }
    }
}

fn operation(transposed: bool) -> cublasOperation_t {
    if transposed { cublasOperation_t::CUBLAS_OP_T } else { cublasOperation_t::CUBLAS_OP_N }
}

fn data_type(dtype: DType) -> cudaDataType {
    match dtype {
        DType::Fp16 => cudaDataType::CUDA_R_16F,
        DType::Bf16 => cudaDataType::CUDA_R_16BF,
        DType::Fp32 => cudaDataType::CUDA_R_32F,
    }
}

/// Who chooses the algorithm: the library in either case, but with the choice that is named after tensor cores it may
/// shorten single precision to half for them.
fn choice(dtype: DType) -> cublasGemmAlgo_t {
    match dtype {
        DType::Fp16 | DType::Bf16 => cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
        DType::Fp32 => cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_precision_is_multiplied_by_the_choice_that_may_not_shorten_it() {
        let chosen = [DType::Fp16, DType::Bf16, DType::Fp32].map(|dtype| choice(dtype) as i32);
        assert_eq!(chosen, [99, 99, -1]);
    }
}
