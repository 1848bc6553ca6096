//! What the allocators count on a GPU, beside recordings, the simulated card and the management library.

use std::collections::BTreeMap;

use headroom_base::{AllocatorKind, Bytes, MIB};
use headroom_device::allocator::EventKind;
use headroom_device::cuda::{CudaContext, CudaDriver};
use headroom_device::driver::CardSettings;
use headroom_device::replay::{Script, ScriptAction, replay_script_on};
use headroom_device::{Allocation, Allocator, Counters, Driver, Settings, SimulatedCard};
use libtest_mimic::Failed;

use crate::recorded::scripts;
use crate::{equal, holds};

pub(crate) fn expandable_scripts_equal(context: &CudaContext) -> Result<(), Failed> {
    for (index, script) in scripts("scenario-expandable.jsonl.gz").iter().enumerate() {
        let comparison = replay_script_on(script, CudaDriver::new(context.clone())?);
        println!("expandable script {index}: {comparison:?}");
        holds(format!("script {index} is exact: {comparison:?}"), comparison.is_exact())?;
    }
    Ok(())
}

/// Does one thing of a script; nothing where an allocation fails, as when it was recorded.
fn act<D: Driver>(allocator: &mut Allocator<D>, live: &mut BTreeMap<u64, Allocation>, action: &ScriptAction) {
    match action {
        ScriptAction::Allocate { id, bytes, .. } => {
            live.extend(allocator.allocate(*bytes).ok().map(|held| (*id, held)))
        }
        ScriptAction::Free { id } => {
            if let Some(held) = live.remove(id) {
                let _ = allocator.free(held);
            }
        }
        ScriptAction::EmptyCache => {
            let _ = allocator.empty_cache();
        }
        ScriptAction::FreeAll => {
            for held in std::mem::take(live).into_values() {
                let _ = allocator.free(held);
            }
        }
    }
}

fn counted<D: Driver>(allocator: &mut Allocator<D>, script: &Script) -> Vec<Counters> {
    allocator.set_memory_limit(script.limit_bytes);
    let mut live = BTreeMap::new();
    let count = |step: &headroom_device::replay::ScriptStep| {
        act(allocator, &mut live, &step.action);
        allocator.counters()
    };
    script.steps.iter().map(count).collect()
}

/// The simulated card is given the addresses of the real one, since ties between equal free blocks go by address.
pub(crate) fn native_scripts_equal(context: &CudaContext) -> Result<(), Failed> {
    for file in
        ["scenario-native.jsonl.gz", "scenario-split128.jsonl.gz", "scenario-pow2.jsonl.gz", "scenario-gc.jsonl.gz"]
    {
        for (index, script) in scripts(file).iter().enumerate() {
            let mut real = Allocator::new(CudaDriver::new(context.clone())?, script.settings.clone());
            real.log_events(true);
            let on_gpu = counted(&mut real, script);
            let events = real.take_events();
            let placed = events.iter().filter(|event| event.kind == EventKind::SegmentAlloc);
            let card = SimulatedCard::new(CardSettings::new(context.gpu().total_bytes));
            card.script_addresses(placed.map(|event| (event.address, event.bytes)));
            let simulated = counted(&mut Allocator::new(card.driver(), script.settings.clone()), script);
            let differs = on_gpu.iter().zip(&simulated).position(|(gpu, card)| gpu != card);
            println!("{file} script {index}: {} steps, first difference {differs:?}", on_gpu.len());
            if let Some(step) = differs {
                equal(format!("{file} script {index}, step {step}"), on_gpu[step], simulated[step])?;
            }
            equal("steps", on_gpu.len(), simulated.len())?;
        }
    }
    Ok(())
}

/// The residue that may stay unexplained, in hundredths of what is held.
const RESIDUE_PERCENT: u64 = 1;

pub(crate) fn reserve_is_growth(context: &CudaContext) -> Result<(), Failed> {
    for kind in [AllocatorKind::Native, AllocatorKind::ExpandableSegments] {
        let mut allocator = Allocator::new(CudaDriver::new(context.clone())?, Settings::of_kind(kind));
        let start = allocator.driver_mut().memory()?.free_bytes;
        let own = allocator.driver_mut().process_bytes()?;
        let mut held = Vec::new();
        for mib in [1_u64, 3, 19, 64, 300, 1_000, 2_000] {
            held.push(allocator.allocate(mib * MIB)?);
            compare(kind, &mut allocator, start, own)?;
        }
        for allocation in held {
            allocator.free(allocation)?;
        }
        allocator.empty_cache()?;
        equal("reserved after all was given back", allocator.counters().reserved.current, 0)?;
        compare(kind, &mut allocator, start, own)?;
    }
    Ok(())
}

fn compare(
    kind: AllocatorKind,
    allocator: &mut Allocator<CudaDriver>,
    start_free_bytes: u64,
    own_at_start: headroom_base::Reading,
) -> Result<(), Failed> {
    let reserved = allocator.counters().reserved.current;
    let taken = start_free_bytes.saturating_sub(allocator.driver_mut().memory()?.free_bytes);
    let grown = allocator.driver_mut().process_bytes()?.growth_since(own_at_start);
    let shown = grown.map_or_else(|| "unknown".to_owned(), |bytes| Bytes(bytes.unsigned_abs()).to_string());
    println!("{kind}: reserved {}, device {}, own process {shown}", Bytes(reserved), Bytes(taken));
    let most = reserved.max(100 * MIB) / 100 * RESIDUE_PERCENT;
    holds(format!("{kind}: the device gave what is reserved"), taken.abs_diff(reserved) <= most)?;
    let Some(grown) = grown else { return Ok(()) };
    holds(format!("{kind}: the process grew by what is reserved"), grown.abs_diff(reserved as i64) <= most)
}

pub(crate) fn pool_counts(context: &CudaContext) -> Result<(), Failed> {
    let device = context.parts(Settings::of_kind(AllocatorKind::CudaMallocAsync))?.build();
    let start = device.process_bytes()?;
    let sizes = [1_u64, 3, 19, 64, 300, 1_000].map(|mib| mib * MIB);
    let mut held = Vec::new();
    for bytes in sizes {
        held.push(device.allocate(bytes)?);
    }
    let counters = device.counters()?;
    let grown = device.process_bytes()?.growth_since(start);
    println!("pool: {counters:?}, own process grew by {grown:?}");
    let asked: u64 = sizes.iter().sum();
    equal("requested", (counters.requested.current, counters.requested.peak), (asked, asked))?;
    holds("at least what was asked is used", counters.allocated.current >= asked)?;
    holds("what is used is reserved", counters.reserved.current >= counters.allocated.current)?;
    for holding in held {
        device.free(holding)?;
    }
    let freed = device.counters()?;
    println!("pool, all freed: {freed:?}");
    equal("requested after all was freed", freed.requested.current, 0)?;
    equal("the reserve is kept until it is emptied", freed.reserved.current, counters.reserved.current)?;
    device.with_memory(|memory| memory.reset_peaks())?;
    device.empty_cache()?;
    let emptied = device.counters()?;
    println!("pool, emptied: {emptied:?}");
    equal("reserved after it was emptied", emptied.reserved.current, 0)?;
    equal("the peak since the reset", emptied.reserved.peak, freed.reserved.current)
}
