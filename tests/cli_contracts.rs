//! What other programs rely on: JSON contracts and exit codes of the commands, run as a program runs them.

mod binary;

use std::path::Path;
use std::process::Stdio;

use binary::{SHIPPED, bytes, command, contents, data, headroom, list, repository_copy, root, text};
use serde_json::Value;

#[test]
fn a_plan_lists_every_case_once_and_its_capacity_follows_from_the_terms() {
    let plan = |device| headroom(&["plan", "--family", "sdxl", "--device", device, "--json"]).json();
    let small = plan("8GiB");
    let (planned, not_fitting) = (list(&small, "planned"), list(&small, "not_fitting"));
    assert!(!planned.is_empty() && !not_fitting.is_empty(), "{small}");
    for case in not_fitting {
        let short = bytes(case, "needed_bytes") as i64 - case["capacity"]["capacity_bytes"].as_i64().unwrap();
        assert_eq!(bytes(case, "short_bytes") as i64, short, "{case}");
    }
    let terms = &planned[0]["capacity"];
    let taken: u64 = ["outside_now_bytes", "context_bytes", "retained_bytes", "locked_weights_bytes"]
        .iter()
        .map(|name| terms[*name].as_u64().unwrap_or(0))
        .sum();
    assert_eq!(bytes(terms, "capacity_bytes"), bytes(terms, "total_bytes") - taken, "{terms}");
    let large = plan("141GiB");
    assert_eq!(list(&large, "planned").len(), planned.len() + not_fitting.len());
    assert!(list(&large, "not_fitting").is_empty());
}

#[test]
fn a_card_that_no_family_lists_can_be_planned_for() {
    let plan = headroom(&["plan", "--family", "sdxl", "--device", "10GiB", "--json"]).json();
    assert_eq!(bytes(&plan["capacity"], "total_bytes"), 10 << 30);
}

/// The recorded peaks of a case of SDXL at 1024x1024, allocated and reserved, of each measured run.
fn recorded_peaks(operation: &str, dtype: &str, allocator: &str) -> Vec<(u64, u64)> {
    let windows = std::fs::read_to_string(data("windows.jsonl")).unwrap();
    let wanted = serde_json::json!(["sdxl", operation, dtype, 1024, 1024, allocator, "measured"]);
    let names = ["family", "operation", "dtype", "width", "height", "allocator", "kind"];
    let windows = windows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_case =
        windows.filter(|window| names.iter().zip(list_of(&wanted)).all(|(name, value)| window[*name] == *value));
    of_case.map(|window| (bytes(&window, "allocated_peak_delta"), bytes(&window, "reserved_peak_delta"))).collect()
}

fn list_of(value: &Value) -> &Vec<Value> {
    value.as_array().expect("a list")
}

#[test]
fn advice_has_a_row_a_setting_that_agrees_with_what_was_recorded() {
    let memory = 4 << 30;
    let mut compared = 0;
    for (operation, dtype) in
        [("vae_decode", "fp16"), ("vae_decode", "fp32"), ("vae_encode", "bf16"), ("vae_encode", "fp16")]
    {
        let case = ["--family", "sdxl", "--operation", operation, "--dtype", dtype, "--size", "1024x1024"];
        let advice = headroom(&[&["advise", "--json", "--memory", "4GiB"], &case[..]].concat()).json();
        let settings = list(&advice, "settings");
        let names: Vec<_> = settings.iter().map(|setting| setting["allocator"].as_str().unwrap()).collect();
        assert_eq!(names, ["native", "expandable_segments", "cuda_malloc_async"]);
        for setting in settings {
            let allocator = setting["allocator"].as_str().unwrap();
            let [allocated, reserved, least] = ["allocated_peak_bytes", "reserved_peak_bytes", "least_capacity_bytes"]
                .map(|name| bytes(setting, name));
            assert!(least >= allocated + bytes(&advice, "weights_bytes"), "{setting}");
            // A bound above the card says nothing where what is in use at once fits.
            let held = allocated
                + ["context_bytes", "weights_bytes", "workspaces_bytes"]
                    .map(|name| bytes(&advice, name))
                    .iter()
                    .sum::<u64>();
            let is_open = setting["is_bound"] == true && least > memory && held <= memory;
            let fits = if is_open { Value::Null } else { Value::Bool(least <= memory) };
            assert_eq!(setting["fits"], fits, "{setting}");
            assert!(setting["environment"].as_str().unwrap().starts_with("PYTORCH_ALLOC_CONF="), "{setting}");
            for (recorded_allocated, recorded) in recorded_peaks(operation, dtype, allocator) {
                compared += 1;
                let shown = format!("{operation} {dtype} {setting}: {recorded_allocated} and {recorded} recorded");
                assert!(allocated.abs_diff(recorded_allocated) * 50 <= recorded_allocated, "{shown}");
                if allocator == "cuda_malloc_async" {
                    assert!(reserved >= recorded, "{shown}");
                } else {
                    assert!(reserved.abs_diff(recorded) <= (recorded / 20).max(20 << 20), "{shown}");
                }
            }
        }
    }
    assert!(compared >= 18, "only {compared} recorded windows were compared");
}

