//! What a lock that finds too little memory says, and how often.

use std::collections::HashSet;
use std::fmt;

use headroom_base::{Bytes, SignedBytes, mutant};

use super::ModelKey;

/// A model that has bytes on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The model.
    pub key: ModelKey,
    /// Its bytes there.
    pub bytes: u64,
    /// Whether somebody uses it.
    pub locked: bool,
}

/// Too little memory for a lock after everything unlocked was moved off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// The model being locked.
    pub key: ModelKey,
    /// The working memory that is kept free: after the floor.
    pub working_bytes: u64,
    /// The budget with it; negative, or less than what must be loaded.
    pub budget_bytes: i64,
    /// Pieces of the model that must be on the device and are not.
    pub required_bytes: u64,
    /// Every model with bytes on the device, by name.
    pub resident: Vec<Resident>,
}

impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, working_bytes, budget_bytes, required_bytes, resident } = self;
        write!(f, "too little device memory to lock {key} with {} of working memory: ", Bytes(*working_bytes))?;
        write!(f, "the budget is {}", SignedBytes(*budget_bytes))?;
        if *required_bytes > 0 {
            write!(f, " for {} that must be loaded", Bytes(*required_bytes))?;
        }
        f.write_str(" after everything unlocked was moved off. Resident: ")?;
        if resident.is_empty() {
            return f.write_str("no model");
        }
        for (index, Resident { key, bytes, locked }) in resident.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            let state = if *locked { "locked" } else { "unlocked" };
            write!(f, "{separator}{key} {} ({state})", Bytes(*bytes))?;
        }
        Ok(())
    }
}

/// What a device could never give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Beyond {
    /// Working memory.
    WorkingMemory,
    /// Weights: the pieces that must be on it, all together, or pieces that would not even fit alone beside those.
    Weights,
}

/// A lock that asked for more than the device could ever give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BeyondDevice {
    /// The model being locked.
    pub key: ModelKey,
    /// What it asked for.
    pub what: Beyond,
    /// How much of that.
    pub asked_bytes: u64,
    /// The most of that which this device could ever give.
    pub most_bytes: u64,
    /// The working memory that is kept free: the floor, where more than the device could give was asked.
    pub working_bytes: u64,
}

impl fmt::Display for BeyondDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, what, asked_bytes, most_bytes, working_bytes } = self;
        let (asked, remedy) = match what {
            Beyond::WorkingMemory => ("working memory", "Use a smaller size or tiles"),
            Beyond::Weights => ("weights in pieces that do not fit", "Use a smaller model or smaller pieces"),
        };
        write!(f, "{key} asks for {} of {asked}, and this device could never give ", Bytes(*asked_bytes))?;
        write!(f, "more than {}: nothing is moved off for it, ", Bytes(*most_bytes))?;
        write!(f, "and {} are kept free. {remedy}", Bytes(*working_bytes))
    }
}

/// What was said already. A stream of locks of one model with one working memory says a thing once; it may be said
/// again when such a lock has passed without it.
#[derive(Debug, Default)]
pub(super) struct Said {
    pressure: HashSet<(ModelKey, u64)>,
    beyond: HashSet<(ModelKey, u64)>,
}

impl Said {
    /// Whether this pressure is news.
    pub(super) fn pressure(&mut self, key: &ModelKey, working_bytes: u64) -> bool {
        let news = self.pressure.insert((key.clone(), working_bytes));
        mutant!(
            "warning_repeated",
            "every step of a denoise fills the log with the same line",
            right: news,
            wrong: true,
        )
    }

    /// Whether this request is news.
    pub(super) fn beyond(&mut self, key: &ModelKey, asked_bytes: u64) -> bool {
        self.beyond.insert((key.clone(), asked_bytes))
    }

    /// A lock of the model passed with room to spare.
    pub(super) fn passed(&mut self, key: &ModelKey) {
        if !self.pressure.is_empty() {
            self.pressure.retain(|(said, _)| said != key);
        }
    }

    /// The model is gone.
    pub(super) fn forget(&mut self, key: &ModelKey) {
        self.passed(key);
        self.beyond.retain(|(said, _)| said != key);
    }
}
