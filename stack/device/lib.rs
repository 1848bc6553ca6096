//! Memory that really moves: drivers, the caching allocator, the model cache, the probe.

pub mod allocator;
pub mod driver;
pub mod replay;

pub use allocator::{Allocation, AllocationError, Allocator, Counter, Counters, Settings};
pub use driver::{Address, Driver, DriverError, MemoryInfo, SimulatedCard, SimulatedDriver};
