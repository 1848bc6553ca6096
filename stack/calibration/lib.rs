//! From measured windows to reservations: what counts, what it says, and where it is kept.
//!
//! There is no device here. Windows come in as values, estimates go out as values.

pub mod attempt;
pub mod built_in;
pub mod coefficients;
pub mod counting;
pub mod fit;
pub mod fragmentation;
pub mod shipped;

pub use attempt::{Attempt, AttemptError, AttemptState};
pub use built_in::{Basis, BuiltIn, BuiltIns, built_in};
pub use coefficients::{Coefficients, CoefficientsError};
pub use counting::{Context, Counted, EstimatorVersions, Uncounted, count};
pub use fit::{Fit, FitError, NegativeRemainder, Point, UnitRange, fit};
pub use fragmentation::Surplus;
pub use shipped::{SHIPPED_VERSION, Shipped, ShippedError, ShippedLine, ShippedSize, ShippedSource};
