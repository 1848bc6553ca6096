//! The lists of what is called of NVIDIA's libraries beside what the sources call.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use headroom_device::cuda::libraries::Library;

/// The folders whose code calls these libraries, from this crate's own.
const FOLDERS: [&str; 3] = ["cuda", "readers", "../../runners/cuda"];

/// Types whose names could be functions'.
const TYPES: [&str; 2] = ["nvrtcProgram", "nvrtcResult"];

/// The file of the lists themselves.
const LISTS: &str = "called.rs";

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|kind| kind == "rs") && !path.ends_with(LISTS) {
            into.push(path);
        }
    }
}

/// Whether a name is that of a function of one of the libraries: theirs begin with the library's and go on with a capital
/// letter. Their types begin so too, and are told by what follows them.
fn is_function(name: &str) -> bool {
    let after = ["cublas", "cudnn", "nvrtc", "nvml", "cu"].into_iter().find_map(|library| name.strip_prefix(library));
    after.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase())) && !TYPES.contains(&name)
}

/// The functions that a text calls through the bindings (`sys::cuInit(`), hands on, or looks up by name (`c"cuInit"`).
fn called_in(text: &str) -> BTreeSet<String> {
    let word = |rest: &str| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>();
    let through = text.split("sys::").skip(1).map(word).filter(|name| !name.ends_with("_t"));
    let by_name = text.split("c\"").skip(1).map(word);
    through.chain(by_name).filter(|name| is_function(name)).collect()
}

#[test]
fn every_function_that_is_called_is_asked_for_before() {
    let mut files = Vec::new();
    for folder in FOLDERS {
        sources(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder), &mut files);
    }
    let called: BTreeSet<String> =
        files.iter().flat_map(|file| called_in(&fs::read_to_string(file).unwrap())).collect();
    let listed: Vec<String> = Library::ALL
        .into_iter()
        .flat_map(|library| library.called_functions().iter().map(|name| name.to_string_lossy().into_owned()))
        .collect();
    let listed_once: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(listed.len(), listed_once.len(), "a function is listed twice");
    assert!(called.len() > 80, "{} functions are called, which cannot be all", called.len());
    let missing: Vec<_> = called.difference(&listed_once).collect();
    assert!(missing.is_empty(), "called and not listed in cuda/{LISTS}: {missing:?}");
    let idle: Vec<_> = listed_once.difference(&called).collect();
    assert!(idle.is_empty(), "listed in cuda/{LISTS} and called nowhere: {idle:?}");
}

#[test]
fn calls_are_told_from_types_and_other_words() {
    let text = r#"sys::cuInit(0); answer!(sys::cudnnCreate(x)); f(sys::cublasDestroy_v2, sys::cudaDataType::X);
        let kind: sys::cudnnTensorFormat_t = y; sys::is_culib_present(); get(c"nvrtcVersion"); c"customary" c"headroom.cu""#;
    let expected = ["cuInit", "cublasDestroy_v2", "cudnnCreate", "nvrtcVersion"].map(str::to_owned);
    assert_eq!(called_in(text), BTreeSet::from(expected));
}
