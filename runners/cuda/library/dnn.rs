//! Convolutions through cuDNN: the algorithm that its heuristics put first, and the workspace that it asks for.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use cudarc::cudnn::sys::{
    self, cudnnConvolutionDescriptor_t, cudnnConvolutionFwdAlgo_t, cudnnConvolutionFwdAlgoPerf_t,
    cudnnConvolutionMode_t, cudnnDataType_t, cudnnFilterDescriptor_t, cudnnHandle_t, cudnnMathType_t, cudnnStatus_t,
    cudnnTensorDescriptor_t, cudnnTensorFormat_t,
};
use cudarc::driver::sys::CUstream;
use headroom_base::{DType, MemoryLayout};

use crate::cuda::error::CudaError;
use crate::cuda::plan::convolution::ConvolutionShape;

/// Algorithms that cuDNN is asked for at most; it has eight.
const ALGORITHMS: usize = 10;

/// Every algorithm, for where the heuristics have nothing to say.
const ALL: [cudnnConvolutionFwdAlgo_t; 7] = [
    cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
    cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
    cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
    cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED,
    cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD,
    cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING,
    cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_FFT,
];
/// Arithmetics to try them in, tensor cores first.
const MATHS: [cudnnMathType_t; 3] =
    [cudnnMathType_t::CUDNN_TENSOR_OP_MATH, cudnnMathType_t::CUDNN_DEFAULT_MATH, cudnnMathType_t::CUDNN_FMA_MATH];

/// A handle of cuDNN and what it decided so far. Its context must be the thread's whenever it is used and when it is
/// dropped.
pub(in crate::cuda) struct Dnn {
    handle: cudnnHandle_t,
    chosen: HashMap<ConvolutionShape, Chosen>,
}

/// How a convolution is computed.
enum Chosen {
    /// By an algorithm of the library.
    Library { descriptors: Descriptors, algorithm: cudnnConvolutionFwdAlgo_t, workspace_bytes: u64 },
    /// Not by the library, which refuses it with this answer.
    Refused(cudnnStatus_t),
}

fn check(call: &str, answer: cudnnStatus_t) -> Result<(), CudaError> {
    if answer == cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    Err(CudaError::Call { library: "cuDNN", call: call.to_owned(), code: answer as i64, name: format!("{answer:?}") })
}

impl Dnn {
    /// A handle whose work goes to `stream`.
    pub(in crate::cuda) fn new(stream: CUstream) -> Result<Self, CudaError> {
        let mut own = Self { handle: std::ptr::null_mut(), chosen: HashMap::new() };
        // SAFETY: the place is valid; a context is bound.
        check("cudnnCreate", unsafe { sys::cudnnCreate(&raw mut own.handle) })?;
        // SAFETY: the handle was just made; a stream of the driver is one of the runtime, which names the same structure.
        check("cudnnSetStream", unsafe { sys::cudnnSetStream(own.handle, stream.cast()) })?;
        Ok(own)
    }

    /// The workspace a convolution asks for, in bytes, and the algorithm's name. It is decided once for each shape. What
    /// the library refuses needs none.
    pub(in crate::cuda) fn decide(&mut self, shape: &ConvolutionShape) -> Result<(u64, String), CudaError> {
        Ok(match self.chosen(shape)? {
            Chosen::Library { algorithm, workspace_bytes, .. } => (*workspace_bytes, name_of(*algorithm)),
            Chosen::Refused(answer) => (0, format!("an own kernel (cuDNN: {answer:?})")),
        })
    }

    fn chosen(&mut self, shape: &ConvolutionShape) -> Result<&Chosen, CudaError> {
        if !self.chosen.contains_key(shape) {
            let chosen = self.choose(shape)?;
            self.chosen.insert(shape.clone(), chosen);
        }
        Ok(&self.chosen[shape])
    }

