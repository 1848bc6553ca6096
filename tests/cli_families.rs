//! What somebody meets who adds a family by one file: the file is checked as the commands that use it check it.

mod binary;

use std::path::Path;

use binary::{BAD_INPUT, UNAVAILABLE, command, headroom, refused, root, taesd_with, text};
use serde_json::Value;

/// Copies the shipped TAESD into a folder, with `from` as `to`.
fn copy(folder: &Path, file: &str, from: &str, to: &str) -> String {
    text(&taesd_with(folder, file, from, to).0).to_owned()
}

#[test]
fn a_copy_whose_name_was_not_changed_is_refused_by_the_check_as_by_the_commands() {
    let folder = tempfile::tempdir().unwrap();
    let original = copy(folder.path(), "taesd.yaml", "name: taesd", "name: taesd");
    let copied = copy(folder.path(), "mytiny.yaml", "name: taesd", "name: taesd");
    let says = [
        &format!("{copied}:2:7: name: `taesd` is the name of the family in {original} too"),
        "    2 | name: taesd",
        "write `name: mytiny`",
    ];
    let families = ["--families", text(folder.path())];
    refused(&headroom(&["check", &copied]), BAD_INPUT, &says);
    refused(&headroom(&["check", text(folder.path())]), BAD_INPUT, &says);
    refused(&headroom(&[&["run", "--output", "target/never"], &families[..]].concat()), BAD_INPUT, &says);
    assert!(!root().join("target/never").exists());

    // A bare file name has a folder too.
    let here = command(&["check", "mytiny.yaml"]).current_dir(folder.path()).output().unwrap();
    let told = String::from_utf8(here.stderr).unwrap();
    assert!(told.starts_with("mytiny.yaml:2:7: name:") && told.contains("in taesd.yaml too"), "{told}");

    copy(folder.path(), "mytiny.yaml", "name: taesd", "name: mytiny");
    // The copy claims the original's recorded windows still.
    let claims = ["`recorded_as: taesd` stands at `mytiny:vae` and at `taesd:vae`"];
    let all = [vec!["check", &copied], vec!["check", text(folder.path())], [&["devices"], &families[..]].concat()];
    all.iter().for_each(|command| refused(&headroom(command), BAD_INPUT, &claims));
    let renamed = std::fs::read_to_string(&copied).unwrap();
    std::fs::write(&copied, renamed.replace("    recorded_as: taesd\n", "")).unwrap();
    all.iter().for_each(|command| assert_eq!(headroom(command).code, 0, "{command:?}"));
}

#[test]
fn a_recording_that_nobody_made_is_refused_wherever_it_would_be_missed() {
    let folder = tempfile::tempdir().unwrap();
    let file = copy(folder.path(), "taesd.yaml", "recorded_as: taesd", "recorded_as: teasd");
    let says = [":11:18: models[0].recorded_as: no recording is named `teasd`", "flux", "sdxl-clip-g", "mean `taesd`?"];
    let families = ["--families", text(folder.path())];
    refused(&headroom(&["check", &file]), BAD_INPUT, &says);
    for command in [&["run", "--output", "target/never"][..], &["plan", "--family", "taesd", "--device", "8GiB"]] {
        refused(&headroom(&[command, &families[..]].concat()), BAD_INPUT, &says);
    }
}

#[test]
fn a_recording_of_ones_own_ships_under_its_own_name() {
    let folder = tempfile::tempdir().unwrap();
    copy(folder.path(), "taesd.yaml", "recorded_as: taesd", "recorded_as: tiny9");
    let kept = std::fs::read_to_string(root().join("tests/data/h200/windows.jsonl")).unwrap();
    let own: Vec<&str> = kept.lines().filter(|line| line.contains("\"family\": \"taesd\"")).collect();
    let recording = folder.path().join("own.jsonl");
    let check = |name: &str| {
        std::fs::write(&recording, own.join("\n").replace("\"taesd\"", &format!("\"{name}\""))).unwrap();
        headroom(&["ship", text(&recording), "--check", "--json", "--families", text(folder.path())])
    };
    // Its two sizes make no line, and that is said of each: they were read as this family's.
    let answer = check("tiny9").json_of_any();
    assert!(!binary::list(&answer, "not_shipped").is_empty(), "{answer}");
    refused(&check("tiny8"), BAD_INPUT, &["own.jsonl, line 1", "tiny8"]);
}

#[test]
fn a_folder_of_one_recorded_family_is_held_against_its_recording() {
    let folder = tempfile::tempdir().unwrap();
    copy(folder.path(), "taesd.yaml", "name: taesd", "name: taesd");
    let output = folder.path().join("run");
    let families = ["--families", text(folder.path()), "--output", text(&output)];
    let ran = headroom(&[&["run", "--device", "h200", "--json"], &families[..]].concat());
    let report: Value = ran.json();
    let checks: Vec<_> = binary::list(&report, "trials").iter().map(|trial| trial["check"].as_str().unwrap()).collect();
    assert_eq!(checks, ["recorded"]);
}

