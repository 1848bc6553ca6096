//! What can be said of the runner with no GPU.

mod execution;