    /// Puts a convolution on the stream: input, weights and output, and a workspace of the size it asks for. Whether it
    /// did: a convolution that is refused only now is refused from now on, and nothing was computed.
    ///
    /// # Safety
    /// The addresses are of memory of this device as large as the shape and the workspace say, and stay allocated until
    /// it is done.
    pub(in crate::cuda) unsafe fn convolve(
        &mut self,
        shape: &ConvolutionShape,
        [input, weights, output]: [u64; 3],
        workspace: u64,
    ) -> Result<bool, CudaError> {
        let handle = self.handle;
        let Chosen::Library { descriptors, algorithm, workspace_bytes } = self.chosen(shape)? else {
            return Ok(false);
        };
        let (one, zero) = (1.0_f32, 0.0_f32);
        // SAFETY: handle and descriptors live; factors are read before the call returns (they lie on the host); the
        // caller vouches for the addresses.
        let answer = unsafe {
            sys::cudnnConvolutionForward(
                handle,
                (&raw const one).cast::<c_void>(),
                descriptors.input,
                input as *const c_void,
                descriptors.weights,
                weights as *const c_void,
                descriptors.convolution,
                *algorithm,
                workspace as *mut c_void,
                *workspace_bytes as usize,
                (&raw const zero).cast::<c_void>(),
                descriptors.output,
                output as *mut c_void,
            )
        };
        if answer == cudnnStatus_t::CUDNN_STATUS_SUCCESS {
            return Ok(true);
        }
        if refused(answer) {
            self.chosen.insert(shape.clone(), Chosen::Refused(answer));
            return Ok(false);
        }
        let by = name_of(*algorithm);
        check(&format!("cudnnConvolutionForward by {by} of {shape:?}"), answer).map(|()| true)
    }

    /// The first algorithm of the heuristics that can be used, as a framework without benchmarks takes it; where they
    /// have none, the first of all that can.
    fn choose(&self, shape: &ConvolutionShape) -> Result<Chosen, CudaError> {
        let descriptors = match Descriptors::of(shape)? {
            Ok(descriptors) => descriptors,
            Err(refusal) => return Ok(Chosen::Refused(refusal)),
        };
        let listed = self.heuristics(&descriptors);
        let others = ALL.into_iter().flat_map(|algorithm| MATHS.map(|math| (algorithm, math)));
        let mut refusal = cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED;
        for (algorithm, math) in listed.into_iter().chain(others) {
            match self.workspace_bytes(&descriptors, algorithm, math) {
                Ok(workspace_bytes) => return Ok(Chosen::Library { descriptors, algorithm, workspace_bytes }),
                Err(answer) => refusal = answer,
            }
        }
        if refused(refusal) {
            return Ok(Chosen::Refused(refusal));
        }
        check(&format!("a convolution, of which no algorithm can be used: {shape:?}"), refusal)?;
        Ok(Chosen::Refused(refusal))
    }

    /// What the heuristics list, the fastest first.
    fn heuristics(&self, descriptors: &Descriptors) -> Vec<(cudnnConvolutionFwdAlgo_t, cudnnMathType_t)> {
        let Descriptors { input, weights, convolution, output } = *descriptors;
        let mut found: c_int = 0;
        let mut figures: [MaybeUninit<cudnnConvolutionFwdAlgoPerf_t>; ALGORITHMS] = [MaybeUninit::zeroed(); ALGORITHMS];
        // SAFETY: handle and descriptors live; there is room for as many figures as is said.
        let answer = unsafe {
            let (most, into) = (ALGORITHMS as c_int, figures.as_mut_ptr().cast());
            let found = &raw mut found;
            sys::cudnnGetConvolutionForwardAlgorithm_v7(
                self.handle,
                input,
                weights,
                convolution,
                output,
                most,
                found,
                into,
            )
        };
        if answer != cudnnStatus_t::CUDNN_STATUS_SUCCESS {
            return Vec::new();
        }
        let count = usize::try_from(found).unwrap_or(0);
        // SAFETY: the library wrote this many figures.
        let figures = figures.iter().take(count).map(|figure| unsafe { figure.assume_init() });
        let usable = figures.filter(|figure| figure.status == cudnnStatus_t::CUDNN_STATUS_SUCCESS);
        usable.map(|figure| (figure.algo, figure.mathType)).collect()
    }

    /// What an algorithm asks for in some arithmetic, which the descriptor is left in.
    fn workspace_bytes(
        &self,
        descriptors: &Descriptors,
        algorithm: cudnnConvolutionFwdAlgo_t,
        math: cudnnMathType_t,
    ) -> Result<u64, cudnnStatus_t> {
        let Descriptors { input, weights, convolution, output } = *descriptors;
        let mut bytes = 0;
        // SAFETY: handle and descriptors live, and the place is valid.
        let answers = unsafe {
            let math = sys::cudnnSetConvolutionMathType(convolution, math);
            let place = &raw mut bytes;
            let sized = sys::cudnnGetConvolutionForwardWorkspaceSize(
                self.handle,
                input,
                weights,
                convolution,
                output,
                algorithm,
                place,
            );
            [math, sized]
        };
        let failed = answers.into_iter().find(|answer| *answer != cudnnStatus_t::CUDNN_STATUS_SUCCESS);
        failed.map_or(Ok(bytes as u64), Err)
    }
}

