//! Public reports about estimates that were missing, wrong or of the wrong quantity, and about what allocators hold.
//!
//! Sizes are MiB. A report that concerns a part which is not here is not repeated here: estimates and fits, the
//! calibration's files, the service's routes.

use headroom_base::{AllocatorKind, MIB, Reclaim, Validity};
use headroom_device::allocator::{AllocationError, Counters, NotAllocated, Settings};
use headroom_device::device::{AllocatorMemory, DeviceMemory, Holding};
use headroom_device::driver::DriverError;
use headroom_device::{Allocator, Cache, CacheSettings, DeviceParts, SimulatedCard, SimulatedDriver};

use crate::rig::{Wishes, in_scope, key, model, only_window};

/// Report 1, https://github.com/invoke-ai/InvokeAI/pull/9305
#[test]
fn r01_a_resident_model_that_needs_no_bytes_still_gets_its_working_memory() {
    for (vae, working) in [(242, 10_893), (242, 9_000), (500, 12_000)] {
        let rig = Wishes::mib(46_060).context_mib(500).others_mib(4_190).rig();
        for (name, mib) in [("encoder", 15_068), ("transformer", 19_741), ("vae", vae)] {
            rig.add(name, mib);
            rig.load(name);
        }
        rig.free_and_unreleased(2_540);
        let locked = rig.lock("vae", working);
        let moved: u64 = locked.report().moves.iter().map(|moved| moved.bytes / MIB).sum();
        let free = 46_060 - 4_690 - 15_068 - 19_741 - vae - 2_540;
        let short = working - free - 2_540;
        assert!(moved >= short, "{moved} moved, {short} short");
        assert_eq!(locked.report().moves.len(), 1, "no more than needed");
        assert_eq!(locked.report().moves[0].key, key("encoder"), "the smallest other model goes");
        assert!(rig.card.free_bytes() >= working * MIB);
    }
}

/// Report 3, https://github.com/invoke-ai/InvokeAI/pull/7674
#[test]
fn r03_the_demand_is_what_the_reserve_grows_by_where_that_is_more_than_was_allocated() {
    let rig = Wishes::mib(24_000).rig();
    rig.add("vae", 300);
    let scope = in_scope(0, |_| {
        let locked = rig.lock("vae", 100);
        // Each buffer is a little larger than the one before, so none fits where the last one was.
        for mib in [1_000, 1_200, 1_400] {
            rig.free_and_unreleased(mib);
        }
        drop(locked);
    });
    assert_eq!(only_window(&scope), (3_600, 1, Validity::Valid));
    assert_eq!(scope.recorded()[0].measurement.deltas.allocated_peak_bytes, 1_400 * MIB);

    for (working, stays) in [(2_434, 4_000), (4_274, 3_518)] {
        let rig = Wishes::mib(8_192).context_mib(400).rig();
        rig.add("unet", 4_000);
        rig.load("unet");
        drop(rig.lock("unet", working));
        let resident = rig.resident_mib("unet");
        assert!(resident <= stays && resident + 20 > stays, "{resident} of {stays} at {working}");
    }
}

/// Report 5, https://github.com/invoke-ai/InvokeAI/pull/9519. That every operation asks its estimator is shown where
/// pipelines are run.
#[test]
fn r05_a_stated_working_memory_leaves_room_that_the_default_does_not() {
    let rig = Wishes::mib(24_576).context_mib(400).floor_mib(3_072).rig();
    rig.add("transformer", 18_000);
    drop(rig.cache.lock(&key("transformer"), None).unwrap());
    assert_eq!(rig.resident_mib("transformer"), 18_000);
    let working = 1_702 * 16_896 / 4_608;
    drop(rig.lock("transformer", working));
    assert!(rig.resident_mib("transformer") <= 24_576 - 400 - working);
    assert!(rig.card.free_bytes() >= working * MIB);
}

