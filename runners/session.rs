//! A family's models on one device: steps of its pipeline, measured or not.

use std::sync::Arc;

use headroom_base::{Case, DType, Environment, Measurement};
use headroom_device::cache::{Cache, CacheError, LockReport, LockedModel, ModelKey, ModelSpec, PieceSpec};
use headroom_device::device::Device;
use headroom_device::probe::Scope;
use headroom_family::{Architecture, Family, Model, Weights};

use crate::programs::{self, Execution};
use crate::runner::{Inputs, RunError, Runner, Work};

/// One step to run.
#[derive(Clone, Debug)]
pub struct StepRequest<'a> {
    /// The model that computes.
    pub model: &'a str,
    /// Models that are locked with it.
    pub with: &'a [String],
    /// What runs, at which size.
    pub case: Case,
    /// The working memory the lock states.
    pub working_bytes: Option<u64>,
}

/// What a step came to.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// What the lock of the computing model came to.
    pub lock: LockReport,
    /// What was measured, where the step ran in a scope and its lock stated a working memory.
    pub measurement: Option<Measurement>,
}

/// Why a step did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The family has no such model.
    #[error("the family has no model `{key}`")]
    UnknownModel {
        /// What was asked for.
        key: String,
    },
    /// The model is known by its bytes alone.
    #[error("model `{key}` is described by its size alone, so nothing is known of its {case}; give it an architecture")]
    Opaque {
        /// The model.
        key: String,
        /// What was to run.
        case: Case,
    },
    /// A model could not be locked.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The operation failed.
    #[error("{source}")]
    Run {
        /// Why.
        #[source]
        source: RunError,
        /// The window that did not count, where one was open.
        measurement: Option<Box<Measurement>>,
    },
}

impl StepError {
    /// Whether the device ran out of memory, in the lock or in the operation.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Cache(error) => error.is_out_of_memory(),
            Self::Run { source, .. } => source.is_out_of_memory(),
            Self::UnknownModel { .. } | Self::Opaque { .. } => false,
        }
    }
}

/// A family's models in a cache, and what executes their operations.
pub struct Session<'f> {
    family: &'f Family,
    cache: Cache,
    runner: Arc<dyn Runner>,
    environment: Environment,
}

impl<'f> Session<'f> {
    /// Adds every model of the family to the cache. Nothing goes to the device yet.
    ///
    /// # Errors
    /// When the cache refuses a model, for instance because its file cannot be read.
    pub fn new(
        family: &'f Family,
        cache: Cache,
        runner: Arc<dyn Runner>,
        environment: Environment,
    ) -> Result<Self, CacheError> {
        for model in &family.models {
            cache.add(model_spec(model))?;
        }
        Ok(Self { family, cache, runner, environment })
    }

    /// The cache.
    pub const fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The software around it.
    pub const fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Runs a step as a generation does: outside every scope, so nothing is measured.
    ///
    /// # Errors
    /// As [`StepError`] says; the locks are given back whatever happens.
    pub fn run(&self, request: &StepRequest<'_>) -> Result<StepReport, StepError> {
        self.with_inputs(request, |work| self.run_locked(request, work))
    }

    /// Runs a step in `scope`, which measures it.
    ///
    /// # Errors
    /// As [`StepError`] says. A window of a failed operation comes with the error.
    pub fn measure(&self, scope: &Scope, request: &StepRequest<'_>) -> Result<StepReport, StepError> {
        let _entered = scope.enter();
        self.run(request)
    }

