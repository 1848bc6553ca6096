//! Convolutions whose last wave of tiles leaves multiprocessors idle: tiles are split along the sum, the parts kept.

use headroom_base::DType;

use super::workspaces::ConvolutionCall;

/// Multiprocessors of an H100 or H200, all of which work on tiles of 128 × 256 outputs.
const MULTIPROCESSORS: u64 = 132;
/// How many of them can work on tiles of 128 × 128, which come in larger clusters.
const CLUSTERED_MULTIPROCESSORS: u64 = 120;
/// Output positions of a tile.
const TILE_POSITIONS: u64 = 128;
/// Terms of the sum that one step of a kernel takes.
const TERMS_PER_STEP: u64 = 64;
/// Steps below which a sum is never split, and from which bf16 splits it into many parts.
const SPLIT_STEPS: u64 = 80;
const MANY_SPLIT_STEPS: u64 = 128;
/// Parts into which bf16 splits a sum, below and from that number.
const BF16_PARTS: [u64; 2] = [2, 8];
/// Output positions below which a grid that fills no wave is not split.
const SPLIT_POSITIONS: u64 = 4096;
/// What a kernel that adds parts asks for beside them, and for each addition.
const SPLIT_BYTES: u64 = 28;
const ADDITION_BYTES: u64 = 4;
/// Output channels from which the wider tile is used, and below which none of the two is.
const WIDE_TILE_CHANNELS: u64 = 192;
const NARROW_TILE_CHANNELS: u64 = 64;

/// Bytes of the partial sums of a 3-D convolution in half precision on Hopper; 0 for any other call.
///
/// The outputs are a matrix of positions × channels, cut into tiles. Tiles of the last, incomplete wave are split along
/// the sum into as many parts as there are multiprocessors for, and each part of a tile is kept in fp32. Read off single
/// recorded calls: it gives 513 of 520 distinct bf16 calls and 511 of 521 fp16 ones exactly.
pub(super) fn partial_sums(call: &ConvolutionCall) -> u64 {
    if call.kernel.len() != 3 || call.dtype == DType::Fp32 || call.output_channels < NARROW_TILE_CHANNELS {
        return 0;
    }
    let wide = call.output_channels >= WIDE_TILE_CHANNELS;
    let (tile_channels, cluster, wave) =
        if wide { (256, 2, MULTIPROCESSORS) } else { (128, 8, CLUSTERED_MULTIPROCESSORS) };
    let positions = call.positions();
    let tiles =
        positions.div_ceil(TILE_POSITIONS).next_multiple_of(cluster) * call.output_channels.div_ceil(tile_channels);
    let steps = call.input_channels * call.kernel.iter().product::<u64>() / TERMS_PER_STEP;
    let split_tiles = if tiles < wave { tiles } else { tiles % wave };
    if steps < SPLIT_STEPS || split_tiles == 0 || (tiles < wave && positions < SPLIT_POSITIONS) {
        return 0;
    }
    let parts = (wave / split_tiles).min(most_parts(call.dtype, steps, tiles < wave)).max(1);
    let parts = steps.div_ceil(steps.div_ceil(parts));
    if parts < 2 {
        return 0;
    }
    let sums = split_tiles * parts * TILE_POSITIONS * tile_channels * DType::Fp32.element_bytes();
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
