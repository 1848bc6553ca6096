//! Executes one operation of a family: simulated, with real kernels, or in a PyTorch worker.
//!
//! What an operation is priced by, and what its program says that it needs:
//!
//! ```
//! use headroom_base::{Case, DType, Operation};
//! use headroom_family::Family;
//! use headroom_runners::programs;
//!
//! let families = Family::embedded()?;
//! let sdxl = families.iter().find(|family| family.name == "sdxl").ok_or("it is shipped")?;
//! let vae = sdxl.model("vae").and_then(|model| model.architecture()).ok_or("it has a program")?;
//! let case = Case::image(Operation::VaeDecode, DType::Fp16, 1024, 1024);
//! assert_eq!(programs::line(vae, &case).to_string(), "autoencoder_kl v1 vae_decode fp16");
//! assert_eq!(programs::cost_units(vae, &case), 1_024 * 1_024 * 2);
//! assert!(programs::analytic_terms(vae, &case, DType::Fp16).is_empty(), "nothing is converted");
//! assert_eq!(programs::analytic_terms(vae, &case, DType::Fp32).len(), 1, "a copy of the weights is");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
