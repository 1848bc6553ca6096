//! Executes one operation of a family: simulated, with real kernels, or in a PyTorch worker.

pub mod programs;
