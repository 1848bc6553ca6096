//! What the GPU's libraries allocate beside inputs and outputs, as documented rules per GPU architecture.

use headroom_base::{DType, MIB, MemoryLayout};

use super::execution::Library;

/// Bytes that cuDNN adds to the copies it transposes, for their alignment.
const ALIGNMENT_BYTES: u64 = 147;
/// What a 1×1 convolution asks for.
const POINTWISE_BYTES: u64 = 272;
/// Tensor cores take channels in groups of this many; cuDNN pads to it.
const CHANNEL_GROUP: u64 = 8;

/// The rules of one GPU architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum WorkspaceModel {
    /// Compute capability 9.0 (H100, H200), cuDNN 9 under PyTorch 2.11; read off recorded allocator traces.
    Hopper,
}

/// One convolution call, as the workspace rule sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvolutionCall {
    /// Element type.
    pub dtype: DType,
    /// Layout in which the library is given its operands.
    pub layout: MemoryLayout,
    /// Images at once.
    pub batch: u64,
    /// Channels in.
    pub input_channels: u64,
    /// Channels out.
    pub output_channels: u64,
    /// Spatial (and temporal) sizes of the input.
    pub input: Vec<u64>,
    /// Spatial (and temporal) sizes of the output.
    pub output: Vec<u64>,
    /// Sizes of the kernel.
    pub kernel: Vec<u64>,
}

impl ConvolutionCall {
    fn is_pointwise(&self) -> bool {
        self.kernel.iter().all(|side| *side == 1)
    }

    /// Bytes of input, output and weights with channels padded for tensor cores.
    fn padded_bytes(&self) -> u64 {
        let bytes = self.dtype.element_bytes();
        let inputs = self.input_channels.next_multiple_of(CHANNEL_GROUP);
        let outputs = self.output_channels.next_multiple_of(CHANNEL_GROUP);
        let input = self.batch * inputs * self.input.iter().product::<u64>();
        let output = self.batch * outputs * self.output.iter().product::<u64>();
        let weights = inputs * outputs * self.kernel.iter().product::<u64>();
        (input + output + weights) * bytes
    }
}

impl WorkspaceModel {
    /// Bytes of a library's own workspace.
    pub const fn persistent_bytes(self, library: Library) -> u64 {
        match (self, library) {
            (Self::Hopper, Library::Cublas) => 32 * MIB,
            (Self::Hopper, Library::CublasLt) => MIB,
        }
    }

    /// Bytes a convolution asks for beside its operands.
    ///
    /// Half precision, row-major: the library's kernels want channels innermost, so it transposes input, weights and
    /// output, with channels padded to 8. With fewer than 8 input channels another kernel runs that needs nothing.
    pub fn convolution_bytes(self, call: &ConvolutionCall) -> u64 {
        match self {
            Self::Hopper => hopper(call),
        }
    }
}

fn hopper(call: &ConvolutionCall) -> u64 {
    if call.layout == MemoryLayout::ChannelsLast {
        return 0;
    }
    if call.input_channels < CHANNEL_GROUP {
        return 0;
    }
    if call.is_pointwise() {
        return POINTWISE_BYTES;
    }
    call.padded_bytes() + ALIGNMENT_BYTES
}
