//! What `ship` does with files that stand there and nothing is built for, and with files that are broken.

mod binary;

use std::path::Path;

use binary::{SHIPPED, contents, data, headroom, repository_copy, text};

/// A copy of the repository's shipped data and of its inputs.
fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    repository_copy(folder.path());
    folder
}

fn ship(folder: &Path, more: &[&str]) -> binary::Ran {
    headroom(&[&["ship", "--repository", text(folder)], more].concat())
}

#[test]
fn the_file_of_a_backend_that_is_gone_is_removed_once_that_is_accepted_and_no_other_file() {
    let folder = copy();
    let shipped = folder.path().join(SHIPPED);
    let right = contents(&shipped);
    let of_cuda = std::fs::read_to_string(shipped.join("cuda-native.json")).unwrap();
    let of_rocm = of_cuda.replace("\"backend\": \"cuda\"", "\"backend\": \"rocm\"");
    assert_ne!(of_rocm, of_cuda);
    std::fs::write(shipped.join("rocm-native.json"), of_rocm).unwrap();
    std::fs::write(shipped.join("notes.json"), "{}").unwrap();
    let before = contents(&shipped);
    let refused = ship(folder.path(), &[]);
    assert_eq!((refused.code, contents(&shipped) == before), (4, true), "{}", refused.stderr);
    let accepted = ship(folder.path(), &["--accept"]);
    assert_eq!(accepted.code, 0, "{}", accepted.stderr);
    assert!(accepted.stdout.contains("Removed: rocm-native.json."), "{}", accepted.stdout);
    assert!(!accepted.stdout.contains("Written"), "{}", accepted.stdout);
    assert_eq!(std::fs::read_to_string(shipped.join("notes.json")).unwrap(), "{}");
    std::fs::remove_file(shipped.join("notes.json")).unwrap();
    assert_eq!(contents(&shipped), right);
    assert_eq!(ship(folder.path(), &["--check"]).code, 0);
}

#[test]
fn a_broken_file_is_built_anew_once_that_is_accepted_and_named() {
    let folder = copy();
    let shipped = folder.path().join(SHIPPED);
    let right = contents(&shipped);
    let file = shipped.join("cuda-native.json");
    let whole = std::fs::read(&file).unwrap();
    for broken in [&b""[..], &whole[..whole.len() / 2], b"\xff\xfe"] {
        std::fs::write(&file, broken).unwrap();
        let refused = ship(folder.path(), &[]);
        assert_eq!(refused.code, 3, "{}", refused.stdout);
        assert!(refused.stderr.contains("`headroom ship --accept`"), "{}", refused.stderr);
        assert_eq!(std::fs::read(&file).unwrap(), broken);
        let accepted = ship(folder.path(), &["--accept"]);
        assert_eq!(accepted.code, 0, "{}", accepted.stderr);
        assert!(accepted.stdout.contains("counts as absent"), "{}", accepted.stdout);
        assert_eq!(contents(&shipped), right);
    }
}

#[test]
fn windows_left_out_are_one_line_a_kind_of_reason() {
    let ran = headroom(&["ship", "--check"]);
    let lines: Vec<&str> = ran.stdout.lines().filter(|line| line.contains("windows left out")).collect();
    assert!(!lines.is_empty(), "{}", ran.stdout);
    let kinds: std::collections::BTreeSet<_> = lines.iter().filter_map(|line| line.split(": ").nth(1)).collect();
    assert_eq!(kinds.len(), lines.len(), "{lines:?}");
    assert!(kinds.iter().all(|kind| !kind.contains(|c: char| c.is_ascii_digit())), "{kinds:?}");
}

#[test]
fn the_example_of_the_help_drops_no_line_that_is_shipped() {
    let help = headroom(&["ship", "--help"]).stdout;
    let example = help.lines().find(|line| line.contains("windows.jsonl")).unwrap_or_else(|| panic!("{help}"));
    let recordings: Vec<&str> = example.split(' ').filter(|word| word.ends_with(".jsonl")).collect();
    let changes =
        headroom(&[&["ship", "--check", "--json"][..], &recordings].concat()).json_of_any()["changes"].to_string();
    assert!(!changes.contains(": gone,"), "{example}: {changes}");
    let one_alone = headroom(&["ship", "--check", "--json", recordings[0]]).json_of_any()["changes"].to_string();
    assert!(one_alone.contains(": gone,"), "{one_alone}");
}

#[test]
fn a_comparison_with_named_inputs_ends_with_the_command_that_writes_from_them() {
    let folder = copy();
    let inputs = [data("windows.jsonl"), data("windows-options.jsonl")];
    let named = [inputs[0].as_str(), &inputs[1]];
    let checked = ship(folder.path(), &[&["--check"], &named[..]].concat());
    assert_eq!(checked.code, 1, "{}", checked.stderr);
    let command = format!("`headroom ship {} {} --repository {}`", named[0], named[1], text(folder.path()));
    assert!(checked.stdout.trim_end().ends_with(&format!("Run {command} to write it.")), "{}", checked.stdout);
    assert_eq!(ship(folder.path(), &named).code, 0);
    assert_eq!(ship(folder.path(), &[&["--check"], &named[..]].concat()).code, 0);
}
