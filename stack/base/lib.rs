//! The words every part of headroom shares, and the pure rules over them. No I/O happens here.

pub mod bytes;
pub mod mutants;

pub use bytes::{Bytes, GIB, KIB, MIB, SignedBytes};
