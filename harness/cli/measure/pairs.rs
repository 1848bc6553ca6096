//! What it costs to allocate a block that the caching allocator has at hand, and to free it again.

use std::hint::black_box;
use std::time::Instant;

use headroom_base::{KIB, MIB};
use headroom_device::Device;
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
    /// Nanoseconds of one allocate + free in the median loop, by the allocator alone.
    pub(super) nanoseconds: f64,
    /// The same of each loop, in the order in which they ran.
    loops_nanoseconds: Vec<f64>,
    /// The same in the median loop by way of the device, whose lock is taken for each call: what operations pay.
    pub(super) locked_nanoseconds: f64,
    /// The same of each loop, in the order in which they ran.
    locked_loops_nanoseconds: Vec<f64>,
}

pub(super) fn measure_pairs(device: &Device) -> Result<Vec<Pair>, Failure> {
    SIZES_BYTES.into_iter().map(|bytes| pair(device, bytes)).collect()
}

fn pair(device: &Device, bytes: u64) -> Result<Pair, Failure> {
    // The one that goes to the driver.
    device.free(device.allocate(bytes)?)?;
    let loops_nanoseconds = device.with_memory(|memory| {
        loops(|| {
            let holding = memory.allocate(black_box(bytes))?;
            Ok(memory.free(black_box(holding))?)
        })
    })?;
    let locked_loops_nanoseconds = loops(|| {
        let holding = device.allocate(black_box(bytes))?;
        Ok(device.free(black_box(holding))?)
    })?;
    Ok(Pair {
        bytes,
        pairs: PAIRS,
        nanoseconds: median(loops_nanoseconds.clone()),
        loops_nanoseconds,
        locked_nanoseconds: median(locked_loops_nanoseconds.clone()),
        locked_loops_nanoseconds,
    })
}

/// Nanoseconds of one pair, for each loop.
fn loops(mut pair: impl FnMut() -> Result<(), Failure>) -> Result<Vec<f64>, Failure> {
    let mut nanoseconds = Vec::with_capacity(LOOPS);
    for _ in 0..LOOPS {
        let began = Instant::now();
        for _ in 0..PAIRS {
            pair()?;
        }
        nanoseconds.push(began.elapsed().as_secs_f64() * 1e9 / f64::from(PAIRS));
    }
    Ok(nanoseconds)
}
