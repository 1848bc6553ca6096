//! What every trial shares: the families, the shipped coefficients, the estimators.

use std::path::Path;

use headroom_calibration::{BuiltIns, EstimatorVersions};

use crate::bench::Ground;
use crate::catalogue::{Catalogue, CatalogueError};
use crate::pricing::estimator_versions;

/// Everything that is the same for all trials of a run.
#[derive(Debug)]
pub struct World {
    /// The families.
    pub catalogue: Catalogue,
    versions: EstimatorVersions,
}

impl World {
    /// Loads the families of a folder, or those compiled in.
    ///
    /// # Errors
    /// Every mistake of every family file.
    pub fn load(folder: Option<&Path>) -> Result<Self, CatalogueError> {
        let catalogue = Catalogue::load(folder)?;
        let versions = estimator_versions(catalogue.families());
        Ok(Self { catalogue, versions })
    }

    /// What checks know beside their subject.
    pub fn ground(&self) -> Ground<'_> {
        Ground { built_ins: BuiltIns::compiled_in(), versions: &self.versions }
    }
}
