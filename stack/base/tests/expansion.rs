//! Without the feature a mutant leaves nothing in the program: the assembly is that of the right expression.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A decision inside a decision, as the budget's credit has it.
const WITH_MUTANTS: &str = r#"
    mutant!(
        "outer",
        "gigabytes that could be given back lie idle",
        right: mutant!(
            "inner",
            "slack that cannot be given back is promised",
            right: idle.saturating_sub(split),
            wrong: idle,
        ),
        wrong: 0,
    )
"#;

const RIGHT: &str = "idle.saturating_sub(split)";
const WRONG: &str = "idle";

/// The assembly that the compiler makes of a function with this body, optimized as a release is.
fn assembly(folder: &Path, body: &str) -> String {
    let macros = Path::new(env!("CARGO_MANIFEST_DIR")).join("mutants.rs");
    let source = format!(
        "#![allow(unexpected_cfgs, unused_macros, unused_variables)]\n#[macro_use]\n#[path = {macros:?}]\nmod mutants;\n\
         #[unsafe(no_mangle)]\npub extern \"C\" fn credit(idle: u64, split: u64) -> u64 {{ {body} }}\n"
    );
    std::fs::create_dir_all(folder).unwrap();
    let (input, output) = (folder.join("credit.rs"), folder.join("credit.s"));
    std::fs::write(&input, source).unwrap();
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let status = Command::new(compiler)
        .args(["--edition=2024", "--crate-type=lib", "--emit=asm", "-Copt-level=3", "-o"])
        .args([&output, &input])
        .status()
        .unwrap();
    assert!(status.success());
    std::fs::read_to_string(output).unwrap()
}

#[test]
fn a_release_holds_the_right_expression_and_nothing_else() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("expansion");
    let [with, right, wrong] = [WITH_MUTANTS, RIGHT, WRONG].map(|body| assembly(&folder, body));
    assert!(right.contains("credit"), "the function is not in the assembly");
    assert_eq!(with, right);
    assert_ne!(with, wrong, "the comparison sees no difference at all");
}
