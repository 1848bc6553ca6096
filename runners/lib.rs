//! Executes one operation of a family: simulated, with real kernels, or in a PyTorch worker.

pub mod cuda;
pub mod programs;
pub mod reference;
pub mod requests;
pub mod runner;
pub mod scripted;
pub mod session;
pub mod simulated;

pub use requests::requests;
pub use runner::{Inputs, RunError, Runner, Work};
pub use scripted::ScriptedRunner;
pub use session::{Session, StepError, StepReport, StepRequest, model_spec, stored_otherwise};
pub use simulated::{SIMULATED_FRAMEWORK, SimulatedRunner, WorkspaceSteps};
