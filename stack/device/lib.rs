//! Memory that really moves: drivers, the caching allocator, the model cache, the probe.
//!
//! A [`Cache`] keeps models on a [`Device`] within its memory. A lock states the working memory of the operation that
//! is to run, and other models go as far as that needs. On a [`SimulatedCard`] no byte is really taken, so that what a
//! card of some size would do can be tried without it:
//!
//! ```
//! use headroom_base::{AllocatorKind, GIB, MIB};
//! use headroom_device::{Cache, CacheSettings, Device, ModelSpec, SimulatedCard};
//!
//! let card = SimulatedCard::with_gib(12);
//! let device = Device::simulated(&card, AllocatorKind::Native);
//! let cache = Cache::new(device, CacheSettings { floor_bytes: GIB, ..CacheSettings::default() });
//! cache.add(ModelSpec::of_bytes("sdxl:text", 2 * GIB, 64))?;
//! cache.add(ModelSpec::of_bytes("sdxl:unet", 5 * GIB, 160))?;
//! cache.add(ModelSpec::of_bytes("sdxl:vae", 160 * MIB, 10))?;
//!
//! // Both fit beside what they work with.
//! cache.lock(&"sdxl:text".into(), None)?.unlock();
//! let unet = cache.lock(&"sdxl:unet".into(), Some(2 * GIB))?;
//! assert_eq!((unet.report().missing_bytes, unet.report().moves.len()), (0, 0));
//! unet.unlock();
//!
//! // The decode needs 6 GiB: of 12 GiB, 5.84 remain for models, and the smallest goes first, as far as it must.
//! let vae = cache.lock(&"sdxl:vae".into(), Some(6 * GIB))?;
//! let moved: Vec<_> = vae.report().moves.iter().map(|moved| (moved.key.to_string(), moved.bytes / MIB)).collect();
//! assert_eq!(moved, [("sdxl:text".to_owned(), 1_184)]);
//! assert!(vae.report().budget.budget_bytes >= 0 && vae.report().pressure.is_none());
//! assert!(card.free_bytes() >= 6 * GIB);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! How much an operation needs is measured by the [`probe`], and looked up in `headroom_calibration`. The
//! [`allocator`] can be used alone.

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
