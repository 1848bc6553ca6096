//! Bad input: each is a clear error with a documented exit code, no panic, and nothing is overwritten.

mod binary;

use std::io::Write;
use std::path::{Path, PathBuf};

use binary::{
    BAD_INPUT, SHIPPED, UNAVAILABLE, command, contents, data, headroom, refused, repository_copy, root, taesd_with,
    text,
};

/// The output could not be written.
const OUTPUT: i32 = 6;

/// A family file in which `from` stands as `to`, and the line of it.
fn family_with(folder: &Path, from: &str, to: &str) -> (PathBuf, usize) {
    taesd_with(folder, "taesd.yaml", from, to)
}

#[test]
fn a_mistake_in_a_family_file_is_named_with_line_column_and_suggestion() {
    let folder = tempfile::tempdir().unwrap();
    for (from, to, says) in [
        ("calibration:", "calibrashun:", "did you mean `calibration`"),
        ("- { memory: 8GiB }", "- { memory: 8GB }", "8GiB"),
        ("- { memory: 8GiB }", "- { memory: 8 apples }", "GiB"),
        ("sizes: [512x512, 768x768, 1024x1024]", "sizes: [512x512, 512x512, 768x768, 1024x1024]", "512x512"),
        ("architecture: { kind: autoencoder_tiny }", "architecture: { kind: autoencoder_tyni }", "autoencoder_tiny"),
        ("dtypes: [fp16]", "dtypes: [float16]", "did you mean `fp16`"),
        ("operation: vae_decode", "operation: vae_decoed", "did you mean `vae_decode`"),
    ] {
        let (path, line) = family_with(folder.path(), from, to);
        let before = contents(folder.path());
        let ran = headroom(&["check", text(&path)]);
        refused(&ran, BAD_INPUT, &[&format!("{}:{line}:", path.display()), says, "^"]);
        assert_eq!(contents(folder.path()), before);
    }
}

#[test]
fn what_is_no_family_file_at_all_is_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let empty = write("empty.yaml", b"");
    refused(&headroom(&["check", text(&empty)]), BAD_INPUT, &["empty"]);
    let open = write("open.yaml", b"name: [a, b\ndescription: x\n");
    refused(&headroom(&["check", text(&open)]), BAD_INPUT, &["open.yaml", "YAML"]);
    let binary = write("binary.yaml", &[b'n', 0xff, 0xfe]);
    refused(&headroom(&["check", text(&binary)]), BAD_INPUT, &["UTF-8"]);
    refused(&headroom(&["check", "no/such/file.yaml"]), BAD_INPUT, &["no/such/file.yaml", "cannot be read"]);
}

#[test]
fn a_folder_of_families_with_a_mistake_runs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    family_with(folder.path(), "calibration:", "calibrashun:");
    let families = ["--families", text(folder.path())];
    for command in [
        vec!["plan", "--family", "taesd", "--device", "8GiB"],
        vec!["devices"],
        vec!["ship", "--check"],
        vec!["run", "--output", "target/never"],
    ] {
        refused(&headroom(&[&families[..], &command].concat()), BAD_INPUT, &["calibrashun"]);
    }
    assert!(!root().join("target/never").exists());
}

