//! Invariants seen end to end: on a stage of a family's own models, or with no family where none is needed.
//!
//! Each invariant is one small story: something is measured, stopped, locked, written or merged as in the world, and
//! then what must hold is looked at. They run as trials of every family, one trial an area, and one by one where
//! wrong decisions are graded.

mod allocator;
mod attempt;
mod attempts;
mod display;
mod foreign;
mod fragments;
mod offload;
mod outcomes;
mod plans;
mod pricing;
mod reports;
mod resets;
mod shipping;
mod snapshots;
mod stage;
mod stores;
mod trials;
mod windows;

use headroom_runners::RunError;

use super::{CheckError, Evidence};
use crate::bench::{Ground, Subject};
use crate::world::World;
use stage::Stage;

/// One invariant of an area.
#[derive(Clone, Copy, Debug)]
pub struct Invariant {
    /// What holds.
    pub name: &'static str,
    run: fn(&Stage<'_>) -> Result<(), CheckError>,
}

/// Invariants of one part of the program.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// The part.
    pub name: &'static str,
    /// What holds there.
    pub invariants: &'static [Invariant],
}

/// Lists the invariants of a file.
macro_rules! invariants {
    ($($name:ident),* $(,)?) => {
        /// This file's invariants.
        pub(super) const ALL: &[super::Invariant] = &[$(super::Invariant { name: stringify!($name), run: $name }),*];
    };
}
use invariants;

/// Every area that is looked at with a family's models.
pub const OF_A_FAMILY: [Area; 11] = [
    Area { name: "attempts", invariants: attempts::ALL },
    Area { name: "display", invariants: display::ALL },
    Area { name: "foreign", invariants: foreign::ALL },
    Area { name: "fragments", invariants: fragments::ALL },
    Area { name: "offload", invariants: offload::ALL },
    Area { name: "outcomes", invariants: outcomes::ALL },
    Area { name: "plans", invariants: plans::ALL },
    Area { name: "pricing", invariants: pricing::ALL },
    Area { name: "resets", invariants: resets::ALL },
    Area { name: "store", invariants: stores::ALL },
    Area { name: "windows", invariants: windows::ALL },
];

/// An invariant that needs no family's models.
#[derive(Clone, Copy, Debug)]
pub struct General {
    /// What holds.
    pub name: &'static str,
    run: fn(&World) -> Result<(), CheckError>,
}

/// Invariants of one part of the program that no family is needed for.
#[derive(Clone, Copy, Debug)]
pub struct GeneralArea {
    /// The part.
    pub name: &'static str,
    /// What holds there.
    pub invariants: &'static [General],
}

/// Lists the general invariants of a file.
macro_rules! general {
    ($($name:ident),* $(,)?) => {
        /// This file's invariants.
        pub(super) const ALL: &[super::General] = &[$(super::General { name: stringify!($name), run: $name }),*];
    };
}
use general;

/// Every area that needs no family's models.
pub const EVERYWHERE: [GeneralArea; 5] = [
    GeneralArea { name: "allocator", invariants: allocator::ALL },
    GeneralArea { name: "reports", invariants: reports::ALL },
    GeneralArea { name: "shipping", invariants: shipping::ALL },
    GeneralArea { name: "snapshots", invariants: snapshots::ALL },
    GeneralArea { name: "trials", invariants: trials::ALL },
];

impl General {
    /// Looks at one invariant.
    ///
    /// # Errors
    /// The claim that does not hold, or what kept it from being looked at.
    pub fn check(&self, world: &World) -> Result<Evidence, CheckError> {
        (self.run)(world)?;
        Ok(Evidence { seen: 1, ..Evidence::default() })
    }
}

impl GeneralArea {
    /// Looks at every invariant of the area.
    ///
    /// # Errors
    /// All that do not hold, each with its name.
    pub fn check(&self, world: &World) -> Result<Evidence, CheckError> {
        all_of(self.invariants.iter().map(|invariant| (invariant.name, (invariant.run)(world))))
    }
}

impl Invariant {
    /// Looks at one invariant.
    ///
    /// # Errors
    /// The claim that does not hold, or what kept it from being looked at.
    pub fn check(&self, subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
        (self.run)(&Stage::new(subject, ground)?)?;
        Ok(Evidence { seen: 1, ..Evidence::default() })
    }
}

impl Area {
    /// Looks at every invariant of the area.
    ///
    /// # Errors
    /// All that do not hold, each with its name.
    pub fn check(&self, subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
        let stage = Stage::new(subject, ground)?;
        all_of(self.invariants.iter().map(|invariant| (invariant.name, (invariant.run)(&stage))))
    }
}

/// Every outcome of an area in one: all that do not hold, each with its name.
fn all_of(outcomes: impl Iterator<Item = (&'static str, Result<(), CheckError>)>) -> Result<Evidence, CheckError> {
    let (mut seen, mut broken) = (0, Vec::new());
    for (name, outcome) in outcomes {
        seen += 1;
        broken.extend(outcome.err().map(|error| format!("{name}: {error}")));
    }
    if broken.is_empty() {
        return Ok(Evidence { seen, ..Evidence::default() });
    }
    Err(CheckError::violated(broken.join("\n")))
}

/// An operation's failure in words of its own.
fn failed(error: impl std::fmt::Display) -> RunError {
    RunError::Failed { message: error.to_string() }
}