/// Report 7, https://github.com/invoke-ai/InvokeAI/pull/9304
#[test]
fn r07_an_estimate_that_no_device_state_could_satisfy_is_flagged_and_takes_no_weights_off() {
    for asked in [37_440, 24_577, 24_077, 1_000_000] {
        let rig = Wishes::mib(24_576).context_mib(500).floor_mib(3_072).rig();
        rig.add("transformer", 12_000);
        let locked = rig.lock("transformer", asked);
        let beyond = locked.report().beyond_device.clone().unwrap();
        assert_eq!((beyond.asked_bytes, beyond.most_bytes), (asked * MIB, 24_076 * MIB));
        assert_eq!((rig.resident_mib("transformer"), locked.report().moves.len()), (12_000, 0));
    }
    let rig = Wishes::mib(24_576).context_mib(500).floor_mib(3_072).rig();
    rig.add("transformer", 12_000);
    let locked = rig.lock("transformer", 14_400 / 2 + 1_536);
    assert_eq!((locked.report().beyond_device.clone(), locked.report().missing_bytes), (None, 0));
}

/// Report 9, https://github.com/invoke-ai/InvokeAI/pull/9427. That tiles are resolved before the estimate is shown where
/// estimates are made.
#[test]
fn r09_a_tiled_decode_moves_nobody_and_an_untiled_one_no_more_than_it_needs() {
    for (working, moved) in [(565, 0), (20_390, 14_780)] {
        let rig = Wishes::mib(24_576).context_mib(400).rig();
        rig.add("other", 18_000);
        rig.add("vae", 300);
        rig.load("vae");
        rig.load("other");
        let locked = rig.lock("vae", working);
        let actual: u64 = locked.report().moves.iter().map(|moved| moved.bytes / MIB).sum();
        let needed = (working + 400 + 300 + 18_000_u64).saturating_sub(24_576);
        assert!(actual >= needed && actual < needed + 20, "{actual} moved, {needed} needed, about {moved}");
    }
}

/// Report 11, https://github.com/Comfy-Org/ComfyUI/issues/15573
#[test]
fn r11_a_request_larger_than_the_card_is_reported_and_does_not_empty_it() {
    for (floor, asked, moved) in [(3_072, 4_608, 994), (0, 4_608, 0), (0, 900, 0)] {
        let rig = Wishes::mib(8_192).floor_mib(floor).rig();
        rig.add("checkpoint", 2_000);
        rig.add("upscaler", 18);
        rig.load("checkpoint");
        rig.card.change(|card| card.total_bytes = 4_096 * MIB);
        let locked = rig.lock("upscaler", asked);
        assert_eq!(locked.report().beyond_device.is_some(), asked > 4_096);
        let actual: u64 = locked.report().moves.iter().map(|moved| moved.bytes / MIB).sum();
        assert!(actual >= moved && actual < moved + 20, "{actual} moved for {asked}");
        assert_eq!(rig.resident_mib("upscaler"), 18);
    }
}

/// Report 19, https://github.com/pytorch/pytorch/issues/35901
#[test]
fn r19_a_large_segment_with_one_live_block_cannot_be_given_back_and_is_not_credited() {
    for small_first in [false, true] {
        let rig = Wishes::mib(11_104 + 476 + 2_000).rig();
        let hold_small = || (0..30).map(|index| rig.hold(if index < 28 { 16 } else { 14 })).collect::<Vec<_>>();
        let early = if small_first { hold_small() } else { Vec::new() };
        rig.free_and_unreleased(11_104);
        let late = if small_first { Vec::new() } else { hold_small() };
        let figures = rig.device.figures().unwrap();
        let credit = headroom_base::budget(&figures, None, 0, headroom_base::Cap::Unlimited).credit_bytes;
        let idle = figures.reserved_bytes - figures.allocated_bytes;
        let again = rig.device.allocate(11_104 * MIB);
        if small_first {
            assert!(credit == 11_104 * MIB && again.is_ok());
        } else {
            assert_eq!(idle / MIB, 11_104 - 476);
            assert_eq!(credit, 0);
            assert!(again.is_err_and(|error| error.is_out_of_memory()));
        }
        assert_eq!(early.len() + late.len(), 30);
    }
}

