//! What the GPU's libraries allocate beside inputs and outputs, as documented rules per GPU architecture.

use headroom_base::{DType, KIB, MIB, MemoryLayout};

use super::execution::Library;
use super::partial_sums::partial_sums;

/// What cuDNN asks for with a copy of any operand.
const COPY_BYTES: u64 = 16;
/// What a kernel that wants channels innermost asks for itself.
const KERNEL_BYTES: u64 = 131;
/// Input channels below which a kernel runs that needs no copies in half precision. This threshold and those below are
/// fitted to single calls that were recorded on an H200.
const FEW_CHANNELS: u64 = 8;
/// Output positions above which, and output channels from which, the kernel that asks for something runs.
const KERNEL_POSITIONS: u64 = 1 << 14;
const KERNEL_CHANNELS: u64 = 32;
/// Output positions from which a 1×1 convolution in two and in three dimensions runs on a kernel that asks for anything;
/// in three dimensions it does so for few channels alone.
const POINTWISE_POSITIONS: [u64; 2] = [1 << 17, 9600];
const POINTWISE_CHANNELS: u64 = 32;
/// What that kernel asks for, in half and single precision.
const POINTWISE_BYTES: [u64; 2] = [272, 400];
/// Bytes of channels that tensor cores take at once.
const CHANNEL_GROUP_BYTES: u64 = 16;

/// The rules of one GPU architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkspaceModel {
    /// Compute capability 9.0 (H100, H200), cuDNN 9 under PyTorch 2.11: the form of its rules is read off recorded
    /// allocator traces, and their thresholds are fitted to single calls that were recorded on an H200. They explain
    /// those calls as far as [`convolution`](Self::convolution) says, and are no documented behaviour of the library.
    Hopper,
    /// Compute capability 8.9 (RTX 4090): as Hopper in half precision; in single precision only input and weights are
    /// copied, never the output. Inferred from published peaks of Stable Diffusion's autoencoder, with no trace: allocated
    /// peaks agree to 0.5 %, reserved ones in single precision are up to 37 % over. Published peaks of FLUX.1's
    /// autoencoder do not follow it in single precision: for encodes these rules give 19 % too little, for decodes 7 %
    /// too much.
    Ada,
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

/// What a convolution's workspace is made of, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub struct ConvolutionTerms {
    /// A copy of the input, channels padded.
    pub input: u64,
    /// Room for the output before it is copied to its place, channels padded.
    pub output: u64,
    /// A copy of the weights, channels padded.
    pub weights: u64,
    /// Partial sums of tiles that are split between multiprocessors.
    pub partial: u64,
    /// What the kernels ask for themselves, whatever the size.
    pub fixed: u64,
}

impl ConvolutionTerms {
    /// The whole workspace.
    pub const fn total(self) -> u64 {
        self.input + self.output + self.weights + self.partial + self.fixed
    }
}

impl ConvolutionCall {
    fn is_pointwise(&self) -> bool {
        self.kernel.iter().all(|side| *side == 1)
    }

    /// Outputs of one channel, all images together.
    pub(super) fn positions(&self) -> u64 {
        self.batch * self.output.iter().product::<u64>()
    }

    fn few_channels(&self) -> bool {
        self.input_channels < FEW_CHANNELS
    }

    /// Channels to which operands are padded; for fp16 in three dimensions there are kernels that take any number.
    fn channel_group(&self) -> u64 {
        let any = self.dtype == DType::Fp16 && self.kernel.len() == 3;
        if any { 1 } else { CHANNEL_GROUP_BYTES / self.dtype.element_bytes() }
    }

    /// Copies of all operands.
    fn copies(&self) -> ConvolutionTerms {
        let bytes = self.dtype.element_bytes();
        let inputs = self.input_channels.next_multiple_of(self.channel_group());
        let outputs = self.output_channels.next_multiple_of(self.channel_group());
        ConvolutionTerms {
            input: self.batch * inputs * self.input.iter().product::<u64>() * bytes,
            output: self.positions() * outputs * bytes,
            weights: inputs * outputs * self.kernel.iter().product::<u64>() * bytes,
            partial: 0,
            fixed: COPY_BYTES,
        }
    }
}

