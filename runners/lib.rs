//! Executes one operation of a family: simulated, with real kernels, or in a PyTorch worker.

pub mod estimators;
pub mod predict;
pub mod programs;
pub mod runner;
pub mod session;
pub mod simulated;

pub use estimators::{Estimator, analytic_terms, cost_units, estimator, line};
pub use predict::{Prediction, operation_requests, predict};
pub use runner::{Inputs, RunError, Runner, Work};
pub use session::{Session, StepError, StepReport, StepRequest, model_spec, stored_otherwise};
pub use simulated::{SIMULATED_FRAMEWORK, SimulatedRunner, WorkspaceSteps};