/// Whether an answer says that the library has nothing for what was asked, and nothing else is wrong.
fn refused(answer: cudnnStatus_t) -> bool {
    let code = answer as i64;
    (2000..4000).contains(&code)
}

impl Drop for Dnn {
    fn drop(&mut self) {
        self.chosen.clear();
        if !self.handle.is_null() {
            // SAFETY: the handle is this value's own.
            let _ = unsafe { sys::cudnnDestroy(self.handle) };
        }
    }
}

/// A convolution as the library is told of it.
struct Descriptors {
    input: cudnnTensorDescriptor_t,
    weights: cudnnFilterDescriptor_t,
    convolution: cudnnConvolutionDescriptor_t,
    output: cudnnTensorDescriptor_t,
}

impl Descriptors {
    /// The descriptors, or the library's answer where it cannot be told of such a convolution.
    fn of(shape: &ConvolutionShape) -> Result<Result<Self, cudnnStatus_t>, CudaError> {
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
        let (input_strides, output_strides) = (shape.strides(&shape.input)?, shape.strides(&shape.output)?);
        let (mode, sums) = (cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION, cudnnDataType_t::CUDNN_DATA_FLOAT);
        // SAFETY: places are valid, descriptors are used after they were made, and every list has as many numbers as is
        // said: sizes and strides one for each dimension, strides, padding and dilation one for each of space.
        let told = unsafe {
            check("cudnnCreateTensorDescriptor", sys::cudnnCreateTensorDescriptor(&raw mut own.input))?;
            check("cudnnCreateTensorDescriptor", sys::cudnnCreateTensorDescriptor(&raw mut own.output))?;
            check("cudnnCreateFilterDescriptor", sys::cudnnCreateFilterDescriptor(&raw mut own.weights))?;
            check("cudnnCreateConvolutionDescriptor", sys::cudnnCreateConvolutionDescriptor(&raw mut own.convolution))?;
            let (sizes, strides) = (shape.input.as_ptr(), input_strides.as_ptr());
            let input = sys::cudnnSetTensorNdDescriptor(own.input, kind, rank, sizes, strides);
            let (sizes, strides) = (shape.output.as_ptr(), output_strides.as_ptr());
            let output = sys::cudnnSetTensorNdDescriptor(own.output, kind, rank, sizes, strides);
            let weights = sys::cudnnSetFilterNdDescriptor(own.weights, kind, format, rank, shape.weights.as_ptr());
            let (padding, stride) = (shape.padding.as_ptr(), shape.stride.as_ptr());
            let (space, dilation) = (space as c_int, dilation.as_ptr());
            let convolution =
                sys::cudnnSetConvolutionNdDescriptor(own.convolution, space, padding, stride, dilation, mode, sums);
            check("cudnnSetConvolutionMathType", sys::cudnnSetConvolutionMathType(own.convolution, math))?;
            [input, output, weights, convolution]
        };
        let failed = told.into_iter().find(|answer| *answer != cudnnStatus_t::CUDNN_STATUS_SUCCESS);
        Ok(failed.map_or(Ok(own), Err))
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: descriptors are this value's own, and null where they were not made.
        unsafe {
            if !self.input.is_null() {
                let _ = sys::cudnnDestroyTensorDescriptor(self.input);
            }
            if !self.output.is_null() {
                let _ = sys::cudnnDestroyTensorDescriptor(self.output);
            }
            if !self.weights.is_null() {
                let _ = sys::cudnnDestroyFilterDescriptor(self.weights);
            }
            if !self.convolution.is_null() {
                let _ = sys::cudnnDestroyConvolutionDescriptor(self.convolution);
            }
        }
    }
}

/// The library's name without what all have in common: "IMPLICIT_PRECOMP_GEMM".
fn name_of(algorithm: cudnnConvolutionFwdAlgo_t) -> String {
    let name = format!("{algorithm:?}");
    name.strip_prefix("CUDNN_CONVOLUTION_FWD_ALGO_").unwrap_or(&name).to_owned()
}