#[test]
fn names_and_values_that_are_not_known_are_answered_with_what_is() {
    let decode = ["--operation", "vae_decode", "--dtype", "fp16", "--allocator", "native"];
    let estimate = |more: &[&str]| headroom(&[&["estimate"], &decode[..], more].concat());
    let sized = ["--size", "512x512"];
    let sdxl = ["--family", "sdxl"];
    let with = |more: &[&str]| estimate(&[&sdxl[..], &sized, more].concat());
    refused(&estimate(&[&["--family", "sdxxl"][..], &sized].concat()), BAD_INPUT, &["sdxxl", "did you mean `sdxl`"]);
    refused(&with(&["--model", "unnet"]), BAD_INPUT, &["unnet", "did you mean `unet`"]);
    refused(&with(&["--model", "unet"]), BAD_INPUT, &["unet", "runs no vae_decode"]);
    refused(&with(&["--option", "tlie=512"]), BAD_INPUT, &["tlie", "did you mean `tile`", "cudnn_benchmark"]);
    refused(&with(&["--option", "tile=many"]), BAD_INPUT, &["tile=many", "tile=512"]);
    refused(&with(&["--frames", "0"]), BAD_INPUT, &["--frames"]);
    refused(&with(&["--frames", "9"]), BAD_INPUT, &["one frame"]);
    refused(&with(&["--batch", "4000000000"]), BAD_INPUT, &["less at once"]);
    refused(&estimate(&[&sdxl[..], &["--tokens", "77"]].concat()), BAD_INPUT, &["--size"]);
    refused(&estimate(&[&sdxl[..], &["--size", "4000000000x4000000000"]].concat()), BAD_INPUT, &["at most"]);
    for size in ["512", "0x512", "512x-1", "512x512x512", "axb"] {
        let ran = estimate(&[&sdxl[..], &["--size", size]].concat());
        assert_eq!(ran.code, 2, "{size}");
        assert!(ran.stderr.contains("WIDTHxHEIGHT"), "{}", ran.stderr);
    }
    // A part of a latent would be left out unsaid; the file is refused for such a size too.
    let program = |operation, size| headroom(&["program", "taesd", operation, "--size", size]);
    refused(
        &program("vae_decode", "1001x1000"),
        BAD_INPUT,
        &["width 1001 is not divisible by 8", "write 1000 or 1008"],
    );
    assert_eq!(program("vae_encode", "1001x1000").code, 0);
    let plan = headroom(&["plan", "--family", "sdxl", "--device", "12GB"]);
    refused(&plan, UNAVAILABLE, &["12GB", "12gib"]);
}

#[test]
fn memory_in_decimal_units_is_refused_with_the_binary_one() {
    let ran = headroom(&["replay", &data("trace-native.jsonl.gz"), "--memory", "12GB"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("12GiB"), "{}", ran.stderr);
}

#[test]
fn memory_without_a_unit_is_refused_by_every_command_with_the_unit_it_lacks() {
    let recording = data("trace-native.jsonl.gz");
    let advise = ["advise", "--family", "sdxl", "--operation", "vae_decode", "--dtype", "fp16", "--size", "512x512"];
    for (command, option) in
        [(&["replay", &recording][..], "--memory=12"), (&advise, "--memory=12"), (&["devices"], "--measure=12")]
    {
        let ran = headroom(&[command, &[option]].concat());
        refused(&ran, 2, &["`12` has no unit: write 12GiB"]);
    }
    refused(&headroom(&["plan", "--family", "sdxl", "--device", "12"]), UNAVAILABLE, &["did you mean `12gib`?"]);
}

/// Commands that read a store, with what names it last.
fn store_commands(store: &Path) -> [Vec<&str>; 3] {
    let store = ["--store", text(store), "--device", "24GiB", "--family", "taesd"];
    let estimate = ["--operation", "vae_decode", "--dtype", "fp16", "--size", "512x512", "--allocator", "native"];
    [
        [&["calibrate"], &store[..]].concat(),
        [&["plan"], &store[..]].concat(),
        [&["estimate"], &store[..], &estimate].concat(),
    ]
}

/// A store with one calibration in it, and its file.
fn store(folder: &Path) -> PathBuf {
    assert_eq!(headroom(&["calibrate", "--family", "taesd", "--device", "24GiB", "--store", text(folder)]).code, 0);
    let files = contents(folder).into_iter().map(|(path, _)| path);
    files.into_iter().find(|path| path.extension().is_some_and(|end| end == "json")).expect("a store file")
}

#[test]
fn a_store_that_cannot_be_used_is_kept_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = store(folder.path());
    let right = std::fs::read_to_string(&file).unwrap();
    let truncated = &right[..right.len() / 2];
    let newer = right.replacen("\"version\":1", "\"version\":2", 1);
    let of_another_card = right.replacen("\"total_gib\":24", "\"total_gib\":12", 1);
    assert!(newer != right && of_another_card != right);
    let name = file.file_name().unwrap().to_str().unwrap();
    for (content, says) in [
        (truncated, "cannot be read as measurements"),
        (&newer, "use a newer program"),
        (&of_another_card, "12 GiB"),
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ("{\"version\":1}", "cannot be read"),
    ] {
        std::fs::write(&file, content).unwrap();
        let before = contents(folder.path());
        for command in store_commands(folder.path()) {
            let ran = headroom(&command);
            assert_eq!(ran.code, BAD_INPUT, "{command:?}: {}{}", ran.stdout, ran.stderr);
            assert!(ran.stderr.contains(says) && ran.stderr.contains(name), "{command:?}: {}", ran.stderr);
        }
        assert_eq!(contents(folder.path()), before);
    }
}

