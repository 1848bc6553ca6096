//! What was recorded of a PyTorch process, run again under its own settings and under others.

pub mod choice;
pub mod material;
pub mod recording;
pub mod settings;
pub mod snapshot;
pub mod what_if;

pub use choice::{Candidate, Choice};
pub use material::{Material, MaterialError};
pub use recording::{FileComparison, ReplayError, compare};
pub use settings::{NamedSetting, OLDER_VARIABLE_NOTE};
pub use snapshot::{Explained, explain};
pub use what_if::{Terms, WhatIf, what_if, what_if_all};
