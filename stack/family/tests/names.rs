//! What a file may be called and what it may name outside itself: its family, the families beside it, recordings.

use std::fs;
use std::path::Path;

use headroom_family::{Family, FamilyError, Recordings, embedded_texts};

/// A folder with these files, each of which holds the shipped TAESD under a name.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let (_, text) = embedded_texts().iter().find(|(file, _)| *file == "taesd.yaml").expect("TAESD is shipped");
    let folder = tempfile::tempdir().unwrap();
    for (file, name) in files {
        fs::write(folder.path().join(file), text.replace("name: taesd", &format!("name: {name}"))).unwrap();
    }
    folder
}

/// What is told, without the folder.
fn told<T>(folder: &Path, result: Result<T, FamilyError>) -> Vec<String> {
    let Err(error) = result else { return Vec::new() };
    let text = error.to_string().replace(&format!("{}/", folder.display()), "");
    assert!(!error.problems().is_empty(), "{text}");
    text.lines().map(str::to_owned).collect()
}

fn of_folder(files: &[(&str, &str)]) -> Vec<String> {
    let folder = folder(files);
    told(folder.path(), Family::load_dir(folder.path(), Recordings::Any))
}

fn of_file(file: &str, files: &[(&str, &str)]) -> Vec<String> {
    let folder = folder(files);
    told(folder.path(), Family::load(&folder.path().join(file), Recordings::Any))
}

#[test]
fn a_copy_that_keeps_the_name_is_told_alone_or_with_its_folder_and_the_original_is_not_blamed() {
    let copied = [("mytiny.yaml", "taesd"), ("taesd.yaml", "taesd")];
    let expected = [
        "mytiny.yaml:2:7: name: `taesd` is the name of the family in taesd.yaml too",
        "    2 | name: taesd",
        "      |       ^^^^^ write `name: mytiny`, as this file is called",
    ];
    assert_eq!(of_folder(&copied), expected);
    assert_eq!(of_file("mytiny.yaml", &copied), expected);
    assert_eq!(of_file("taesd.yaml", &copied), expected);
}

#[test]
fn a_file_that_is_not_called_by_its_family_is_a_mistake_with_two_ways_out() {
    let expected = "^^^^^ write `name: mytiny`, or rename the file to taesd.yaml";
    for told in [of_folder(&[("mytiny.yaml", "taesd")]), of_file("mytiny.yaml", &[("mytiny.yaml", "taesd")])] {
        assert_eq!(told[0], "mytiny.yaml:2:7: name: `taesd` is not what the file is called");
        assert!(told[2].ends_with(expected), "{told:?}");
    }
    let told = of_folder(&[("My Tiny.yaml", "taesd")]);
    assert!(
        told[2].ends_with("^ rename the file to taesd.yaml"),
        "a name is advised that no family can have: {told:?}"
    );
}

#[test]
fn two_files_that_are_both_called_by_one_name_are_both_told() {
    let told = of_folder(&[("tiny.yaml", "tiny"), ("tiny.yml", "tiny")]).join("\n");
    for (file, other) in [("tiny.yaml", "tiny.yml"), ("tiny.yml", "tiny.yaml")] {
        assert!(told.contains(&format!("{file}:2:7: name: `tiny` is the name of the family in {other} too")), "{told}");
    }
}

#[test]
fn what_is_beside_a_file_and_has_another_name_or_is_no_family_is_nothing_to_it() {
    let folder = folder(&[("taesd.yaml", "taesd"), ("other.yaml", "other")]);
    fs::write(folder.path().join("compose.yaml"), "name: taesd\nservices: {}\n").unwrap();
    fs::write(folder.path().join("broken.yaml"), "name: [taesd\n").unwrap();
    fs::write(folder.path().join("binary.yaml"), b"name: taesd\n\xff").unwrap();
    fs::write(folder.path().join("taesd.txt"), "name: taesd\ndescription: A note.\n").unwrap();
    let family = Family::load(&folder.path().join("taesd.yaml"), Recordings::Any).unwrap();
    assert_eq!(family.name, "taesd");
}

#[test]
fn a_recording_that_is_not_known_is_told_with_those_that_are() {
    let folder = folder(&[("taesd.yaml", "taesd")]);
    let path = folder.path().join("taesd.yaml");
    let right = fs::read_to_string(&path).unwrap();
    let known = ["flux", "sdxl", "taesd"];
    for (name, help) in
        [("teasd", "did you mean `taesd`?"), ("tiny9", "leave it out where the model is in no recording")]
    {
        fs::write(&path, right.replace("recorded_as: taesd", &format!("recorded_as: {name}"))).unwrap();
        let expected = format!("recorded_as: no recording is named `{name}`; there are flux, sdxl, taesd");
        let alone = told(folder.path(), Family::load(&path, Recordings::Named(&known)));
        assert!(alone[0].starts_with("taesd.yaml:11:18: models[0].") && alone[0].ends_with(&expected), "{alone:?}");
        assert!(alone[2].ends_with(help), "{alone:?}");
        assert_eq!(told(folder.path(), Family::load_dir(folder.path(), Recordings::Named(&known))), alone);
        assert!(Family::load(&path, Recordings::Any).is_ok(), "a recording that is yet to be made has a name too");
    }
}
