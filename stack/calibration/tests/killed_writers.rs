//! Two processes of two threads write 200 windows into one record while one of them is killed again and again.
//!
//! A writer says on its output which windows are in the store, after each update. What it said must be there
//! whenever it is killed, at most the update it was in may be missing, and the file is whole at every moment.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use headroom_base::{AttemptId, Backend, DeviceClass, Window};
use headroom_calibration::{
    Attempt, AttemptState, Context, EstimatorVersions, Record, RunningAttempt, Store, UserFits, count,
};

const FOLDER: &str = "HEADROOM_KILLED_WRITERS_FOLDER";
const PROCESS: &str = "HEADROOM_KILLED_WRITERS_PROCESS";
const PROCESSES: u32 = 2;
const THREADS: u32 = 2;
const EACH: u32 = 50;

fn device() -> DeviceClass {
    DeviceClass::new("Card", 16 << 30, Backend::Cuda)
}

fn window(run: u32) -> Window {
    let text = r#"{"model":"m","line":{"estimator":"e","estimator_version":1,"operation":"vae_decode","dtype":"fp16"},
        "case":{"operation":"vae_decode","dtype":"fp16","width":8,"height":8,"frames":1,"batch":1},"cost_units":128,
        "analytic_bytes":0,"device":{"name":"Card","total_gib":16,"backend":"cuda"},"environment":{"hard":{"backend":
        "cuda","allocator":"native","framework":"f"}},"run":0,"kind":"measured","origin":"measured",
        "estimate_bytes":1,"allocated_peak_bytes":1,"reserved_peak_bytes":1,"driver_bytes":null,"demand_bytes":1,
        "stretches":1,"retries":0,"residency":"full","validity":"valid"}"#;
    Window { run, ..serde_json::from_str(text).unwrap() }
}

/// The windows of one thread: numbers that no other has.
fn runs_of(process: u32, thread: u32) -> impl Iterator<Item = u32> {
    let first = (process * THREADS + thread) * EACH;
    first..first + EACH
}

fn in_store(store: &Store) -> Vec<u32> {
    store.read(&device()).expect("whole at every moment").windows.iter().map(|window| window.run).collect()
}

/// The writing process: adds every window that is not there yet.
#[test]
#[ignore = "started by the other tests of this file, as a process to be killed"]
fn writer() {
    let folder = std::env::var(FOLDER).expect("the folder to write to");
    let process: u32 = std::env::var(PROCESS).expect("which process this is").parse().unwrap();
    let write = |thread: u32| {
        let store = Store::open(&folder).with_lock_wait(Duration::from_secs(60));
        for run in runs_of(process, thread) {
            let add = |record: &mut Record| {
                if !record.windows.iter().any(|window| window.run == run) {
                    record.windows.push(window(run));
                }
            };
            store.update(&device(), add).unwrap();
            let mut output = std::io::stdout().lock();
            writeln!(output, "written {run}").and_then(|()| output.flush()).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || write(thread));
        }
    });
}

fn start(folder: &Path, process: u32) -> Child {
    start_as("writer", folder, process)
}

fn start_as(what: &str, folder: &Path, process: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([what, "--exact", "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .env(PROCESS, process.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Follows a writer's output, kills it after `kill_after` windows, and returns what it said it had written.
fn follow(mut child: Child, kill_after: Option<usize>) -> BTreeSet<u32> {
    let mut written = BTreeSet::new();
    let output = BufReader::new(child.stdout.take().unwrap());
    for line in output.lines() {
        let line = line.unwrap();
        if let Some((_, run)) = line.split_once("written ") {
            written.insert(run.parse().unwrap());
        }
        if kill_after == Some(written.len()) {
            // The other thread and the next update are wherever they are.
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    written
}

#[test]
fn a_killed_writer_loses_at_most_its_own_update() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path());
    let done = AtomicBool::new(false);
    let (killed, survived, seen) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = 0_usize;
            while !done.load(Ordering::SeqCst) {
                let length = in_store(&store).len();
                assert!(length >= seen, "windows went missing");
                seen = length;
            }
            seen
        });
        let survivor = scope.spawn(|| follow(start(folder.path(), 0), None));
        let mut killed = BTreeSet::new();
        for kill_after in [1, 3, 7, 13, 2, 19, 31, 5] {
            let written = follow(start(folder.path(), 1), Some(kill_after));
            killed.extend(written);
            let stored: BTreeSet<u32> = in_store(&store).into_iter().collect();
            assert!(killed.is_subset(&stored), "{:?}", killed.difference(&stored));
        }
        let survived = survivor.join().unwrap();
        killed.extend(follow(start(folder.path(), 1), None));
        done.store(true, Ordering::SeqCst);
        (killed, survived, reader.join().unwrap())
    });
    let mut stored = in_store(&store);
    let said: Vec<u32> = survived.union(&killed).copied().collect();
    stored.sort_unstable();
    assert_eq!(stored, said, "each window once");
    assert_eq!(stored, (0..PROCESSES * THREADS * EACH).collect::<Vec<_>>());
    assert!(seen <= stored.len());
    let leftovers = std::fs::read_dir(folder.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "tmp"));
    assert_eq!(leftovers.count(), 0, "the last update removed what the killed ones left");
}

