//! Family files: what a model family is, as data a contributor can write.

pub mod architecture;
mod bounds;
mod check;
pub mod family;
mod files;
mod findings;
mod limits;
mod node;
mod parse;
pub mod problem;
mod raw;
mod reader;
pub mod scenario;
mod schema;
mod sizes;
mod words;

pub use architecture::Architecture;
pub use bounds::{MOST_FRAMES, MOST_ITEMS, MOST_SIDE};
pub use family::{
    CalibrationLine, CalibrationSpec, Checks, Family, Model, OverReservation, PartlyResident, PipelineStep,
    SimulatedDevice, TilingNeeded, Weights,
};
pub use parse::{Recordings, embedded_texts};
pub use problem::{FamilyError, Problem};
pub use scenario::{
    Action, Expectation, ExpectedWarning, ExpectedWindow, Resident, Scenario, ScenarioDevice, ScenarioError,
    ScenarioModel, ScenarioStep,
};
pub use schema::json_schema;
pub use sizes::Misfit;
pub use words::{ParseSizeError, Size};
