//! Reading families from texts, files and folders: whatever is there, the answer is families or a plain error.

use std::fs;

use headroom_family::{Family, FamilyError, Problem, Recordings, embedded_texts};
use proptest::prelude::*;

const TINY: &str = "\
name: tiny
description: A family for tests.
models:
  - key: vae
    architecture: { kind: autoencoder_kl, block_out_channels: [128, 256, 512, 512], layers_per_block: 2 }
    dtype: fp16
pipeline:
  - { operation: vae_decode, model: vae, size: 512x512 }
calibration:
  - { model: vae, operations: [vae_decode], dtypes: [fp16], sizes: [512x512, 768x768, 1024x1024] }
devices:
  - { memory: 8GiB }
";

fn shipped(name: &str) -> &'static str {
    let found = embedded_texts().iter().find(|(file, _)| *file == name);
    found.map(|(_, text)| *text).unwrap_or_else(|| panic!("{name} is shipped"))
}

#[test]
fn defaults_are_filled_in() {
    let family = Family::parse(TINY, "tiny.yaml").unwrap();
    let device = &family.devices[0];
    assert_eq!((device.name.as_str(), device.context_bytes, device.allocators.len()), ("8gib", 524 << 20, 3));
    assert_eq!(family.pipeline[0].case.to_string(), "vae_decode fp16 512x512");
    assert_eq!((family.checks.residency_percent, family.checks.coverage_percent), (100, 100));
    assert!(family.models[0].partial_loading && family.models[0].required_percent == 0);
}

#[test]
fn every_operation_and_type_of_an_entry_is_a_line_of_its_own() {
    let text = TINY.replace("[vae_decode], dtypes: [fp16]", "[vae_decode, vae_encode], dtypes: [fp16, fp32]");
    let family = Family::parse(&text, "tiny.yaml").unwrap();
    let lines: Vec<_> =
        family.calibration.lines.iter().map(|line| format!("{} {}", line.operation, line.dtype)).collect();
    assert_eq!(lines, ["vae_decode fp16", "vae_decode fp32", "vae_encode fp16", "vae_encode fp32"]);
    assert!(family.calibration.lines.iter().all(|line| line.cases.len() == 3));
}

#[test]
fn a_file_that_is_not_there_is_an_error_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let error = Family::load(&folder.path().join("gone.yaml"), Recordings::Any).unwrap_err();
    assert!(matches!(&error, FamilyError::Unreadable { path, .. } if path.ends_with("gone.yaml")), "{error}");
}

#[test]
fn a_folder_without_a_family_says_what_belongs_there() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("notes.txt"), "not a family").unwrap();
    let error = Family::load_dir(folder.path(), Recordings::Any).unwrap_err();
    assert!(matches!(error, FamilyError::NoFamily { .. }), "{error}");
    assert!(error.to_string().contains("FAMILY.yaml"), "{error}");
    assert!(matches!(
        Family::load_dir(&folder.path().join("gone"), Recordings::Any),
        Err(FamilyError::Unreadable { .. })
    ));
}

#[test]
fn the_mistakes_of_all_files_of_a_folder_come_together() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.yaml"), TINY.replace("dtype: fp16", "dtyp: fp16")).unwrap();
    fs::write(folder.path().join("b.yaml"), TINY.replace("8GiB", "8GiBB")).unwrap();
    fs::write(folder.path().join("tiny.yaml"), TINY).unwrap();
    let error = Family::load_dir(folder.path(), Recordings::Any).unwrap_err();
    let told = |problem: &Problem| format!("{} {}", problem.file.rsplit('/').next().unwrap(), problem.field);
    let told: Vec<_> = error.problems().iter().map(told).collect();
    assert_eq!(told, ["a.yaml name", "a.yaml models[0].dtyp", "b.yaml name", "b.yaml devices[0].memory"]);
}

#[test]
fn bytes_that_are_no_text_are_told_by_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.yaml");
    fs::write(&path, b"name: tiny\ndescription: \xff\n").unwrap();
    let error = Family::load(&path, Recordings::Any).unwrap_err();
    assert!(error.to_string().contains("a.yaml:2:14: byte 24 is not UTF-8"), "{error}");
}

