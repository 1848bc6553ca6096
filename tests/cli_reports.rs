//! What the files of a run say, and what they never say: whoever ran it, wherever, and however it ended.

mod binary;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use binary::{command, contents, headroom, root, taesd_with, text};
use headroom_reports::{Outcome, Report, read_report};

fn run(output: &Path, more: &[&str]) -> Command {
    let mut run = command(&[&["run", "--output", text(output)], more].concat());
    for name in ["CI", "GITHUB_ACTIONS", "HEADROOM_SHARD", "HEADROOM_REQUIRE_GPU"] {
        run.env_remove(name);
    }
    run
}

fn report(folder: &Path) -> Report {
    read_report(&folder.join("report.json")).expect("a report")
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A family of which no reservation passes on its simulated card.
fn strict_family(folder: &Path) -> PathBuf {
    let families = folder.join("families");
    std::fs::create_dir(&families).unwrap();
    taesd_with(&families, "taesd.yaml", "expandable_segments: 15", "expandable_segments: 0");
    families
}

#[test]
fn an_account_named_like_a_word_of_the_report_changes_nothing_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let small = ["--family", "taesd", "--device", "8gib"];
    let of = |user: &str| {
        let output = folder.path().join(user);
        let ran = run(&output, &small).env("USER", user).env("LOGNAME", user).output().unwrap();
        assert_eq!(ran.status.code(), Some(0), "{user}: {}", said(&ran));
        report(&output)
    };
    let nobody = of("lovelace");
    for user in ["user", "cuda", "headroom"] {
        let theirs = of(user);
        assert_eq!(theirs.devices, nobody.devices, "{user}");
        assert!(theirs.windows == nobody.windows || theirs.windows.len() == nobody.windows.len(), "{user}");
        assert!(theirs.windows.iter().zip(&nobody.windows).all(|(a, b)| a.window == b.window), "{user}");
        assert!(theirs.provenance[0].report_id.starts_with("headroom-"), "{user}");
        assert_eq!(theirs.trials.iter().map(|t| t.name()).collect::<Vec<_>>(), names(&nobody), "{user}");
    }
}

fn names(report: &Report) -> Vec<String> {
    report.trials.iter().map(headroom_reports::Check::name).collect()
}

#[test]
fn a_folder_with_a_space_in_its_name_is_in_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("Jane Doe");
    let families = home.join("my families");
    std::fs::create_dir_all(&families).unwrap();
    let weights = home.join("my models/w.safetensors");
    std::fs::create_dir_all(weights.parent().unwrap()).unwrap();
    let header = r#"{"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}"#;
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 4]].concat();
    std::fs::write(&weights, file).unwrap();
    let right = std::fs::read_to_string(root().join("families/taesd.yaml")).unwrap();
    let model = format!("safetensors: \"{}\"\n    dtype: fp16", text(&weights));
    let with_weights = right.replacen("dtype: fp16", &model, 1);
    assert_ne!(with_weights, right);
    std::fs::write(families.join("taesd.yaml"), with_weights).unwrap();
    let output = folder.path().join("report");
    let options = ["--families", text(&families), "--family", "taesd", "--device", "8gib", "--json"];
    let ran = run(&output, &options).current_dir(&home).env("HOME", &home).env("USER", "jane").output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", said(&ran));
    let printed = (PathBuf::from("standard output"), ran.stdout.clone());
    for (file, bytes) in contents(&output).into_iter().chain([printed]) {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(!text.contains("Jane") && !text.contains("Doe"), "{}: {text}", file.display());
    }
    assert!(!report(&output).trials.is_empty());
}