#[test]
fn advice_calls_two_percent_a_tie_and_says_what_its_columns_are_for() {
    let case = ["--family", "flux", "--operation", "text_encode", "--dtype", "bf16", "--tokens", "512"];
    let advice = headroom(&[&["advise", "--json"], &case[..]].concat()).json();
    let settings = list(&advice, "settings");
    let smallest = settings.iter().map(|setting| bytes(setting, "least_capacity_bytes")).min().unwrap();
    let ties = settings.iter().filter(|setting| bytes(setting, "least_capacity_bytes") * 100 <= smallest * 102);
    let lowest = ties.min_by_key(|setting| bytes(setting, "reserved_peak_bytes")).unwrap();
    assert_eq!(advice["least"], lowest["allocator"]);
    assert_ne!(bytes(lowest, "least_capacity_bytes"), smallest, "no tie is put to the test");
    let said = headroom(&[&["advise", "--allocator", "native"], &case[..]].concat()).stdout;
    for words in [
        "Take expandable_segments: least card ",
        "a tie with native (",
        "native, which is in use, does with a card smaller by 2 MiB",
        "`headroom estimate`",
        "Least card: enough to complete, slower",
        "cuda_malloc_async's least card holds all that the first run may reserve",
        "expandable_segments reserves less than it allocates: ",
    ] {
        assert!(said.contains(words), "`{words}` is not in: {said}");
    }
}

#[test]
fn a_bound_on_the_least_card_is_the_sum_of_what_is_there_before_and_what_the_first_run_reserves() {
    for case in [
        ["--operation", "vae_decode", "--dtype", "fp16", "--size", "1024x1024"],
        ["--operation", "text_encode", "--dtype", "fp16", "--tokens", "77"],
    ] {
        let advice = headroom(&[&["advise", "--json", "--family", "sdxl"], &case[..]].concat()).json();
        let pool = list(&advice, "settings").iter().find(|setting| setting["is_bound"] == true).unwrap();
        let [context, weights, kept] =
            ["context_bytes", "weights_bytes", "workspaces_bytes"].map(|name| bytes(&advice, name));
        let [first, later, room] =
            ["first_reserved_peak_bytes", "reserved_peak_bytes", "room_before_bytes"].map(|name| bytes(pool, name));
        let least = bytes(pool, "least_capacity_bytes");
        assert!(least >= context + weights + first && least >= context + weights + kept + later, "{advice}");
        // Beyond that there is only what the pool's steps leave free.
        let most = (context + weights + first).max(context + weights + kept + later);
        assert!(least - most <= room.max(32 << 20), "{advice}");
    }
}

#[test]
fn a_card_that_does_by_retries_is_told_from_one_that_does_without() {
    let case = ["--family", "sdxl", "--operation", "vae_decode", "--dtype", "fp16", "--size", "1024x1024"];
    let retries = |memory: &str| {
        let advice = headroom(&[&["advise", "--json", "--memory", memory], &case[..]].concat()).json();
        let native = &list(&advice, "settings")[0];
        assert_eq!((&native["allocator"], &native["fits"]), (&"native".into(), &true.into()));
        bytes(native, "retries")
    };
    assert!(retries("4GiB") > 0);
    assert_eq!(retries("8GiB"), 0);
    let said = headroom(&[&["advise", "--memory", "4GiB"], &case[..]].concat()).stdout;
    assert!(said.contains("yes, by retries"), "{said}");
}

