//! From measured windows to reservations: what counts, what it says, and where it is kept.
//!
//! There is no device here. Windows come in as values, estimates go out as values.

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
