//! What `replay` promises other programs: figures of recordings, rows of snapshots, explained messages.

mod binary;

use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use binary::{Ran, bytes, command, data, headroom, list, text};
use serde_json::Value;

/// Lines of a recording as JSON.
fn recording(name: &str) -> Vec<Value> {
    let mut text = String::new();
    let packed = std::fs::File::open(data(name)).unwrap();
    flate2::read::MultiGzDecoder::new(packed).read_to_string(&mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Eight counters a step and every recorded address of a script.
fn figures_of_a_script(script: &Value) -> u64 {
    let has_address = |step: &&Value| step[0][0] == "alloc" && step[0][3] == true && step[0][4].is_u64();
    let steps = list(script, "steps");
    8 * steps.len() as u64 + steps.iter().filter(has_address).count() as u64
}

/// Every address of a trace, eight counters at its end and three peaks.
fn figures_of_a_trace(trace: &Value) -> u64 {
    list(trace, "events").iter().filter(|event| event[0] == "alloc").count() as u64 + 8 + 3
}

#[test]
fn recordings_are_compared_figure_by_figure_and_every_figure_is_equal() {
    let files = [
        "scenario-native.jsonl.gz",
        "scenario-expandable.jsonl.gz",
        "scenario-split128.jsonl.gz",
        "scenario-pow2.jsonl.gz",
        "scenario-gc.jsonl.gz",
        "trace-native.jsonl.gz",
        "trace-expandable.jsonl.gz",
    ];
    for name in files {
        let count = if name.starts_with("trace") { figures_of_a_trace } else { figures_of_a_script };
        let expected: u64 = recording(name).iter().map(count).sum();
        let answer = headroom(&["replay", &data(name), "--json"]).json();
        assert_eq!(bytes(&answer, "compared"), expected, "{name}");
        assert_eq!(bytes(&answer, "equal"), expected, "{name}");
        assert!(answer["first_difference"].is_null(), "{name}");
    }
}

#[test]
fn one_changed_counter_is_found_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.jsonl");
    let mut script = recording("scenario-pow2.jsonl.gz").remove(1);
    let reserved = list(&script, "fields").iter().position(|field| field == "reserved").unwrap();
    let counter = &mut script["steps"][100][1][reserved];
    let recorded = counter.as_u64().unwrap() + 512;
    *counter = recorded.into();
    std::fs::write(&path, script.to_string()).unwrap();
    let ran = headroom(&["replay", text(&path), "--json"]);
    let answer = ran.json_of_any();
    assert_eq!(ran.code, 1);
    assert_eq!(bytes(&answer, "equal") + 1, bytes(&answer, "compared"));
    let first = &answer["first_difference"];
    assert_eq!((&first["recording"], &first["step"], &first["figure"]), (&1.into(), &100.into(), &"reserved".into()));
    assert_eq!((bytes(first, "recorded"), bytes(first, "replayed")), (recorded, recorded - 512));
}

#[test]
fn a_snapshot_gets_peaks_what_was_stranded_and_a_row_a_setting() {
    for name in ["snapshot-native-sdxl-vae_decode-1024.pickle.gz", "snapshot-oom-native.pickle.gz"] {
        let arguments = ["replay", &data(name), "--memory", "4GiB", "--setting", "max_split_size_mb:64", "--json"];
        let answer = headroom(&arguments).json();
        let stranded = &answer["stranded"];
        let parts: u64 = ["used_bytes", "releasable_bytes", "stranded_bytes"].iter().map(|n| bytes(stranded, n)).sum();
        assert_eq!(bytes(stranded, "reserved_bytes"), parts, "{name}");
        let peaks = &answer["peaks"];
        assert!(bytes(peaks, "allocated_bytes") <= bytes(peaks, "reserved_bytes"), "{peaks}");
        let rows = list(&answer, "settings");
        assert_eq!(rows.iter().filter(|row| row["as_recorded"] == true).count(), 1);
        assert_eq!(rows.len(), 7);
        assert_eq!(answer["least_capacity_bytes"], rows[0]["least_capacity_bytes"]);
        for row in rows {
            let least = bytes(row, "least_capacity_bytes");
            assert!(bytes(row, "allocated_peak_bytes") <= least, "{row}");
            assert_eq!(row["runs_out"], Value::Bool(least > 4 << 30), "{row}");
        }
        assert_eq!(rows.iter().filter(|row| row["is_bound"] == true).count(), 1);
    }
}

#[test]
fn the_recorded_setting_reserves_what_was_recorded() {
    let answer = headroom(&["replay", &data("snapshot-native-sdxl-vae_decode-1024.pickle.gz"), "--json"]).json();
    let recorded = &answer["settings"][0];
    assert_eq!(bytes(recorded, "reserved_peak_bytes"), bytes(&answer["peaks"], "reserved_bytes"));
    assert_eq!(recorded["environment"], "PYTORCH_ALLOC_CONF=backend:native");
    assert!(recorded["runs_out"].is_null());
}

#[test]
fn a_smaller_least_memory_by_a_hair_is_a_tie_that_the_lower_reserved_peak_wins() {
    let snapshot = data("snapshot-native-sdxl-vae_decode-1024.pickle.gz");
    let rows = headroom(&["replay", &snapshot, "--json"]).json();
    let row = |name: &str| {
        let row = list(&rows, "settings").iter().find(|row| row["setting"] == name).unwrap();
        (bytes(row, "least_capacity_bytes"), bytes(row, "reserved_peak_bytes"))
    };
    let (expandable, split) = (row("expandable_segments"), row("max_split_size_mb:128"));
    assert!(split.0 < expandable.0 && split.1 > 2 * expandable.1, "{split:?} {expandable:?}");
    let said = headroom(&["replay", &snapshot]).stdout;
    assert!(said.contains("\nTake expandable_segments: "), "{said}");
    assert!(
        said.contains("a tie with max_split_size_mb:128 (") && said.contains("reserves less at the peak"),
        "{said}"
    );
    // On a memory where only one of the tie does without retries it is that one.
    let said = headroom(&["replay", &snapshot, "--memory", "3GiB"]).stdout;
    assert!(said.contains("\nTake expandable_segments: ") && said.contains("runs without retries"), "{said}");
}

/// A message whose figures say that 1,220 MiB are missing, with 128 MiB unused and 569.8 MiB held by others.
const SHORT: &str = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 11.76 GiB of which \
                     700.00 MiB is free. Including non-PyTorch memory, this process has 10.52 GiB memory in use. Of the \
                     allocated memory 10.00 GiB is allocated by PyTorch, and 128.00 MiB is reserved by PyTorch but \
                     unallocated.";

fn replay_text(folder: &Path, content: impl AsRef<[u8]>, more: &[&str]) -> Ran {
    let path = folder.join("message.txt");
    std::fs::write(&path, content).unwrap();
    headroom(&[&["replay", text(&path)], more].concat())
}

#[test]
fn help_that_cannot_be_enough_alone_says_what_it_gives_of_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let answer = replay_text(folder.path(), SHORT, &["--json"]).json();
    let help = list(&answer, "help");
    let says = |index: usize, words: &str| assert!(help[index].as_str().unwrap().contains(words), "{help:?}");
    says(0, "need at least 1,220 MiB less");
    says(1, "not enough alone: it gives at most the 128 MiB that are unused, and 1,220 MiB stay missing");
    says(2, "not enough alone: it gives at most 569.8 MiB of the 1,220 MiB that are missing");
    assert!(!help[0].as_str().unwrap().contains("not enough"), "{help:?}");
}

