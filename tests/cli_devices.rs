//! `headroom devices` on a machine with GPUs: a stand-in for NVIDIA's libraries takes their place.

#![cfg(target_os = "linux")]

mod binary;

use std::path::Path;
use std::process::Command;

use binary::{bytes, command, list, root};
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
