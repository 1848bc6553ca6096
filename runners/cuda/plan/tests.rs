//! What can be said of plans with no GPU.
