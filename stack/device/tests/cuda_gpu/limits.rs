//! A GPU that is nearly full, and two of them side by side.

use headroom_base::{AllocatorKind, Bytes, GIB, MIB};
use headroom_device::cuda::{CudaContext, CudaDriver};
use headroom_device::{Driver, DriverError, Settings};
use libtest_mimic::Failed;

use crate::two_caches::{FIRST_FREE_BYTES, keep_to_their_own};
use crate::{equal, holds};

/// What is left free for the checks.
const LEFT_BYTES: u64 = 2 * GIB;

/// All but `left_bytes` of the device, held by nobody's allocator.
fn fill(context: &CudaContext, left_bytes: u64) -> Result<headroom_device::cuda::Ballast, Failed> {
    let free = context.memory()?.free_bytes;
    Ok(context.ballast(free.saturating_sub(left_bytes) / (2 * MIB) * (2 * MIB))?)
}

pub(crate) fn out_of_memory(context: &CudaContext) -> Result<(), Failed> {
    let ballast = fill(context, LEFT_BYTES)?;
    for kind in AllocatorKind::ALL {
        let device = context.parts(Settings::of_kind(kind))?.build();
        let before = device.figures()?.driver_free_bytes;
        let first = device.allocate(GIB)?;
        let error = device.allocate(2 * GIB).err().ok_or("more than there is was handed out")?;
        println!("{kind}: {error}");
        holds("it is out of memory", error.is_out_of_memory())?;
        let counters = device.counters()?;
        equal(format!("{kind}: requested"), counters.requested.current, GIB)?;
        equal(format!("{kind}: failures"), counters.num_ooms, 1)?;
        device.free(first)?;
        let whole = device.allocate(GIB + GIB / 2)?;
        device.free(whole)?;
        device.empty_cache()?;
        let after = device.figures()?.driver_free_bytes;
        println!("{kind}: {} free before, {} after", Bytes(before), Bytes(after));
        holds(format!("{kind}: all of it went back"), before.abs_diff(after) <= 32 * MIB)?;
    }
    println!("ballast of {}", Bytes(ballast.bytes()));
    Ok(())
}

pub(crate) fn ballast(context: &CudaContext) -> Result<(), Failed> {
    let before = context.memory()?;
    let held = context.ballast(GIB)?;
    let during = context.memory()?;
    drop(held);
    let after = context.memory()?;
    println!(
        "free: {} before, {} with 1 GiB held, {} after",
        Bytes(before.free_bytes),
        Bytes(during.free_bytes),
        Bytes(after.free_bytes)
    );
    equal("held", before.free_bytes - during.free_bytes, GIB)?;
    equal("free after", after.free_bytes, before.free_bytes)?;
    equal("the device's memory", before.total_bytes, context.gpu().total_bytes)
}

pub(crate) fn partial_map(context: &CudaContext) -> Result<(), Failed> {
    let _ballast = fill(context, LEFT_BYTES)?;
    let mut driver = CudaDriver::new(context.clone())?;
    equal("granularity", driver.granularity_bytes(), 2 * MIB)?;
    let page = 20 * MIB;
    let range = driver.reserve(400 * page)?;
    let before = driver.memory()?.free_bytes;
    let error = driver.map(range, 400 * page, page).err().ok_or("more than there is was mapped")?;
    println!("{error}");
    holds("it is out of memory", matches!(error, DriverError::OutOfMemory { .. }))?;
    let after = driver.memory()?.free_bytes;
    println!("{} free before, {} after", Bytes(before), Bytes(after));
    holds("nothing stayed mapped", before.abs_diff(after) <= 2 * MIB)?;
    driver.map(range, 10 * page, page)?;
    driver.unmap(headroom_device::Address(range.0 + page), 3 * page, page)?;
    driver.unmap(range, page, page)?;
    driver.unmap(headroom_device::Address(range.0 + 4 * page), 6 * page, page)?;
    driver.release(range, 400 * page)?;
    Ok(())
}

pub(crate) fn side_by_side(one: &CudaContext, other: &CudaContext) -> Result<(), Failed> {
    let devices = [one, other].map(|context| context.parts(Settings::default()).map(|parts| parts.build()));
    let [first, second] = devices;
    let (first, second) = (first?, second?);
    let figures = |device: &headroom_device::Device| device.figures().map(|figures| figures.driver_free_bytes);
    let (first_before, second_before) = (figures(&first)?, figures(&second)?);
    let held = first.allocate(GIB)?;
    equal("the first lost it", first_before - figures(&first)?, GIB)?;
    equal("the second lost nothing", second_before, figures(&second)?)?;
    let own = (first.process_bytes()?, second.process_bytes()?);
    println!("own process: {} on the first, {} on the second", own.0, own.1);
    first.free(held)?;
    Ok(())
}

/// Either of the two is the one with little room, in turn.
pub(crate) fn budgets(one: &CudaContext, other: &CudaContext) -> Result<(), Failed> {
    for (small, large) in [(one, other), (other, one)] {
        let _ballast = fill(small, FIRST_FREE_BYTES)?;
        let device = |context: &CudaContext| context.parts(Settings::default()).map(|parts| parts.build());
        println!("{}", keep_to_their_own(&device(small)?, &device(large)?)?);
        #[cfg(feature = "mutants")]
        {
            use headroom_base::mutants::{choose, clear};
            holds("the mutant is known", choose("wrong_device_read"))?;
            let told = keep_to_their_own(&device(small)?, &device(large)?);
            clear();
            let told = told.err().ok_or("a cache that reads the other card's figures does as well")?;
            println!("a cache that reads the other card's figures is noticed: {told}");
        }
    }
    Ok(())
}