#[test]
fn the_kinds_of_architecture_stand_in_the_help_of_the_check() {
    let help = headroom(&["check", "--help"]);
    for kind in ["autoencoder_kl,", "autoencoder_tiny,", "t5_encoder.", "headroom schema"] {
        assert!(help.stdout.contains(kind), "{kind}: {}", help.stdout);
    }
}

#[test]
fn what_a_file_holds_is_counted_in_words() {
    let told = headroom(&["check", "families/taesd.yaml"]).stdout;
    assert!(told.starts_with("`taesd` is in order: 1 model (") && told.contains("), 1 pipeline step, "), "{told}");
    assert!(told.ends_with(" 2 calibration lines, 7 devices, 0 regressions\n"), "{told}");
}

#[test]
fn a_size_that_no_family_lists_is_answered_by_run_with_those_that_are_and_who_takes_any() {
    let ran = headroom(&["run", "--family", "taesd", "--device", "10GiB", "--output", "target/never"]);
    let says =
        ["--device 10GiB", "families' own files list", "8gib, 12gib, 16gib", "`plan` and `calibrate`", "`advise`"];
    refused(&ran, UNAVAILABLE, &says);
    let ran = headroom(&["run", "--family", "taesd", "--device", "tiny", "--output", "target/never"]);
    refused(&ran, UNAVAILABLE, &["has no device `tiny`", "8gib"]);
    assert!(!ran.stderr.contains("any size"), "{}", ran.stderr);
    let ran = headroom(&["run", "--family", "regressions", "--device", "12GiB", "--output", "target/never"]);
    refused(&ran, UNAVAILABLE, &["`regressions` has scenarios only", "leave --device out"]);
    assert!(!ran.stderr.contains("here ;"), "{}", ran.stderr);
}

#[test]
fn a_size_of_memory_is_read_however_its_unit_is_written_and_what_is_none_is_answered_with_one() {
    let plan = |device| headroom(&["plan", "--family", "taesd", "--device", device, "--json"]);
    let (small, usual) = (plan("13gib"), plan("13GiB"));
    assert_eq!(small.json(), usual.json());
    let decode = ["--family", "taesd", "--operation", "vae_decode", "--dtype", "fp16", "--size", "512x512", "--json"];
    let advise = |memory| headroom(&[&["advise", "--memory", memory], &decode[..]].concat()).json();
    assert_eq!(advise("12gib"), advise("12GiB"));
    for command in ["plan", "calibrate"] {
        let ran = headroom(&[command, "--family", "taesd", "--device", "tiny"]);
        refused(&ran, UNAVAILABLE, &["has no device `tiny`", "8gib", "or on any size, for example 13GiB"]);
    }
    let ran = headroom(&["plan", "--family", "regressions", "--device", "tiny"]);
    refused(&ran, UNAVAILABLE, &["it is simulated on none"]);
    assert!(!ran.stderr.contains("any size"), "{}", ran.stderr);
}

#[test]
fn a_family_in_capitals_is_found_and_an_element_type_of_another_program_is_answered_with_its_name_here() {
    let folder = tempfile::tempdir().unwrap();
    let run = ["run", "--family", "TAESD", "--device", "h200", "--output", text(folder.path())];
    assert_eq!(headroom(&run).code, 0);
    let estimate = |dtype| {
        let case = ["estimate", "--family", "SDXL", "--operation", "vae_decode", "--size", "512x512"];
        headroom(&[&case[..], &["--allocator", "native", "--dtype", dtype]].concat())
    };
    assert_eq!(estimate("fp16").code, 0);
    for (dtype, here) in [("float16", "fp16"), ("half", "fp16"), ("bfloat16", "bf16"), ("float", "fp32")] {
        let ran = estimate(dtype);
        assert_eq!(ran.code, 2, "{dtype}");
        assert!(ran.stderr.contains(&format!("did you mean `{here}`?")), "{}", ran.stderr);
    }
}

/// No card holds it, and that of the checks does not either.
const TOO_LARGE: &str = "\
name: huge
description: A text encoder of 789 billion parameters.
models:
  - key: m
    architecture: { kind: t5_encoder, d_model: 4096, d_ff: 262144, num_layers: 240, num_heads: 64 }
    dtype: fp32
pipeline:
  - { operation: text_encode, model: m, size: 512 tokens }
calibration:
  - model: m
    operations: [text_encode]
    dtypes: [fp32]
    sizes: [512 tokens, 512 tokens batch 2, 512 tokens batch 4]
devices:
  - { memory: 80GiB }
";

#[test]
fn checks_of_a_model_that_no_card_holds_say_so_and_none_panics() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("huge.yaml"), TOO_LARGE).unwrap();
    let output = folder.path().join("run");
    let ran = headroom(&["run", "--json", "--families", text(folder.path()), "--output", text(&output)]);
    let report = ran.json_of_any();
    let trials = binary::list(&report, "trials");
    let told: Vec<&str> = trials.iter().filter_map(|trial| trial["message"].as_str()).collect();
    assert!(told.iter().all(|message| !message.contains("panicked")), "{told:#?}");
    let begun = told.iter().find(|message| message.contains("an_attempt_is_priced_by_the_plan_it_showed"));
    assert!(begun.is_some_and(|message| message.contains("no run of `m` can be planned beside its")), "{told:#?}");
}
