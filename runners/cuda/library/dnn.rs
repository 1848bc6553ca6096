//! Convolutions through cuDNN: the algorithm that its heuristics put first, and the workspace that it asks for.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use cudarc::cudnn::sys::{
    self, cudnnConvolutionFwdAlgo_t, cudnnConvolutionFwdAlgoPerf_t, cudnnHandle_t, cudnnMathType_t,
};
use cudarc::driver::sys::CUstream;
use headroom_device::cuda::libraries::Library;

use crate::cuda::error::CudaError;
use crate::cuda::plan::convolution::ConvolutionShape;

use super::answer::{Answer, SUCCESS, answer, failed, first_failure};
use super::descriptors::Descriptors;
use super::refusal::{Unusable, is_refusal, verdict};

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
/// An arithmetic that only the heuristics may choose: it shortens operands that nobody asked to be shortened.
const SHORTENING: cudnnMathType_t = cudnnMathType_t::CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION;

/// A handle of cuDNN and what it decided so far. Its context must be the thread's whenever it is used and when it is
/// dropped.
pub(in crate::cuda) struct Dnn {
    handle: cudnnHandle_t,
    chosen: HashMap<ConvolutionShape, Chosen>,
}

/// How a convolution is computed.
enum Chosen {
    /// By an algorithm of the library.
    Library {
        descriptors: Descriptors,
        algorithm: cudnnConvolutionFwdAlgo_t,
        workspace_bytes: u64,
        /// The code with which the heuristics failed, so that the first algorithm that can be used was taken.
        unheard: Option<u32>,
    },
    /// Not by the library, which refuses it with this code.
    Refused(u32),
}

impl Chosen {
    fn is_unheard(&self) -> bool {
        matches!(self, Self::Library { unheard: Some(_), .. })
    }
}

fn check(call: &str, answer: Answer) -> Result<(), CudaError> {
    super::answer::check(Library::Cudnn, call, answer)
}

impl Dnn {
    /// A handle whose work goes to `stream`.
    pub(in crate::cuda) fn new(stream: CUstream) -> Result<Self, CudaError> {
        let mut own = Self { handle: std::ptr::null_mut(), chosen: HashMap::new() };
        // SAFETY: the place is valid; a context is bound.
        check("cudnnCreate", unsafe { answer!(sys::cudnnCreate(&raw mut own.handle)) })?;
        // SAFETY: the handle was just made; a stream of the driver is one of the runtime, which names the same structure.
        check("cudnnSetStream", unsafe { answer!(sys::cudnnSetStream(own.handle, stream.cast())) })?;
        Ok(own)
    }

    /// The workspace a convolution asks for, in bytes, and the algorithm's name. It is decided once for each shape, and
    /// again after [`forget_unheard`](Self::forget_unheard) where the heuristics failed. What the library refuses needs
    /// none.
    pub(in crate::cuda) fn decide(&mut self, shape: &ConvolutionShape) -> Result<(u64, String), CudaError> {
        Ok(match self.chosen(shape)? {
            Chosen::Library { algorithm, workspace_bytes, unheard, .. } => {
                let unheard = unheard.map(|code| format!(" (the heuristics failed: code {code})")).unwrap_or_default();
                (*workspace_bytes, name_of(*algorithm) + &unheard)
            }
            Chosen::Refused(code) => (0, format!("an own kernel (cuDNN: code {code})")),
        })
    }

    /// Whether the library refused a convolution that it was asked for.
    pub(in crate::cuda) fn has_refused(&self, shape: &ConvolutionShape) -> bool {
        matches!(self.chosen.get(shape), Some(Chosen::Refused(_)))
    }

    /// Whether the heuristics failed when a convolution's algorithm was chosen.
    pub(in crate::cuda) fn is_unheard(&self, shape: &ConvolutionShape) -> bool {
        self.chosen.get(shape).is_some_and(Chosen::is_unheard)
    }

    /// Forgets what was chosen while the heuristics failed: what made them fail may have passed.
    pub(in crate::cuda) fn forget_unheard(&mut self) {
        self.chosen.retain(|_, chosen| !chosen.is_unheard());
    }