/// Report 23, https://github.com/Comfy-Org/ComfyUI/pull/11154. The report has each chunk pay for its own steps (7 of 10
/// would fit). The recorded pools pack weights (22,737 MiB in 22,752), so the whole load pays for its last step: what
/// must hold is that a load which fits by its bytes and not by steps does not end out of memory.
#[test]
fn r23_a_load_that_fits_by_bytes_and_not_by_the_pools_steps_is_cut_and_never_fails() {
    for free in 960..1_060 {
        let rig = Wishes::mib(free).allocator(AllocatorKind::CudaMallocAsync).rig();
        let chunks = (0..10).map(|index| headroom_device::PieceSpec::new(format!("{index}"), 97 * MIB));
        rig.cache.add(headroom_device::ModelSpec::synthetic("m", chunks)).unwrap();
        drop(rig.lock("m", 0));
        let steps = free / 32 * 32;
        assert_eq!(rig.resident_mib("m"), (steps / 97).min(10) * 97, "{free} free");
        assert_eq!(rig.device.counters().unwrap().num_ooms, 0);
    }
}

/// Memory of a process whose weights live in a private pool that is in use: emptying the cache does nothing.
struct ActivePool(AllocatorMemory<SimulatedDriver>);

impl DeviceMemory for ActivePool {
    fn figures(&mut self) -> Result<headroom_base::DeviceFigures, DriverError> {
        self.0.figures()
    }
    fn counters(&mut self) -> Result<Counters, DriverError> {
        self.0.counters()
    }
    fn allocate(&mut self, requested_bytes: u64) -> Result<Holding, AllocationError> {
        self.0.allocate(requested_bytes)
    }
    fn free(&mut self, holding: Holding) -> Result<(), NotAllocated> {
        self.0.free(holding)
    }
    fn empty_cache(&mut self) -> Result<(), AllocationError> {
        Ok(())
    }
    fn reset_peaks(&mut self) -> Result<(), DriverError> {
        self.0.reset_peaks()
    }
    fn process_bytes(&mut self) -> Result<headroom_base::Reading, DriverError> {
        self.0.process_bytes()
    }
    fn spilled_bytes(&mut self) -> Result<headroom_base::Reading, DriverError> {
        self.0.spilled_bytes()
    }
}

/// Report 27, https://github.com/vllm-project/vllm/pull/49151
#[test]
fn r27_what_is_stranded_in_a_pool_that_is_in_use_is_credited_to_nobody() {
    let card = SimulatedCard::with_gib(32);
    let memory = AllocatorMemory::new(Allocator::new(card.driver(), Settings::default()));
    let memory = ActivePool(memory.with_reclaim(Reclaim::NoCounters));
    let device = DeviceParts { memory: Box::new(memory), ..DeviceParts::simulated(&card, Settings::default()) }.build();
    let old: Vec<_> = (0..40).map(|_| device.allocate(230 * MIB).unwrap()).collect();
    let before = device.counters().unwrap().reserved.current;
    let mut new = Vec::new();
    for held in old {
        new.push(device.allocate(243 * MIB).unwrap());
        device.free(held).unwrap();
    }
    let counters = device.counters().unwrap();
    assert_eq!((counters.reserved.current - before) / MIB, 40 * 244, "none of the old places can hold a new tensor");
    device.empty_cache().unwrap();
    assert_eq!(device.counters().unwrap().reserved.current, counters.reserved.current);

    let cache = Cache::new(device, CacheSettings { floor_bytes: 0, ..CacheSettings::default() });
    cache.add(model("other", 30_000)).unwrap();
    let locked = cache.lock(&key("other"), Some(0)).unwrap();
    assert!(locked.report().budget.credit_bytes == 0 && locked.report().missing_bytes > 0);
    assert_eq!(cache.device().counters().unwrap().num_ooms, 0, "nothing is loaded on a promise");
}
