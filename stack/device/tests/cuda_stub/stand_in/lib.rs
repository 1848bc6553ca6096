//! A stand-in for NVIDIA's driver and management library: the calls that this program makes, over a small table of
//! devices. Built by the tests as a library of its own, so that the real code runs where there is no GPU.
//!
//! It shows that every call is made in order and given back, not that any number is right.

mod addresses;
mod contents;
mod contexts;
mod devices;
mod libraries;
mod management;
mod memory;
mod pools;
mod probes;
mod streams;
mod table;
mod virtual_memory;