#[test]
fn shipped_data_says_what_the_inputs_of_the_repository_say() {
    let before = contents(&root().join(SHIPPED));
    let ran = headroom(&["ship", "--check"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert_eq!(contents(&root().join(SHIPPED)), before);
}

#[test]
fn outdated_shipped_data_is_named_left_alone_by_check_and_written_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    repository_copy(folder.path());
    let shipped = folder.path().join(SHIPPED);
    let right = contents(&shipped);
    let file = shipped.join("cuda-native.json");
    let changed = std::fs::read_to_string(&file).unwrap().replacen("\"windows\": ", "\"windows\": 1", 1);
    std::fs::write(&file, changed).unwrap();
    let wrong = contents(&shipped);
    let check = headroom(&["ship", "--check", "--json", "--repository", text(folder.path())]);
    assert_eq!(check.code, 1);
    assert_eq!(check.json_of_any()["outdated"], serde_json::json!(["cuda-native.json"]));
    assert_eq!(contents(&shipped), wrong, "--check wrote");
    assert_eq!(headroom(&["ship", "--repository", text(folder.path())]).code, 0);
    assert_eq!(contents(&shipped), right);
}

/// Windows of one family, as a recording of its own.
fn part_of_the_recording(folder: &Path, family: &str) -> std::path::PathBuf {
    let windows = std::fs::read_to_string(data("windows.jsonl")).unwrap();
    let wanted = format!("\"family\": \"{family}\"");
    let lines: Vec<_> = windows.lines().filter(|line| line.contains(&wanted)).collect();
    assert!(!lines.is_empty());
    let path = folder.join(format!("{family}.jsonl"));
    std::fs::write(&path, lines.join("\n")).unwrap();
    path
}

#[test]
fn a_change_that_loses_a_device_is_refused_with_the_reason_until_it_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    repository_copy(folder.path());
    let part = part_of_the_recording(folder.path(), "sdxl");
    let shipped = folder.path().join(SHIPPED);
    let before = contents(&shipped);
    let repository = ["--repository", text(folder.path())];
    let ran = headroom(&[&["ship", text(&part)][..], &repository].concat());
    assert_eq!(ran.code, 4);
    assert!(ran.stderr.contains("would lose NVIDIA H200"), "{}", ran.stderr);
    assert_eq!(contents(&shipped), before);
    assert_eq!(headroom(&[&["ship", text(&part), "--accept"][..], &repository].concat()).code, 0);
    assert_ne!(contents(&shipped), before);
}

#[test]
fn shipped_bytes_do_not_depend_on_the_order_of_the_inputs() {
    let written = |families: [&str; 2]| {
        let folder = tempfile::tempdir().unwrap();
        repository_copy(folder.path());
        let parts = families.map(|family| part_of_the_recording(folder.path(), family));
        let arguments = ["ship", text(&parts[0]), text(&parts[1]), "--accept", "--repository", text(folder.path())];
        assert_eq!(headroom(&arguments).code, 0);
        let shipped = contents(&folder.path().join(SHIPPED));
        shipped.into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>()
    };
    assert_eq!(written(["sdxl", "flux"]), written(["flux", "sdxl"]));
}

#[test]
fn a_run_writes_a_report_whose_windows_have_demands_and_merging_it_keeps_them() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first");
    let arguments = ["run", "--family", "taesd", "--device", "8gib", "--output", text(&first)];
    let ran = headroom(&arguments);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let read = |folder: &Path| -> Value {
        serde_json::from_slice(&std::fs::read(folder.join("report.json")).unwrap()).unwrap()
    };
    let report = read(&first);
    assert!(!list(&report, "windows").is_empty());
    assert!(list(&report, "windows").iter().all(|window| bytes(window, "demand_bytes") > 0));
    for companion in ["junit.xml", "summary.md", "index.html"] {
        assert!(first.join(companion).is_file(), "{companion}");
    }
    let merged = folder.path().join("merged");
    let report_path = first.join("report.json");
    let ran = headroom(&["merge", text(&report_path), text(&report_path), "--output", text(&merged)]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(list(&read(&merged), "windows").len(), list(&report, "windows").len());
}

