//! The programs against what was recorded on a real device, and against published figures.

#![allow(clippy::print_stdout, reason = "the tables that these tests print are what the README quotes")]

mod programs {
    mod bounds;
    mod cases;
    mod computations;
    mod convolutions;
    mod edges;
    mod lines;
    mod pool_bound;
    mod published;
    mod readme;
    mod scaling;
    mod traces;
    mod windows;
}
#[path = "../../tests/convolution_calls/mod.rs"]
mod convolution_calls;
mod recorded;
#[path = "../../tests/shown/mod.rs"]
mod shown;
