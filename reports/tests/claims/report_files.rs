//! Reports are written whole, say nothing of people's machines, and are refused clearly when they cannot be read.

use std::path::Path;

use headroom_calibration::{Counted, Uncounted};
use headroom_reports::format::parse_report;
use headroom_reports::{
    Check, MutantGrade, MutantReport, Outcome, OutputError, OutputFolder, Provenance, ReadReportError, Redaction,
    Report, Trust, WindowRecord, junit, read_report, summary,
};

crate::claims![
    a_written_report_reads_back_and_every_window_has_its_demand,
    no_file_names_a_person_or_an_absolute_path,
    a_folder_has_one_owner_at_a_time,
    a_write_that_fails_leaves_the_old_file_and_no_other,
    what_a_killed_writer_left_is_removed_and_nothing_else,
    a_report_that_cannot_be_used_is_refused_by_name_and_left_alone,
    a_newer_report_that_is_still_readable_is_read,
    junit_says_what_failed_and_never_that_an_ignored_trial_passed,
    every_file_of_a_stopped_run_says_so_first_and_none_says_that_all_holds,
    a_run_that_could_not_begin_says_why_in_every_file,
    a_run_of_which_every_trial_was_ignored_is_not_said_to_hold,
    the_summary_starts_with_the_verdict_and_the_failures,
    a_summary_of_a_hundred_thousand_failures_still_fits,
];

fn trial(check: &str, outcome: Outcome, message: Option<&str>) -> Check {
    Check {
        family: "sdxl".into(),
        device: "card".into(),
        check: check.into(),
        outcome,
        message: message.map(str::to_owned),
        notes: Vec::new(),
        seconds: 0.25,
        report_id: None,
    }
}

fn report() -> Report {
    let provenance = Provenance {
        report_id: "r1".into(),
        tool_version: "0.1.0".into(),
        commit: Some("abc123".into()),
        created: "2026-12-01T08:00:00Z".into(),
        arguments: vec!["run".into(), "--output".into(), "/home/lovelace/out".into()],
        trust: Trust::Maintainer,
        withdrawn: None,
        stopped: false,
    };
    let mut report = Report::new(provenance);
    let imported = crate::recorded::recording("warm-server.jsonl");
    report.devices = imported.devices;
    report.attempts = imported.attempts;
    report.attempts[0].attempt.last_tries.insert(3, 1);
    for (window, seconds) in imported.windows {
        let record = WindowRecord::new(window, Counted::Excluded(Uncounted::WarmUp));
        report.windows.push(WindowRecord { seconds, ..record });
    }
    report.trials = vec![
        trial("plan", Outcome::Passed, None),
        trial("demand", Outcome::Failed, Some("12 MiB over in /home/lovelace/headroom/x.rs <b>\u{1b}[31m")),
        trial("gpu", Outcome::Ignored, Some("no GPU")),
        trial("lease", Outcome::Busy, Some("held by another process, not by /srv/Ada Lovelace/w.safetensors")),
    ];
    report
}

fn redaction() -> Redaction {
    Redaction {
        root: Some("/home/lovelace/headroom".into()),
        known: vec![("/srv/Ada Lovelace/w.safetensors".into(), "<weights>".into())],
        names: vec!["lovelace".into()],
    }
}

fn a_written_report_reads_back_and_every_window_has_its_demand() {
    let folder = tempfile::tempdir().unwrap();
    let output = OutputFolder::open(&folder.path().join("new/out")).unwrap();
    let files = output.write_report(&report(), &Redaction::default()).unwrap();
    let read = read_report(&files[0]).unwrap();
    assert_eq!(read.windows, report().windows);
    assert_eq!(read.attempts, report().attempts);
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&files[0]).unwrap()).unwrap();
    let windows = json["windows"].as_array().unwrap();
    assert_eq!(windows.len(), 36);
    for (window, record) in windows.iter().zip(report().windows) {
        assert_eq!(window["demand_bytes"].as_u64(), Some(record.window.measurement.demand_bytes));
        assert_eq!(window["excluded_reason"], "warm-up run");
    }
}

fn no_file_names_a_person_or_an_absolute_path() {
    let folder = tempfile::tempdir().unwrap();
    let output = OutputFolder::open(folder.path()).unwrap();
    for file in output.write_report(&report(), &redaction()).unwrap() {
        let text = std::fs::read_to_string(&file).unwrap();
        let named = ["lovelace", "Lovelace", "/home", "/srv"].into_iter().any(|name| text.contains(name));
        assert!(!named, "{}", file.display());
    }
    let read = read_report(&folder.path().join("report.json")).unwrap();
    assert!(read.trials[1].message.as_ref().unwrap().contains("in x.rs"));
    assert_eq!(read.provenance[0].arguments[2], "<path>/out");
}

