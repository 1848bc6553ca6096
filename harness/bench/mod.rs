//! Where a check's work happens: one family on one card, simulated or attached, set up as the check wants it.

mod calibrate;
mod card;
mod place;
mod watched;

use std::sync::Arc;

use headroom_base::{
    AllocatorKind, Cap, CapacityTerms, Case, DEFAULT_DEVICE_WORKING_BYTES, DeviceClass, Environment, GIB,
    HardEnvironment, Measurement, MemoryLayout, RunKind, Window,
};
use headroom_calibration::{BuiltIns, Context, EstimatorVersions};
use headroom_device::cache::{Cache, CacheError, CacheSettings};
use headroom_device::device::{DeviceId, DeviceParts};
use headroom_device::driver::{CardSettings, Perturbation, SimulatedCard};
use headroom_device::probe::Hook;
use headroom_device::{Device, DriverError, Settings};
use headroom_family::{Family, Model, SimulatedDevice};
use headroom_runners::{Runner, Session, SimulatedRunner, WorkspaceSteps};

pub(crate) use calibrate::measure_run;
pub use calibrate::{
    Calibration, CalibrationError, Journal, MeasuredModel, calibrate, calibrate_into, cases_to_plan, describe,
    lines_of, not_fitting, weights_bytes,
};
pub use card::{AttachedCard, Card, PAGE_BYTES};
pub use place::{Place, simulated_environment};
pub use watched::{Asked, Log, Noted};

use crate::gpu::{Attached, OpenGpu};
use crate::pricing::Priced;

/// What a measured lock asks beyond its estimate, so that an estimate that is too low is measured all the same.
pub const MEASURING_ALLOWANCE_BYTES: u64 = GIB;

/// A family on a card under one allocator.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The family.
    pub family: &'a Family,
    /// The card.
    pub place: Place<'a>,
    /// The allocator.
    pub allocator: AllocatorKind,
    /// How convolutions' tensors lie.
    pub layout: MemoryLayout,
}

/// Changes the parts of a device before it is made of them.
pub type ChangeParts = Arc<dyn Fn(DeviceParts) -> DeviceParts + Send + Sync>;

/// What a check may want otherwise than usual.
#[derive(Clone, Default)]
pub struct Setup {
    /// Disturbances of the card and steps in workspaces, from this seed; of a simulated card only.
    pub perturbation_seed: Option<u64>,
    /// Another amount of memory than the device's. An attached card of more than it has is the whole card.
    pub memory_bytes: Option<u64>,
    /// Another floor than the usual 3 GiB.
    pub floor_bytes: Option<u64>,
    /// Something else to execute operations.
    pub runner: Option<Arc<dyn Runner>>,
    /// Called at every point of cache and probe.
    pub hook: Option<Arc<dyn Hook>>,
    /// Another change of the card; of a simulated card only.
    pub card: Option<fn(&mut CardSettings)>,
    /// Something around the device's memory.
    pub parts: Option<ChangeParts>,
}

/// Why a bench could not be set up, or its card not be made what a check wants.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The cache refused something.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The driver of an attached card refused something.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// What was wanted can only be had of a card of numbers.
    #[error("an attached card is what it is: this needs a simulated one")]
    NotOnAnAttachedCard,
}

/// A card with a session on it.
pub struct Bench<'a> {
    /// The card, to be looked at and made tight from outside.
    pub card: Card,
    /// The family's models on it.
    pub session: Session<'a>,
    /// What executes their operations.
    pub runner: Arc<dyn Runner>,
    /// The subject.
    pub subject: Subject<'a>,
    /// The working memory its cache keeps free.
    pub floor_bytes: u64,
    /// Takes leave of an attached card when this bench goes.
    _leaves: Option<Leaves>,
}

/// An attached card's device that goes with its bench.
struct Leaves {
    attached: Arc<dyn Attached>,
    cache: Cache,
}

impl Drop for Leaves {
    fn drop(&mut self) {
        // The device gives all of it back when it goes. It stays where a hook holds on to it, and then no model may stay
        // with it. Nobody is there to be told of a failure.
        let _ = self.cache.offload_unlocked();
        let _ = self.attached.leave(self.cache.device());
        let _ = self.cache.device().empty_cache();
    }
}

/// What a bench is made of beside its family.
struct Parts {
    card: Card,
    device: Device,
    runner: Arc<dyn Runner>,
    attached: Option<Arc<dyn Attached>>,
}

impl<'a> Subject<'a> {
    /// One in PyTorch's own layout.
    pub fn usual(family: &'a Family, place: Place<'a>, allocator: AllocatorKind) -> Self {
        Self { family, place, allocator, layout: MemoryLayout::default() }
    }

