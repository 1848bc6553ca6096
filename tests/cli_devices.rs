//! `headroom devices` on a machine with GPUs: a stand-in for NVIDIA's libraries takes their place.

#![cfg(target_os = "linux")]

mod binary;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use binary::{bytes, command, list, root};
use headroom_device::lease::DeviceLease;
use serde_json::{Value, json};

/// A folder with the stand-in under these names, for the library path.
fn stand_in(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("stand-in.so");
    let source = root().join("stack/device/tests/cuda_stub/stand_in/lib.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "cdylib", "--cap-lints", "allow", "-o"])
        .args([&library, &source])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for name in names {
        std::os::unix::fs::symlink(&library, folder.path().join(name)).unwrap();
    }
    folder
}

fn devices(libraries: &Path, more: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = command(&[&["devices"], more].concat());
    command.env("LD_LIBRARY_PATH", libraries).env_remove("CUDA_VISIBLE_DEVICES").envs(variables.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn named<'a>(answer: &'a Value, kind: &str, name: &str) -> &'a Value {
    let found = list(answer, kind).iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {answer}"))
}

#[test]
fn each_gpu_is_listed_in_the_processs_order_with_what_it_can_do_and_who_reads_it() {
    let folder = stand_in(&["libcuda.so", "libnvidia-ml.so.1", "libnvrtc.so", "libcublas.so", "libcudnn.so"]);
    let variables = [("CUDA_VISIBLE_DEVICES", "1,0")];
    let answer: Value = serde_json::from_str(&devices(folder.path(), &["--json"], &variables)).unwrap();
    let names: Vec<_> = list(&answer, "devices").iter().map(|device| device["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Stand-in 1", "Stand-in 0"]);
    assert!(answer.get("no_device").is_none());
    let device = named(&answer, "devices", "Stand-in 0");
    assert_eq!(device["uuid"], "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf");
    assert_eq!(
        (bytes(device, "total_bytes"), bytes(device, "free_bytes")),
        (24 << 30, 24 << 30),
        "no context was made"
    );
    assert_eq!((&device["compute_capability"], &device["driver_version"]), (&"9.0".into(), &"580.0.1".into()));
    assert_eq!((&device["link"], &device["fastest_link"]), (&"PCIe 1.0 x16".into(), &"PCIe 5.0 x16".into()));
    assert_eq!(device["allocators"], json!(["native", "expandable_segments", "cuda_malloc_async"]));
    assert_eq!((&device["runs_operations"], &device["reader"]), (&true.into(), &"nvml".into()));
    let nvml = named(&answer, "readers", "nvml");
    assert_eq!(device["reader_verified"], nvml["verified"]);
    assert_eq!(named(&answer, "libraries", "cuDNN")["version"], "9.14.0");
    assert_eq!(named(&answer, "libraries", "cuBLAS")["version"], "13.1.2");
}

#[test]
fn what_is_missing_is_said_and_the_device_is_listed_all_the_same() {
    let folder = stand_in(&["libcuda.so", "libcublas.so"]);
    let variables = [("HEADROOM_STUB_CUBLAS", "12"), ("HEADROOM_STUB_VIRTUAL_MEMORY", "0")];
    let answer: Value = serde_json::from_str(&devices(folder.path(), &["--json"], &variables)).unwrap();
    let device = named(&answer, "devices", "Stand-in 0");
    assert_eq!((&device["runs_operations"], &device["driver_version"]), (&false.into(), &"CUDA 13.0".into()));
    assert!(list(device, "missing").contains(&"cuBLAS".into()));
    assert_eq!(device["allocators"], json!(["native", "cuda_malloc_async"]));
    assert!(device["free_bytes"].is_null(), "unknown is not 0");
    let problem = device["reader_problem"].as_str().unwrap();
    assert!(problem.contains("NVML was not found (tried libnvidia-ml.so.1, libnvidia-ml.so)"), "{problem}");
    let problem = named(&answer, "libraries", "cuBLAS")["problem"].as_str().unwrap();
    assert!(problem.contains("cuBLAS 12.1.2") && problem.contains("needs version 13"), "{problem}");
    let printed = devices(folder.path(), &[], &variables);
    assert!(printed.contains("memory: 24.00 GiB, unknown free"), "{printed}");
    assert!(
        printed.contains("runs operations: no, without ") && printed.contains("allocators: native, cuda_malloc_async")
    );
}

/// A folder with libraries of these names that have no function at all.
fn hollow(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (code, library) = (folder.path().join("hollow.rs"), folder.path().join("hollow.so"));
    std::fs::write(&code, "").unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--crate-type", "cdylib", "-o"]).args([&library, &code]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for name in names {
        std::fs::copy(&library, folder.path().join(name)).unwrap();
    }
    folder
}