impl WorkspaceModel {
    /// The rules for a compute capability, where there are any.
    pub const fn of_compute_capability(major: u32, minor: u32) -> Option<Self> {
        match (major, minor) {
            (9, 0) => Some(Self::Hopper),
            (8, 9) => Some(Self::Ada),
            _ => None,
        }
    }

    /// Bytes of a library's own workspace: PyTorch's choice, 32 MiB on Hopper and `:4096:2:16:8` in cuBLAS's own words
    /// elsewhere.
    pub const fn persistent_bytes(self, library: Library) -> u64 {
        match (self, library) {
            (Self::Hopper, Library::Cublas) => 32 * MIB,
            (Self::Ada, Library::Cublas) => 2 * 4096 * KIB + 8 * 16 * KIB,
            (_, Library::CublasLt) => MIB,
        }
    }

    /// Whether PyTorch prefers cuDNN's attention to flash attention.
    pub(super) const fn prefers_cudnn_attention(self) -> bool {
        matches!(self, Self::Hopper)
    }

    /// What a convolution asks for beside its operands; the bias is added in place.
    ///
    /// The kernels want channels innermost. Given row-major operands the library therefore copies input, weights and
    /// output, with channels padded to what tensor cores take at once; given channels innermost it copies only those
    /// whose channels need padding. The first layers of models have so few input channels that another kernel runs,
    /// which needs nothing in half precision and copies of input and weights in single. A 1×1 convolution needs no
    /// copies. On Hopper, some kinds of calls in half precision keep partial sums.
    ///
    /// The rules' form is read off traces. The thresholds at which one gives way to another (channels, output positions,
    /// steps of a sum) are fitted to recorded calls: another card, or a size between two recorded ones, may switch
    /// elsewhere. Of 9,676 recorded calls 70 % are given exactly and 89 % to within 2 % of the operands and workspace
    /// together; 3 % of the bytes are missed. Not modelled, the largest first:
    /// - in single precision, the output of many calls with up to 16 channels in is not copied, and is counted here: too
    ///   much, by as much as the output;
    /// - in half precision with fewer than 8 channels in, two images at once are copied where one is not: too little, by
    ///   as much as the copies. The first layers of decoders are such, and their peak is elsewhere;
    /// - 1×1 kernels in single precision over two images of many channels (up to 488 MiB were recorded);
    /// - partial sums of most calls in two dimensions and of all in single precision (up to 32 MiB), which follow
    ///   heuristics that no simple rule was found for;
    /// - what a benchmark's search tries.
    pub fn convolution(self, call: &ConvolutionCall) -> ConvolutionTerms {
        if call.is_pointwise() {
            return ConvolutionTerms { fixed: pointwise(call), ..ConvolutionTerms::default() };
        }
        match call.layout {
            MemoryLayout::ChannelsLast => channels_last(call),
            MemoryLayout::Contiguous => self.contiguous(call),
        }
    }

    fn contiguous(self, call: &ConvolutionCall) -> ConvolutionTerms {
        let half = call.dtype != DType::Fp32;
        let copies = call.copies();
        if call.few_channels() && half && call.channel_group() > 1 {
            return ConvolutionTerms::default();
        }
        if !half && (call.few_channels() || self == Self::Ada) {
            return ConvolutionTerms { output: 0, ..copies };
        }
        let partial = if self == Self::Hopper { partial_sums(call) } else { 0 };
        let kernel = if partial > 0 { KERNEL_BYTES } else { kernel_bytes(call) };
        ConvolutionTerms { partial, fixed: COPY_BYTES + kernel, ..copies }
    }
}

fn channels_last(call: &ConvolutionCall) -> ConvolutionTerms {
    if call.few_channels() && call.dtype != DType::Fp32 {
        return ConvolutionTerms::default();
    }
    if call.output_channels.is_multiple_of(call.channel_group()) {
        return ConvolutionTerms { fixed: kernel_bytes(call), ..ConvolutionTerms::default() };
    }
    ConvolutionTerms { input: 0, ..call.copies() }
}