    /// The software around the card.
    pub fn environment(&self) -> Environment {
        let Environment { hard, soft } = self.place.environment(self.allocator);
        Environment { hard: HardEnvironment { memory_layout: self.layout, ..hard }, soft }
    }

    /// The kind of card.
    pub fn class(&self) -> DeviceClass {
        self.place.class()
    }

    /// Where windows of this subject are to hold.
    pub fn context(&self, versions: &EstimatorVersions) -> Context {
        Context { device: self.class(), hard: self.environment().hard, versions: versions.clone() }
    }

    /// Sets a card up with the family's models in a cache.
    ///
    /// # Errors
    /// When the cache refuses a model, the driver refuses, or something is wanted that only a simulated card can be.
    pub fn bench(&self, setup: &Setup) -> Result<Bench<'a>, BenchError> {
        let Parts { card, device, runner, attached } = match self.place {
            Place::Simulated(device) => self.on_a_simulated(device, setup),
            Place::Gpu(gpu) => self.on_an_attached(gpu, setup)?,
        };
        let floor_bytes = setup.floor_bytes.unwrap_or(DEFAULT_DEVICE_WORKING_BYTES);
        let cache = Cache::new(device, CacheSettings { floor_bytes, ..CacheSettings::default() });
        let _leaves = attached.map(|attached| Leaves { attached, cache: cache.clone() });
        let session = Session::new(self.family, cache, Arc::clone(&runner), self.environment())?;
        Ok(Bench { card, session, runner, subject: *self, floor_bytes, _leaves })
    }

    fn on_a_simulated(&self, device: &SimulatedDevice, setup: &Setup) -> Parts {
        let mut settings = CardSettings {
            context_bytes: device.context_bytes,
            others_bytes: device.outside_bytes,
            ..CardSettings::new(setup.memory_bytes.unwrap_or(device.memory_bytes))
        };
        settings.perturbation = setup.perturbation_seed.map(Perturbation::seeded);
        if let Some(change) = setup.card {
            change(&mut settings);
        }
        let card = SimulatedCard::new(settings);
        let settings = Settings::of_kind(self.allocator);
        let parts = DeviceParts::over_driver(DeviceId::new(&device.name), self.class(), card.driver(), settings, true);
        let runner: Arc<dyn Runner> = match (&setup.runner, setup.perturbation_seed) {
            (Some(runner), _) => Arc::clone(runner),
            (None, Some(seed)) => Arc::new(SimulatedRunner::with_workspace_steps(WorkspaceSteps { seed, percent: 12 })),
            (None, None) => Arc::new(SimulatedRunner::new()),
        };
        Parts { card: card.into(), device: setup.built(parts), runner, attached: None }
    }

    fn on_an_attached(&self, gpu: &OpenGpu, setup: &Setup) -> Result<Parts, BenchError> {
        if setup.perturbation_seed.is_some() || setup.card.is_some() {
            return Err(BenchError::NotOnAnAttachedCard);
        }
        let attached = gpu.attached();
        let device = setup.built(attached.parts(Settings::of_kind(self.allocator))?);
        let total_bytes = gpu.facts().total_bytes;
        let memory_bytes = setup.memory_bytes.filter(|memory_bytes| *memory_bytes < total_bytes);
        let total_bytes = memory_bytes.unwrap_or(total_bytes);
        let card = Card::Attached(AttachedCard::new(Arc::clone(attached), device.clone(), total_bytes));
        if memory_bytes.is_some() {
            // Others stay where they are, as on a simulated card of another size.
            card.limit(total_bytes.saturating_sub(gpu.others_bytes()))?;
        }
        let runner = setup.runner.clone().unwrap_or_else(|| attached.runner());
        Ok(Parts { card, device, runner, attached: Some(Arc::clone(attached)) })
    }

    /// A measured run of a model's case as a window of no attempt.
    pub fn window(&self, model: &Model, case: Case, priced: Priced, measurement: Measurement) -> Window {
        Window {
            model: model.key.clone(),
            line: priced.line,
            case,
            cost_units: priced.costs.units,
            analytic_bytes: priced.costs.analytic_bytes,
            device: self.class(),
            environment: self.environment(),
            attempt_id: None,
            run: 0,
            retry: 0,
            kind: RunKind::Measured,
            origin: self.place.origin(),
            measurement,
        }
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
            outside_now_bytes: self.place.outside_bytes(),
            outside_floor_bytes: 0,
            context_bytes: self.place.context_bytes(),
            retained_bytes: self.place.retained(),
            locked_weights_bytes,
            cap: Cap::Unlimited,
        }
    }
}

impl Setup {
    /// The device made of `parts`, with what the check wants around it.
    fn built(&self, parts: DeviceParts) -> Device {
        let parts = DeviceParts { hook: self.hook.clone().or(parts.hook), ..parts };
        match &self.parts {
            Some(change) => change(parts).build(),
            None => parts.build(),
        }
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
