//! The order of events: discover families and devices, run trials, report, and the command line over it.

pub mod cli;
