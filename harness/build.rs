//! Tells the program which commit it is of, so that its reports can say so. `HEADROOM_COMMIT`, where it is set, says it
//! instead: for builds without the repository.

#![allow(clippy::print_stdout, reason = "it is how a build script speaks")]

use std::process::Command;

/// What makes another commit of it, or none.
const LOOKED_AT: [&str; 8] =
    ["harness", "stack", "runners", "reports", "families", "Cargo.lock", ".git/HEAD", ".git/index"];

fn main() {
    println!("cargo::rerun-if-env-changed=HEADROOM_COMMIT");
    LOOKED_AT.iter().for_each(|path| println!("cargo::rerun-if-changed={path}"));
    if std::env::var_os("HEADROOM_COMMIT").is_some() {
        return;
    }
    let described = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]).output();
    let Ok(output) = described else { return };
    let commit = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && !commit.trim().is_empty() {
        println!("cargo::rustc-env=HEADROOM_COMMIT={}", commit.trim());
    }
}
