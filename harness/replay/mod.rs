//! What was recorded of a PyTorch process, run again under its own settings and under others.

pub mod settings;
pub mod what_if;

pub use settings::{NamedSetting, OLDER_VARIABLE_NOTE};
pub use what_if::{Terms, WhatIf, what_if, what_if_all};
