//! The real CUDA code over a stand-in for NVIDIA's driver: what it calls, in which order, and what it leaves behind.

#![cfg(target_os = "linux")]

mod devices;
mod driver;
mod faults;
mod libraries;
mod loads;
mod lost;
mod pool;
mod read_back;
#[path = "../recorded/mod.rs"]
mod recorded;
mod stub;
#[path = "../two_caches/mod.rs"]
mod two_caches;
mod upload_ends;
mod uploads;
