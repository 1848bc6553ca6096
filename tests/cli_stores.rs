//! What `estimate` and `plan` say of a store that prices nothing of what they were asked.

mod binary;

use std::path::{Path, PathBuf};

use binary::{BAD_INPUT, contents, headroom, list, refused, text};

/// The commands that read a store of TAESD's, with what names it and the card last.
fn commands() -> [Vec<&'static str>; 2] {
    let estimate =
        ["estimate", "--operation", "vae_decode", "--dtype", "fp16", "--size", "512x512", "--allocator", "native"];
    [[&estimate[..], &["--family", "taesd"]].concat(), vec!["plan", "--family", "taesd"]]
}

/// Each of both commands says this in a line of its text and in a note of its JSON.
#[track_caller]
fn both_note(store: &Path, device: &str, says: &[&str]) {
    let before = contents(store);
    for command in commands() {
        let whole = [&command[..], &["--device", device, "--store", text(store)]].concat();
        let said = headroom(&whole).stdout;
        let answer = headroom(&[&whole[..], &["--json"]].concat()).json();
        let notes: Vec<&str> = list(&answer, "notes").iter().filter_map(|note| note.as_str()).collect();
        let note = notes.iter().find(|note| note.starts_with("the store ")).unwrap_or_else(|| panic!("{answer}"));
        assert!(says.iter().all(|words| note.contains(words)), "{note}");
        assert!(said.contains(note), "{said}");
    }
    assert!(contents(store) == before);
}

/// A store with TAESD's calibration on a card of 24 GiB, and its file.
fn calibrated(folder: &Path) -> PathBuf {
    let ran = headroom(&["calibrate", "--family", "taesd", "--device", "24GiB", "--store", text(folder)]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let mut files = contents(folder).into_iter().map(|(path, _)| path);
    files.find(|path| path.extension().is_some_and(|end| end == "json")).expect("a store file")
}

#[test]
fn a_store_that_is_not_there_is_a_mistake_and_not_an_empty_one() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("nostore");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    for store in [&missing, &file] {
        for command in commands() {
            let ran = headroom(&[&command[..], &["--device", "24GiB", "--store", text(store)]].concat());
            refused(&ran, BAD_INPUT, &[text(store), "headroom calibrate --store", "leave --store out"]);
        }
    }
    assert!(!missing.exists());
}

#[test]
fn a_store_of_other_devices_or_of_none_is_said_to_price_nothing() {
    let folder = tempfile::tempdir().unwrap();
    both_note(folder.path(), "24GiB", &["it has no simulated 24 GiB cuda", "it holds nothing at all"]);
    calibrated(folder.path());
    both_note(folder.path(), "12GiB", &["it has no simulated 12 GiB cuda", "it holds simulated 24 GiB cuda"]);
}

#[test]
fn an_unfinished_calibration_is_said_to_price_nothing_with_how_far_it_came() {
    let folder = tempfile::tempdir().unwrap();
    let file = calibrated(folder.path());
    let finished = std::fs::read_to_string(&file).unwrap();
    let unfinished = finished.replacen("\"state\":\"finished\"", "\"state\":\"running\"", 1).replacen(
        "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]",
        "[0,1,2,3,4,5,6,7,8,9]",
        1,
    );
    assert_eq!(unfinished.matches("\"state\":\"running\"").count(), 1);
    std::fs::write(&file, unfinished).unwrap();
    both_note(folder.path(), "24GiB", &["autoencoder_tiny v1 vae_decode fp16", "unfinished: 10 of 18 runs"]);
}

#[test]
fn a_store_that_prices_what_was_asked_is_not_complained_of_and_one_without_it_says_what_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    calibrated(folder.path());
    let store = ["--device", "24GiB", "--store", text(folder.path()), "--json"];
    for command in commands() {
        let answer = headroom(&[&command[..], &store].concat()).json();
        assert!(list(&answer, "notes").iter().all(|note| !note.to_string().contains("the store ")), "{answer}");
    }
    let other = headroom(&[&["plan", "--family", "sdxl"][..], &store].concat()).json();
    let note = list(&other, "notes")[0].to_string();
    assert!(note.contains("prices nothing of autoencoder_kl v1 vae_decode fp16"), "{note}");
    assert!(note.contains("it holds autoencoder_tiny v1 vae_decode fp16"), "{note}");
}
