//! Memory that really moves: drivers, the caching allocator, the model cache, the probe.

pub mod allocator;
pub mod cache;
pub mod cuda;
pub mod device;
pub mod driver;
pub mod lease;
pub mod probe;
pub mod readers;
pub mod replay;
pub mod weights;

pub use allocator::{Allocation, AllocationError, Allocator, Counter, Counters, Settings, SharedAllocator};
pub use cache::{Cache, CacheError, CacheSettings, LockedModel, ModelKey, ModelSpec, PieceSpec};
pub use device::{Device, DeviceId, DeviceMemory, DeviceParts, Holding};
pub use driver::{Address, Driver, DriverError, MemoryInfo, SimulatedCard, SimulatedDriver};
pub use probe::{Recorded, Scope};
