//! The words every part of headroom shares, and the pure rules over them. No I/O happens here.
//!
//! ```
//! use headroom_base::{Bytes, Cap, DeviceFigures, GIB, MIB, Reclaim, budget};
//!
//! // 1 GiB was freed and not released, on a card with 128 MiB free by the driver.
//! let figures = DeviceFigures {
//!     total_bytes: 24 * GIB,
//!     driver_free_bytes: 128 * MIB,
//!     allocated_bytes: 22 * GIB,
//!     reserved_bytes: 23 * GIB,
//!     inactive_split_bytes: 0,
//!     reclaim: Reclaim::WholeSegments,
//! };
//! let budget = budget(&figures, Some(GIB), 0, Cap::Unlimited);
//! assert_eq!(budget.before_working_bytes, 1_152 * MIB as i64);
//! assert_eq!(budget.budget_bytes, 128 * MIB as i64);
//! assert_eq!(Bytes(budget.credit_bytes).to_string(), "1,024 MiB");
//! ```

pub mod budget;
pub mod bytes;
pub mod case;
pub mod environment;
pub mod estimate;
pub mod mutants;
pub mod plan;
pub mod reading;
pub mod window;

pub use budget::{Budget, Cap, DEFAULT_DEVICE_WORKING_BYTES, DeviceFigures, Reclaim, budget};
pub use bytes::{Bytes, GIB, KIB, MIB, SignedBytes, grouped};
pub use case::{AnalyticTerm, Case, CostUnit, DType, Extent, Operation, Tiling, UnknownName, name_here};
pub use environment::{
    AllocatorKind, AttentionKernel, Backend, DeviceClass, Environment, HardEnvironment, MemoryLayout, SoftEnvironment,
};
pub use estimate::{Estimate, Source, divided_up, margin_bytes};
pub use plan::{Capacity, CapacityTerms, Plan, PlanNote, PlannedCase, PlannedRun, PricedCase, Verdict};
pub use reading::Reading;
pub use window::{
    AttemptId, Deltas, InvalidReason, LineKey, Measurement, Origin, Residency, RunKind, Validity, Window,
};
