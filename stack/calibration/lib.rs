//! From measured windows to reservations: what counts, what it says, and where it is kept.
//!
//! There is no device here. Windows come in as values, estimates go out as values.
//!
//! What is shipped, for a program that has measured nothing:
//!
//! ```
//! use headroom_base::{AllocatorKind, Backend, DType, HardEnvironment, LineKey, MIB, Operation, Source};
//! use headroom_calibration::{Costs, built_in, resolve};
//!
//! let hard = HardEnvironment {
//!     backend: Backend::Cuda,
//!     allocator: AllocatorKind::Native,
//!     allocator_settings: String::new(),
//!     framework: "torch 2.11.0+cu130".into(),
//!     attention: Default::default(),
//!     convolution_benchmark: false,
//!     memory_layout: Default::default(),
//! };
//! // Of a family's model, `headroom_runners::programs` says both.
//! let line = LineKey {
//!     estimator: "autoencoder_kl".into(),
//!     estimator_version: 1,
//!     operation: Operation::VaeDecode,
//!     dtype: DType::Fp16,
//!     tiling: None,
//!     tokens: None,
//! };
//! let costs = Costs { units: 1_024 * 1_024 * 2, analytic_bytes: 0, predicted_bytes: None };
//! let estimate = resolve(&costs, None, built_in(&hard, &line).as_ref(), 0);
//! assert_eq!(estimate.source, Source::BuiltIn);
//! assert!(estimate.reservation_bytes >= 4_274 * MIB, "what was reserved on an H200");
//! ```
//!
//! A calibration: what the [`Store`] holds becomes [`Knowledge`], of which a plan is made. The attempt that shows it is
//! stored before its first run, and prices by the fits of that moment; its windows are stored with its end.
//!
//! ```
//! # use headroom_base::{
//! #     Backend, Cap, CapacityTerms, Deltas, DType, DeviceClass, Environment, GIB, HardEnvironment, LineKey, MIB,
//! #     Measurement, Operation, Origin, Reading, Residency, SoftEnvironment, Validity, AllocatorKind,
//! # };
//! use headroom_base::{AttemptId, Case, Source, Window, margin_bytes};
//! use headroom_calibration::{
//!     Attempt, BuiltIns, CaseToPlan, Context, Costs, EstimatorVersions, Knowledge, PlanTerms, RunningAttempt, Store,
//!     reset_stored,
//! };
//! # let hard = HardEnvironment {
//! #     backend: Backend::Cuda, allocator: AllocatorKind::Native, allocator_settings: String::new(),
//! #     framework: "torch 2.11.0+cu130".into(), attention: Default::default(), convolution_benchmark: false,
//! #     memory_layout: Default::default(),
//! # };
//! # let environment = Environment { hard: hard.clone(), soft: SoftEnvironment { driver: "580".into() } };
//! # let line = LineKey {
//! #     estimator: "autoencoder_kl".into(), estimator_version: 1, operation: Operation::VaeDecode,
//! #     dtype: DType::Fp16, tiling: None, tokens: None,
//! # };
//! # let class = DeviceClass::new("A card", 12 * GIB, Backend::Cuda);
//! # let capacity = CapacityTerms {
//! #     total_bytes: 12 * GIB, outside_now_bytes: 0, outside_floor_bytes: 0, context_bytes: 500 * MIB,
//! #     retained_bytes: Reading::Unknown, locked_weights_bytes: 160 * MIB, cap: Cap::Unlimited,
//! # };
//! # let terms = PlanTerms { capacity, measuring_allowance_bytes: GIB, floor_bytes: GIB };
//! # let need = |units: u64| 50 * MIB + units * 700;
//! # let measured = |estimate_bytes, demand_bytes| Measurement {
//! #     estimate_bytes, demand_bytes, stretches: 1, retries: 0, residency: Residency::Full, validity: Validity::Valid,
//! #     deltas: Deltas {
//! #         allocated_peak_bytes: demand_bytes, reserved_peak_bytes: demand_bytes, driver_bytes: Reading::Unknown,
//! #     },
//! # };
//! # let folder = tempfile::tempdir()?;
//! let case = |side| Case::image(Operation::VaeDecode, DType::Fp16, side, side);
//! let costs = |side: u32| Costs { units: u64::from(side).pow(2) * 2, analytic_bytes: 0, predicted_bytes: None };
//! let (store, shipped) = (Store::open(folder.path()), BuiltIns::compiled_in());
//! let context = Context { device: class.clone(), hard, versions: EstimatorVersions::newest_of([&line]) };
//! let mut known = Knowledge::new(store.read(&class)?, context.clone(), environment.soft.clone());
//! let sizes = [512, 768, 1024].map(|side| CaseToPlan { case: case(side), line: line.clone(), costs: costs(side) });
//! let plan = known.plan(store.read(&class)?, sizes.to_vec(), shipped, terms);
//! assert_eq!(plan.runs().len(), 9, "a warm-up and two measured runs of each size");
//!
//! let id = AttemptId("the first".into());
//! let attempt = Attempt::begin(id.clone(), "sdxl:vae", class.clone(), environment.clone(), plan.clone());
//! let attempt = store.update(&class, |record| record.begin_attempt(attempt))?;
//! let mut running = RunningAttempt::begin(attempt, known.fits())?;
//! for run in plan.runs() {
//!     let priced = &plan.cases[run.case_index].priced;
//!     // Lock with the estimate inside a scope, run, unlock. Here a formula stands for what the probe measures.
//!     let measurement = measured(priced.estimate.reservation_bytes, need(priced.cost_units));
//!     let window = Window {
//!         model: "sdxl:vae".into(), line: line.clone(), case: priced.case, cost_units: priced.cost_units,
//!         analytic_bytes: 0, device: class.clone(), environment: environment.clone(), attempt_id: Some(id.clone()),
//!         run: run.run, retry: 0, kind: run.kind, origin: Origin::Measured, measurement,
//!     };
//!     running.run_finished(run.run, vec![window])?;
//! }
//! let (attempt, windows) = running.finish(1_764_460_800).map_err(|(_, error)| error)?;
//! store.update(&class, |record| record.keep_progress(attempt, windows))??;
//!
//! known.refresh(store.read(&class)?);
//! let estimate = known.price(&line, &costs(640), shipped, GIB);
//! let needed = need(costs(640).units);
//! assert_eq!((estimate.source, estimate.reservation_bytes), (Source::User, needed + margin_bytes(needed)));
//! assert_eq!(reset_stored(&store, &class, "sdxl:vae", &context)?.removed_windows, 9);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod anchored;
pub mod attempt;
pub mod built_in;
pub mod coefficients;
pub mod counting;
pub mod cross_validation;
pub mod estimate;
pub mod fit;
pub mod fragmentation;
pub mod knowledge;
pub mod reset;
pub mod running;
pub mod shipped;
pub mod states;
pub mod store;
pub mod summary;
pub mod user_fits;

pub use attempt::{Attempt, AttemptError, AttemptState};
pub use built_in::{Basis, BuiltIn, BuiltIns, built_in};
pub use coefficients::{Coefficients, CoefficientsError};
pub use counting::{Context, Counted, EstimatorVersions, Uncounted, count};
pub use estimate::{Costs, resolve};
pub use fit::{Fit, FitError, NegativeRemainder, Point, UnitRange, fit};
pub use fragmentation::Surplus;
pub use knowledge::{CaseToPlan, Knowledge, PlanTerms};
pub use reset::{MeasuredBy, RemainingLine, ResetAnswer, ResetError, reset, reset_stored};
pub use running::{FrozenFits, RunningAttempt};
pub use shipped::{SHIPPED_VERSION, Shipped, ShippedError, ShippedLine, ShippedSize, ShippedSource};
pub use states::{Facts, Newest, Own, Platform, Shown, State, state};
pub use store::{Record, STORE_VERSION, Store, StoreError};
pub use summary::{LineSummary, SizeRow, summarize_line};
pub use user_fits::{UserFit, UserFits};