    /// Locks what a step locks and lets `look` have the device and the work that a run of it is given. Nothing is
    /// measured.
    ///
    /// # Errors
    /// As [`StepError`] says, and what `look` says; the locks are given back whatever happens.
    pub fn inspect<T>(
        &self,
        request: &StepRequest<'_>,
        look: impl FnOnce(&Device, &Work<'_>) -> Result<T, RunError>,
    ) -> Result<T, StepError> {
        self.with_inputs(request, |work| {
            let (_beside, locked) = self.locked(request)?;
            let weights = locked.weights();
            look(self.cache.device(), &Work { weights: &weights, ..work.clone() }).map_err(unmeasured)
        })
    }

    /// Puts a step's inputs on the device, lets `then` have the work with them, and takes them off whatever happens.
    fn with_inputs<T>(
        &self,
        request: &StepRequest<'_>,
        then: impl FnOnce(&Work<'_>) -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        let device = self.cache.device();
        let work = self.work(request.model, request.case)?;
        let inputs = self.runner.prepare(device, &work).map_err(unmeasured)?;
        let outcome = then(&Work { inputs: inputs.holdings(), ..work });
        let released = inputs.release(device).map_err(unmeasured);
        let value = outcome?;
        released.map(|()| value)
    }

    /// A case of a model as the runner is given it, before its inputs and weights are on the device.
    ///
    /// # Errors
    /// When the model is not known layer by layer.
    pub fn work(&self, model: &str, case: Case) -> Result<Work<'f>, StepError> {
        let model = self.model(model)?;
        let (architecture, execution) = (self.architecture(model, &case)?, self.execution(model, &case));
        Ok(Work { architecture, case, execution, weights: &[], inputs: &[] })
    }

    /// The locks of a step: those beside the model, and its own. None waits for another of them.
    fn locked(&self, request: &StepRequest<'_>) -> Result<(Vec<LockedModel>, LockedModel), StepError> {
        let mut beside: Vec<LockedModel> = Vec::new();
        let lock = |model: &str, working_bytes, beside: &[LockedModel]| {
            let held: Vec<_> = beside.iter().collect();
            self.cache.lock_beside(&ModelKey::from(model), working_bytes, &held)
        };
        for key in request.with {
            let locked = lock(key, None, &beside)?;
            beside.push(locked);
        }
        let locked = lock(request.model, request.working_bytes, &beside)?;
        Ok((beside, locked))
    }

    fn run_locked(&self, request: &StepRequest<'_>, work: &Work<'_>) -> Result<StepReport, StepError> {
        let (_beside, locked) = self.locked(request)?;
        let weights = locked.weights();
        let outcome = self.runner.run(self.cache.device(), &Work { weights: &weights, ..work.clone() });
        if let Err(error) = &outcome {
            mark_failed(&locked, error);
        }
        let lock = locked.report().clone();
        let measurement = locked.unlock().measurement;
        match outcome {
            Ok(()) => Ok(StepReport { lock, measurement }),
            Err(source) => Err(StepError::Run { source, measurement: measurement.map(Box::new) }),
        }
    }

    fn model(&self, key: &str) -> Result<&'f Model, StepError> {
        self.family.model(key).ok_or_else(|| StepError::UnknownModel { key: key.to_owned() })
    }

    fn architecture(&self, model: &'f Model, case: &Case) -> Result<&'f Architecture, StepError> {
        model.architecture().ok_or_else(|| StepError::Opaque { key: model.key.clone(), case: *case })
    }

    /// Puts a case's inputs on the device, as every run of it does first.
    ///
    /// # Errors
    /// When the model is not known layer by layer, or the device has no room.
    pub fn prepare(&self, model: &str, case: Case) -> Result<Inputs, StepError> {
        self.runner.prepare(self.cache.device(), &self.work(model, case)?).map_err(unmeasured)
    }

    fn execution(&self, model: &Model, case: &Case) -> Execution {
        Execution { stored: stored_otherwise(model, case.dtype), ..self.runner.execution(&self.environment.hard) }
    }
}

/// A failure outside every window.
fn unmeasured(source: RunError) -> StepError {
    StepError::Run { source, measurement: None }
}

/// The stored element type, where an operation runs in another.
pub fn stored_otherwise(model: &Model, runs_in: DType) -> Option<DType> {
    (model.dtype != runs_in).then_some(model.dtype)
}

fn mark_failed(locked: &LockedModel, error: &RunError) {
    if error.is_out_of_memory() {
        locked.out_of_memory();
    } else {
        locked.operation_failed(error);
    }
}

/// What a family's model brings into the cache.
pub fn model_spec(model: &Model) -> ModelSpec {
    let key = model.key.as_str();
    let spec = match (&model.safetensors, &model.weights) {
        (Some(path), _) => ModelSpec::safetensors(key, path),
        (None, Weights::Architecture(architecture)) => {
            let pieces =
                programs::weights(architecture, model.dtype).into_iter().map(|piece| (piece.name, piece.bytes));
            ModelSpec::synthetic(key, required(pieces.collect(), model))
        }
        (None, Weights::Bytes { pieces, bytes }) => {
            let (count, each) = (u64::from(*pieces), bytes / u64::from(*pieces));
            let size = |index| if index + 1 == count { bytes - each * index } else { each };
            let pieces = (0..count).map(|index| (format!("piece.{index}"), size(index)));
            ModelSpec::synthetic(key, required(pieces.collect(), model))
        }
    };
    if model.partial_loading { spec } else { spec.whole() }
}

/// Marks the first pieces as required until they make up the model's share.
fn required(pieces: Vec<(String, u64)>, model: &Model) -> Vec<PieceSpec> {
    let total: u64 = pieces.iter().map(|(_, bytes)| bytes).sum();
    let wanted = u128::from(total) * u128::from(model.required_percent);
    let mut before = 0_u64;
    pieces
        .into_iter()
        .map(|(name, bytes)| {
            let required = u128::from(before) * 100 < wanted;
            before += bytes;
            PieceSpec { name, bytes, required }
        })
        .collect()
}
