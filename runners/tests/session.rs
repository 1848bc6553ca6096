//! Steps of a pipeline that lock several models at once.

use std::sync::Arc;
use std::time::Duration;

use headroom_base::{
    AllocatorKind, AttentionKernel, Backend, Case, DType, Environment, GIB, HardEnvironment, MIB, MemoryLayout,
    Operation, SoftEnvironment,
};
use headroom_device::{Cache, CacheError, CacheSettings, Device, ModelSpec, SimulatedCard};
use headroom_family::Family;
use headroom_runners::{ScriptedRunner, Session, StepError, StepRequest};

fn environment() -> Environment {
    let hard = HardEnvironment {
        backend: Backend::Cuda,
        allocator: AllocatorKind::Native,
        allocator_settings: String::new(),
        framework: "torch".to_owned(),
        attention: AttentionKernel::Fused,
        convolution_benchmark: false,
        memory_layout: MemoryLayout::Contiguous,
    };
    Environment { hard, soft: SoftEnvironment { driver: "simulated".to_owned() } }
}

#[test]
fn a_step_does_not_wait_for_the_models_that_it_locks_itself() {
    let mut family = Family::embedded().unwrap().into_iter().find(|family| family.name == "sdxl").unwrap();
    let vae = family.models.iter_mut().find(|model| model.key.as_str() == "vae").unwrap();
    vae.partial_loading = false;
    let card = SimulatedCard::with_gib(1);
    let device = Device::simulated(&card, AllocatorKind::Native);
    let settings =
        CacheSettings { floor_bytes: 0, wait_for_room: Duration::from_millis(50), ..CacheSettings::default() };
    let cache = Cache::new(device, settings);
    cache.add(ModelSpec::of_bytes("beside", GIB - 100 * MIB, 10).whole()).unwrap();
    let session = Session::new(&family, cache, Arc::new(ScriptedRunner::new(|_| 0)), environment()).unwrap();
    let with = ["beside".to_owned()];
    let case = Case::image(Operation::VaeDecode, DType::Fp16, 512, 512);
    let error = session.run(&StepRequest { model: "vae", with: &with, case, working_bytes: Some(0) }).unwrap_err();
    let StepError::Cache(CacheError::OutOfMemory { waited, in_use, .. }) = error else { panic!("{error}") };
    assert_eq!((waited, in_use.len()), (Duration::ZERO, 1), "it waited for its own lock");
    assert!(session.cache().models().iter().all(|model| model.locks == 0));
}
