//! A plain reference on the host: executes a computation one launch at a time, in the order in which it is written.
//!
//! It is there to be believed, not to be fast: what it computes is what a GPU's results are held against, and what it
//! refuses is a mistake of the program. Every stored value is rounded to its element type; sums are in fp64.

mod compare;
mod contents;
mod dense;
mod error;
mod execute;
mod kernels;
mod memory;
mod normalise;
mod pointwise;
mod products;
mod select;
mod signature;

pub use compare::{Deviation, Mismatch, Tolerance, compare};
pub use contents::{Contents, filled};
pub use error::{Problem, ReferenceError};
pub use execute::{Output, Outputs, execute};
pub use memory::rounded;
#[cfg(test)]
pub(crate) use pointwise::of_numbers;
