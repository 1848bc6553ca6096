//! The words every part of headroom shares, and the pure rules over them. No I/O happens here.

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
