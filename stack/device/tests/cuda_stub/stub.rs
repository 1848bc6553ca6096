//! Builds the stand-in, runs a test in a process of its own that loads it, and asks the stand-in what it holds.

#![allow(dead_code, reason = "a table to ask, whatever each test needs of it")]

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use headroom_device::cuda::{CudaContext, Gpu, gpus};
use libloading::Library;

/// Says in a child which test it is to run.
const CHILD: &str = "HEADROOM_STUB_TEST";

/// The names under which programs look for the driver and for the management library.
const NAMES: [&str; 2] = ["libcuda.so", "libnvidia-ml.so.1"];

/// What the stand-in counts as live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    Contexts,
    Plain,
    Reserved,
    Handles,
    Mappings,
    Pools,
    Pooled,
    Streams,
    Events,
    Pinned,
}

impl Kind {
    const ALL: [Self; 10] = [
        Self::Contexts,
        Self::Plain,
        Self::Reserved,
        Self::Handles,
        Self::Mappings,
        Self::Pools,
        Self::Pooled,
        Self::Streams,
        Self::Events,
        Self::Pinned,
    ];
}

/// What the stand-in counts for ever.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Ever {
    ContextsMade,
    FreedUnderWork,
    AccessesSet,
    Calls,
}

/// Where a child finds its libraries.
pub(crate) enum Libraries {
    /// The stand-in, under these names besides its own.
    StandIn(&'static [&'static str]),
    /// A library that has nothing but what this source says, under these names.
    Hollow(&'static [&'static str], &'static str),
    /// A driver that is no library at all.
    Broken,
    /// Whatever the machine has.
    Machine,
}

/// Runs `body` in a process of its own, with the stand-in in the driver's place and these variables set.
///
/// `module` is the test's `module_path!()` and `name` its own name.
pub(crate) fn in_child(module: &str, name: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    with_libraries(&Libraries::StandIn(&[]), module, name, variables, body);
}

/// The same with other libraries.
pub(crate) fn with_libraries(
    libraries: &Libraries,
    module: &str,
    name: &str,
    variables: &[(&str, &str)],
    body: impl FnOnce(),
) {
    let module = module.split_once("::").map_or("", |(_, module)| module);
    let test = format!("{module}::{name}");
    if std::env::var(CHILD).is_ok_and(|child| child == test) {
        return body();
    }
    let folder = tempfile::tempdir().unwrap();
    place(libraries, folder.path());
    let mut path = OsString::from(folder.path());
    if let Some(old) = std::env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(old);
    }
    // This very program, even where a build has put another in its place meanwhile.
    let output = Command::new("/proc/self/exe")
        .args(["--exact", &test, "--nocapture", "--test-threads=1"])
        .env("LD_LIBRARY_PATH", path)
        .env(CHILD, &test)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test} in its own process: {:?}\n{text}", output.status);
    assert!(text.contains("1 passed"), "{test} is no test's name:\n{text}");
}

fn place(libraries: &Libraries, folder: &Path) {
    match libraries {
        Libraries::StandIn(more) => {
            for name in NAMES.iter().chain(*more) {
                std::os::unix::fs::symlink(stand_in(), folder.join(name)).unwrap();
            }
        }
        Libraries::Hollow(names, source) => {
            let (code, library) = (folder.join("hollow.rs"), folder.join("hollow.so"));
            std::fs::write(&code, source).unwrap();
            compile(&code, &library);
            for name in *names {
                // Each a file of its own: the loader takes two links to one file for one library.
                std::fs::copy(&library, folder.join(name)).unwrap();
            }
        }
        Libraries::Broken => std::fs::write(folder.join(NAMES[0]), "no library").unwrap(),
        Libraries::Machine => {}
    }
}

/// The stand-in's file, built from the sources beside this file. It is kept for later runs, under a name and in a folder
/// where nobody takes it for a driver.
fn stand_in() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cuda_stub/stand_in");
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let library = folder.join(format!("stand-in-{:016x}.so", hash_of(&sources)));
        if library.is_file() {
            return library;
        }
        // Built apart and renamed, since other processes may want it at the same time.
        let apart = tempfile::tempdir_in(&folder).unwrap();
        let built = apart.path().join("stand-in.so");
        compile(&sources.join("lib.rs"), &built);
        std::fs::rename(&built, &library).unwrap();
        library
    };
    BUILT.get_or_init(build).clone()
}

