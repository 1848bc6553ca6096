//! Runs the built program, and finds and copies the repository's own files for it.

#![allow(dead_code, reason = "each test binary uses a part of this module")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// What a run came to.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// The whole result as JSON, of a run that succeeded.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self.json_of_any()
    }

    /// The whole result as JSON, however the run ended.
    pub(crate) fn json_of_any(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}{}", self.stdout, self.stderr))
    }
}

pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headroom"));
    command.current_dir(root()).args(arguments).stdin(Stdio::null());
    command
}

/// Runs the program in the repository's root.
pub(crate) fn headroom(arguments: &[&str]) -> Ran {
    let output = command(arguments).output().expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the program prints text");
    let ran =
        Ran { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) };
    assert!(!ran.stderr.contains("panicked"), "{arguments:?}: {}", ran.stderr);
    ran
}

pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn data(name: &str) -> String {
    root().join("tests/data/h200").join(name).to_str().expect("a readable path").to_owned()
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a readable path")
}

/// A file or a value is wrong.
pub(crate) const BAD_INPUT: i32 = 3;
/// No such device.
pub(crate) const UNAVAILABLE: i32 = 5;

/// The run ended with that code, said all of that on standard error, and nothing else.
#[track_caller]
pub(crate) fn refused(ran: &Ran, code: i32, says: &[&str]) {
    assert_eq!(ran.code, code, "{}{}", ran.stdout, ran.stderr);
    for words in says {
        assert!(ran.stderr.contains(words), "`{words}` is not in: {}", ran.stderr);
    }
    assert!(ran.stdout.is_empty(), "{}", ran.stdout);
}

/// The shipped TAESD under that name, in which `from` stands as `to`, and the line of it.
pub(crate) fn taesd_with(folder: &Path, file: &str, from: &str, to: &str) -> (PathBuf, usize) {
    let right = std::fs::read_to_string(root().join("families/taesd.yaml")).unwrap();
    assert_eq!(right.matches(from).count(), 1, "{from}");
    let line = right[..right.find(from).unwrap()].matches('\n').count() + 1;
    let path = folder.join(file);
    std::fs::write(&path, right.replace(from, to)).unwrap();
    (path, line)
}

/// A copy of what `ship` reads and writes of a repository.
pub(crate) fn repository_copy(folder: &Path) {
    for (from, ending) in [("tests/data/h200", "jsonl"), (SHIPPED, "json")] {
        std::fs::create_dir_all(folder.join(from)).unwrap();
        for entry in std::fs::read_dir(root().join(from)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == ending) {
                std::fs::copy(&path, folder.join(from).join(path.file_name().unwrap())).unwrap();
            }
        }
    }
}

/// Where shipped files stand.
pub(crate) const SHIPPED: &str = "stack/calibration/shipped";

/// Every file below a folder with its bytes: equal before and after means that nothing was written.
pub(crate) fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push((path.clone(), std::fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// A number of bytes of an answer.
pub(crate) fn bytes(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("`{name}` is no number of bytes in {value}"))
}

/// A list of an answer.
pub(crate) fn list<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().unwrap_or_else(|| panic!("`{name}` is no list in {value}"))
}
