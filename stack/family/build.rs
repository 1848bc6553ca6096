//! Lists the files of `families/` for the compiler, so that a family is added by adding its file.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    // Asked when it runs, not when it is compiled: a target folder outlives a checkout.
    let crate_folder = env::var_os("CARGO_MANIFEST_DIR").ok_or_else(|| io::Error::other("cargo sets the folder"))?;
    let families = Path::new(&crate_folder).join("../../families").canonicalize()?;
    println!("cargo::rerun-if-changed={}", families.display());
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(&families)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "yaml") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut source = String::from("const EMBEDDED: &[(&str, &str)] = &[\n");
    for path in &paths {
        println!("cargo::rerun-if-changed={}", path.display());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Relative to the crate, so that a moved checkout finds its own files.
        let at = format!("concat!(env!(\"CARGO_MANIFEST_DIR\"), {:?})", format!("/../../families/{name}"));
        source.push_str(&format!("    ({name:?}, include_str!({at})),\n"));
    }
    source.push_str("];\n");
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo sets OUT_DIR"))?;
    fs::write(Path::new(&out).join("embedded.rs"), source)
}
