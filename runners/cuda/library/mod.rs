//! NVIDIA's libraries behind safe values: each call's status is looked at, each handle is given back.

pub(super) mod blas;
pub(super) mod compiler;
pub(super) mod dnn;
pub(super) mod driver;
