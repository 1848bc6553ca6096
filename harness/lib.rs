//! The order of events: discover families and devices, run trials, report, and the command line over it.
//!
//! A program of its own needs `headroom_device` for a cache and `headroom_calibration` for what to reserve, which know
//! nothing of each other. Where both meet:
//!
//! ```
//! use headroom_base::{AllocatorKind, Backend, Case, DType, GIB, HardEnvironment, Operation, Source};
//! use headroom_calibration::{Costs, built_in, resolve};
//! use headroom_device::{Cache, CacheSettings, Device, SimulatedCard};
//! use headroom_runners::{model_spec, programs};
//!
//! let families = headroom_family::Family::embedded()?;
//! let sdxl = families.iter().find(|family| family.name == "sdxl").ok_or("it is shipped")?;
//! let model = sdxl.model("vae").ok_or("it has one")?;
//! let architecture = model.architecture().ok_or("it has a program")?;
//! let hard = HardEnvironment {
//!     backend: Backend::Cuda,
//!     allocator: AllocatorKind::Native,
//!     allocator_settings: String::new(),
//!     framework: "torch 2.11.0+cu130".into(),
//!     attention: Default::default(),
//!     convolution_benchmark: false,
//!     memory_layout: Default::default(),
//! };
//!
//! let case = Case::image(Operation::VaeDecode, DType::Fp16, 1024, 1024);
//! let terms = programs::analytic_terms(architecture, &case, model.dtype);
//! let costs = Costs {
//!     units: programs::cost_units(architecture, &case),
//!     analytic_bytes: terms.iter().map(|term| term.bytes).sum(),
//!     predicted_bytes: None,
//! };
//! let line = programs::line(architecture, &case);
//! let estimate = resolve(&costs, None, built_in(&hard, &line).as_ref(), 3 * GIB);
//! assert_eq!(estimate.source, Source::BuiltIn);
//!
//! let device = Device::simulated(&SimulatedCard::with_gib(12), AllocatorKind::Native);
//! let cache = Cache::new(device, CacheSettings::default());
//! cache.add(model_spec(model))?;
//! let vae = cache.lock(&"vae".into(), Some(estimate.reservation_bytes))?;
//! assert_eq!(vae.report().missing_bytes, 0);
//! assert!(vae.report().budget.working_bytes >= estimate.reservation_bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod cli;

pub mod advise;
pub mod bench;
pub mod catalogue;
pub mod checks;
pub mod gpu;
#[cfg(feature = "mutants")]
pub mod mutants;
pub mod pricing;
pub mod recorded;
pub mod replay;
pub mod run;
pub mod shard;
pub mod trials;
pub mod variables;
pub mod world;
