//! Real GPUs: found, opened and asked through NVIDIA's driver, which is loaded at run time.
//!
//! All work of a device goes to one stream, so memory that its allocator takes back may be handed out again at once;
//! before memory goes back to the driver the stream is waited for.

mod called;
mod context;
mod driver;
mod gpus;
pub mod libraries;
mod memory;
mod pool;
mod status;
pub mod upload;
mod version;
mod virtual_memory;

pub use context::{Ballast, CudaContext};
pub use driver::CudaDriver;
pub use gpus::{Abilities, CudaUnavailable, Gpu, gpus};
pub use status::check;
pub use upload::Uploader;
