//! A convolution in cuDNN's descriptors.

use std::ffi::c_int;

use cudarc::cudnn::sys::{
    self, cudnnConvolutionDescriptor_t, cudnnConvolutionMode_t, cudnnDataType_t, cudnnFilterDescriptor_t,
    cudnnMathType_t, cudnnTensorDescriptor_t, cudnnTensorFormat_t,
};
use headroom_base::{DType, MemoryLayout};
use headroom_device::cuda::libraries::Library;

use crate::cuda::error::CudaError;
use crate::cuda::plan::convolution::ConvolutionShape;

use super::answer::{Answer, answer, failed, first_failure};
use super::refusal::{NOT_SUPPORTED, is_refusal};

fn check(call: &str, answer: Answer) -> Result<(), CudaError> {
    super::answer::check(Library::Cudnn, call, answer)
}

/// A convolution as the library is told of it.
pub(super) struct Descriptors {
    pub(super) input: cudnnTensorDescriptor_t,
    pub(super) weights: cudnnFilterDescriptor_t,
    pub(super) convolution: cudnnConvolutionDescriptor_t,
    pub(super) output: cudnnTensorDescriptor_t,
}

impl Descriptors {
    /// The descriptors, or the code by which the library refuses to be told of such a convolution. What its numbers cannot
    /// say counts as refused.
    pub(super) fn of(shape: &ConvolutionShape) -> Result<Result<Self, u32>, CudaError> {
        let strides = [&shape.input, &shape.output].map(|sizes| told(&shape.strides(sizes)));
        let [Some(input_strides), Some(output_strides)] = strides else { return Ok(Err(NOT_SUPPORTED)) };
        let nothing = std::ptr::null_mut;
        let mut own = Self {
            input: nothing(),
            weights: std::ptr::null_mut(),
            convolution: std::ptr::null_mut(),
            output: nothing(),
        };
        let kind = match shape.dtype {
            DType::Fp16 => cudnnDataType_t::CUDNN_DATA_HALF,
            DType::Bf16 => cudnnDataType_t::CUDNN_DATA_BFLOAT16,
            DType::Fp32 => cudnnDataType_t::CUDNN_DATA_FLOAT,
        };
        let format = match shape.layout {
            MemoryLayout::Contiguous => cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
            MemoryLayout::ChannelsLast => cudnnTensorFormat_t::CUDNN_TENSOR_NHWC,
        };
        // In single precision this lets tensor cores shorten operands, which PyTorch lets convolutions do by default.
        let math = match shape.dtype {
            DType::Fp16 | DType::Bf16 => cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
            DType::Fp32 => cudnnMathType_t::CUDNN_DEFAULT_MATH,
        };
        let space = shape.stride.len();
        let (rank, dilation) = ((space + 2) as c_int, vec![1; space]);
        let (mode, sums) = (cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION, cudnnDataType_t::CUDNN_DATA_FLOAT);
        // SAFETY: places are valid, descriptors are used after they were made, and every list has as many numbers as is
        // said: sizes and strides one for each dimension, strides, padding and dilation one for each of space.
        let answers = unsafe {
            check("cudnnCreateTensorDescriptor", answer!(sys::cudnnCreateTensorDescriptor(&raw mut own.input)))?;
            check("cudnnCreateTensorDescriptor", answer!(sys::cudnnCreateTensorDescriptor(&raw mut own.output)))?;
            check("cudnnCreateFilterDescriptor", answer!(sys::cudnnCreateFilterDescriptor(&raw mut own.weights)))?;
            check(
                "cudnnCreateConvolutionDescriptor",
                answer!(sys::cudnnCreateConvolutionDescriptor(&raw mut own.convolution)),
            )?;
            let (sizes, strides) = (shape.input.as_ptr(), input_strides.as_ptr());
            let input = answer!(sys::cudnnSetTensorNdDescriptor(own.input, kind, rank, sizes, strides));
            let (sizes, strides) = (shape.output.as_ptr(), output_strides.as_ptr());
            let output = answer!(sys::cudnnSetTensorNdDescriptor(own.output, kind, rank, sizes, strides));
            let weights =
                answer!(sys::cudnnSetFilterNdDescriptor(own.weights, kind, format, rank, shape.weights.as_ptr()));
            let (padding, stride) = (shape.padding.as_ptr(), shape.stride.as_ptr());
            let (space, dilation) = (space as c_int, dilation.as_ptr());
            let convolution = answer!(sys::cudnnSetConvolutionNdDescriptor(
                own.convolution,
                space,
                padding,
                stride,
                dilation,
                mode,
                sums
            ));
            check("cudnnSetConvolutionMathType", answer!(sys::cudnnSetConvolutionMathType(own.convolution, math)))?;
            [input, output, weights, convolution]
        };
        match first_failure(answers)? {
            None => Ok(Ok(own)),
            Some(code) if is_refusal(code) => Ok(Err(code)),
            Some(code) => Err(failed(Library::Cudnn, &format!("the descriptors of {shape:?}"), code)),
        }
    }
}

/// Strides in the library's numbers, where those reach.
fn told(strides: &[u64]) -> Option<Vec<c_int>> {
    strides.iter().map(|&stride| c_int::try_from(stride).ok()).collect()
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: descriptors are this value's own, and null where they were not made.
        unsafe {
            if !self.input.is_null() {
                let _ = answer!(sys::cudnnDestroyTensorDescriptor(self.input));
            }
            if !self.output.is_null() {
                let _ = answer!(sys::cudnnDestroyTensorDescriptor(self.output));
            }
            if !self.weights.is_null() {
                let _ = answer!(sys::cudnnDestroyFilterDescriptor(self.weights));
            }
            if !self.convolution.is_null() {
                let _ = answer!(sys::cudnnDestroyConvolutionDescriptor(self.convolution));
            }
        }
    }
}
