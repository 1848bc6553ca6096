//! What the allocator costs: a cached allocate and free by size and by number of live blocks, and an event of the
//! recorded traces.

use std::hint::black_box;
use std::path::PathBuf;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use headroom_base::{AllocatorKind, KIB, MIB};
use headroom_device::replay::{Request, Requests};
use headroom_device::{Allocation, Allocator, Settings, SharedAllocator, SimulatedCard, SimulatedDriver};
use headroom_reports::recordings::{self, Recording};

type Simulated = Allocator<SimulatedDriver>;

/// SplitMix64, so that every run measures the same.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// An allocator with `live` blocks of up to 256 KiB and about half as many holes between them.
fn populated(kind: AllocatorKind, live: usize) -> (Simulated, Vec<Allocation>) {
    let mut allocator = Allocator::new(SimulatedCard::with_gib(1 << 10).driver(), Settings::of_kind(kind));
    let mut draws = Draws(7);
    let mut blocks: Vec<_> =
        (0..live * 2).map(|_| allocator.allocate(1 + draws.below(256 * KIB)).expect("the card is large")).collect();
    for index in (1..live + 1).rev() {
        let other = draws.below(index as u64 * 2) as usize;
        let block = blocks.swap_remove(other);
        allocator.free(block).expect("it is live");
    }
    (allocator, blocks)
}

fn pair(allocator: &mut Simulated, bytes: u64) {
    let allocation = allocator.allocate(black_box(bytes)).expect("it is cached");
    allocator.free(black_box(allocation)).expect("it is live");
}

fn cached_pairs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allocate and free, cached");
    for live in [1_000, 10_000, 100_000] {
        for bytes in [512, 4 * KIB, 64 * KIB, MIB, 32 * MIB] {
            let (mut allocator, _blocks) = populated(AllocatorKind::Native, live);
            pair(&mut allocator, bytes);
            group.bench_function(BenchmarkId::new(format!("{live} live"), bytes), |bencher| {
                bencher.iter(|| pair(&mut allocator, bytes));
            });
        }
    }
    group.finish();
}

/// The same behind a lock: with nobody else, and with another thread that does nothing but allocate and free.
fn shared_pairs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allocate and free, cached, shared");
    let shared = SharedAllocator::new(populated(AllocatorKind::Native, 1_000).0);
    let pair = |shared: &SharedAllocator<SimulatedDriver>| {
        let allocation = shared.allocate(black_box(32 * MIB)).expect("it is cached");
        shared.free(black_box(allocation)).expect("it is live");
    };
    group.bench_function("one thread", |bencher| bencher.iter(|| pair(&shared)));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                pair(&shared);
            }
        });
        group.bench_function("two threads", |bencher| bencher.iter(|| pair(&shared)));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    group.finish();
}

/// Replaces a live block, chosen at random, by one of another size: every access is a new place in memory.
fn churn(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("free and allocate at random");
    for kind in [AllocatorKind::Native, AllocatorKind::ExpandableSegments] {
        for live in [1_000, 10_000, 100_000] {
            let (mut allocator, mut blocks) = populated(kind, live);
            let mut draws = Draws(11);
            group.bench_function(BenchmarkId::new(kind.name(), live), |bencher| {
                bencher.iter(|| {
                    let index = draws.below(blocks.len() as u64) as usize;
                    allocator.free(blocks[index]).expect("it is live");
                    blocks[index] = allocator.allocate(1 + draws.below(256 * KIB)).expect("the card is large");
                });
            });
        }
    }
    group.finish();
}

/// A trace's requests, by slot, such that running them twice is possible: what the operation leaves is freed at the end.
fn slots(requests: &Requests) -> (Vec<(usize, u64)>, usize) {
    let mut slot_of = std::collections::HashMap::new();
    let mut events = Vec::new();
    for request in &requests.operation {
        match *request {
            Request::Allocate { id, bytes } => {
                let slot = slot_of.len();
                slot_of.insert(id, slot);
                events.push((slot, bytes));
            }
            Request::Free { id } => events.extend(slot_of.get(&id).map(|&slot| (slot, 0))),
        }
    }
    let count = slot_of.len();
    let freed: std::collections::HashSet<_> = events.iter().filter(|event| event.1 == 0).map(|event| event.0).collect();
    events.extend((0..count).filter(|slot| !freed.contains(slot)).map(|slot| (slot, 0)));
    (events, count)
}

fn traces(criterion: &mut Criterion) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/h200/trace-native.jsonl.gz");
    let recordings = recordings::read(&path).expect("the recording is part of the repository");
    for kind in AllocatorKind::ALL {
        let mut group = criterion.benchmark_group(format!("recorded trace, {}", kind.name()));
        for recording in &recordings {
            let Recording::Trace(trace) = recording else { continue };
            let sizes = trace.start.iter().flat_map(|segment| &segment.blocks);
            let live = sizes.filter(|block| block.state != "inactive").map(|block| block.requested_bytes);
            let requests = Requests { live: (0..).zip(live).collect(), operation: operation(&trace.events) };
            let (events, count) = slots(&requests);
            let mut allocator = Allocator::new(SimulatedCard::with_gib(139).driver(), Settings::of_kind(kind));
            for (_, bytes) in &requests.live {
                allocator.allocate(*bytes).expect("the card is large");
            }
            let nothing = allocator.allocate(1).expect("the card is large");
            let mut held = vec![nothing; count];
            group.throughput(Throughput::Elements(events.len() as u64));
            group.bench_function(format!("{} {}", trace.family, trace.operation), |bencher| {
                bencher.iter(|| {
                    for &(slot, bytes) in &events {
                        if bytes > 0 {
                            held[slot] = allocator.allocate(bytes).expect("the card is large");
                        } else {
                            allocator.free(held[slot]).expect("it is live");
                        }
                    }
                });
            });
        }
        group.finish();
    }
}

/// A trace's allocations and frees, numbered by allocation.
fn operation(events: &[(String, u64, u64)]) -> Vec<Request> {
    let mut numbers = std::collections::HashMap::new();
    let mut requests = Vec::new();
    for (id, (action, address, bytes)) in (0..).zip(events) {
        match action.as_str() {
            "alloc" => {
                numbers.insert(*address, id);
                requests.push(Request::Allocate { id, bytes: *bytes });
            }
            "free_completed" => requests.extend(numbers.remove(address).map(|id| Request::Free { id })),
            _ => {}
        }
    }
    requests
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_millis(700));
    targets = cached_pairs, shared_pairs, churn, traces
}
criterion_main!(benches);