fn a_folder_has_one_owner_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let first = OutputFolder::open(folder.path()).unwrap();
    assert!(matches!(OutputFolder::open(folder.path()), Err(OutputError::InUse { .. })));
    drop(first);
    OutputFolder::open(folder.path()).unwrap();
}

fn a_write_that_fails_leaves_the_old_file_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let output = OutputFolder::open(folder.path()).unwrap();
    output.write("report.json", b"old").unwrap();
    let names = || {
        let mut names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    std::fs::create_dir(folder.path().join("taken")).unwrap();
    assert!(output.write("taken", b"new").is_err());
    std::fs::remove_dir(folder.path().join("taken")).unwrap();
    assert_eq!(names(), before);
    // An open reader keeps the old content whole: the name is moved to a new file, never rewritten.
    let mut reader = std::fs::File::open(folder.path().join("report.json")).unwrap();
    output.write("report.json", b"completely new").unwrap();
    let mut seen = String::new();
    std::io::Read::read_to_string(&mut reader, &mut seen).unwrap();
    assert_eq!(seen, "old");
}

fn what_a_killed_writer_left_is_removed_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in [".headroom-a1B2c3", ".headroom-living", ".headroomrc", "report.json"] {
        std::fs::write(at(name), name).unwrap();
    }
    // A writer that lives holds the lock on what it writes.
    let living = std::fs::File::open(at(".headroom-living")).unwrap();
    living.lock().unwrap();
    let first = OutputFolder::open(folder.path()).unwrap();
    assert!(!at(".headroom-a1B2c3").exists());
    for name in [".headroom-living", ".headroomrc", "report.json"] {
        assert_eq!(std::fs::read_to_string(at(name)).unwrap(), name);
    }
    // Nobody takes anything from a folder that another process owns.
    std::fs::write(at(".headroom-a1B2c3"), "").unwrap();
    assert!(OutputFolder::open(folder.path()).is_err());
    assert!(at(".headroom-a1B2c3").exists());
    drop((first, living));
}

