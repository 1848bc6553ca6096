//! NVIDIA's libraries behind safe values: each call's status is looked at, each handle is given back.

mod answer;
pub(super) mod blas;
pub(super) mod compiler;
mod descriptors;
pub(super) mod dnn;
pub(super) mod driver;
mod refusal;