    /// The workspace of a convolution as it was decided; none where it was not.
    pub(in crate::cuda) fn workspace_bytes_of(&self, shape: &ConvolutionShape) -> u64 {
        match self.chosen.get(shape) {
            Some(Chosen::Library { workspace_bytes, .. }) => *workspace_bytes,
            Some(Chosen::Refused(_)) | None => 0,
        }
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
        let Chosen::Library { descriptors, algorithm, workspace_bytes, .. } = self.chosen(shape)? else {
            return Ok(false);
        };
        let (one, zero) = (1.0_f32, 0.0_f32);
        // SAFETY: handle and descriptors live; factors are read before the call returns (they lie on the host); the
        // caller vouches for the addresses.
        let answer = unsafe {
            answer!(sys::cudnnConvolutionForward(
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
            ))
        };
        match answer? {
            SUCCESS => Ok(true),
            code if is_refusal(code) => {
                self.chosen.insert(shape.clone(), Chosen::Refused(code));
                Ok(false)
            }
            code => {
                let call = format!("cudnnConvolutionForward by {} of {shape:?}", name_of(*algorithm));
                Err(failed(Library::Cudnn, &call, code))
            }
        }
    }

    /// The first algorithm of the heuristics that can be used, as a framework without benchmarks takes it; where they
    /// have none, the first of all that can.
    fn choose(&self, shape: &ConvolutionShape) -> Result<Chosen, CudaError> {
        let descriptors = match Descriptors::of(shape)? {
            Ok(descriptors) => descriptors,
            Err(refusal) => return Ok(Chosen::Refused(refusal)),
        };
        let (listed, unheard) = match self.heuristics(&descriptors)? {
            Ok(listed) => (listed, None),
            Err(code) => (Vec::new(), Some(code).filter(|code| !is_refusal(*code))),
        };
        let listed = listed.into_iter().map(|(algorithm, math)| (algorithm, math, true));
        let others = ALL.into_iter().flat_map(|algorithm| MATHS.map(|math| (algorithm, math, false)));
        let mut answers = Vec::new();
        for (algorithm, math, is_listed) in listed.chain(others) {
            match self.workspace_bytes(&descriptors, algorithm, math)? {
                Ok(workspace_bytes) => {
                    return Ok(Chosen::Library { descriptors, algorithm, workspace_bytes, unheard });
                }
                Err(code) => answers.push(Unusable { algorithm, code, is_listed }),
            }
        }
        if let Some(code) = unheard {
            return Err(failed(Library::Cudnn, "cudnnGetConvolutionForwardAlgorithm_v7", code));
        }
        match verdict(&answers) {
            Ok(refusal) => Ok(Chosen::Refused(refusal)),
            Err(Unusable { algorithm, code, .. }) => {
                let by = name_of(algorithm);
                let call = format!("cudnnGetConvolutionForwardWorkspaceSize for {by} of {shape:?}");
                Err(failed(Library::Cudnn, &call, code))
            }
        }
    }

    /// What the heuristics list, the fastest first; or the code with which they list nothing.
    fn heuristics(
        &self,
        descriptors: &Descriptors,
    ) -> Result<Result<Vec<(cudnnConvolutionFwdAlgo_t, cudnnMathType_t)>, u32>, CudaError> {
        let Descriptors { input, weights, convolution, output } = *descriptors;
        let mut found: c_int = 0;
        let mut figures: [MaybeUninit<cudnnConvolutionFwdAlgoPerf_t>; ALGORITHMS] = [MaybeUninit::zeroed(); ALGORITHMS];
        // SAFETY: handle and descriptors live; there is room for as many figures as is said.
        let answer = unsafe {
            let (most, into) = (ALGORITHMS as c_int, figures.as_mut_ptr().cast());
            let found = &raw mut found;
            answer!(sys::cudnnGetConvolutionForwardAlgorithm_v7(
                self.handle,
                input,
                weights,
                convolution,
                output,
                most,
                found,
                into,
            ))
        };
        let code = answer?;
        if code != SUCCESS {
            return Ok(Err(code));
        }
        let count = usize::try_from(found).unwrap_or(0);
        Ok(Ok(figures.iter().take(count).filter_map(usable).collect()))
    }

    /// What an algorithm asks for in some arithmetic, which the descriptor is left in; or the code of the call that did not
    /// succeed.
    fn workspace_bytes(
        &self,
        descriptors: &Descriptors,
        algorithm: cudnnConvolutionFwdAlgo_t,
        math: cudnnMathType_t,
    ) -> Result<Result<u64, u32>, CudaError> {
        let Descriptors { input, weights, convolution, output } = *descriptors;
        let mut bytes = 0;
        // SAFETY: handle and descriptors live, and the place is valid.
        let answers = unsafe {
            let math = answer!(sys::cudnnSetConvolutionMathType(convolution, math));
            let place = &raw mut bytes;
            let sized = answer!(sys::cudnnGetConvolutionForwardWorkspaceSize(
                self.handle,
                input,
                weights,
                convolution,
                output,
                algorithm,
                place,
            ));
            [math, sized]
        };
        Ok(first_failure(answers)?.map_or(Ok(bytes as u64), Err))
    }
}