#[test]
fn a_run_that_is_killed_leaves_a_report_that_says_so_in_the_place_of_an_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let earlier = run(folder.path(), &["--family", "taesd", "--device", "8gib"]).output().unwrap();
    assert_eq!(earlier.status.code(), Some(0), "{}", said(&earlier));
    let all_hold = std::fs::read_to_string(folder.path().join("summary.md")).unwrap();
    assert!(all_hold.starts_with("# headroom: all holds"), "{all_hold}");
    let id = report(folder.path()).provenance[0].report_id.clone();
    let mut running = run(folder.path(), &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let page = || std::fs::read_to_string(folder.path().join("index.html")).unwrap();
    while page().contains(&id) {
        assert!(running.try_wait().unwrap().is_none(), "it ended before it began");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    running.kill().unwrap();
    running.wait().unwrap();
    let stopped = report(folder.path());
    assert!(stopped.is_stopped() && stopped.trials.len() > 100);
    let merged = folder.path().join("merged");
    let merge = headroom(&["merge", text(&folder.path().join("report.json")), "--output", text(&merged)]);
    assert!(merge.code == 1 && merge.stdout.contains("the run was stopped before its end"), "{}", merge.stdout);
    let id = &stopped.provenance[0].report_id;
    let again = format!("{id} was stopped: run it again (headroom run) and merge the new report in its place");
    assert!(merge.stdout.contains(&again) && merge.stdout.contains(" not run, "), "{}", merge.stdout);
    for folder in [folder.path(), &merged] {
        for name in ["summary.md", "index.html", "junit.xml"] {
            let text = std::fs::read_to_string(folder.join(name)).unwrap();
            assert!(text.contains("stopped before its end") && !text.contains("all holds"), "{name}: {text}");
        }
    }
}

#[test]
fn a_run_that_is_killed_has_kept_what_ended_before_and_calls_the_rest_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = run(folder.path(), &["--family", "sdxl", "--family", "flux", "--family", "wan"]);
    let mut running = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let ended = || read_report(&folder.path().join("report.json")).map_or(0, |report| report.count(Outcome::Passed));
    while ended() == 0 {
        assert!(running.try_wait().unwrap().is_none(), "it ended before it kept anything");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    running.kill().unwrap();
    running.wait().unwrap();
    let stopped = report(folder.path());
    assert!(stopped.is_stopped() && stopped.count(Outcome::Passed) > 0 && stopped.count(Outcome::NotRun) > 0);
    for trial in &stopped.trials {
        let says_stopped = trial.message.as_deref() == Some("the run was stopped before its end");
        assert_eq!(says_stopped, trial.outcome == Outcome::NotRun, "{}", trial.name());
    }
}

#[test]
fn merged_reports_end_as_one_run_of_all_their_trials_would() {
    let folder = tempfile::tempdir().unwrap();
    let families = strict_family(folder.path());
    let [good, bad, merged] = ["good", "bad", "merged"].map(|name| folder.path().join(name));
    let small = ["--family", "taesd", "--device", "8gib"];
    assert_eq!(run(&good, &small).output().unwrap().status.code(), Some(0));
    let failed = run(&bad, &[&["--families", text(&families)], &small[..]].concat()).output().unwrap();
    assert_eq!(failed.status.code(), Some(1), "{}", said(&failed));
    let [good, bad] = [good, bad].map(|folder| folder.join("report.json"));
    let of = |reports: &[&Path]| {
        let reports: Vec<&str> = reports.iter().map(|path| text(path)).collect();
        headroom(&[&["merge", "--output", text(&merged)], &reports[..]].concat())
    };
    let alone = of(&[&good]);
    assert!(alone.code == 0 && alone.stdout.contains(", 0 failed"), "{}{}", alone.stdout, alone.stderr);
    let both = of(&[&good, &bad]);
    let trials: usize = [&good, &bad].map(|path| read_report(path).unwrap().trials.len()).iter().sum();
    assert_eq!(both.code, 1, "{}{}", both.stdout, both.stderr);
    for words in [format!("\n{trials} trials: "), ", 1 failed".into(), "\nfailed taesd::8gib::calibration: ".into()] {
        assert!(both.stdout.contains(&words), "`{words}`: {}", both.stdout);
    }
}

#[test]
fn a_gpu_that_is_not_there_is_told_in_the_place_of_an_earlier_report_and_a_wrong_name_beside_it() {
    // Where a GPU is attached it is there.
    if headroom::gpu::Gpus::attached().none_because().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let first = run(folder.path(), &["--family", "taesd", "--device", "8gib"]).output().unwrap();
    assert!(first.status.code() == Some(0) && !said(&first).contains("earlier run"), "{}", said(&first));
    let before = contents(folder.path());
    let wrong = run(folder.path(), &["--family", "taesdd"]).output().unwrap();
    assert!(wrong.status.code() == Some(3) && said(&wrong).contains("is of an earlier run"), "{}", said(&wrong));
    assert_eq!(contents(folder.path()), before);
    for device in ["gpu", "gpu-1a2b3c4d"] {
        let mut missing = run(folder.path(), &["--family", "taesd", "--device", device]);
        let missing = missing.env("HEADROOM_REQUIRE_GPU", "1").env("GITHUB_ACTIONS", "true").output().unwrap();
        let annotated = said(&missing).lines().any(|line| line.starts_with("::warning ") && line.contains(": no GPU"));
        assert!(annotated, "{}", said(&missing));
        let words = format!("`--device {device}`: no GPU to run on: ");
        assert!(missing.status.code() == Some(5) && said(&missing).contains(&words), "{}", said(&missing));
        let told = report(folder.path());
        assert!(told.is_stopped() && !told.trials.is_empty());
        assert_eq!(told.count(Outcome::NotRun), told.trials.len());
        for (file, bytes) in contents(folder.path()).into_iter().filter(|(_, bytes)| !bytes.is_empty()) {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            assert!(text.contains("no GPU to run on: ") && !text.contains("8gib"), "{}: {text}", file.display());
        }
        let text = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(text("summary.md").starts_with("# headroom: nothing was run"), "{}", text("summary.md"));
        assert!(text("junit.xml").contains(r#"failures="0" errors="1""#), "{}", text("junit.xml"));
    }
}

#[test]
fn shards_begun_together_merge_into_one_report_of_every_trial() {
    let folder = tempfile::tempdir().unwrap();
    let part = |index: u32| folder.path().join(index.to_string());
    let begin = |index: u32| {
        let mut run = run(&part(index), &["--family", "taesd", "--device", "8gib"]);
        run.env("HEADROOM_SHARD", format!("{index}/2")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let running: Vec<_> = [1, 2].into_iter().map(begin).collect();
    for mut child in running {
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    let [one, two] = [1, 2].map(|index| part(index).join("report.json"));
    let merged = folder.path().join("merged");
    let ran = headroom(&["merge", text(&one), text(&two), "--output", text(&merged)]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let [one, two, merged] = [report(&part(1)), report(&part(2)), report(&merged)];
    assert_eq!(merged.trials.len(), one.trials.len() + two.trials.len());
    assert_eq!(merged.provenance.len(), 2);
}

#[test]
fn a_shard_without_trials_succeeds_with_a_report_that_says_so_and_can_be_merged() {
    let folder = tempfile::tempdir().unwrap();
    let [empty, whole, merged] = ["empty", "whole", "merged"].map(|name| folder.path().join(name));
    let small = ["--family", "taesd", "--device", "8gib"];
    let ran = run(&empty, &small).env("HEADROOM_SHARD", "700/700").output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", said(&ran));
    assert!(said(&ran).contains("shard 700/700 of what was chosen holds no trial"), "{}", said(&ran));
    let told = report(&empty);
    assert!(told.trials.is_empty() && !told.is_stopped());
    let summary = std::fs::read_to_string(empty.join("summary.md")).unwrap();
    assert!(summary.contains("no trial was to be run") && !summary.contains("all holds"), "{summary}");
    assert_eq!(run(&whole, &small).output().unwrap().status.code(), Some(0));
    let parts = [&empty, &whole].map(|part| part.join("report.json"));
    let ran = headroom(&["merge", text(&parts[0]), text(&parts[1]), "--output", text(&merged)]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(report(&merged).trials.len(), report(&whole).trials.len());
    let wrong = run(&empty, &small).env("HEADROOM_SHARD", "701/700").output().unwrap();
    assert_eq!(wrong.status.code(), Some(3), "{}", said(&wrong));
}

#[test]
fn a_shard_whose_trials_are_all_ignored_succeeds_and_says_so_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let whole = run(folder.path(), &["--family", "taesd"]).output().unwrap();
    let trials = report(folder.path()).trials;
    // Where a GPU is attached nothing is ignored.
    let Some(ignored) = trials.iter().position(|trial| trial.outcome == Outcome::Ignored) else { return };
    assert_eq!(whole.status.code(), Some(0), "{}", said(&whole));
    let shard = format!("{}/{}", ignored + 1, trials.len());
    let ran = run(folder.path(), &["--family", "taesd"]).env("HEADROOM_SHARD", &shard).output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", said(&ran));
    let words = "nothing could be run: every trial was ignored";
    assert!(said(&ran).contains(words), "{}", said(&ran));
    let summary = std::fs::read_to_string(folder.path().join("summary.md")).unwrap();
    assert!(summary.contains(words) && !summary.contains("all holds"), "{summary}");
    let mut required = run(folder.path(), &["--family", "taesd"]);
    let required = required.env("HEADROOM_SHARD", &shard).env("HEADROOM_REQUIRE_GPU", "1").output().unwrap();
    assert_eq!(required.status.code(), Some(1), "{}", said(&required));
}

#[test]
fn a_failed_trial_is_an_annotation_where_github_runs_and_never_inside_the_json() {
    let folder = tempfile::tempdir().unwrap();
    let families = strict_family(folder.path());
    let options = ["--families", text(&families), "--family", "taesd", "--device", "8gib"];
    let output = folder.path().join("report");
    let of = |more: &[&str], github: &str| {
        let ran = run(&output, &[&options[..], more].concat()).env("GITHUB_ACTIONS", github).output().unwrap();
        assert_eq!(ran.status.code(), Some(1), "{}", said(&ran));
        [ran.stdout, ran.stderr].map(|bytes| String::from_utf8(bytes).unwrap())
    };
    let annotation = "::error title=taesd%3A%3A8gib%3A%3Acalibration::";
    let [plain, _] = of(&[], "true");
    let line = plain.lines().find(|line| line.starts_with(annotation)).unwrap_or_else(|| panic!("{plain}"));
    assert!(line.contains("0 %25"), "{line}");
    let [json, remarks] = of(&["--json"], "true");
    assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok(), "{json}");
    assert!(remarks.lines().any(|line| line.starts_with(annotation)), "{remarks}");
    assert!(of(&[], "false").iter().all(|text| !text.contains("::error")));
}

#[test]
fn a_report_is_labelled_ci_only_where_ci_says_yes() {
    let folder = tempfile::tempdir().unwrap();
    for (value, expected) in [("true", "ci"), ("1", "ci"), ("false", "contributed"), ("", "contributed")] {
        let mut run = run(folder.path(), &["--family", "taesd", "--device", "8gib"]);
        assert_eq!(
            run.env("CI", value).env("HEADROOM_SHARD", "1/50").output().unwrap().status.code(),
            Some(0),
            "{value}"
        );
        assert_eq!(report(folder.path()).provenance[0].trust.name(), expected, "CI={value}");
    }
}
