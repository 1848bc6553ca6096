//! Where a check's work happens: one family on one simulated card, set up as the check wants it.

mod calibrate;

use std::sync::Arc;

use headroom_base::{
    AllocatorKind, Backend, Cap, CapacityTerms, DEFAULT_DEVICE_WORKING_BYTES, DeviceClass, Environment, GIB,
    HardEnvironment, Reading, SoftEnvironment,
};
use headroom_calibration::{BuiltIns, Context, EstimatorVersions};
use headroom_device::Settings;
use headroom_device::cache::{Cache, CacheError, CacheSettings};
use headroom_device::device::{DeviceId, DeviceParts};
use headroom_device::driver::{CardSettings, Perturbation, SimulatedCard};
use headroom_device::probe::Hook;
use headroom_family::{Family, Model, SimulatedDevice};
use headroom_runners::{Runner, SIMULATED_FRAMEWORK, Session, SimulatedRunner, WorkspaceSteps};

pub(crate) use calibrate::measure_run;
pub use calibrate::{
    Calibration, CalibrationError, Journal, MeasuredModel, calibrate, calibrate_into, cases_to_plan, describe,
    lines_of, not_fitting, weights_bytes,
};

/// What a measured lock asks beyond its estimate, so that an estimate that is too low is measured all the same.
pub const MEASURING_ALLOWANCE_BYTES: u64 = GIB;

/// The driver's name in simulated environments.
const SIMULATED_DRIVER: &str = "simulated";

/// A family on a simulated card under one allocator.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The family.
    pub family: &'a Family,
    /// The card.
    pub device: &'a SimulatedDevice,
    /// The allocator.
    pub allocator: AllocatorKind,
}

/// What a check may want otherwise than usual.
#[derive(Clone, Default)]
pub struct Setup {
    /// Disturbances of the card and steps in workspaces, from this seed.
    pub perturbation_seed: Option<u64>,
    /// Another amount of memory than the device's.
    pub memory_bytes: Option<u64>,
    /// Another floor than the usual 3 GiB.
    pub floor_bytes: Option<u64>,
    /// Something else to execute operations.
    pub runner: Option<Arc<dyn Runner>>,
    /// Called at every point of cache and probe.
    pub hook: Option<Arc<dyn Hook>>,
    /// Another change of the card.
    pub card: Option<fn(&mut CardSettings)>,
}

/// A card with a session on it.
pub struct Bench<'a> {
    /// The card, to be looked at and changed from outside.
    pub card: SimulatedCard,
    /// The family's models on it.
    pub session: Session<'a>,
    /// What executes their operations.
    pub runner: Arc<dyn Runner>,
    /// The subject.
    pub subject: Subject<'a>,
    /// The working memory its cache keeps free.
    pub floor_bytes: u64,
}

impl<'a> Subject<'a> {
    /// The software that a simulation stands for.
    pub fn environment(&self) -> Environment {
        simulated_environment(self.allocator)
    }

    /// The kind of card: simulated cards of one size are one class.
    pub fn class(&self) -> DeviceClass {
        DeviceClass::new("simulated", self.device.memory_bytes, Backend::Cuda)
    }

    /// Where windows of this subject are to hold.
    pub fn context(&self, versions: &EstimatorVersions) -> Context {
        Context { device: self.class(), hard: self.environment().hard, versions: versions.clone() }
    }

    /// The card, before anything else is wanted of it.
    pub fn card_settings(&self) -> CardSettings {
        CardSettings {
            context_bytes: self.device.context_bytes,
            others_bytes: self.device.outside_bytes,
            ..CardSettings::new(self.device.memory_bytes)
        }
    }

    /// Sets a card up with the family's models in a cache.
    ///
    /// # Errors
    /// When the cache refuses a model.
    pub fn bench(&self, setup: &Setup) -> Result<Bench<'a>, CacheError> {
        let mut settings = self.card_settings();
        settings.perturbation = setup.perturbation_seed.map(Perturbation::seeded);
        settings.total_bytes = setup.memory_bytes.unwrap_or(settings.total_bytes);
        if let Some(change) = setup.card {
            change(&mut settings);
        }
        let card = SimulatedCard::new(settings);
        let parts = DeviceParts::over_driver(
            DeviceId::new(&self.device.name),
            self.class(),
            card.driver(),
            Settings::of_kind(self.allocator),
            true,
        );
        let parts = DeviceParts { hook: setup.hook.clone(), ..parts };
        let floor_bytes = setup.floor_bytes.unwrap_or(DEFAULT_DEVICE_WORKING_BYTES);
        let cache = Cache::new(parts.build(), CacheSettings { floor_bytes, ..CacheSettings::default() });
        let runner: Arc<dyn Runner> = match (&setup.runner, setup.perturbation_seed) {
            (Some(runner), _) => Arc::clone(runner),
            (None, Some(seed)) => Arc::new(SimulatedRunner::with_workspace_steps(WorkspaceSteps { seed, percent: 12 })),
            (None, None) => Arc::new(SimulatedRunner::new()),
        };
        let session = Session::new(self.family, cache, Arc::clone(&runner), self.environment())?;
        Ok(Bench { card, session, runner, subject: *self, floor_bytes })
    }

    /// The models that are locked beside a model whenever the pipeline runs it.
    pub fn locked_beside(&self, model: &Model) -> Vec<String> {
        let steps = self.family.pipeline.iter().filter(|step| step.model == model.key);
        let mut keys: Vec<String> = steps.flat_map(|step| step.with.iter().cloned()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// The weights of a model and of those that are locked beside it.
    pub fn locked_weights_bytes(&self, model: &Model) -> u64 {
        let beside = self.locked_beside(model);
        let beside = beside.iter().filter_map(|key| self.family.model(key)).map(weights_bytes);
        weights_bytes(model) + beside.sum::<u64>()
    }

    /// What the card can hold beside the weights of the models that a step locks.
    pub fn capacity_terms(&self, memory_bytes: u64, locked_weights_bytes: u64) -> CapacityTerms {
        CapacityTerms {
            total_bytes: memory_bytes,
            outside_now_bytes: self.device.outside_bytes,
            outside_floor_bytes: 0,
            context_bytes: self.device.context_bytes,
            retained_bytes: Reading::Bytes(0),
            locked_weights_bytes,
            cap: Cap::Unlimited,
        }
    }
}

/// The environment of every simulation under this allocator.
pub fn simulated_environment(allocator: AllocatorKind) -> Environment {
    Environment {
        hard: HardEnvironment {
            backend: Backend::Cuda,
            allocator,
            allocator_settings: String::new(),
            framework: SIMULATED_FRAMEWORK.to_owned(),
            attention: headroom_base::AttentionKernel::default(),
            convolution_benchmark: false,
            memory_layout: headroom_base::MemoryLayout::default(),
        },
        soft: SoftEnvironment { driver: SIMULATED_DRIVER.to_owned() },
    }
}

/// What every check knows beside its subject.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// The shipped coefficients.
    pub built_ins: &'a BuiltIns,
    /// The estimators of this program.
    pub versions: &'a EstimatorVersions,
}