#[test]
fn of_several_messages_the_one_in_which_most_is_missing_is_explained_and_the_others_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let harder = SHORT.replace("allocate 2.00 GiB", "allocate 5.00 GiB");
    let both = format!("{SHORT}\n{harder}");
    let answer = replay_text(folder.path(), &both, &["--json"]).json();
    assert_eq!((bytes(&answer, "messages"), bytes(&answer, "message")), (2, 2));
    assert_eq!(bytes(&answer, "requested_bytes"), 5 << 30);
    let said = replay_text(folder.path(), &both, &[]).stdout;
    assert!(said.starts_with("2 messages; this is number 2, in which most is missing"), "{said}");
    let said = replay_text(folder.path(), [SHORT, SHORT].join("\n"), &[]).stdout;
    assert!(said.starts_with("2 messages, all alike"), "{said}");
    assert!(!replay_text(folder.path(), SHORT, &[]).stdout.contains("messages"));
}

#[test]
fn messages_of_two_devices_are_each_explained_with_the_devices_number() {
    let folder = tempfile::tempdir().unwrap();
    let both = format!("{SHORT}\n{}", SHORT.replace("GPU 0", "GPU 1").replace("2.00 GiB", "5.00 GiB"));
    let answer = replay_text(folder.path(), &both, &["--json"]).json();
    let others = list(&answer, "others");
    assert_eq!((bytes(&answer, "device"), bytes(&answer, "requested_bytes")), (0, 2 << 30));
    assert_eq!((others.len(), bytes(&others[0], "device"), bytes(&others[0], "requested_bytes")), (1, 1, 5 << 30));
    let said = replay_text(folder.path(), &both, &[]).stdout;
    assert!(said.starts_with("2 messages of 2 devices; each is explained.\n"), "{said}");
    for words in ["A request of 2,048 MiB failed on device 0.", "A request of 5,120 MiB failed on device 1."] {
        assert!(said.contains(words), "`{words}` is not in: {said}");
    }
    assert!(!said.contains("makes up for the others"), "{said}");
    let one = replay_text(folder.path(), SHORT, &["--json"]).json();
    assert_eq!((&one["device"], &one["others"]), (&0.into(), &Value::Null));
}