/// The algorithm and arithmetic of a figure that the library wrote, where it says that they can be used and this program
/// knows both.
fn usable(figure: &MaybeUninit<cudnnConvolutionFwdAlgoPerf_t>) -> Option<(cudnnConvolutionFwdAlgo_t, cudnnMathType_t)> {
    let figure = figure.as_ptr();
    // SAFETY: the figure's memory was zeroed and then written by the library. Its enums are read as the numbers they lie
    // there as, since a newer library may know others than these types do.
    let [status, algorithm, math] = unsafe {
        [
            (&raw const (*figure).status).cast::<u32>(),
            (&raw const (*figure).algo).cast(),
            (&raw const (*figure).mathType).cast(),
        ]
        .map(|number: *const u32| number.read())
    };
    let algorithm = ALL.into_iter().find(|known| *known as u32 == algorithm)?;
    let math = MATHS.into_iter().chain([SHORTENING]).find(|known| *known as u32 == math)?;
    (status == SUCCESS).then_some((algorithm, math))
}

impl Drop for Dnn {
    fn drop(&mut self) {
        self.chosen.clear();
        if !self.handle.is_null() {
            // SAFETY: the handle is this value's own.
            let _ = unsafe { answer!(sys::cudnnDestroy(self.handle)) };
        }
    }
}

/// The library's name without what all have in common: "IMPLICIT_PRECOMP_GEMM".
fn name_of(algorithm: cudnnConvolutionFwdAlgo_t) -> String {
    let name = format!("{algorithm:?}");
    name.strip_prefix("CUDNN_CONVOLUTION_FWD_ALGO_").unwrap_or(&name).to_owned()
}

#[cfg(test)]
mod tests {
    use headroom_base::{DType, MemoryLayout};

    use super::*;

    fn shape(channels: i32) -> ConvolutionShape {
        ConvolutionShape {
            dtype: DType::Fp16,
            layout: MemoryLayout::Contiguous,
            input: vec![1, channels, 64, 64],
            weights: vec![8, channels, 3, 3],
            output: vec![1, 8, 64, 64],
            stride: vec![1, 1],
            padding: vec![1, 1],
        }
    }

    fn chosen(unheard: Option<u32>) -> Chosen {
        let (none, algorithm) = (std::ptr::null_mut, ALL[0]);
        let descriptors = Descriptors {
            input: none(),
            weights: std::ptr::null_mut(),
            convolution: std::ptr::null_mut(),
            output: none(),
        };
        Chosen::Library { descriptors, algorithm, workspace_bytes: 7, unheard }
    }

    #[test]
    fn a_convolution_of_more_elements_than_the_library_can_be_told_of_is_refused_and_needs_no_workspace() {
        let vast = |batch, layout| ConvolutionShape {
            layout,
            input: vec![batch, 256, 3072, 3072],
            weights: vec![128, 256, 3, 3],
            output: vec![batch, 128, 3072, 3072],
            ..shape(256)
        };
        for (batch, layout) in [1, 2].into_iter().flat_map(|batch| MemoryLayout::ALL.map(|layout| (batch, layout))) {
            let (vast, mut dnn) = (vast(batch, layout), Dnn { handle: std::ptr::null_mut(), chosen: HashMap::new() });
            let (workspace_bytes, by) = dnn.decide(&vast).unwrap();
            assert_eq!((workspace_bytes, by.as_str()), (0, "an own kernel (cuDNN: code 3000)"));
            assert!(dnn.has_refused(&vast) && !dnn.is_unheard(&vast));
            // SAFETY: what is refused is not computed, so no address is used.
            assert_eq!(unsafe { dnn.convolve(&vast, [0; 3], 0) }, Ok(false));
        }
    }

    #[test]
    fn what_was_chosen_while_the_heuristics_failed_is_forgotten_and_nothing_else() {
        let [unheard, heard, refused] = [3, 4, 5].map(shape);
        let chosen = [
            (unheard.clone(), chosen(Some(4000))),
            (heard.clone(), chosen(None)),
            (refused.clone(), Chosen::Refused(3000)),
        ];
        let mut dnn = Dnn { handle: std::ptr::null_mut(), chosen: HashMap::from(chosen) };
        assert_eq!([&unheard, &heard, &refused].map(|shape| dnn.is_unheard(shape)), [true, false, false]);
        assert_eq!([&unheard, &heard, &refused].map(|shape| dnn.workspace_bytes_of(shape)), [7, 7, 0]);
        dnn.forget_unheard();
        assert!(!dnn.chosen.contains_key(&unheard), "the heuristics are not asked again");
        assert!(dnn.chosen.contains_key(&heard) && dnn.has_refused(&refused));
    }
}
