//! Calibrations on the command line: at once into one store, on cards that hold little, and where nothing can be kept.

mod binary;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Stdio};

use binary::{UNAVAILABLE, bytes, command, contents, headroom, list, refused, root, text};
use headroom_base::Bytes;
use serde_json::Value;

/// The one record of a store.
fn record(store: &Path) -> Value {
    let files = std::fs::read_dir(store).unwrap().map(|entry| entry.unwrap().path());
    let records: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    let [record] = &records[..] else { panic!("{records:?}") };
    serde_json::from_str(&std::fs::read_to_string(record).unwrap()).unwrap()
}

#[test]
fn calibrations_into_one_store_at_once_are_all_kept_and_never_mixed() {
    let folder = tempfile::tempdir().unwrap();
    let start = |number: usize| -> Child {
        let layout = ["contiguous", "channels_last"][number % 2];
        let fixed = ["calibrate", "--family", "taesd", "--device", "24GiB", "--layout", layout, "--store"];
        let mut program = command(&[&fixed[..], &[text(folder.path())]].concat());
        program.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let running: Vec<Child> = (0..8).map(start).collect();
    running.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));

    let record = record(folder.path());
    let attempts = list(&record, "attempts");
    let names: BTreeSet<&str> = attempts.iter().map(|attempt| attempt["id"].as_str().unwrap()).collect();
    assert_eq!((attempts.len(), names.len()), (8, 8), "{names:?}");
    for attempt in attempts {
        assert_eq!(attempt["state"], "finished", "{attempt}");
        let own: Vec<_> =
            list(&record, "windows").iter().filter(|window| window["attempt_id"] == attempt["id"]).collect();
        let runs: Vec<_> = own.iter().map(|window| window["run"].as_u64().unwrap()).collect();
        assert_eq!(runs, (0..attempt["planned_runs"].as_u64().unwrap()).collect::<Vec<_>>(), "{attempt}");
        assert!(own.iter().all(|window| window["environment"] == attempt["environment"]), "{attempt}");
    }
}

#[cfg(unix)]
#[test]
fn where_a_file_cannot_grow_the_runs_before_are_kept_and_it_is_said_how_many_and_where() {
    let folder = tempfile::tempdir().unwrap();
    let [whole, cut] = ["whole", "cut"].map(|name| folder.path().join(name));
    let calibrate = |store| command(&["calibrate", "--family", "taesd", "--device", "24GiB", "--store", text(store)]);
    assert!(calibrate(&whole).output().unwrap().status.success());
    let record_bytes = contents(&whole).iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
    // A shell counts in blocks of 512 bytes or of 1,024: a quarter of the whole record, or a half of it.
    let limited = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", record_bytes / 4 / 512);
    let inner = calibrate(&cut);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &limited]).arg(inner.get_program()).args(inner.get_args());
    let ran = shell.current_dir(root()).output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(6), "{said}");
    let record = record(&cut);
    let (kept, planned) = (list(&record, "windows").len(), &list(&record, "attempts")[0]["planned_runs"]);
    let (file, _) = contents(&cut).into_iter().find(|(_, bytes)| !bytes.is_empty()).unwrap();
    assert!(kept > 0, "{said}");
    assert!(said.contains(&format!("vae: {kept} of {planned} runs are kept in {} and join", file.display())), "{said}");
    assert!(said.contains(&format!("cannot write {}: ", file.display())), "{said}");
    assert!(!said.contains(".tmp: ") && !said.contains("nothing was changed"), "{said}");
}

#[test]
fn what_a_card_cannot_hold_of_a_calibration_is_said_before_anything_runs_as_a_plan_says_it() {
    let on = |command| headroom(&[command, "--family", "sdxl", "--device", "6GiB"]);
    let ran = on("calibrate");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let (before, _) = ran.stderr.split_once("run 1 of ").unwrap();
    let plan = on("plan").stdout;
    let too_few: Vec<&str> = plan.lines().filter(|line| line.contains("so it gets no fit here")).collect();
    assert_eq!(too_few.len(), 2, "{plan}");
    assert!(too_few.iter().all(|note| before.contains(note)), "{before}");
    assert_eq!(before.matches("does not fit: ").count(), plan.matches("does not fit: ").count(), "{before}");
}

#[test]
fn a_card_on_which_nothing_of_a_calibration_fits_is_refused_and_nothing_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("measurements");
    let card = ["--family", "sdxl", "--device", "2GiB"];
    let ran = headroom(&[&["calibrate", "--store", text(&store)], &card[..]].concat());
    let plan = headroom(&[&["plan", "--json"], &card[..]].concat()).json();
    let short = list(&plan, "not_fitting").iter().map(|case| bytes(case, "short_bytes")).min().unwrap();
    let nothing =
        format!("nothing of the calibration of `sdxl` fits on 2gib, the least of it is {} short", Bytes(short));
    refused(&ran, UNAVAILABLE, &["does not fit: ", &nothing]);
    assert!(!ran.stderr.contains("run 1 of "), "{}", ran.stderr);
    assert!(!store.exists());
}

#[test]
fn a_model_that_does_not_fit_is_no_attempt_beside_one_that_does() {
    let folder = tempfile::tempdir().unwrap();
    let fixed = ["calibrate", "--family", "text-encoders", "--device", "6GiB", "--json", "--store"];
    let answer = headroom(&[&fixed[..], &[text(folder.path())]].concat()).json();
    let [fits, does_not] = &list(&answer, "models")[..] else { panic!("{answer}") };
    assert!(fits["attempt_id"].is_string() && fits["runs"] != 0, "{fits}");
    assert!(does_not.get("attempt_id").is_none() && does_not["runs"] == 0, "{does_not}");
    assert!(!list(does_not, "not_fitting").is_empty(), "{does_not}");
    assert_eq!(list(&record(folder.path()), "attempts").len(), 1);
}

/// A limit on the size of a file stands for a full disk.
#[cfg(unix)]
#[test]
fn a_calibration_that_can_no_longer_be_kept_ends_as_output_that_cannot_be_written() {
    const OUTPUT: i32 = 6;
    let folder = tempfile::tempdir().unwrap();
    let limited = "trap '' XFSZ; ulimit -f 12; exec \"$@\"";
    let program = env!("CARGO_BIN_EXE_headroom");
    let calibrate = ["calibrate", "--family", "taesd", "--device", "24GiB", "--store", text(folder.path())];
    let mut shell = std::process::Command::new("sh");
    let output =
        shell.current_dir(binary::root()).args(["-c", limited, "sh", program]).args(calibrate).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(OUTPUT), "{said}");
    assert!(said.contains("run 1 of ") && said.contains("cannot write "), "{said}");
    assert!(output.stdout.is_empty());
    // What had finished before is whole, and no part of a file is left.
    assert_eq!(list(&record(folder.path()), "attempts").len(), 1);
    let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    assert!(files.into_iter().all(|path| path.extension().is_none_or(|end| end != "tmp")));
}
