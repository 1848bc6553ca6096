//! The card that `--device` names: one of a family file, one of another size, or one that is attached.

use std::sync::Arc;

use headroom_device::lease::DeviceLease;
use headroom_family::{Family, SimulatedDevice};

use super::error::CliError;
use super::plan::device_named;
use crate::bench::Place;
use crate::gpu::{Gpus, OpenGpu, SHORT_NAME_CHARS, Turn};
use crate::variables::patience;

/// A card that a command works on; an attached one is this process's alone meanwhile.
pub(super) enum OnCard {
    /// A card of numbers.
    Simulated(SimulatedDevice),
    /// An attached card.
    Gpu {
        /// The card.
        open: Arc<OpenGpu>,
        /// Keeps it.
        _turn: Turn,
    },
}

impl OnCard {
    /// The card of this name. `words` is what other processes are told who want it meanwhile.
    ///
    /// # Errors
    /// For a name that no card has, and for an attached card that cannot be had.
    pub(super) fn named(family: &Family, name: &str, words: &str) -> Result<Self, CliError> {
        if !is_gpu(name) {
            return Ok(Self::Simulated(device_named(family, name)?));
        }
        let turn = turn_on(&Gpus::attached(), name, words)?;
        let open = turn.open().map(Arc::clone).ok_or_else(|| CliError::Unavailable(format!("{name} is not open")))?;
        Ok(Self::Gpu { open, _turn: turn })
    }

    /// The place.
    pub(super) fn place(&self) -> Place<'_> {
        match self {
            Self::Simulated(device) => device.into(),
            Self::Gpu { open, .. } => (&**open).into(),
        }
    }
}

/// Whether a name means an attached card.
pub(super) fn is_gpu(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name == "gpu" || name.starts_with("gpu-")
}

/// A device's name as reports keep it: of an attached card no more of its identity than names it.
pub(super) fn recorded_name(name: &str) -> String {
    if is_gpu(name) { name.chars().take(SHORT_NAME_CHARS).collect() } else { name.to_owned() }
}

/// A turn on the attached card of this name.
///
/// # Errors
/// When there is none, or somebody else has it.
pub(super) fn turn_on(gpus: &Gpus, name: &str, words: &str) -> Result<Turn, CliError> {
    let card = gpus.named(name)?;
    let patience = patience().map_err(CliError::Value)?;
    let folder = DeviceLease::default_folder().map_err(|error| CliError::Unavailable(error.to_string()))?;
    Ok(card.turn(words, &folder, patience)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Exit;

    #[test]
    fn a_gpu_that_is_not_there_is_said_with_the_reason_and_is_not_a_bad_value() {
        let error = turn_on(&Gpus::none("the CUDA driver was not found"), "gpu", "a test").unwrap_err();
        assert_eq!(error.exit(), Exit::Unavailable);
        assert!(error.to_string().contains("the CUDA driver was not found"), "{error}");
    }

    #[test]
    fn only_names_of_gpus_mean_attached_cards() {
        assert!(["gpu", "GPU", "gpu-1a2b3c4d"].into_iter().all(is_gpu));
        assert!(!["12GiB", "gpu2", "cpu"].into_iter().any(is_gpu));
    }
}