#[test]
fn a_driver_without_functions_is_no_device_and_simulated_runs_go_on() {
    let folder = hollow(&["libcuda.so"]);
    let said = devices(folder.path(), &[], &[]);
    assert!(said.starts_with("no CUDA device: the CUDA driver (/"), "{said}");
    assert!(said.contains("/libcuda.so) cannot be used: it lacks the function cuDriverGetVersion"), "{said}");
    let mut run = command(&["run", "--family", "taesd", "--json"]);
    let output = run.env("LD_LIBRARY_PATH", folder.path()).env_remove("HEADROOM_REQUIRE_GPU").output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !words.contains("panicked"), "{words}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (on_gpu, simulated): (Vec<_>, Vec<_>) =
        list(&report, "trials").iter().partition(|trial| trial["device"] == "gpu");
    assert!(simulated.len() > 5 && simulated.iter().all(|trial| trial["outcome"] == "passed"));
    assert!(!on_gpu.is_empty());
    for trial in on_gpu {
        assert_eq!(trial["outcome"], "ignored");
        assert!(trial["message"].as_str().unwrap().contains("lacks the function cuDriverGetVersion"), "{trial}");
    }
}

#[test]
fn a_library_without_functions_runs_no_operations_and_says_which_file_lacks_what() {
    let (whole, folder) = (stand_in(&["libcuda.so", "libnvrtc.so", "libcudnn.so"]), hollow(&["libcublas.so"]));
    for name in ["libcuda.so", "libnvrtc.so", "libcudnn.so"] {
        std::os::unix::fs::symlink(whole.path().join(name), folder.path().join(name)).unwrap();
    }
    let answer: Value = serde_json::from_str(&devices(folder.path(), &["--json"], &[])).unwrap();
    let device = named(&answer, "devices", "Stand-in 0");
    assert_eq!((&device["runs_operations"], &device["missing"]), (&false.into(), &json!(["cuBLAS"])));
    let problem = named(&answer, "libraries", "cuBLAS")["problem"].as_str().unwrap();
    assert!(problem.contains("/libcublas.so) cannot be used: it lacks the function cublasGetProperty"), "{problem}");
}

#[test]
fn a_library_that_fails_when_it_is_set_up_fails_the_cards_trials_and_the_report_is_written() {
    let folder = stand_in(&["libcuda.so", "libnvrtc.so", "libcublas.so", "libcudnn.so"]);
    let mut run = command(&["run", "--family", "taesd", "--device", "gpu", "--json"]);
    run.env("LD_LIBRARY_PATH", folder.path()).env("HEADROOM_LEASES", folder.path()).env("HEADROOM_STUB_DEVICES", "1");
    let output = run.env_remove("CUDA_VISIBLE_DEVICES").output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && !words.contains("panicked"), "{words}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!list(&report, "trials").is_empty());
    for trial in list(&report, "trials") {
        assert_eq!(trial["outcome"], "failed");
        let said = trial["message"].as_str().unwrap();
        assert!(said.contains("cuBLAS failed at cublasCreate (code 14: CUBLAS_STAND_IN)"), "{said}");
    }
}

