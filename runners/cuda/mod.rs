//! Runs computations on a GPU: convolutions by cuDNN, products by cuBLAS, the rest by kernels made at run time.
//!
//! A computation is planned with no GPU (`plan`), then executed step by step on the device's own allocator
//! (`execute`) by an engine that knows the libraries (`engine`). `unsafe` is in `library/` and in the engine that
//! calls it.

mod checks;
mod engine;
mod error;
mod execute;
mod growth;
mod library;
mod plan;
mod runner;
#[cfg(test)]
mod tests;
mod workspaces;

pub use checks::{Computed, GivenContents, OutputsSeen, Results};
pub use error::CudaError;
pub use runner::{Convolutions, CudaRunner, Executed, OLDEST_CAPABILITY, framework};
pub use workspaces::WorkspaceDifference;