/// A report of a small run.
fn report(folder: &Path) -> String {
    let output = folder.join("run");
    let arguments = ["run", "--family", "taesd", "--device", "8gib", "--output", text(&output)];
    assert_eq!(headroom(&arguments).code, 0);
    std::fs::read_to_string(output.join("report.json")).unwrap()
}

#[test]
fn a_report_that_cannot_be_used_is_named_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let right = report(folder.path());
    let repository = folder.path().join("repository");
    repository_copy(&repository);
    let path = folder.path().join("report.json");
    let newer = right.replacen("\"readable_by\": 1", "\"readable_by\": 9", 1);
    let wrong_field = right.replacen("\"windows\": [", "\"windows\": [5,", 1);
    assert!(newer != right && wrong_field != right);
    for (content, says) in [
        (&right[..right.len() / 2], "ends after line"),
        (&newer, "use a newer headroom"),
        (&wrong_field, "windows"),
        ("no JSON", "is not a report"),
        ("", "report.json"),
        ("{}", "is not a report"),
    ] {
        std::fs::write(&path, content).unwrap();
        let before = contents(folder.path());
        let output = folder.path().join("merged");
        refused(&headroom(&["merge", text(&path), "--output", text(&output)]), BAD_INPUT, &[says, "report.json"]);
        let ship = ["ship", text(&path), "--accept", "--repository", text(&repository)];
        refused(&headroom(&ship), BAD_INPUT, &[says, "report.json"]);
        assert_eq!(contents(folder.path()), before);
    }
    let missing = folder.path().join("missing.json");
    refused(&headroom(&["ship", text(&missing)]), BAD_INPUT, &["missing.json"]);
}

#[test]
fn a_recording_with_a_wrong_line_is_named_with_it_and_nothing_is_shipped() {
    let folder = tempfile::tempdir().unwrap();
    repository_copy(folder.path());
    let shipped = contents(&folder.path().join(SHIPPED));
    let recording = folder.path().join("tests/data/h200/windows.jsonl");
    let right = std::fs::read_to_string(&recording).unwrap();
    for (content, says) in [
        (right.replacen("\"sdxl\"", "\"sdxxl\"", 1), vec!["line 1", "family"]),
        (right.replacen("\"fp16\"", "\"fp17\"", 1), vec!["line 1", "dtype"]),
        (right[..right.len() - 40].to_owned(), vec!["line 507"]),
    ] {
        std::fs::write(&recording, content).unwrap();
        let mut says: Vec<&str> = says;
        says.push("windows.jsonl");
        refused(&headroom(&["ship", "--repository", text(folder.path())]), BAD_INPUT, &says);
        assert_eq!(contents(&folder.path().join(SHIPPED)), shipped);
    }
    let elsewhere = tempfile::tempdir().unwrap();
    refused(&headroom(&["ship", "--repository", text(elsewhere.path())]), BAD_INPUT, &["--repository"]);
}