fn kernel_bytes(call: &ConvolutionCall) -> u64 {
    let large = call.positions() > KERNEL_POSITIONS && call.output_channels >= KERNEL_CHANNELS;
    if large { KERNEL_BYTES } else { 0 }
}

fn pointwise(call: &ConvolutionCall) -> u64 {
    let large = match call.kernel.len() {
        3 => call.positions() >= POINTWISE_POSITIONS[1] && call.input_channels <= POINTWISE_CHANNELS,
        _ => call.positions() >= POINTWISE_POSITIONS[0] && !call.few_channels(),
    };
    if large { POINTWISE_BYTES[usize::from(call.dtype == DType::Fp32)] } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(dtype: DType, channels: [u64; 2], side: u64, kernel: u64) -> ConvolutionCall {
        ConvolutionCall {
            dtype,
            layout: MemoryLayout::Contiguous,
            batch: 1,
            input_channels: channels[0],
            output_channels: channels[1],
            input: vec![side; 2],
            output: vec![side; 2],
            kernel: vec![kernel; 2],
        }
    }

    #[test]
    fn a_workspace_is_the_sum_of_the_copies_it_transposes() {
        for (channels, side) in [([128, 128], 1024), ([512, 512], 128), ([512, 256], 512), ([128, 3], 1024)] {
            let call = call(DType::Fp16, channels, side, 3);
            let terms = WorkspaceModel::Hopper.convolution(&call);
            let padded = channels.map(|count| count.next_multiple_of(8));
            assert_eq!(terms.input, padded[0] * side * side * 2);
            assert_eq!(terms.output, padded[1] * side * side * 2);
            assert_eq!(terms.weights, padded[0] * padded[1] * 9 * 2);
            assert!(terms.total() - terms.input - terms.output - terms.weights < 512);
        }
    }

    #[test]
    fn copies_grow_with_what_they_copy_and_nothing_else_does() {
        let small = WorkspaceModel::Hopper.convolution(&call(DType::Bf16, [64, 64], 256, 3));
        let wide = WorkspaceModel::Hopper.convolution(&call(DType::Bf16, [128, 64], 256, 3));
        let large = WorkspaceModel::Hopper.convolution(&call(DType::Bf16, [64, 64], 512, 3));
        let single = WorkspaceModel::Hopper.convolution(&call(DType::Fp32, [64, 64], 256, 3));
        assert_eq!([wide.input, wide.output, wide.weights], [2 * small.input, small.output, 2 * small.weights]);
        assert_eq!([large.input, large.output, large.weights], [4 * small.input, 4 * small.output, small.weights]);
        assert_eq!(
            [single.input, single.output, single.weights],
            [small.input, small.output, small.weights].map(|b| 2 * b)
        );
        assert_eq!([wide.fixed, large.fixed, single.fixed], [small.fixed; 3]);
    }

    #[test]
    fn channels_innermost_need_no_copies_unless_they_are_padded() {
        let last =
            |channels| ConvolutionCall { layout: MemoryLayout::ChannelsLast, ..call(DType::Fp16, channels, 1024, 3) };
        let even = WorkspaceModel::Hopper.convolution(&last([128, 128]));
        assert_eq!([even.input, even.output, even.weights], [0; 3]);
        let padded = WorkspaceModel::Hopper.convolution(&last([128, 3]));
        assert_eq!(padded.output, 8 * 1024 * 1024 * 2);
        assert_eq!(padded.input, 0);
    }

    #[test]
    fn single_precision_on_ada_never_copies_the_output() {
        for model in [WorkspaceModel::Hopper, WorkspaceModel::Ada] {
            let half = model.convolution(&call(DType::Fp16, [128, 128], 512, 3));
            assert_ne!(half.output, 0);
        }
        let single = call(DType::Fp32, [128, 128], 512, 3);
        assert_eq!(WorkspaceModel::Ada.convolution(&single).output, 0);
        assert_ne!(WorkspaceModel::Hopper.convolution(&single).output, 0);
    }
}