fn a_report_that_cannot_be_used_is_refused_by_name_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let whole = headroom_reports::output::to_json(&report()).unwrap();
    let newer = whole.replacen(r#""readable_by": 1"#, r#""readable_by": 99"#, 1);
    let cases: [(&str, String, &str); 6] = [
        ("cut off", whole[..whole.len() / 2].to_owned(), "ends after line"),
        ("empty", String::new(), "ends after line"),
        ("newer", newer, "use a newer headroom"),
        ("another file", r#"{"segments": []}"#.to_owned(), "is not a report"),
        ("no JSON", "PK\u{3}\u{4}".to_owned(), "is not a report"),
        ("a wrong field", whole.replacen(r#""run": 0"#, r#""run": "first""#, 1), "windows[0]"),
    ];
    for (what, text, said) in cases {
        std::fs::write(&path, &text).unwrap();
        let error = read_report(&path).expect_err(what).to_string();
        assert!(error.contains("report.json") && error.contains(said), "{what}: {error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "{what}");
    }
    let missing = read_report(&folder.path().join("none.json")).unwrap_err();
    assert!(matches!(missing, ReadReportError::Unreadable { .. }) && missing.to_string().contains("none.json"));
}

fn a_newer_report_that_is_still_readable_is_read() {
    let text = headroom_reports::output::to_json(&report()).unwrap().replacen(
        r#""version": 3"#,
        r#""new_field": [1], "version": 7"#,
        1,
    );
    assert_eq!(parse_report(Path::new("r.json"), &text).unwrap().format.version, 7);
}

fn junit_says_what_failed_and_never_that_an_ignored_trial_passed() {
    let xml = junit::to_xml(&report()).unwrap();
    assert!(xml.contains(r#"tests="4" skipped="1" failures="1" errors="1""#), "{xml}");
    assert!(xml.contains(r#"<testsuite name="sdxl::card""#), "{xml}");
    assert!(xml.contains("12 MiB over") && !xml.contains("<b>") && !xml.contains('\u{1b}'), "{xml}");
}

/// Every file of a report with the place where its head ends.
fn heads(report: &Report) -> Vec<(String, String)> {
    let folder = tempfile::tempdir().unwrap();
    let files = OutputFolder::open(folder.path()).unwrap().write_report(report, &Redaction::default()).unwrap();
    files
        .iter()
        .map(|file| {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(file).unwrap())
        })
        .collect()
}

fn every_file_of_a_stopped_run_says_so_first_and_none_says_that_all_holds() {
    let mut stopped = report();
    stopped.provenance[0].stopped = true;
    stopped.trials.retain(|trial| matches!(trial.outcome, Outcome::Passed | Outcome::Ignored));
    stopped.trials.push(trial("late", Outcome::NotRun, Some("the run was stopped before its end")));
    let merged = headroom_reports::merge::merge(std::slice::from_ref(&stopped)).unwrap();
    for report in [stopped, merged] {
        assert!(!report.holds());
        for (name, text) in heads(&report) {
            assert!(!text.contains("all holds"), "{name}");
            let (says, before) = match name.as_str() {
                "report.json" => ("\"stopped\": true", "\"devices\""),
                "junit.xml" => ("was stopped before its end", "<testsuite name=\"sdxl"),
                "summary.md" => ("# headroom: the run was stopped before its end", "\n"),
                _ => ("<title>headroom: the run was stopped before its end</title>", "<body>"),
            };
            let head = text.find(before).map_or(text.as_str(), |end| &text[..end]);
            assert!(head.contains(says), "{name}: {head}");
        }
        assert!(junit::to_xml(&report).unwrap().contains(r#"tests="4" skipped="2" failures="0" errors="1""#));
        assert!(summary::to_markdown(&report).contains("3 trials: 0 failed, 0 busy, 1 not run, 1 ignored, 1 passed."));
    }
    let mut failed = report();
    failed.provenance[0].stopped = true;
    assert!(summary::to_markdown(&failed).starts_with("# headroom: something does not hold, and the run was stopped"));
}

fn a_run_that_could_not_begin_says_why_in_every_file() {
    let why = "no GPU to run on: no driver";
    let mut report = report();
    report.provenance[0].stopped = true;
    report.trials = vec![trial("plan", Outcome::NotRun, Some(why)), trial("demand", Outcome::NotRun, Some(why))];
    for (name, text) in heads(&report) {
        assert!(text.contains(why) && !text.contains("all holds"), "{name}: {text}");
    }
    let xml = junit::to_xml(&report).unwrap();
    let (error, _) = xml.split_once("<testsuite name=\"sdxl").unwrap();
    assert!(error.contains(&format!("report r1: {why}")) && xml.contains(r#"failures="0" errors="1""#), "{xml}");
}

fn a_run_of_which_every_trial_was_ignored_is_not_said_to_hold() {
    let mut report = report();
    report.trials.retain(|trial| trial.outcome == Outcome::Ignored);
    for (name, text) in heads(&report) {
        assert!(!text.contains("all holds"), "{name}");
    }
    assert!(summary::to_markdown(&report).starts_with("# headroom: nothing could be run: every trial was ignored"));
    // Nothing is known to be wrong either.
    assert!(report.holds() && junit::to_xml(&report).unwrap().contains(r#"skipped="1" failures="0" errors="0""#));
}

fn the_summary_starts_with_the_verdict_and_the_failures() {
    let mut report = report();
    let text = summary::to_markdown(&report);
    assert!(text.starts_with("# headroom: something does not hold"), "{text}");
    assert!(text.find("## Failed (1)").unwrap() < text.find("## Device busy (1)").unwrap());
    assert!(text.contains("1 failed, 1 busy, 1 ignored, 1 passed"));
    report.trials.retain(|trial| trial.outcome == Outcome::Passed);
    report.trials[0].notes.push("2 of 40 sizes left out are under".into());
    let text = summary::to_markdown(&report);
    assert!(
        text.starts_with("# headroom: all holds") && text.contains("- `sdxl::card::plan`: 2 of 40 sizes"),
        "{text}"
    );
    assert!(junit::to_xml(&report).unwrap().contains("2 of 40 sizes left out are under"));
    report.mutants = Some(MutantReport {
        grades: vec![MutantGrade {
            name: "credit_left_out".into(),
            harm: "x".into(),
            killed_by: vec![],
            reached_by: vec!["budget".into()],
            ..MutantGrade::default()
        }],
    });
    let text = summary::to_markdown(&report);
    assert!(text.starts_with("# headroom: something does not hold") && text.contains("1 graded, 0 killed, 1 survived"));
}

fn a_summary_of_a_hundred_thousand_failures_still_fits() {
    let mut report = report();
    report.trials = (0..100_000).map(|n| trial(&format!("check-{n}"), Outcome::Failed, Some("too little"))).collect();
    let text = summary::to_markdown(&report);
    assert!(text.len() <= summary::LARGEST_SUMMARY_BYTES);
    assert!(text.contains("check-0`") && text.contains("more sections did not fit"));
}
