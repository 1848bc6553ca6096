//! The front door.

use std::process::ExitCode;

fn main() -> ExitCode {
    headroom::cli::main().into()
}
