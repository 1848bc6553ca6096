//! What it costs to allocate a block that the caching allocator has at hand, and to free it again.

use std::hint::black_box;
use std::time::Instant;

use headroom_base::{KIB, MIB};
use headroom_device::DeviceMemory;
use serde::Serialize;

use super::{Failure, median};

/// Blocks of the small pool, of its largest size, and of the large pool: the sizes at which PyTorch's own allocator was
/// timed.
const SIZES_BYTES: [u64; 4] = [KIB / 2, 4 * KIB, MIB, 32 * MIB];

/// Pairs of one loop: enough that the clock costs nothing.
const PAIRS: u32 = 1_000_000;

const LOOPS: usize = 5;

/// One size.
#[derive(Serialize)]
pub(super) struct Pair {
    /// The size asked for.
    pub(super) bytes: u64,
    /// How many pairs one loop counts.
    pub(super) pairs: u32,
    /// Nanoseconds of one allocate + free in the median loop.
    pub(super) nanoseconds: f64,
    /// The same of each loop, in the order in which they ran.
    loops_nanoseconds: Vec<f64>,
}

pub(super) fn measure_pairs(memory: &mut dyn DeviceMemory) -> Result<Vec<Pair>, Failure> {
    SIZES_BYTES.into_iter().map(|bytes| pair(memory, bytes)).collect()
}

fn pair(memory: &mut dyn DeviceMemory, bytes: u64) -> Result<Pair, Failure> {
    // The one that goes to the driver.
    let first = memory.allocate(bytes)?;
    memory.free(first)?;
    let mut loops_nanoseconds = Vec::with_capacity(LOOPS);
    for _ in 0..LOOPS {
        let began = Instant::now();
        for _ in 0..PAIRS {
            let holding = memory.allocate(black_box(bytes))?;
            memory.free(black_box(holding))?;
        }
        loops_nanoseconds.push(began.elapsed().as_secs_f64() * 1e9 / f64::from(PAIRS));
    }
    Ok(Pair { bytes, pairs: PAIRS, nanoseconds: median(loops_nanoseconds.clone()), loops_nanoseconds })
}
