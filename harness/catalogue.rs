//! The families a run knows: those compiled in, or a folder's.

use std::collections::BTreeMap;
use std::path::Path;

use headroom_base::Operation;
use headroom_family::{Family, FamilyError, Model, Recordings};

use crate::recorded::recording_names;

/// All families, by name.
#[derive(Clone, Debug)]
pub struct Catalogue {
    families: Vec<Family>,
}

/// Why something named on the command line is not there.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// A family file is wrong.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// Two models claim the same recorded windows, which would be held against the first alone.
    #[error(
        "`recorded_as: {recording}` stands at `{first}` and at `{second}`, and both run {operation}: recorded windows are \
         of one model; leave it out at the other"
    )]
    RecordedTwice {
        /// The recording's name.
        recording: String,
        /// The operation that both run.
        operation: Operation,
        /// The first model, `family:key`.
        first: String,
        /// The other.
        second: String,
    },
    /// No family of that name.
    #[error("there is no family `{name}`{}; known are {known}", suggestion(nearest))]
    UnknownFamily {
        /// What was asked for.
        name: String,
        /// The nearest known name.
        nearest: Option<String>,
        /// All known names.
        known: String,
    },
    /// No model of that key in the family.
    #[error("family `{family}` has no model `{name}`{}; it has {known}", suggestion(nearest))]
    UnknownModel {
        /// The family.
        family: String,
        /// What was asked for.
        name: String,
        /// The nearest known key.
        nearest: Option<String>,
        /// All known keys.
        known: String,
    },
    /// No device of that name in the family.
    #[error("family `{family}` has no device `{name}`{}; it is simulated on {}", suggestion(nearest), or_none(known))]
    UnknownDevice {
        /// The family.
        family: String,
        /// What was asked for.
        name: String,
        /// The nearest known name.
        nearest: Option<String>,
        /// All known names.
        known: String,
    },
    /// The family runs that operation on no model.
    #[error("family `{family}` runs no {operation}; its models are {known}")]
    NoModelFor {
        /// The family.
        family: String,
        /// The operation.
        operation: Operation,
        /// Its models.
        known: String,
    },
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!(" (did you mean `{name}`?)")).unwrap_or_default()
}

/// The names, or that there is none.
fn or_none(known: &str) -> &str {
    if known.is_empty() { "none" } else { known }
}

/// The known word nearest to what was written, if any is near.
fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let word = word.to_lowercase();
    known
        .map(|name| (strsim::jaro_winkler(&word, &name.to_lowercase()), name))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, name)| name.to_owned())
}

impl Catalogue {
    /// The families of a folder, or those compiled in.
    ///
    /// # Errors
    /// Every mistake of every file.
    pub fn load(folder: Option<&Path>) -> Result<Self, CatalogueError> {
        Self::load_with(folder, Recordings::Named(&recording_names()))
    }

    /// The same for recordings that the program does not have: `recorded_as` may say any name.
    ///
    /// # Errors
    /// Every other mistake of every file.
    pub fn load_for_recordings(folder: Option<&Path>) -> Result<Self, CatalogueError> {
        Self::load_with(folder, Recordings::Any)
    }

    fn load_with(folder: Option<&Path>, recordings: Recordings<'_>) -> Result<Self, CatalogueError> {
        let families = match folder {
            Some(folder) => Family::load_dir(folder, recordings)?,
            // A test keeps the names in these.
            None => Family::embedded()?,
        };
        recorded_once(&families)?;
        Ok(Self { families })
    }

    /// All of them, ordered by file name.
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    /// The family of a name, in capitals or not.
    ///
    /// # Errors
    /// When there is none, with the nearest name.
    pub fn family(&self, name: &str) -> Result<&Family, CatalogueError> {
        self.families.iter().find(|family| family.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
            CatalogueError::UnknownFamily {
                name: name.to_owned(),
                nearest: nearest(name, self.families.iter().map(|family| family.name.as_str())),
                known: joined(self.families.iter().map(|family| family.name.as_str())),
            }
        })
    }
}

