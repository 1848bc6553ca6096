//! From measured windows to reservations: what counts, what it says, and where it is kept.
//!
//! There is no device here. Windows come in as values, estimates go out as values.

pub mod coefficients;
pub mod fit;

pub use coefficients::{Coefficients, CoefficientsError};
pub use fit::{Fit, FitError, NegativeRemainder, Point, UnitRange, fit};
