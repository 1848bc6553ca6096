//! Family files: what a model family is, as data a contributor can write.

pub mod architecture;

pub use architecture::Architecture;
