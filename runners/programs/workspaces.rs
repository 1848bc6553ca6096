//! What the GPU's libraries allocate beside inputs and outputs, as documented rules per GPU architecture.

use headroom_base::{DType, MIB, MemoryLayout};

use super::execution::Library;

/// What cuDNN asks for with a copy of any operand.
const COPY_BYTES: u64 = 16;
/// What a kernel that wants channels innermost asks for itself.
const KERNEL_BYTES: u64 = 131;
/// Input channels below which a kernel runs that needs no copies in half precision.
const FEW_CHANNELS: u64 = 8;
/// Output positions (batch included) above which, and output channels from which, that kernel runs.
const KERNEL_POSITIONS: u64 = 1 << 14;
const KERNEL_CHANNELS: u64 = 32;
/// Output positions from which a 1×1 convolution runs on a kernel that asks for anything.
const POINTWISE_POSITIONS: u64 = 1 << 17;
/// What that kernel asks for, in half and single precision.
const POINTWISE_BYTES: [u64; 2] = [272, 400];

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

/// Bytes of the operands with channels padded to what tensor cores take at once.
#[derive(Clone, Copy, Debug)]
struct Padded {
    input: u64,
    output: u64,
    weights: u64,
}

impl ConvolutionCall {
    fn is_pointwise(&self) -> bool {
        self.kernel.iter().all(|side| *side == 1)
    }

    /// Tensor cores take 16 bytes of channels at once; for fp16 in three dimensions there are kernels that take any.
    fn channel_group(&self) -> u64 {
        if self.dtype == DType::Fp16 && self.kernel.len() == 3 { 1 } else { 16 / self.dtype.element_bytes() }
    }

    fn padded(&self) -> Padded {
        let bytes = self.dtype.element_bytes();
        let inputs = self.input_channels.next_multiple_of(self.channel_group());
        let outputs = self.output_channels.next_multiple_of(self.channel_group());
        Padded {
            input: self.batch * inputs * self.input.iter().product::<u64>() * bytes,
            output: self.batch * outputs * self.output.iter().product::<u64>() * bytes,
            weights: inputs * outputs * self.kernel.iter().product::<u64>() * bytes,
        }
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

    /// Bytes a convolution asks for beside its operands, bias included in place.
    ///
    /// The kernels want channels innermost. Given row-major operands the library therefore copies input, weights and
    /// output, with channels padded to what tensor cores take at once; given channels innermost it copies only those
    /// whose channels need padding. The first layers of models have so few input channels that another kernel runs,
    /// which needs nothing in half precision and copies of input and weights in single. A 1×1 convolution needs no
    /// copies.
    ///
    /// In three dimensions and half precision, output tiles that would leave most multiprocessors idle in the last wave
    /// are split along the sum, and the parts are kept in fp32: see [`partial_sums`].
    ///
    /// Not modelled: the same in two dimensions and in single precision, at most 132 × 128 KiB for any call, chosen by
    /// heuristics that no simple rule was found for.
    pub fn convolution_bytes(self, call: &ConvolutionCall) -> u64 {
        match self {
            Self::Hopper => hopper(call),
        }
    }
}

fn hopper(call: &ConvolutionCall) -> u64 {
    let half = call.dtype != DType::Fp32;
    let positions = call.batch * call.output.iter().product::<u64>();
    let few = call.input_channels < FEW_CHANNELS;
    if call.is_pointwise() {
        let large = positions >= POINTWISE_POSITIONS && !few;
        return if large { POINTWISE_BYTES[usize::from(!half)] } else { 0 };
    }
    let Padded { input, output, weights } = call.padded();
    let large = positions > KERNEL_POSITIONS && call.output_channels >= KERNEL_CHANNELS;
    let kernel = if large { KERNEL_BYTES } else { 0 };
    match call.layout {
        MemoryLayout::ChannelsLast if few && half => 0,
        MemoryLayout::ChannelsLast => {
            let pads_output = call.output_channels % call.channel_group() != 0;
            if pads_output { output + weights + COPY_BYTES } else { kernel }
        }
        MemoryLayout::Contiguous if few && half && call.channel_group() > 1 => 0,
        MemoryLayout::Contiguous if few && !half => input + weights + COPY_BYTES,
        MemoryLayout::Contiguous => input + output + weights + COPY_BYTES + kernel + partial_sums(call),
    }
}

/// Multiprocessors of an H100 or H200, all of which work on tiles of 128 × 256 outputs.
const MULTIPROCESSORS: u64 = 132;
/// How many of them can work on tiles of 128 × 128, which come in larger clusters.
const CLUSTERED_MULTIPROCESSORS: u64 = 120;
/// Terms of the sum that one step of a kernel takes.
const TERMS_PER_STEP: u64 = 64;
/// Steps below which a sum is never split, and from which bf16 splits it into many parts.
const SPLIT_STEPS: u64 = 80;
const MANY_SPLIT_STEPS: u64 = 128;
/// Parts into which bf16 splits a sum, below and from that number.
const BF16_PARTS: [u64; 2] = [2, 8];
/// Tiles below which a grid that fills no wave is not split.
const LEAST_TILES: u64 = 32;
/// Output channels from which the wider tile is used, and below which none of the two is.
const WIDE_TILE_CHANNELS: u64 = 192;
const NARROW_TILE_CHANNELS: u64 = 64;

/// Bytes of the partial sums of a 3-D convolution in half precision.
///
/// The outputs are a matrix of positions × channels, cut into tiles. Tiles of the last, incomplete wave are split along
/// the sum into as many parts as there are idle multiprocessors for, and each part of a tile is kept in fp32.
pub fn partial_sums(call: &ConvolutionCall) -> u64 {
    if call.kernel.len() != 3 || call.dtype == DType::Fp32 || call.output_channels < NARROW_TILE_CHANNELS {
        return 0;
    }
    let wide = call.output_channels >= WIDE_TILE_CHANNELS;
    let (tile_channels, cluster, wave) =
        if wide { (256, 2, MULTIPROCESSORS) } else { (128, 8, CLUSTERED_MULTIPROCESSORS) };
    let positions = call.batch * call.output.iter().product::<u64>();
    let tiles = positions.div_ceil(128).next_multiple_of(cluster) * call.output_channels.div_ceil(tile_channels);
    let steps = call.input_channels * call.kernel.iter().product::<u64>() / TERMS_PER_STEP;
    let split_tiles = if tiles < wave { tiles } else { tiles % wave };
    if steps < SPLIT_STEPS || split_tiles == 0 || (tiles < wave && tiles < LEAST_TILES) {
        return 0;
    }
    let many = steps >= MANY_SPLIT_STEPS;
    let most_parts = match call.dtype {
        DType::Bf16 if tiles < wave => {
            if many {
                BF16_PARTS[0]
            } else {
                1
            }
        }
        DType::Bf16 => BF16_PARTS[usize::from(many)],
        DType::Fp16 | DType::Fp32 => steps,
    };
    let parts = (wave / split_tiles).min(most_parts).max(1);
    let parts = steps.div_ceil(steps.div_ceil(parts));
    if parts < 2 { 0 } else { split_tiles * parts * 128 * tile_channels * 4 }
}