#[test]
fn shipped_data_that_cannot_be_read_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    repository_copy(folder.path());
    let file = folder.path().join(SHIPPED).join("cuda-native.json");
    for (content, says) in [("{", "cuda-native.json"), ("{\"version\": 9}", "format 9")] {
        std::fs::write(&file, content).unwrap();
        let before = contents(folder.path());
        // What is broken may be built anew where somebody says so; what another program wrote may not.
        let accepted = if says == "format 9" { &["--accept"][..] } else { &[] };
        for more in [&[][..], accepted, &["--check"]] {
            let fixed = ["ship", "--repository", text(folder.path())];
            refused(&headroom(&[&fixed[..], more].concat()), BAD_INPUT, &[says]);
        }
        assert_eq!(contents(folder.path()), before);
    }
}

/// A snapshot of the repository, unpacked.
fn snapshot() -> Vec<u8> {
    let packed = std::fs::read(data("snapshot-oom-native.pickle.gz")).unwrap();
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::MultiGzDecoder::new(&packed[..]), &mut plain).unwrap();
    plain
}

fn packed(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_pickle_that_is_no_snapshot_is_refused_and_never_executed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot.pickle");
    let mark = folder.path().join("executed");
    let mut hostile = b"\x80\x04cos\nsystem\n(X".to_vec();
    let shell = format!("touch {}", mark.display());
    hostile.extend(u32::try_from(shell.len()).unwrap().to_le_bytes());
    hostile.extend(shell.as_bytes());
    hostile.extend(b"tR.");
    let right = snapshot();
    let whole = packed(&right);
    let deep: Vec<u8> = [b"\x80\x04".to_vec(), b"(".repeat(100_000), b".".to_vec()].concat();
    for (content, says) in [
        (hostile, "snapshot.pickle"),
        (right[..right.len() / 2].to_vec(), "snapshot.pickle"),
        (whole[..whole.len() / 2].to_vec(), "cut off"),
        (b"\x80\x04}\x94.".to_vec(), "something else"),
        (b"\x80\x04K\x05.".to_vec(), "something else"),
        (b"\x80\x04".to_vec(), "snapshot.pickle"),
        (vec![0x80, 0x04, 0xff, 0xff], "snapshot.pickle"),
        (deep, "snapshot.pickle"),
    ] {
        std::fs::write(&path, &content).unwrap();
        refused(&headroom(&["replay", text(&path)]), BAD_INPUT, &[says]);
        assert_eq!(std::fs::read(&path).unwrap(), content);
        assert!(!mark.exists(), "the pickle's code was run");
    }
}

#[test]
fn what_is_nothing_that_can_be_replayed_is_said_with_what_could_be() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let trace = "{\"allocator\":\"native\",\"start\":[],\"events\":[[\"alloc\",0,1]]}";
    let setting = "{\"allocator_conf\":\"max_splt:1\",\"fields\":[],\"steps\":[]}";
    for (content, says) in [
        (b"hello".to_vec(), "out-of-memory message"),
        (Vec::new(), "out-of-memory message"),
        (b"CUDA out of memory.".to_vec(), "Tried to allocate"),
        (vec![0xff, 0x80, 0x00, 0x01], "neither a memory snapshot nor a recording nor a text"),
        // A mark of UTF-16, and a word in it.
        (vec![0xff, 0xfe, b'o', 0, b'h', 0], "out-of-memory message"),
        (b"{\"a\": 1}".to_vec(), "line 1"),
        (b"{\"steps\": [".to_vec(), "line 1"),
        (trace.into(), "line 1"),
        (setting.into(), "max_splt"),
        (packed(b"plain words"), "recording"),
        (packed(b"{\"steps\": 1}")[..12].to_vec(), "file"),
    ] {
        std::fs::write(&path, &content).unwrap();
        refused(&headroom(&["replay", text(&path)]), BAD_INPUT, &[says]);
    }
    // Nothing is on standard input.
    refused(&headroom(&["replay", "-"]), BAD_INPUT, &["standard input", "out-of-memory message"]);
    refused(&headroom(&["replay", "no/such/file"]), BAD_INPUT, &["no/such/file"]);
    refused(&headroom(&["replay", text(folder.path())]), BAD_INPUT, &["cannot read"]);
}

