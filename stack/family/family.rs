//! A model family whose every part has been checked: what the rest of the program works with.

use std::path::PathBuf;

use headroom_base::{AllocatorKind, Case, DType, Operation, Tiling};

use crate::architecture::Architecture;
use crate::scenario::Scenario;

/// A model family. It comes out of [`Family::parse`] alone, so whatever it names exists in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Family {
    /// Its name, as in trials and on the command line.
    pub name: String,
    /// What it is, in a sentence or two.
    pub description: String,
    /// Its models; none in a family of regressions alone.
    pub models: Vec<Model>,
    /// The steps of one generation, in order.
    pub pipeline: Vec<PipelineStep>,
    /// What a calibration measures.
    pub calibration: CalibrationSpec,
    /// The devices it is simulated on.
    pub devices: Vec<SimulatedDevice>,
    /// What must hold on them.
    pub checks: Checks,
    /// Scripted cache scenarios.
    pub regressions: Vec<Scenario>,
}

impl Family {
    /// The model with a key.
    pub fn model(&self, key: &str) -> Option<&Model> {
        self.models.iter().find(|model| model.key == key)
    }

    /// The device with a name.
    pub fn device(&self, name: &str) -> Option<&SimulatedDevice> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// The first model that can run an operation: what `--family F --operation O` means.
    /// A model that the calibration measures comes before one that it does not.
    pub fn model_for(&self, operation: Operation) -> Option<&Model> {
        let calibrated = self.calibration.lines.iter().find(|line| line.operation == operation);
        let key = calibrated
            .map(|line| &line.model)
            .or_else(|| self.pipeline.iter().find(|step| step.case.operation == operation).map(|step| &step.model));
        match key {
            Some(key) => self.model(key),
            None => self.models.iter().find(|model| model.architecture().is_some_and(|known| known.runs(operation))),
        }
    }
}

/// A model of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Model {
    /// Its key: `model`, or `model:submodel`.
    pub key: String,
    /// What its weights are.
    pub weights: Weights,
    /// The element type they are stored in.
    pub dtype: DType,
    /// A safetensors file that holds them, relative to the family file; synthetic weights where there is none.
    pub safetensors: Option<PathBuf>,
    /// The share of its weights that must be on the device to run, in percent.
    pub required_percent: u32,
    /// Whether it may run with a part of its weights on the device.
    pub partial_loading: bool,
    /// The name under which recordings of real devices have it; the operation tells models of one name apart.
    pub recorded_as: Option<String>,
}

impl Model {
    /// Its architecture, where it is described layer by layer.
    pub const fn architecture(&self) -> Option<&Architecture> {
        match &self.weights {
            Weights::Architecture(architecture) => Some(architecture),
            Weights::Bytes { .. } => None,
        }
    }
}

/// What a model's weights are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weights {
    /// The tensors that follow from an architecture.
    Architecture(Architecture),
    /// So many bytes in so many pieces, as equal as whole bytes allow. Nothing is known of its operations.
    Bytes {
        /// In how many pieces they load; at least one.
        pieces: u32,
        /// All of them together, in the stored element type.
        bytes: u64,
    },
}

/// A step of the pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PipelineStep {
    /// The model it runs on.
    pub model: String,
    /// Models that are locked with it.
    pub with: Vec<String>,
    /// What runs, and at which size.
    pub case: Case,
}

/// What a calibration measures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CalibrationSpec {
    /// One entry per model, operation, element type and tiling, in the order of the file.
    pub lines: Vec<CalibrationLine>,
}

/// The cases that are measured for one model, operation, element type and tiling.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CalibrationLine {
    /// The model.
    pub model: String,
    /// The operation.
    pub operation: Operation,
    /// The element type it computes in.
    pub dtype: DType,
    /// The tiling, where it runs tile by tile.
    pub tiling: Option<Tiling>,
    /// The sizes to measure; three different ones at least.
    pub cases: Vec<Case>,
    /// Sizes that are left out, on which the fit is tried.
    pub held_out: Vec<Case>,
}

/// A device to simulate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimulatedDevice {
    /// Its name in trials (`12gib`).
    pub name: String,
    /// Its memory by the driver.
    pub memory_bytes: u64,
    /// What this process's context costs.
    pub context_bytes: u64,
    /// What other processes hold.
    pub outside_bytes: u64,
    /// The allocators to try; at least one.
    pub allocators: Vec<AllocatorKind>,
}

/// What must hold on every device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checks {
    /// How much of a measured model is on the device at least, where its case is planned.
    pub residency_percent: u32,
    /// How many of the held-out sizes the reservation covers at least.
    pub coverage_percent: u32,
    /// How much more than the demand may be reserved for a calibrated size.
    pub over_reservation: OverReservation,
    /// Models that some devices cannot hold whole.
    pub partly_resident: Vec<PartlyResident>,
    /// Operations that some devices can only run tile by tile.
    pub tiling_needed: Vec<TilingNeeded>,
}

/// Limits on reservation over demand, in percent of the demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverReservation {
    /// For fixed segments.
    pub native_percent: u32,
    /// For expandable segments.
    pub expandable_segments_percent: u32,
    /// For the driver's stream-ordered pool.
    pub cuda_malloc_async_percent: u32,
}

impl OverReservation {
    /// The limit for an allocator.
    pub const fn percent(&self, allocator: AllocatorKind) -> u32 {
        match allocator {
            AllocatorKind::Native => self.native_percent,
            AllocatorKind::ExpandableSegments => self.expandable_segments_percent,
            AllocatorKind::CudaMallocAsync => self.cuda_malloc_async_percent,
        }
    }
}

/// A model that some devices cannot hold whole.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartlyResident {
    /// The model.
    pub model: String,
    /// The devices.
    pub devices: Vec<String>,
}

/// An operation that some devices can only run tile by tile.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TilingNeeded {
    /// The model.
    pub model: String,
    /// The case that does not fit untiled.
    pub case: Case,
    /// The tiling with which it does.
    pub tiling: Tiling,
    /// The devices.
    pub devices: Vec<String>,
    /// The allocators under which it does not fit there.
    pub allocators: Vec<AllocatorKind>,
}

impl TilingNeeded {
    /// Whether a case of a model needs its tiles on a device under an allocator.
    pub fn is_about(&self, model: &str, case: &Case, device: &str, allocator: AllocatorKind) -> bool {
        self.model == model
            && self.case == *case
            && self.devices.iter().any(|name| name == device)
            && self.allocators.contains(&allocator)
    }

    /// The case that fits.
    pub const fn tiled(&self) -> Case {
        self.case.with_tiling(self.tiling)
    }
}
