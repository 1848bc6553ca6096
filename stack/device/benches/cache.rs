//! What a lock costs: of a resident model, with and without the probe's question, and with a thousand models to choose from.

use criterion::{Criterion, criterion_group, criterion_main};
use headroom_base::{AllocatorKind, Cap, GIB, MIB, budget};
use headroom_device::cache::ModelSpec;
use headroom_device::driver::CardSettings;
use headroom_device::{Cache, CacheSettings, Device, ModelKey, Scope, SimulatedCard};

fn resident_model() -> (Cache, ModelKey) {
    let device = Device::simulated(&SimulatedCard::with_gib(24), AllocatorKind::Native);
    let cache = Cache::new(device, CacheSettings::default());
    let key = ModelKey::submodel("sdxl", "vae");
    cache.add(ModelSpec::of_bytes(key.clone(), 320 * MIB, 16)).expect("a new model");
    drop(cache.lock(&key, None).expect("room for it"));
    (cache, key)
}

fn lock_and_unlock(bench: &mut Criterion) {
    let (cache, key) = resident_model();
    let mut group = bench.benchmark_group("lock and unlock a resident model");
    let working = Some(2 * GIB);
    group.bench_function("without the probe", |bench| {
        bench.iter(|| drop(cache.lock_outside_scopes(&key, working).expect("it is resident")));
    });
    group.bench_function("with the probe and no scope", |bench| {
        bench.iter(|| drop(cache.lock(&key, working).expect("it is resident")));
    });
    let scope = Scope::new(0);
    group.bench_function("measured in a scope", |bench| {
        let entered = scope.enter();
        bench.iter(|| drop(cache.lock(&key, working).expect("it is resident")));
        drop(entered);
        scope.take_recorded();
    });
    group.finish();
}

fn budget_alone(bench: &mut Criterion) {
    let (cache, _) = resident_model();
    let figures = cache.device().figures().expect("a simulated card answers");
    bench.bench_function("budget of a snapshot", |bench| {
        bench.iter(|| budget(std::hint::black_box(&figures), Some(2 * GIB), 3 * GIB, Cap::Unlimited));
    });
}

/// 1,000 models that are resident, and two smaller ones of which only one has room: each lock finds the other one among
/// all, moves it off and loads its own.
fn choose_among_a_thousand(bench: &mut Criterion) {
    let device = Device::simulated(&SimulatedCard::new(CardSettings::new(20_020 * MIB)), AllocatorKind::Native);
    let cache = Cache::new(device, CacheSettings { floor_bytes: 0, ..CacheSettings::default() });
    let small = [ModelKey::model("small a"), ModelKey::model("small b")];
    let large = (0..1_000).map(|index| (ModelKey::model(format!("model {index}")), 20));
    for (key, mib) in large.chain(small.iter().map(|key| (key.clone(), 18))) {
        cache.add(ModelSpec::of_bytes(key.clone(), mib * MIB, 1)).expect("a new model");
        drop(cache.lock(&key, None).expect("room for it"));
    }
    // The second one was loaded last.
    let mut turn = 1;
    bench.bench_function("move one of 1,000 models off and load another", |bench| {
        bench.iter(|| {
            turn = 1 - turn;
            let locked = cache.lock(&small[turn], None).expect("room for it");
            assert_eq!(locked.report().moves.len(), 1);
        });
    });
}

criterion_group!(cache, lock_and_unlock, budget_alone, choose_among_a_thousand);
criterion_main!(cache);