#[test]
fn an_unknown_setting_is_named_with_those_that_are_known() {
    let snapshot = data("snapshot-oom-native.pickle.gz");
    let replay = |setting: &str| headroom(&["replay", &snapshot, "--setting", setting]);
    refused(&replay("max_splt_size_mb:64"), BAD_INPUT, &["max_splt_size_mb", "max_split_size_mb"]);
    refused(&replay("max_split_size_mb:lots"), BAD_INPUT, &["lots"]);
    let other = headroom(&["replay", &snapshot, "--device", "7"]);
    refused(&other, BAD_INPUT, &["no device 7"]);
}

#[test]
fn output_that_cannot_be_written_has_its_own_code() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    let inside = file.join("inside");
    let run = headroom(&["run", "--family", "taesd", "--device", "8gib", "--output", text(&inside)]);
    refused(&run, OUTPUT, &["file"]);
    let page = headroom(&["program", "sdxl", "vae_decode", "--size", "64x64", "--html", text(&inside)]);
    refused(&page, OUTPUT, &["inside"]);
    let calibrate = ["calibrate", "--family", "taesd", "--device", "8gib", "--store", text(&file)];
    let ran = headroom(&calibrate);
    assert_eq!(ran.code, OUTPUT, "{}", ran.stderr);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
}

#[test]
fn a_merge_never_overwrites_one_of_its_inputs() {
    let folder = tempfile::tempdir().unwrap();
    report(folder.path());
    let run = folder.path().join("run");
    let before = contents(&run);
    let ran = headroom(&["merge", text(&run.join("report.json")), "--output", text(&run)]);
    refused(&ran, BAD_INPUT, &["overwritten", "--output"]);
    assert_eq!(contents(&run), before);
}

#[test]
fn a_variable_that_nobody_meant_ends_the_run_before_its_first_trial() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("report");
    for (name, value) in [
        ("HEADROOM_REQUIRE_GPU", "yes"),
        ("HEADROOM_TRIAL_SECONDS", "soon"),
        ("HEADROOM_TRIAL_SECONDS", "0"),
        ("HEADROOM_GPU_PATIENCE_SECONDS", "1.5"),
    ] {
        let arguments = ["run", "--family", "taesd", "--output", output.to_str().unwrap()];
        let ran = command(&arguments).env(name, value).output().unwrap();
        let text = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(3), "{name}={value}: {text}");
        assert!(text.contains(name) && text.contains(value) && text.contains("write "), "{text}");
        assert!(!output.exists(), "{name}={value} wrote a report");
    }
}

#[cfg(unix)]
#[test]
fn a_variable_of_bytes_that_are_no_text_ends_the_run_before_its_first_trial() {
    use std::os::unix::ffi::OsStrExt as _;
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("report");
    for (name, bytes) in [("HEADROOM_SHARD", &b"1/1\xff"[..]), ("HEADROOM_REQUIRE_GPU", b"\xff")] {
        let arguments = ["run", "--family", "taesd", "--output", text(&output)];
        let ran = command(&arguments).env(name, std::ffi::OsStr::from_bytes(bytes)).output().unwrap();
        assert_eq!(ran.status.code(), Some(BAD_INPUT), "{name}");
        assert!(String::from_utf8_lossy(&ran.stderr).contains(name), "{name}");
        assert!(!output.exists(), "{name} wrote a report");
    }
}
