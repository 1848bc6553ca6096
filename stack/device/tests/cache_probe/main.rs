//! The model cache and the probe on simulated cards.

mod cache_locking;
mod probe_windows;
mod rig;