/// Builds a library of C's kind.
fn compile(source: &Path, library: &Path) {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "cdylib", "--cap-lints", "allow", "-C", "opt-level=1", "-o"])
        .args([library, source])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A number that changes with any of the sources.
fn hash_of(folder: &Path) -> u64 {
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut hasher = DefaultHasher::new();
    for path in paths {
        path.hash(&mut hasher);
        std::fs::read(path).unwrap().hash(&mut hasher);
    }
    hasher.finish()
}

/// The stand-in as it is loaded in this process.
fn loaded() -> &'static Library {
    static LOADED: OnceLock<Library> = OnceLock::new();
    // SAFETY: the stand-in is a library of this project, and this is the very one that the code under test loads.
    LOADED.get_or_init(|| unsafe { Library::new(NAMES[0]) }.unwrap())
}

/// Calls one of the stand-in's own functions.
macro_rules! ask {
    ($name:literal, fn($($argument:ident: $kind:ty),*) $(-> $answer:ty)?) => {{
        type Function = extern "C" fn($($kind),*) $(-> $answer)?;
        // SAFETY: the stand-in declares this function with this type.
        let function = unsafe { loaded().get::<Function>($name) }.unwrap();
        function($($argument),*)
    }};
}

/// How many of a kind are live.
pub(crate) fn live(kind: Kind) -> u64 {
    let kind = kind as u32;
    ask!("headroom_stub_live", fn(kind: u32) -> u64)
}

/// How often something happened since the process began.
pub(crate) fn ever(kind: Ever) -> u64 {
    let kind = kind as u32;
    ask!("headroom_stub_ever", fn(kind: u32) -> u64)
}

/// What this process holds on a device of the machine, its context included.
pub(crate) fn own_bytes(device: u32) -> u64 {
    ask!("headroom_stub_own_bytes", fn(device: u32) -> u64)
}

/// Sets what other processes hold on a device of the machine.
pub(crate) fn set_others_bytes(device: u32, bytes: u64) {
    ask!("headroom_stub_set_others_bytes", fn(device: u32, bytes: u64));
}

/// Lets the `n`-th call from now fail; 0 lets none fail.
pub(crate) fn fail(n: u64, code: i32) {
    ask!("headroom_stub_fail", fn(n: u64, code: i32));
}

/// Whether the planted failure has happened.
pub(crate) fn has_failed() -> bool {
    ask!("headroom_stub_has_failed", fn() -> bool)
}

/// Gives the context's stream a piece of work that takes until somebody waits.
pub(crate) fn give_kernel(context: &CudaContext) {
    let stream = context.stream().addr() as u64;
    assert!(ask!("headroom_stub_give_kernel", fn(stream: u64) -> bool));
}

/// Copies to device memory as a program does that has its context bound; false where the driver refuses.
pub(crate) fn copy(to: u64, contents: &[u8]) -> bool {
    // SAFETY: the contents live through the call, which does not keep them.
    let answer = unsafe { cudarc::driver::sys::cuMemcpyHtoD_v2(to, contents.as_ptr().cast(), contents.len()) };
    answer == cudarc::driver::sys::CUresult::CUDA_SUCCESS
}

/// The bytes of device memory from an address on.
pub(crate) fn bytes_at(address: u64, count: u64) -> Vec<u8> {
    let byte = |address: u64| ask!("headroom_stub_byte", fn(address: u64) -> u8);
    (address..address + count).map(byte).collect()
}

/// Everything that is live and should not be.
pub(crate) fn leaks() -> Vec<(Kind, u64)> {
    Kind::ALL.into_iter().map(|kind| (kind, live(kind))).filter(|(_, count)| *count > 0).collect()
}

/// The first device of the process's list.
pub(crate) fn gpu() -> Gpu {
    gpus().unwrap().remove(0)
}

/// That device, opened.
pub(crate) fn context() -> CudaContext {
    CudaContext::open(&gpu()).unwrap()
}