#[test]
fn windows_line_ends_and_a_byte_order_mark_are_read() {
    let text = format!("\u{feff}{}", TINY.replace('\n', "\r\n"));
    assert_eq!(Family::parse(&text, "tiny.yaml").unwrap(), Family::parse(TINY, "tiny.yaml").unwrap());
}

#[test]
fn aliases_are_read_where_they_stay_small() {
    let text = TINY.replace("sizes: [512x512, 768x768, 1024x1024]", "sizes: &sizes [512x512, 768x768, 1024x1024]");
    let text = text
        .replace("devices:", "  - { model: vae, operations: [vae_encode], dtypes: [fp16], sizes: *sizes }\ndevices:");
    assert_eq!(Family::parse(&text, "tiny.yaml").unwrap().calibration.lines.len(), 2);
}

/// A part of a line taken out, doubled, or replaced.
fn damaged(text: &str, line: usize, from: usize, kind: u8, with: &str) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let index = line % lines.len();
    let characters: Vec<char> = lines[index].chars().collect();
    let at = from % (characters.len() + 1);
    let (before, after): (String, String) =
        (characters[..at].iter().collect(), characters[at..].iter().skip(usize::from(kind != 0)).collect());
    match kind {
        0 | 1 => lines[index] = format!("{before}{with}{after}"),
        2 => drop(lines.remove(index)),
        _ => lines.insert(index, lines[index].clone()),
    }
    lines.join("\n")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_family_is_read_or_told_and_never_a_panic(
        which in 0..3_usize,
        line in 0..1_000_usize,
        from in 0..200_usize,
        kind in 0..4_u8,
        with in "[-a-z0-9:{}\\[\\]&*!|>'\"%@`, \t]{0,6}",
    ) {
        let text = damaged(shipped(["sdxl.yaml", "regressions.yaml", "wan.yaml"][which]), line, from, kind, &with);
        if let Err(error) = Family::parse(&text, "damaged.yaml") {
            prop_assert!(!error.problems().is_empty());
            for problem in error.problems() {
                prop_assert!(problem.line >= 1 && problem.line <= text.lines().count().max(1), "{}", problem);
                prop_assert!(!problem.message.is_empty());
            }
        }
    }

    #[test]
    fn any_text_is_read_or_told(text in "\\PC{0,200}") {
        let _ = Family::parse(&text, "any.yaml");
    }
}

/// A safetensors file with one tensor of two numbers, cut short by so many bytes.
fn weights_file(cut: usize) -> Vec<u8> {
    let header = br#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let length = u64::try_from(header.len()).unwrap().to_le_bytes();
    let mut bytes = [&length[..], header, &[0; 8]].concat();
    bytes.truncate(bytes.len() - cut);
    bytes
}

#[test]
fn a_file_of_weights_is_looked_for_beside_the_family_and_told_where_it_is_not_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.yaml");
    fs::write(&path, TINY.replace("    dtype: fp16\n", "    dtype: fp16\n    safetensors: vae.safetensors\n")).unwrap();
    let weights = folder.path().join("vae.safetensors");
    let told = |words: &str| {
        for read in [
            Family::load(&path, Recordings::Any).map(|_| ()),
            Family::load_dir(folder.path(), Recordings::Any).map(|_| ()),
        ] {
            let error = read.unwrap_err().to_string();
            assert!(error.contains("tiny.yaml:7:18: models[0].safetensors: "), "{error}");
            assert!(error.contains(words) && error.contains("vae.safetensors"), "{error}");
        }
    };
    told("cannot be read");
    fs::create_dir(&weights).unwrap();
    told("it is no plain file");
    fs::remove_dir(&weights).unwrap();
    for (bytes, words) in [
        (vec![], "it has 0 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\n".to_vec(), "and says that its header has"),
        (weights_file(3), "its tensors take 8 bytes, and it holds 5 of them"),
        ([&2_u64.to_le_bytes()[..], b"[]"].concat(), "its header is none"),
    ] {
        fs::write(&weights, bytes).unwrap();
        told(words);
    }
    fs::write(&weights, weights_file(0)).unwrap();
    let family = Family::load(&path, Recordings::Any).unwrap();
    assert_eq!(family.models[0].safetensors.as_deref(), Some(weights.as_path()));
    assert_eq!(Family::load_dir(folder.path(), Recordings::Any).unwrap(), [family]);
}
