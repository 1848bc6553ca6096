//! The order of events: discover families and devices, run trials, report, and the command line over it.

pub mod cli;

pub mod advise;
pub mod bench;
pub mod catalogue;
pub mod checks;
pub mod gpu;
#[cfg(feature = "mutants")]
pub mod mutants;
pub mod pricing;
pub mod recorded;
pub mod replay;
pub mod run;
pub mod shard;
pub mod trials;
pub mod variables;
pub mod world;