#[test]
fn a_calibration_is_kept_and_prices_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let store = ["--store", text(folder.path())];
    let device = ["--device", "24GiB"];
    let calibrate = [&["calibrate", "--family", "taesd", "--json"][..], &device, &store].concat();
    let answer = headroom(&calibrate).json();
    let line = &answer["models"][0]["lines"][0];
    assert_eq!(line["state"], "in_use", "{line}");
    let size = &line["sizes"][0];
    let measured = bytes(size, "measured_bytes");
    assert!(measured <= bytes(&size["calibrated"], "reservation_bytes"), "{size}");
    let priced = |more: &[&str]| {
        let case = ["estimate", "--family", "taesd", "--operation", "vae_decode", "--dtype", "fp16"];
        let rest = ["--size", "640x640", "--allocator", "native", "--json"];
        headroom(&[&case[..], &rest, more].concat()).json()["source"].clone()
    };
    assert_eq!(priced(&[&store[..], &device].concat()), "user");
    assert_ne!(priced(&[]), "user");
    assert_ne!(priced(&[&store[..], &["--device", "12GiB"]].concat()), "user", "another card's measurements were used");
    let attempts = |answer: &Value| answer["models"][0]["attempt_id"].clone();
    let again = headroom(&calibrate).json();
    assert_ne!(attempts(&again), attempts(&answer));
    assert_eq!(again["models"][0]["lines"][0]["own_windows"], 2 * bytes(line, "own_windows"));
}

#[test]
fn devices_name_readers_with_what_is_verified_and_say_why_there_is_no_gpu() {
    let answer = headroom(&["devices", "--json"]).json();
    let readers = list(&answer, "readers");
    assert!(readers.iter().all(|reader| reader["verified"].is_boolean() && reader["name"].is_string()));
    assert!(readers.iter().any(|reader| reader["name"] == "nvml"));
    if list(&answer, "devices").is_empty() {
        assert!(answer["no_device"].as_str().unwrap().starts_with("no CUDA device: "));
    }
    assert!(!list(&answer, "simulated").is_empty());
}

#[test]
fn the_schema_is_json_and_the_one_that_is_kept() {
    let ran = headroom(&["schema"]);
    assert!(ran.json()["properties"]["calibration"].is_object());
    assert_eq!(ran.stdout, std::fs::read_to_string(root().join("families/schema.json")).unwrap());
}

#[test]
fn a_program_is_a_list_of_tensors_with_a_peak() {
    let arguments = ["program", "sdxl", "vae_decode", "--size", "512x512", "--json"];
    let answer = headroom(&arguments).json();
    let steps = list(&answer, "steps");
    assert!(steps.len() > 100);
    let peak = &answer["peak"];
    assert!(bytes(peak, "step") < steps.len() as u64, "{peak}");
    let live: u64 = list(peak, "live").iter().map(|tensor| bytes(tensor, "bytes").next_multiple_of(512)).sum();
    assert_eq!(bytes(peak, "live_bytes"), live);
}

#[test]
fn the_first_error_names_the_extent_that_the_operation_needs() {
    let case = |operation| ["--family", "flux", "--operation", operation, "--dtype", "bf16"];
    for (operation, needs, other) in [
        ("text_encode", "--tokens, for example --tokens 77", "--size"),
        ("vae_decode", "--size, for example --size 1024x1024", "--tokens"),
        ("denoise", "--size, for example --size 1024x1024", "--tokens"),
    ] {
        let advise = headroom(&[&["advise"], &case(operation)[..]].concat());
        let estimate = headroom(&[&["estimate", "--allocator", "native"], &case(operation)[..]].concat());
        let program = headroom(&["program", "flux", operation]);
        for ran in [advise, estimate, program] {
            assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{}", ran.stderr);
            assert!(ran.stderr.contains(&format!("{operation} needs {needs}")), "{}", ran.stderr);
            assert!(!ran.stderr.contains(other), "{}", ran.stderr);
        }
    }
}

#[test]
fn every_exit_code_stands_in_the_help() {
    let help = headroom(&["--help"]);
    assert_eq!(help.code, 0);
    for code in 0..=7 {
        assert!(help.stdout.contains(&format!("\n  {code}  ")), "{code}");
    }
    assert_eq!(headroom(&["estimate"]).code, 2);
    assert_eq!(headroom(&["no-such-command"]).code, 2);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let snapshot = data("snapshot-oom-native.pickle.gz");
    let mut child = command(&["replay", &snapshot, "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[cfg(target_os = "linux")]
#[test]
fn a_result_that_cannot_be_printed_has_its_own_code() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = command(&["schema"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(6));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot print"));
}
