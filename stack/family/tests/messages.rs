//! What a contributor reads when a family file has mistakes: the exact texts are kept in `golden/`.

use std::path::{Path, PathBuf};
use std::{env, fs};

use headroom_family::{Family, FamilyError};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn inputs() -> Vec<PathBuf> {
    let mut inputs: Vec<PathBuf> = fs::read_dir(golden())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
        .collect();
    inputs.sort();
    inputs
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// Run with `HEADROOM_BLESS=1` to write the texts anew after a wanted change, and read the difference.
#[test]
fn every_mistake_is_told_in_the_words_that_are_kept() {
    let bless = env::var_os("HEADROOM_BLESS").is_some();
    let mut different = Vec::new();
    for input in inputs() {
        let text = fs::read_to_string(&input).unwrap();
        let told = match Family::parse(&text, &name(&input)) {
            Ok(_) => panic!("{} holds no mistake", input.display()),
            Err(error) => format!("{error}\n"),
        };
        let kept = input.with_extension("txt");
        if bless {
            fs::write(&kept, told).unwrap();
        } else if fs::read_to_string(&kept).unwrap_or_default() != told {
            different.push(format!("{}:\n{told}", kept.display()));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn every_mistake_names_its_file_line_and_column() {
    for input in inputs() {
        let text = fs::read_to_string(&input).unwrap();
        let Err(FamilyError::Invalid { problems }) = Family::parse(&text, &name(&input)) else {
            panic!("{} holds no mistake", input.display());
        };
        assert!(!problems.is_empty());
        for problem in problems {
            assert_eq!(problem.file, name(&input));
            let lines = text.lines().count().max(1);
            assert!((1..=lines).contains(&problem.line), "{problem}");
            let width = text.lines().nth(problem.line - 1).unwrap_or_default().chars().count();
            assert!((1..=width + 1).contains(&problem.column), "{problem}");
        }
    }
}
