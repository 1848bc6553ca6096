//! What of the house rules can be kept by a test.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Crate → the crates of ours that it may depend on.
const MAY_DEPEND_ON: [(&str, &[&str]); 6] = [
    ("stack/base", &[]),
    ("stack/family", &["base"]),
    ("stack/device", &["base"]),
    ("stack/calibration", &["base"]),
    ("runners", &["base", "family", "device"]),
    ("reports", &["base", "calibration"]),
];

/// The only places where `unsafe` may stand, each with the reason.
const MAY_BE_UNSAFE: [(&str, &str); 4] = [
    ("stack/device/weights/mapped.rs", "a mapped file can change under the map"),
    ("stack/device/cuda/", "the CUDA driver is a C library"),
    ("stack/device/tests/cuda_stub/", "a stand-in for that library, and the tests that ask it"),
    ("runners/cuda/", "cuDNN, cuBLAS, NVRTC and kernel launches are C as well"),
];

const MAX_FILE_LINES: usize = 400;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" && !name.starts_with("mutants.out") {
                walk(&path, files);
            }
        } else {
            files.push(path);
        }
    }
}

/// Every file of the project whose name ends in one of `endings`, as (path below the root, text).
fn files(endings: &[&str]) -> Vec<(String, String)> {
    let mut paths = Vec::new();
    walk(&root(), &mut paths);
    let mut found: Vec<(String, String)> = paths
        .into_iter()
        .filter(|path| endings.iter().any(|ending| path.to_string_lossy().ends_with(ending)))
        .map(|path| {
            let name = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).unwrap_or_default())
        })
        .collect();
    found.sort();
    assert!(!found.is_empty(), "no file ends in {endings:?}");
    found
}

fn assert_none(findings: &[String], rule: &str) {
    assert!(findings.is_empty(), "{rule}:\n{}", findings.join("\n"));
}

#[test]
fn crates_depend_only_downwards() {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    let members = workspace.lines().find_map(|line| line.strip_prefix("members = ")).expect("the members on one line");
    let mut members: Vec<_> = members.split('"').skip(1).step_by(2).collect();
    let mut known = MAY_DEPEND_ON.map(|(folder, _)| folder);
    members.sort_unstable();
    known.sort_unstable();
    assert_eq!(members, known, "every crate says here what it may depend on");
    let mut findings = Vec::new();
    for (folder, allowed) in MAY_DEPEND_ON {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("a manifest");
        let section = manifest.split("\n[").find(|part| part.starts_with("dependencies]")).expect("dependencies");
        assert!(
            !manifest.contains("[dependencies."),
            "{folder}: write dependencies in one table, where this reads them"
        );
        for line in section.lines() {
            if let Some(name) = line.strip_prefix("headroom-") {
                let name = name.split(['.', ' ', '=']).next().unwrap_or_default();
                if !allowed.contains(&name) {
                    findings.push(format!("{folder} depends on {name}"));
                }
            }
        }
    }
    assert_none(&findings, "device and calibration never meet, and data flows one way");
}

#[test]
fn every_file_opens_with_the_line_that_says_its_job() {
    let bare: Vec<_> =
        files(&[".rs"]).into_iter().filter(|(_, text)| !text.starts_with("//! ")).map(|(name, _)| name).collect();
    assert_none(&bare, "these files do not open with a `//!` line");
}

#[test]
fn no_file_is_two_rooms() {
    let long: Vec<_> = files(&[".rs"])
        .into_iter()
        .filter(|(_, text)| text.lines().count() > MAX_FILE_LINES)
        .map(|(name, text)| format!("{name}: {} lines", text.lines().count()))
        .collect();
    assert_none(&long, "these files are over 400 lines");
}

#[test]
fn folders_and_files_are_named_for_what_they_hold() {
    let vague = ["utils", "util", "common", "helpers", "helper", "misc"];
    let found: Vec<_> = files(&[".rs"])
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| name.trim_end_matches(".rs").split('/').any(|part| vague.contains(&part)))
        .collect();
    assert_none(&found, "these names say nothing");
}

#[test]
fn unsafe_stands_only_where_it_is_listed() {
    let word = concat!("un", "safe");
    let mut findings = Vec::new();
    for (name, text) in files(&[".rs"]) {
        let listed = MAY_BE_UNSAFE.iter().any(|(path, _)| name.starts_with(path));
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let used = code.contains(&format!("{word} {{"))
                || code.contains(&format!("{word} fn"))
                || code.contains(&format!("{word} impl"));
            if used && !listed {
                findings.push(format!("{name}:{}", number + 1));
            }
        }
    }
    assert_none(&findings, "unsafe code outside the listed places");
}

/// Whether `text` holds `word` with no letter or digit around it.
fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(char::is_alphabetic) && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

#[test]
fn sizes_are_written_in_binary_units() {
    let decimal = [concat!("M", "B"), concat!("G", "B"), concat!("K", "B")];
    // These speak of decimal units in order to refuse or to read them.
    let speaks_of_them = [
        "stack/base/bytes.rs",
        "stack/family/tests/",
        "stack/device/tests/cache_probe/readers.rs",
        "reports/oom_text",
        "tests/cli_bad_input.rs",
    ];
    let mut findings = Vec::new();
    for (name, text) in files(&[".rs", ".md", ".yaml"]) {
        if speaks_of_them.iter().any(|path| name.starts_with(path)) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            if decimal.iter().any(|unit| has_word(line, unit)) {
                findings.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert_none(&findings, "decimal units");
}

#[test]
fn sizes_are_formatted_in_one_file() {
    // A class's name holds whole GiB, as cards are called; the tests of messages write them as people paste them.
    let write_their_own = ["stack/base/bytes.rs", "stack/base/environment.rs", "reports/oom_text"];
    let patterns = [concat!("} ", "MiB"), concat!("} ", "GiB"), concat!("}", "MiB"), concat!("}", "GiB")];
    let mut findings = Vec::new();
    for (name, text) in files(&[".rs"]) {
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let exempt = write_their_own.iter().any(|path| name.starts_with(path));
            if !exempt && patterns.iter().any(|pattern| code.contains(pattern)) {
                findings.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert_none(&findings, "print sizes through `Bytes`");
}

#[test]
fn the_readme_maps_every_crate_and_every_room() {
    let readme = fs::read_to_string(root().join("README.md")).expect("a README");
    let mut tops: BTreeMap<String, usize> = BTreeMap::new();
    for (name, _) in files(&[".rs", ".yaml"]) {
        let mut parts = name.split('/');
        let first = parts.next().unwrap_or_default();
        let top =
            if first == "stack" { format!("stack/{}", parts.next().unwrap_or_default()) } else { first.to_owned() };
        *tops.entry(top).or_default() += 1;
    }
    let missing: Vec<_> = tops.into_keys().filter(|top| !readme.contains(&format!("`{top}/`"))).collect();
    assert_none(&missing, "the code map in README.md lacks these");
    let gone: Vec<_> = readme
        .split('`')
        .filter(|word| word.ends_with('/') && !word.contains([' ', '<', '*']))
        .filter(|word| !root().join(word).is_dir())
        .map(str::to_owned)
        .collect();
    assert_none(&gone, "README.md names folders that are not there");
}
