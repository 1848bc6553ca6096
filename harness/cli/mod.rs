//! The command line: one file a command, one way to print, one way to fail.

pub mod args;
mod exit;
mod terminal;

pub use exit::{EXIT_CODES_HELP, Exit};
pub use terminal::Terminal;
