//! Device leases: who excludes whom, who lets go, and what a waiter is told.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use headroom_device::lease::{DeviceLease, HolderInfo, LeaseError};

const FOLDER: &str = "HEADROOM_LEASE_TEST_FOLDER";
const UUID: &str = "GPU-0a1b2c3d-0000-1111-2222-333344445555";

/// Long enough that only a lease that never comes free is given up on.
const PATIENT: Duration = Duration::from_secs(120);

fn take(folder: &Path, uuid: &str, words: &str) -> Result<DeviceLease, LeaseError> {
    DeviceLease::acquire(folder, uuid, words, Duration::ZERO, |_| {})
}

fn holder_of(error: LeaseError) -> HolderInfo {
    match error {
        LeaseError::Held { holder, .. } => holder,
        other => panic!("{other}"),
    }
}

fn words_of(holder: &HolderInfo) -> Option<&str> {
    match holder {
        HolderInfo::Known { words, .. } => Some(words),
        HolderInfo::Unknown => None,
    }
}

/// A process that holds the device until it is killed.
#[test]
#[ignore = "started by the other tests of this file, as a process to be killed"]
fn holder() {
    let folder = std::env::var(FOLDER).expect("the folder of the leases");
    let _lease = take(Path::new(&folder), UUID, "the other process").unwrap();
    let mut output = std::io::stdout().lock();
    writeln!(output, "holds").and_then(|()| output.flush()).unwrap();
    drop(output);
    std::thread::sleep(PATIENT);
}

fn start_holder(folder: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["holder", "--exact", "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("holds")), "the other process holds no lease");
    child
}

#[test]
fn another_process_is_kept_out_and_a_killed_one_lets_go() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = start_holder(folder.path());
    let told = holder_of(take(folder.path(), UUID, "this one").unwrap_err());
    let HolderInfo::Known { words, process, since } = &told else { panic!("nothing is known of the holder") };
    assert_eq!((words.as_str(), *process), ("the other process", child.id()));
    assert!(*since <= SystemTime::now());

    let waits = std::sync::Mutex::new(Vec::new());
    let lease = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            DeviceLease::acquire(folder.path(), UUID, "this one", PATIENT, |holder| {
                waits.lock().unwrap().push(holder.clone());
            })
        });
        while waits.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        assert!(!waiter.is_finished(), "a lease was had while another process held it");
        child.kill().unwrap();
        child.wait().unwrap();
        waiter.join().unwrap()
    });
    assert_eq!(lease.unwrap().uuid(), UUID);
    assert_eq!(*waits.lock().unwrap(), [told], "told once for whom it waits");
}

#[test]
fn threads_of_one_process_hold_a_device_one_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let (inside, turns) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let lease = DeviceLease::acquire(folder.path(), UUID, "a thread", PATIENT, |_| {}).unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two threads hold the device");
                std::thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
                turns.fetch_add(1, Ordering::SeqCst);
                drop(lease);
            });
        }
    });
    assert_eq!(turns.into_inner(), 4);
}

#[test]
fn another_device_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let unusual = ["", ".", "..", "../above", "a/b", "a%2Fb", "MIG-1", "GPU-ä", "GPU-0"];
    let leases: Vec<_> = unusual.iter().map(|uuid| take(folder.path(), uuid, "a test").expect(uuid)).collect();
    assert_eq!(leases.iter().map(DeviceLease::uuid).collect::<Vec<_>>(), unusual);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), unusual.len(), "one file each, and all in the folder");
}

#[test]
fn a_dropped_lease_is_free_and_names_nobody_any_more() {
    let folder = tempfile::tempdir().unwrap();
    drop(take(folder.path(), UUID, "the first").unwrap());
    let lease = take(folder.path(), UUID, "the second").unwrap();
    let told = holder_of(take(folder.path(), UUID, "the third").unwrap_err());
    assert_eq!(words_of(&told), Some("the second"));
    drop(lease);
    let file = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read(file).unwrap(), b"");
}

#[test]
fn unreadable_content_hides_the_name_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let contents: [&[u8]; 6] = [
        b"\xff\xfe\x00",
        b"",
        b"process=4",
        b"process=many\nsince=0\nholder=x",
        b"process=4\nsince=18446744073709551615\nholder=x",
        b"holder=x\nprocess=4\nsince=0",
    ];
    for content in contents {
        let lease = take(folder.path(), UUID, "the holder").unwrap();
        let file = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        fs::write(&file, content).unwrap();
        let error = take(folder.path(), UUID, "another").unwrap_err();
        assert!(error.to_string().contains("left no name"), "{error}");
        assert_eq!(holder_of(error), HolderInfo::Unknown, "{content:?}");
        drop(lease);
        fs::write(&file, content).unwrap();
        drop(take(folder.path(), UUID, "the next").expect("what a dead process left behind keeps nobody out"));
    }
}

#[test]
fn words_of_a_holder_reach_a_terminal_as_one_short_line() {
    let folder = tempfile::tempdir().unwrap();
    let words = format!("first\nsecond\x1b[2J{}", "x".repeat(5000));
    let _lease = take(folder.path(), UUID, &words).unwrap();
    let error = take(folder.path(), UUID, "another").unwrap_err().to_string();
    assert!(error.contains("first second [2Jxxx"), "{error}");
    assert!(!error.contains(char::is_control) && error.len() < 500, "{error}");
}

#[test]
fn a_folder_that_cannot_be_used_is_named_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a-file");
    fs::write(&file, b"").unwrap();
    let error = take(&file.join("leases"), UUID, "a test").unwrap_err().to_string();
    assert!(error.contains("a-file") && error.contains("HEADROOM_LEASES"), "{error}");
}
