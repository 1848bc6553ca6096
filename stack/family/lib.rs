//! Family files: what a model family is, as data a contributor can write.
//!
//! ```
//! use headroom_base::Operation;
//! use headroom_family::Family;
//!
//! let families = Family::embedded()?;
//! let sdxl = families.iter().find(|family| family.name == "sdxl").ok_or("it is shipped")?;
//! let vae = sdxl.model_for(Operation::VaeDecode).ok_or("it decodes")?;
//! assert!(vae.key == "vae" && vae.architecture().is_some());
//!
//! let error = Family::parse("name: mine\nmodels: 3\n", "mine.yaml").unwrap_err();
//! assert!(error.to_string().contains("mine.yaml:2:9"), "{error}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
