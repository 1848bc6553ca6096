//! Convolutions whose last wave of tiles leaves multiprocessors idle: tiles are split along the sum, the parts kept.

use headroom_base::DType;

use super::workspaces::ConvolutionCall;

// Tile sizes and numbers of multiprocessors are the card's; from where on a sum is split, and into how many parts, is
// fitted to single calls that were recorded on an H200 and documented nowhere.

/// Multiprocessors of an H100 or H200, all of which work on tiles of 128 × 256 outputs.
const MULTIPROCESSORS: u64 = 132;
/// How many of them can work on tiles of 128 × 128, which come in larger clusters.
const CLUSTERED_MULTIPROCESSORS: u64 = 120;
/// Output positions of a tile.
const TILE_POSITIONS: u64 = 128;
/// Terms of the sum that one step of a kernel takes.
const TERMS_PER_STEP: u64 = 64;
/// Steps below which a sum is never split, in two and in three dimensions.
const SPLIT_STEPS: [u64; 2] = [50, 80];
/// Steps from which bf16 splits a sum into many parts.
const MANY_SPLIT_STEPS: u64 = 128;
/// Parts into which bf16 splits a sum, below and from that number.
const BF16_PARTS: [u64; 2] = [2, 8];
/// Output positions below which a grid that fills no wave is not split.
const SPLIT_POSITIONS: u64 = 4096;
/// What a kernel that adds parts asks for beside them, and for each addition.
const SPLIT_BYTES: u64 = 28;
const ADDITION_BYTES: u64 = 4;
/// In three dimensions: output channels from which the wider tile is used, and below which none of the two is.
const WIDE_TILE_CHANNELS: u64 = 192;
const NARROW_TILE_CHANNELS: u64 = 64;
/// In two dimensions: output channels that need two narrow tiles and do not fill them, and positions up to which such
/// calls split sums.
const FLAT_TILE_CHANNELS: std::ops::Range<u64> = 129..256;
const FLAT_POSITIONS: u64 = 1 << 15;

/// How a kind of convolution is cut into tiles and those into parts.
#[derive(Clone, Copy, Debug)]
struct Tiling {
    /// Output channels of a tile.
    channels: u64,
    /// Tiles along the positions come in groups of this many.
    cluster: u64,
    /// Tiles that are worked on at once.
    wave: u64,
    /// Steps from which sums are split.
    least_steps: u64,
    /// Whether a grid that fills no wave is split too.
    alone: bool,
    /// Tiles of a wave that are never used for parts.
    idle: u64,
}

/// The tiling of a call, where its kind is one that splits sums.
fn tiling(call: &ConvolutionCall) -> Option<Tiling> {
    let outputs = call.output_channels;
    let (narrow, wide) = (CLUSTERED_MULTIPROCESSORS, MULTIPROCESSORS);
    match call.kernel.len() {
        _ if call.dtype == DType::Fp32 => None,
        3 if outputs >= WIDE_TILE_CHANNELS => {
            Some(Tiling { channels: 256, cluster: 2, wave: wide, least_steps: SPLIT_STEPS[1], alone: true, idle: 0 })
        }
        3 if outputs >= NARROW_TILE_CHANNELS => {
            Some(Tiling { channels: 128, cluster: 8, wave: narrow, least_steps: SPLIT_STEPS[1], alone: true, idle: 0 })
        }
        2 if FLAT_TILE_CHANNELS.contains(&outputs) && call.positions() <= FLAT_POSITIONS => {
            Some(Tiling { channels: 128, cluster: 2, wave: narrow, least_steps: SPLIT_STEPS[0], alone: false, idle: 1 })
        }
        _ => None,
    }
}

/// Bytes of the partial sums of a convolution in half precision on Hopper; 0 where its kind keeps none.
///
/// The outputs are a matrix of positions × channels, cut into tiles. Tiles of the last, incomplete wave are split along
/// the sum into as many parts as there are multiprocessors for, and each part of a tile is kept in fp32. Fitted to
/// single recorded calls with 3×3×3 kernels: of their workspaces it gives seven in ten to the byte and 97 in a hundred to
/// within 2 %.
pub(super) fn partial_sums(call: &ConvolutionCall) -> u64 {
    let Some(Tiling { channels, cluster, wave, least_steps, alone, idle }) = tiling(call) else { return 0 };
    let positions = call.positions();
    let tiles = positions.div_ceil(TILE_POSITIONS).next_multiple_of(cluster) * call.output_channels.div_ceil(channels);
    let steps = call.input_channels * call.kernel.iter().product::<u64>() / TERMS_PER_STEP;
    let split_tiles = if tiles < wave { tiles } else { tiles % wave };
    let splits_alone = alone && positions >= SPLIT_POSITIONS;
    if steps < least_steps || split_tiles == 0 || (tiles < wave && !splits_alone) {
        return 0;
    }
    let parts = ((wave - idle) / split_tiles).min(most_parts(call.dtype, steps, tiles < wave)).max(1);
    let parts = steps.div_ceil(steps.div_ceil(parts));
    if parts < 2 {
        return 0;
    }
    let sums = split_tiles * parts * TILE_POSITIONS * channels * DType::Fp32.element_bytes();
    sums + SPLIT_BYTES + split_tiles * additions(parts) * ADDITION_BYTES
}

/// How often a sum is split at most; `alone` for a grid that fills no wave.
fn most_parts(dtype: DType, steps: u64, alone: bool) -> u64 {
    let many = steps >= MANY_SPLIT_STEPS;
    match dtype {
        DType::Bf16 if alone && !many => 1,
        DType::Bf16 if alone => BF16_PARTS[0],
        DType::Bf16 => BF16_PARTS[usize::from(many)],
        DType::Fp16 | DType::Fp32 => steps,
    }
}

/// Pairwise additions of `parts` sums, level by level.
fn additions(mut parts: u64) -> u64 {
    let mut count = 0;
    while parts > 1 {
        parts = parts.div_ceil(2);
        count += parts;
    }
    count
}