/// # Errors
/// For two models that claim the same recorded windows.
fn recorded_once(families: &[Family]) -> Result<(), CatalogueError> {
    let mut claimed: BTreeMap<(&str, Operation), String> = BTreeMap::new();
    for (family, model) in families.iter().flat_map(|family| family.models.iter().map(move |model| (family, model))) {
        let Some((recording, architecture)) = model.recorded_as.as_deref().zip(model.architecture()) else { continue };
        for operation in Operation::ALL.into_iter().filter(|operation| architecture.runs(*operation)) {
            let name = format!("{}:{}", family.name, model.key);
            if let Some(first) = claimed.insert((recording, operation), name.clone()) {
                let recording = recording.to_owned();
                return Err(CatalogueError::RecordedTwice { recording, operation, first, second: name });
            }
        }
    }
    Ok(())
}

/// The model that `--model` names, or the first that runs the operation.
///
/// # Errors
/// When the family has none.
pub fn model_of<'a>(family: &'a Family, key: Option<&str>, operation: Operation) -> Result<&'a Model, CatalogueError> {
    let keys = || family.models.iter().map(|model| model.key.as_str());
    match key {
        Some(key) => family.model(key).ok_or_else(|| CatalogueError::UnknownModel {
            family: family.name.clone(),
            name: key.to_owned(),
            nearest: nearest(key, keys()),
            known: joined(keys()),
        }),
        None => family.model_for(operation).ok_or_else(|| CatalogueError::NoModelFor {
            family: family.name.clone(),
            operation,
            known: joined(keys()),
        }),
    }
}

/// The simulated device of a name, written as in the file or as a size (`12GiB`).
///
/// # Errors
/// When the family has none.
pub fn device_of<'a>(family: &'a Family, name: &str) -> Result<&'a headroom_family::SimulatedDevice, CatalogueError> {
    let same = |device: &&headroom_family::SimulatedDevice| device.name.eq_ignore_ascii_case(name);
    family.devices.iter().find(same).ok_or_else(|| CatalogueError::UnknownDevice {
        family: family.name.clone(),
        name: name.to_owned(),
        nearest: nearest(name, family.devices.iter().map(|device| device.name.as_str())),
        known: joined(family.devices.iter().map(|device| device.name.as_str())),
    })
}

fn joined<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest_known_one() {
        let catalogue = Catalogue::load(None).unwrap();
        let error = catalogue.family("sdxxl").unwrap_err().to_string();
        assert!(error.contains("did you mean `sdxl`?"), "{error}");
        let error = catalogue.family("SDXXL").unwrap_err().to_string();
        assert!(error.contains("`SDXXL` (did you mean `sdxl`?)"), "{error}");
        let error = catalogue.family("quux").unwrap_err().to_string();
        assert!(!error.contains("did you mean"), "{error}");
    }

    #[test]
    fn a_recording_that_two_families_claim_is_refused_with_both() {
        let folder = tempfile::tempdir().unwrap();
        let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("families");
        let text = std::fs::read_to_string(families.join("taesd.yaml")).unwrap();
        std::fs::write(folder.path().join("taesd.yaml"), &text).unwrap();
        let copy = text.replace("name: taesd", "name: mine");
        std::fs::write(folder.path().join("mine.yaml"), &copy).unwrap();
        let error = Catalogue::load(Some(folder.path())).unwrap_err().to_string();
        assert!(error.starts_with("`recorded_as: taesd` stands at `mine:vae` and at `taesd:vae`"), "{error}");
        let without = copy.replace("    recorded_as: taesd\n", "");
        std::fs::write(folder.path().join("mine.yaml"), without).unwrap();
        assert_eq!(Catalogue::load(Some(folder.path())).unwrap().families().len(), 2);
    }

    #[test]
    fn a_family_that_is_simulated_on_no_device_says_so() {
        let catalogue = Catalogue::load(None).unwrap();
        let error = device_of(catalogue.family("regressions").unwrap(), "12GiB").unwrap_err().to_string();
        assert!(error.ends_with("it is simulated on none"), "{error}");
    }

    #[test]
    fn a_family_is_found_however_its_name_is_written() {
        let catalogue = Catalogue::load(None).unwrap();
        assert_eq!(catalogue.family("SDXL").unwrap().name, "sdxl");
        assert_eq!(catalogue.family("Z-Image").unwrap().name, "z-image");
    }
}