#[test]
fn a_driver_that_cannot_be_used_is_no_device_and_the_sentence_says_why() {
    let folder = stand_in(&["libcuda.so"]);
    for (variable, reason) in [
        (("HEADROOM_STUB_DEVICES", "0"), "lists no device"),
        (("HEADROOM_STUB_VERSION", "12080"), "too old: it knows CUDA up to 12.8, and 13.0 is needed"),
        (("HEADROOM_STUB_INIT", "803"), "does not start (code 803): CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    ] {
        let answer: Value = serde_json::from_str(&devices(folder.path(), &["--json"], &[variable])).unwrap();
        assert!(list(&answer, "devices").is_empty(), "{answer}");
        let said = answer["no_device"].as_str().unwrap();
        assert!(said.starts_with("no CUDA device: the CUDA driver (") && said.contains(reason), "{said}");
        assert!(devices(folder.path(), &[], &[variable]).starts_with("no CUDA device: "));
    }
}

#[test]
fn a_card_that_is_too_old_runs_no_operations_and_is_listed_with_the_reason_that_run_gives() {
    let folder = stand_in(&["libcuda.so", "libnvrtc.so", "libcublas.so", "libcudnn.so"]);
    let old = [("HEADROOM_STUB_CAPABILITY", "7")];
    let answer: Value = serde_json::from_str(&devices(folder.path(), &["--json"], &old)).unwrap();
    let device = named(&answer, "devices", "Stand-in 0");
    let why = "too old: compute capability 8.0 is needed";
    assert_eq!((&device["runs_operations"], &device["too_old"]), (&false.into(), &why.into()));
    assert!(device["device"].is_null(), "no command takes it: {device}");
    assert!(device.get("missing").is_none(), "{device}");
    let printed = devices(folder.path(), &[], &old);
    assert!(printed.contains(&format!("runs operations: no, {why}\n")), "{printed}");
    let mut run =
        command(&["run", "--family", "taesd", "--device", "gpu", "--output", folder.path().to_str().unwrap()]);
    let ran = run.env("LD_LIBRARY_PATH", folder.path()).envs(old).output().unwrap();
    assert!(String::from_utf8_lossy(&ran.stderr).contains(why) && ran.status.code() == Some(5), "{ran:?}");
}

#[test]
fn the_name_that_is_listed_and_the_whole_identity_mean_a_card_however_many_are_attached() {
    let folder = stand_in(&["libcuda.so", "libnvrtc.so", "libcublas.so", "libcudnn.so"]);
    let output = folder.path().join("report");
    let on = |cards: &str, device: &str| {
        let arguments =
            ["run", "--family", "taesd", "--json", "--output", output.to_str().unwrap(), "--device", device];
        let mut run = command(&arguments);
        run.env("LD_LIBRARY_PATH", folder.path()).env("HEADROOM_LEASES", folder.path());
        run.env("HEADROOM_STUB_DEVICES", cards).env_remove("CUDA_VISIBLE_DEVICES").output().unwrap()
    };
    for (cards, of_trials) in [("1", "gpu"), ("2", "gpu-a0a1a2a3")] {
        let answer = devices(folder.path(), &["--json"], &[("HEADROOM_STUB_DEVICES", cards)]);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let device = named(&answer, "devices", "Stand-in 0");
        for name in ["device", "uuid"] {
            let ran = on(cards, device[name].as_str().unwrap());
            let report: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
            let trials = list(&report, "trials");
            assert!(!trials.is_empty() && trials.iter().all(|trial| trial["device"] == of_trials), "{report}");
            assert!(!report.to_string().contains("a4a5"), "the whole identity is in the report");
        }
        let unknown = on(cards, "gpu-00000000");
        let said = String::from_utf8_lossy(&unknown.stderr);
        assert!(unknown.status.code() == Some(5) && said.contains("there are gpu-a0a1a2a3"), "{said}");
    }
}

/// `devices --measure` with the leases in the stand-in's folder.
fn measure(libraries: &Path, size: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = command(&["devices", &format!("--measure={size}"), "--json"]);
    command.env("LD_LIBRARY_PATH", libraries).env_remove("CUDA_VISIBLE_DEVICES").env("HEADROOM_LEASES", libraries);
    command.env("HEADROOM_STUB_DEVICES", "1").envs(variables.iter().copied());
    command
}

#[test]
fn measuring_copies_from_every_kind_of_memory_in_every_manner_beside_the_plain_pinned_copy() {
    let folder = stand_in(&["libcuda.so"]);
    // Odd sizes become whole pairs of pieces.
    let output = measure(folder.path(), "5MiB", &[]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let device = named(&answer, "devices", "Stand-in 0");
    assert!(device.get("failed").is_none() && bytes(device, "size_bytes") == 8 << 20, "{device}");
    let copies = list(device, "copies");
    let measured = |source: &str, manner: &str| {
        copies.iter().any(|copied| copied["source"] == source && copied["manner"] == manner && copied["usual"] == true)
    };
    assert_eq!((&copies[0]["manner"], &copies[0]["share_of_plain"]), (&"plain_pinned".into(), &1.0.into()));
    for source in ["pinned", "pageable", "mapped_file"] {
        assert!(measured(source, "upload_pieces") && measured(source, "upload_every_second"), "{source}: {device}");
        assert_eq!(measured(source, "copy_each_piece"), source != "pinned");
    }
    for copied in copies {
        let halved = copied["manner"] == "upload_every_second";
        assert_eq!(bytes(copied, "bytes"), if halved { 4 << 20 } else { 8 << 20 });
        assert_eq!(list(copied, "seconds").len(), 5);
        assert!(list(copied, "seconds").iter().all(|seconds| seconds.as_f64().unwrap() > 0.0));
        assert!(copied["first_seconds"].as_f64().unwrap() > 0.0, "the cold run apart");
        let is_upload = copied["manner"].as_str().unwrap().starts_with("upload");
        assert_eq!(copied["settings"].is_object(), is_upload, "{copied}");
        if is_upload {
            let settings = &copied["settings"];
            // No more threads than there are chunks to share out, two of 4 MiB here or eight of 1 MiB.
            assert!((1..=8).contains(&bytes(settings, "threads")), "{copied}");
            assert!(bytes(settings, "buffer_bytes") >= 1 << 20, "{copied}");
            assert_eq!(bytes(settings, "pinned_bytes") == 0, copied["source"] == "pinned", "{copied}");
        }
    }
    for pair in list(device, "cached_pairs") {
        for manner in ["nanoseconds", "locked_nanoseconds"] {
            assert!(pair[manner].as_f64().unwrap() > 0.0, "{pair}");
        }
        assert_eq!(list(pair, "locked_loops_nanoseconds").len(), 5);
    }
    let pairs = list(device, "cached_pairs").iter().map(|pair| (bytes(pair, "bytes"), bytes(pair, "pairs")));
    assert_eq!(pairs.collect::<Vec<_>>(), [512, 4 << 10, 1 << 20, 32 << 20].map(|size| (size, 1_000_000)));
}

#[test]
fn what_was_measured_says_when_with_what_and_on_which_card_and_does_not_name_it() {
    let folder = stand_in(&["libcuda.so", "libnvidia-ml.so.1"]);
    let output = measure(folder.path(), "4MiB", &[]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["arguments"], json!(["devices", "--measure=4194304B", "--json"]));
    let created = answer["created"].as_str().unwrap();
    assert!(created.starts_with("20") && created.ends_with('Z') && created.len() == 20, "{created}");
    assert!(answer.get("commit").is_some() && answer["tool_version"].is_string(), "{answer}");
    let device = named(&answer, "devices", "Stand-in 0");
    assert_eq!(device["driver_version"], "580.0.1");
    // `printf GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf | sha256sum`, its first 16 digits.
    assert_eq!(device["uuid_hash"], "232d424669936055");
    assert!(!text.contains("GPU-"), "{text}");
}

#[test]
fn copies_that_were_taken_and_never_made_fail_the_device_and_say_which() {
    let folder = stand_in(&["libcuda.so"]);
    for (made, said) in [("0", "plain pinned copy from pinned memory"), ("6", "upload, one part from pinned memory")] {
        let output = measure(folder.path(), "4MiB", &[("HEADROOM_STUB_COPIES", made)]).output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let failed = named(&answer, "devices", "Stand-in 0")["failed"].as_str().unwrap();
        assert_eq!(output.status.code(), Some(1), "a check failed");
        assert_eq!(failed, format!("{said}: part 0 of 1 arrived otherwise from byte 0 on"));
    }
}

#[test]
fn a_device_that_cannot_be_measured_says_why_and_ends_with_its_own_code() {
    let folder = stand_in(&["libcuda.so"]);
    let small = ("HEADROOM_STUB_MEMORY_MIB", "570");
    let output = measure(folder.path(), "64MiB", &[small]).output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let device = named(&answer, "devices", "Stand-in 0");
    assert_eq!(output.status.code(), Some(5));
    assert!(device["failed"].as_str().unwrap().contains("out of memory"), "{device}");
    assert!(list(device, "copies").is_empty());

    let output = measure(folder.path(), "64MiB", &[("HEADROOM_STUB_DEVICES", "0")]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(5), &b""[..]));
    assert!(said.starts_with("no CUDA device: ") && said.contains("lists no device"), "{said}");
}

#[test]
fn measuring_waits_for_whoever_holds_the_device_and_says_for_whom() {
    let folder = stand_in(&["libcuda.so"]);
    let uuid = "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf";
    let lease = DeviceLease::acquire(folder.path(), uuid, "a test of this file", Duration::ZERO, |_| {}).unwrap();
    let mut child = measure(folder.path(), "4MiB", &[]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let waits = said.next().unwrap().unwrap();
    assert!(waits.starts_with(&format!("waiting for {uuid}, held by `a test of this file` (process ")), "{waits}");
    assert!(child.try_wait().unwrap().is_none(), "it did not wait");
    drop(lease);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_card_that_another_process_leases_ends_every_command_as_busy_once_patience_is_over() {
    let folder = stand_in(&["libcuda.so", "libnvrtc.so", "libcublas.so", "libcudnn.so"]);
    let uuid = "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf";
    let _lease = DeviceLease::acquire(folder.path(), uuid, "a test of this file", Duration::ZERO, |_| {}).unwrap();
    let on_the_card = ["--family", "taesd", "--device", "gpu"];
    for arguments in [
        vec!["devices", "--measure=4MiB"],
        [&["plan"], &on_the_card[..]].concat(),
        [&["calibrate"], &on_the_card[..]].concat(),
    ] {
        let mut command = command(&arguments);
        command.env("LD_LIBRARY_PATH", folder.path()).env("HEADROOM_LEASES", folder.path());
        command.env("HEADROOM_STUB_DEVICES", "1").env("HEADROOM_GPU_PATIENCE_SECONDS", "0");
        let output = command.env_remove("CUDA_VISIBLE_DEVICES").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{arguments:?}: {said}");
        assert!(said.contains("leased to `a test of this file`") && said.contains("waited 0 s"), "{said}");
    }
}
