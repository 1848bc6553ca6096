//! What every trial shares: the families, the shipped coefficients, the estimators.

use std::path::Path;
use std::sync::OnceLock;

use headroom_calibration::{BuiltIns, EstimatorVersions};

use crate::bench::Ground;
use crate::catalogue::{Catalogue, CatalogueError};
use crate::gpu::Gpus;
use crate::pricing::estimator_versions;
use crate::recorded::windows_of_theirs;
use headroom_reports::Report;

/// Everything that is the same for all trials of a run.
#[derive(Debug)]
pub struct World {
    /// The families.
    pub catalogue: Catalogue,
    /// The GPUs of this machine.
    pub gpus: Gpus,
    versions: EstimatorVersions,
    recorded: OnceLock<Result<Report, String>>,
}

impl World {
    /// Loads the families of a folder, or those compiled in, and lists the GPUs of this machine.
    ///
    /// # Errors
    /// Every mistake of every family file.
    pub fn load(folder: Option<&Path>) -> Result<Self, CatalogueError> {
        Self::with_gpus(folder, Gpus::attached())
    }

    /// The same with these GPUs.
    ///
    /// # Errors
    /// Every mistake of every family file.
    pub fn with_gpus(folder: Option<&Path>, gpus: Gpus) -> Result<Self, CatalogueError> {
        let catalogue = Catalogue::load(folder)?;
        let versions = estimator_versions(catalogue.families());
        Ok(Self { catalogue, gpus, versions, recorded: OnceLock::new() })
    }

    /// What checks know beside their subject.
    pub fn ground(&self) -> Ground<'_> {
        Ground { built_ins: BuiltIns::compiled_in(), versions: &self.versions }
    }

    /// The windows recorded on a real card of these families' models, priced by them.
    ///
    /// # Errors
    /// When the recording cannot be read.
    pub fn recorded(&self) -> Result<&Report, &str> {
        let read = || windows_of_theirs(&self.catalogue).map_err(|error| error.to_string());
        self.recorded.get_or_init(read).as_ref().map_err(String::as_str)
    }

    /// Whether a family's models were measured in the recording.
    pub fn is_recorded(&self, family: &str) -> bool {
        self.recorded().is_ok_and(|report| !crate::checks::windows_of(report, family).is_empty())
    }
}