const PLANNED_RUNS: u32 = 18;

/// The measuring process: one attempt, kept when it begins and after each run, which waits to be killed at its end.
#[test]
#[ignore = "started by the other tests of this file, as a process to be killed"]
fn calibrator() {
    let store = Store::open(std::env::var(FOLDER).expect("the folder to write to"));
    let id = AttemptId("a".into());
    let mut attempt = Attempt::recorded(id.clone(), "m", device(), window(0).environment, PLANNED_RUNS);
    attempt.state = AttemptState::Running;
    attempt.finished_runs.clear();
    let attempt = store.update(&device(), |record| record.begin_attempt(attempt)).unwrap();
    let mut running = RunningAttempt::begin(attempt, &UserFits::default()).unwrap();
    for run in 0..PLANNED_RUNS {
        running.run_finished(run, vec![Window { attempt_id: Some(id.clone()), ..window(run) }]).unwrap();
        let progress =
            |record: &mut Record| record.keep_progress(running.attempt().clone(), running.windows().to_vec());
        store.update(&device(), progress).unwrap().unwrap();
        let mut output = std::io::stdout().lock();
        writeln!(output, "written {run}").and_then(|()| output.flush()).unwrap();
    }
    loop {
        std::thread::park();
    }
}

#[test]
fn a_calibration_killed_in_the_middle_is_incomplete_and_says_after_how_many_runs() {
    for kill_after in [1, 5, 17, 18] {
        let folder = tempfile::tempdir().unwrap();
        let said = follow(start_as("calibrator", folder.path(), 0), Some(kill_after)).len();
        let mut record = Store::open(folder.path()).read(&device()).unwrap();
        record.break_off_all_but(&[]);
        let [attempt] = &record.attempts[..] else { panic!("one attempt") };
        let finished = attempt.finished_runs.len();
        // It may have been in the middle of one more.
        assert!(attempt.state == AttemptState::Incomplete && finished >= said);
        let outcome = format!("broke off in the middle and is incomplete ({finished} of 18 runs finished)");
        assert_eq!(attempt.outcome(), outcome);
        assert_eq!(record.windows.len(), finished, "each run's window once");
        let context = Context {
            device: device(),
            hard: window(0).environment.hard,
            versions: EstimatorVersions::newest_of([&window(0).line]),
        };
        let reason = format!("its calibration broke off after {finished} of 18 runs");
        for verdict in count(&record.windows, &record.attempts, &context) {
            assert_eq!(verdict.reason().map(ToString::to_string), Some(reason.clone()));
        }
    }
}

/// Reads what a writer says until it ends.
fn listen(child: &mut Child) -> JoinHandle<BTreeSet<u32>> {
    let output = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || {
        let said = output.lines().map_while(Result::ok);
        said.filter_map(|line| line.split_once("written ")?.1.parse().ok()).collect()
    })
}

/// Waits until a writer's own temporary file is there, which is the middle of its update, or it has ended.
fn wait_for_its_write(folder: &Path, child: &mut Child) {
    let own = format!(".{}-", child.id());
    let is_own = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_string_lossy().contains(&own))
    };
    while child.try_wait().unwrap().is_none() {
        if std::fs::read_dir(folder).unwrap().any(is_own) {
            return;
        }
    }
}

#[test]
fn two_writers_killed_in_the_middle_of_a_write_lose_nothing_they_had_said() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path());
    let (mut said, mut left_behind) = (BTreeSet::new(), 0);
    for round in 0..20 {
        let mut writers: Vec<Child> = (0..PROCESSES).map(|process| start(folder.path(), process)).collect();
        let heard: Vec<_> = writers.iter_mut().map(listen).collect();
        // Now one of them is caught writing, now the other; the second dies wherever it is.
        writers.rotate_left(round % 2);
        wait_for_its_write(folder.path(), &mut writers[0]);
        for writer in &mut writers {
            writer.kill().unwrap();
            writer.wait().unwrap();
        }
        said.extend(heard.into_iter().flat_map(|heard| heard.join().unwrap()));
        let stored = in_store(&store);
        let distinct: BTreeSet<u32> = stored.iter().copied().collect();
        assert_eq!(distinct.len(), stored.len(), "a window twice");
        assert!(said.is_subset(&distinct), "{:?}", said.difference(&distinct));
        let files = std::fs::read_dir(folder.path()).unwrap();
        left_behind +=
            files.filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|e| e == "tmp")).count();
    }
    eprintln!("killed writers: 20 rounds left {left_behind} half-written files behind, and lost nothing");
    (0..PROCESSES).for_each(|process| drop(follow(start(folder.path(), process), None)));
    let mut stored = in_store(&store);
    stored.sort_unstable();
    assert_eq!(stored, (0..PROCESSES * THREADS * EACH).collect::<Vec<_>>());
}
