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
        copies
            .iter()
            .any(|copied| copied["source"] == source && copied["manner"] == manner && copied["settings"].is_null())
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
    }
    let pairs = list(device, "cached_pairs").iter().map(|pair| (bytes(pair, "bytes"), bytes(pair, "pairs")));
    assert_eq!(pairs.collect::<Vec<_>>(), [512, 4 << 10, 1 << 20, 32 << 20].map(|size| (size, 1_000_000)));
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
