//! Measures what operations need: scopes that threads enter, windows between a lock and its unlock.
//!
//! A thread enters a [`Scope`] for the calibration step that it works for. Every lock it takes there with a stated
//! working memory opens a window on the device, which closes at unlock and leaves a
//! [`Measurement`](headroom_base::Measurement) in the scope. Outside a scope a lock costs one thread-local read.
//!
//! ```
//! use headroom_base::{AllocatorKind, GIB, MIB, Residency, Validity};
//! use headroom_device::{Cache, CacheSettings, Device, ModelSpec, Scope, SimulatedCard};
//!
//! let card = SimulatedCard::with_gib(12);
//! let device = Device::simulated(&card, AllocatorKind::Native);
//! let cache = Cache::new(device.clone(), CacheSettings::default());
//! cache.add(ModelSpec::of_bytes("sdxl:vae", 160 * MIB, 10))?;
//!
//! // What a measured lock asks beyond its estimate, which may be too low.
//! let scope = Scope::new(512 * MIB);
//! let entered = scope.enter();
//! let vae = cache.lock(&"sdxl:vae".into(), Some(4 * GIB))?;
//! assert_eq!(vae.report().budget.working_bytes, 4 * GIB + 512 * MIB);
//! // The operation.
//! let (image, scratch) = (device.allocate(700 * MIB)?, device.allocate(400 * MIB)?);
//! device.free(scratch)?;
//! device.free(image)?;
//! let measured = vae.unlock().measurement.ok_or("the lock opened no window")?;
//! drop(entered);
//!
//! assert_eq!((measured.estimate_bytes, measured.demand_bytes), (4 * GIB, 1_100 * MIB));
//! assert_eq!((measured.residency, measured.validity), (Residency::Full, Validity::Valid));
//! assert_eq!(scope.recorded().len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Windows may lie inside each other: while the inner one is open all memory is billed to it, so the outer operation
//! must rest meanwhile. Windows of one scope that overlap otherwise are invalid.

mod hooks;
mod registration;
mod sample;
mod scope;
mod windows;

pub use hooks::{Hook, HookError, HookPoint};
pub(crate) use hooks::{call_hook, guarded};
pub(crate) use registration::{Closing, Registration};
pub(crate) use scope::current;
pub use scope::{Entered, Recorded, Scope, ScopeId};
pub(crate) use windows::WindowStack;