#[test]
fn an_error_without_figures_is_explained_and_beside_a_message_too() {
    let folder = tempfile::tempdir().unwrap();
    for (error, status) in [
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "CUBLAS_STATUS_ALLOC_FAILED",
        ),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"),
        (
            "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
            "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        ),
    ] {
        let answer = replay_text(folder.path(), error, &["--json"]).json();
        assert!(answer["error"].as_str().unwrap().contains(status), "{answer}");
        assert!(
            answer["requested_bytes"].is_null() && answer["help"].to_string().contains("headroom advise"),
            "{answer}"
        );
        let said = replay_text(folder.path(), format!("{SHORT}\n{error}"), &[]).stdout;
        assert!(said.starts_with("1 message and 1 error without figures; each is explained.\n"), "{said}");
        assert!(said.contains("need at least 1,220 MiB less") && said.contains(status), "{said}");
    }
}

#[test]
fn a_log_of_json_lines_is_no_damaged_recording_where_it_holds_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let plain = replay_text(folder.path(), SHORT, &[]).stdout;
    let logged = format!("{{\"level\": \"info\"}}\n{}\n", serde_json::json!({ "exception_message": SHORT }));
    let ran = replay_text(folder.path(), &logged, &[]);
    assert_eq!((ran.code, ran.stdout), (0, plain.clone()), "{}", ran.stderr);
    let path = folder.path().join("log.jsonl");
    std::fs::write(&path, logged).unwrap();
    assert_eq!(headroom(&["replay", text(&path)]).stdout, plain);
}

#[test]
fn what_a_message_has_no_use_for_is_said_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let plain = replay_text(folder.path(), SHORT, &[]);
    assert!(plain.stderr.is_empty(), "{}", plain.stderr);
    for option in [["--memory", "12GiB"], ["--setting", "max_split_size_mb:64"], ["--device", "1"]] {
        let ran = replay_text(folder.path(), SHORT, &option);
        assert_eq!((ran.code, &ran.stdout), (0, &plain.stdout));
        assert!(ran.stderr.contains(&format!("{} is not used", option[0])), "{}", ran.stderr);
    }
}

#[test]
fn a_message_in_utf_16_is_read_as_in_utf_8() {
    let folder = tempfile::tempdir().unwrap();
    let plain = replay_text(folder.path(), SHORT, &[]).stdout;
    let little = [0xfeff].into_iter().chain(SHORT.encode_utf16()).flat_map(u16::to_le_bytes);
    let big = [0xfeff].into_iter().chain(SHORT.encode_utf16()).flat_map(u16::to_be_bytes);
    for encoded in [little.collect::<Vec<u8>>(), big.collect()] {
        let ran = replay_text(folder.path(), encoded, &[]);
        assert_eq!((ran.code, ran.stdout), (0, plain.clone()), "{}", ran.stderr);
    }
}

#[test]
fn standard_input_is_read_as_a_file_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("message.txt");
    std::fs::write(&path, SHORT).unwrap();
    for file in [text(&path), &data("scenario-pow2.jsonl.gz"), &data("snapshot-oom-native.pickle.gz")] {
        let input = Stdio::from(std::fs::File::open(file).unwrap());
        let piped = command(&["replay", "-", "--json"]).stdin(input).output().unwrap();
        assert_eq!(String::from_utf8(piped.stdout).unwrap(), headroom(&["replay", file, "--json"]).stdout, "{file}");
    }
}

#[test]
fn a_message_is_explained_with_its_figures() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("message.txt");
    let message = "Traceback\nCUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 11.76 GiB \
                   of which 1.20 GiB is free. Of the allocated memory 6.00 GiB is allocated by PyTorch, and 3.20 GiB is \
                   reserved by PyTorch but unallocated.";
    std::fs::write(&path, message).unwrap();
    let answer = headroom(&["replay", text(&path), "--json"]).json();
    assert_eq!(bytes(&answer, "requested_bytes"), 2 << 30);
    let help = answer["help"].to_string();
    assert!(help.contains("expandable_segments:True"), "{help}");
}

#[test]
fn a_page_of_a_replay_needs_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("replay.html");
    let snapshot = data("snapshot-oom-native.pickle.gz");
    assert_eq!(headroom(&["replay", &snapshot, "--html", text(&page)]).code, 0);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.contains("expandable_segments:True"));
    for fetched in ["<script src", "<link", "<img", "@import", "url("] {
        assert!(!page.contains(fetched), "the page fetches something: {fetched}");
    }
}
