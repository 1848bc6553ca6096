//! A record is replaced as a whole under a lock, or stays exactly as it was.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use headroom_base::DeviceClass;
use headroom_calibration::store::{Disk, RENAME_TRIES, RealDisk};
use headroom_calibration::{Record, Store, StoreError};
use tempfile::TempDir;

use crate::fixture::{context, device, finished, straight, window, windows};

crate::claims![
    what_is_written_reads_back_the_same,
    an_older_file_is_saved_again_byte_for_byte,
    a_file_that_cannot_be_read_is_kept_and_named,
    a_later_programs_file_is_kept_and_named,
    another_cards_file_is_neither_used_nor_changed,
    a_lock_held_by_another_ends_in_an_error_that_names_the_file,
    a_stale_lock_file_blocks_nobody,
    a_write_that_breaks_off_leaves_the_old_file,
    any_single_failure_leaves_the_old_file_or_the_new_one,
    a_rename_that_fails_for_a_moment_is_tried_again_a_bounded_number_of_times,
    a_full_disk_leaves_the_old_file,
    a_folder_nobody_may_write_to_is_an_error_that_names_it,
    leftovers_of_a_killed_writer_are_removed_by_the_next_update,
    nothing_is_written_where_nothing_changes,
    a_crowded_record_loses_first_what_can_never_count_again,
];

fn store() -> (TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path());
    (folder, store)
}

/// A store with one attempt of nine windows in it, and the bytes of its file.
fn filled() -> (TempDir, Store, Vec<u8>) {
    let (folder, store) = store();
    store.update(&device(), fill).unwrap();
    let bytes = std::fs::read(store.path(&device())).unwrap();
    (folder, store, bytes)
}

fn fill(record: &mut Record) {
    let measured = windows("a", &straight(1_000));
    record.keep_attempt(finished("a", &measured).started_at(1_700_000_000));
    record.note_retained(5);
    record.windows.extend(measured);
}

fn add_one(record: &mut Record) {
    record.windows.push(window("a", 9, 2048, 1 << 33));
}

fn files(folder: &TempDir) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder.path()).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn what_is_written_reads_back_the_same() {
    use headroom_base::{InvalidReason, Residency, Validity};
    let reasons = [
        InvalidReason::ForeignLockAtOpen,
        InvalidReason::ForeignLockDuring,
        InvalidReason::OutOfMemory,
        InvalidReason::AllocatorRetry { retries: 2 },
        InvalidReason::Spill { bytes: u64::MAX },
        InvalidReason::OperationFailed { message: "line\n\"quoted\"".into() },
        InvalidReason::ProbeFailed { message: String::new() },
        InvalidReason::NegativeDelta { quantity: "driver".into() },
        InvalidReason::Oversubscribed,
        InvalidReason::Overlapped,
    ];
    let (_folder, store) = store();
    let written = store
        .update(&device(), |record| {
            fill(record);
            for reason in reasons {
                add_one(record);
                let measurement = &mut record.windows.last_mut().unwrap().measurement;
                measurement.validity = Validity::Invalid(reason);
                measurement.residency = Residency::Partial { missing_bytes: 1 };
            }
            record.attempts[0].last_tries.insert(3, 1);
            record.clone()
        })
        .unwrap();
    assert_eq!(store.read(&device()).unwrap(), written);
    assert_eq!(store.read(&DeviceClass { total_gib: 8, ..device() }).unwrap().windows, []);
}

fn an_older_file_is_saved_again_byte_for_byte() {
    // Written before windows had an attempt and runs a soft environment.
    let older = include_bytes!("older-store.json");
    let (_folder, store) = store();
    let path = store.path(&device());
    std::fs::write(&path, older).unwrap();
    let record = store.read(&device()).unwrap();
    assert_eq!((record.windows.len(), &record.windows[0].attempt_id), (2, &None));
    assert!(record.windows[0].environment.soft.is_unknown());
    assert_eq!(record.to_json().as_bytes(), older);
    store.update(&device(), add_one).unwrap();
    store.update(&device(), |record| drop(record.windows.pop())).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), older);
}

/// Puts `bytes` in the place of a record and returns the error of reading; updates must fail alike and keep the bytes.
fn refused(bytes: &[u8]) -> StoreError {
    let (_folder, store) = store();
    let path = store.path(&device());
    std::fs::write(&path, bytes).unwrap();
    assert!(store.update(&device(), add_one).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "the file was overwritten");
    let error = store.read(&device()).unwrap_err();
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    error
}

fn a_file_that_cannot_be_read_is_kept_and_named() {
    let (_folder, _, whole) = filled();
    let truncated = &whole[..whole.len() / 2];
    for bytes in [b"".as_slice(), truncated, b"[]", b"{\"version\":1}", b"{\"version\":-1}", b"\xff\xfe"] {
        let error = refused(bytes);
        assert!(matches!(error, StoreError::Unreadable { .. }), "{error}");
    }
}

fn a_later_programs_file_is_kept_and_named() {
    let error = refused(b"{\"version\":2,\"windows\":{\"packed\":true}}");
    assert!(matches!(error, StoreError::Newer { found: 2, .. }), "{error}");
}

fn another_cards_file_is_neither_used_nor_changed() {
    let (folder, store, of_this_card) = filled();
    let other = DeviceClass { name: "Other".into(), ..device() };
    std::fs::copy(store.path(&device()), store.path(&other)).unwrap();
    let error = store.read(&other).unwrap_err();
    assert!(matches!(&error, StoreError::OtherDevice { found, .. } if *found == device()), "{error}");
    assert!(store.update(&other, add_one).is_err());
    assert_eq!(std::fs::read(store.path(&other)).unwrap(), of_this_card);

    // And under their own names, updating one leaves the other's bytes alone.
    std::fs::remove_file(store.path(&other)).unwrap();
    store.update(&other, add_one).unwrap();
    assert_eq!(std::fs::read(store.path(&device())).unwrap(), of_this_card);
    assert_eq!(store.read(&other).unwrap().windows.len(), 1);
    assert_eq!(store.devices().unwrap().len(), 2);
    drop(folder);
}

fn a_lock_held_by_another_ends_in_an_error_that_names_the_file() {
    let (folder, store, _) = filled();
    let impatient = Store::open(folder.path()).with_lock_wait(Duration::ZERO);
    // The first update is in the middle, holding the lock, when the second one comes.
    let second = store
        .update(&device(), |record| {
            add_one(record);
            impatient.update(&device(), add_one)
        })
        .unwrap();
    let error = second.unwrap_err();
    assert!(matches!(&error, StoreError::Locked { path, .. } if path.extension().unwrap() == "lock"), "{error}");
    assert_eq!(store.read(&device()).unwrap().windows.len(), 10);
    impatient.update(&device(), add_one).unwrap();
    assert_eq!(store.read(&device()).unwrap().windows.len(), 11);
}

fn a_stale_lock_file_blocks_nobody() {
    let (folder, store) = store();
    let lock = folder.path().join(format!("{}.lock", device().file_stem()));
    std::fs::write(&lock, "4294967295 left here by a process that is gone").unwrap();
    store.with_lock_wait(Duration::ZERO).update(&device(), fill).unwrap();
}

/// A disk whose n-th operation fails (0: none), and then `failing` more.
#[derive(Clone, Debug, Default)]
struct Faulty {
    fails_at: u32,
    failing: u32,
    only_rename: bool,
    done: Arc<AtomicU32>,
    error: Option<io::ErrorKind>,
}

impl Faulty {
    fn fails(&self) -> io::Result<()> {
        let number = self.done.fetch_add(1, Ordering::SeqCst) + 1;
        if self.fails_at > 0 && (self.fails_at..self.fails_at + self.failing).contains(&number) {
            return Err(self.error.unwrap_or(io::ErrorKind::Other).into());
        }
        Ok(())
    }

    fn fails_unless_renaming(&self) -> io::Result<()> {
        if self.only_rename { Ok(()) } else { self.fails() }
    }
}

impl Disk for Faulty {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.fails_unless_renaming()?;
        RealDisk.read(path)
    }

    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let failed = self.fails_unless_renaming();
        // What fails has written a part.
        let written = if failed.is_err() { &bytes[..bytes.len() / 2] } else { bytes };
        RealDisk.write_synced(path, written)?;
        failed
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fails()?;
        RealDisk.rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.fails_unless_renaming()?;
        RealDisk.sync_folder(folder)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        self.fails_unless_renaming()?;
        RealDisk.list(folder)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.fails_unless_renaming()?;
        RealDisk.remove(path)
    }
}

fn on(folder: &TempDir, disk: &Faulty) -> Store {
    Store::open(folder.path()).with_disk(disk.clone())
}

/// How an update ends on a disk; the file must be the old one or the new one, whole.
fn update_on(disk: &Faulty) -> (Result<(), StoreError>, bool) {
    let (folder, store, before) = filled();
    let result = on(&folder, disk).update(&device(), add_one);
    let after = std::fs::read(store.path(&device())).unwrap();
    let changed = after != before;
    assert_eq!(store.read(&device()).unwrap().windows.len(), if changed { 10 } else { 9 });
    store.update(&device(), add_one).unwrap();
    let left: Vec<_> = files(&folder).into_iter().filter(|name| name.ends_with(".tmp")).collect();
    assert!(left.is_empty(), "{left:?}");
    (result, changed)
}

fn a_write_that_breaks_off_leaves_the_old_file() {
    // The second operation lists the folder, the third writes.
    for fails_at in 1..=3 {
        let (_, changed) = update_on(&Faulty { fails_at, failing: 1, ..Faulty::default() });
        assert!(fails_at == 2 || !changed, "operation {fails_at}");
    }
}

fn any_single_failure_leaves_the_old_file_or_the_new_one() {
    let mut failures = 0;
    for fails_at in 1.. {
        let disk = Faulty { fails_at, failing: 1, ..Faulty::default() };
        let (result, changed) = update_on(&disk);
        match result {
            Ok(()) => assert!(changed),
            Err(StoreError::NotSynced { .. }) => assert!(changed),
            Err(_) => assert!(!changed),
        }
        if disk.done.load(Ordering::SeqCst) < fails_at {
            break;
        }
        failures += 1;
    }
    assert_eq!(failures, 5, "read, list, write, rename, sync");
}

fn a_rename_that_fails_for_a_moment_is_tried_again_a_bounded_number_of_times() {
    let failing = |failing| Faulty { fails_at: 1, failing, only_rename: true, ..Faulty::default() };
    let (result, changed) = update_on(&failing(RENAME_TRIES - 1));
    assert!(result.is_ok() && changed);
    let never = failing(RENAME_TRIES);
    let (result, changed) = update_on(&never);
    assert!(matches!(result, Err(StoreError::Io { action: "replace", .. })) && !changed);
    assert_eq!(never.done.load(Ordering::SeqCst), RENAME_TRIES);
}

fn a_full_disk_leaves_the_old_file() {
    let full = Faulty { fails_at: 3, failing: 1, error: Some(io::ErrorKind::StorageFull), ..Faulty::default() };
    let (result, changed) = update_on(&full);
    let error = result.unwrap_err();
    assert!(
        matches!(&error, StoreError::Io { action: "write", source, .. } if source.kind() == io::ErrorKind::StorageFull)
    );
    let text = error.to_string();
    assert!(!changed && text.contains("what was kept there before is unchanged"), "{text}");
    let file = format!("{}.json: ", device().file_stem());
    assert!(text.contains(&file) && !text.contains(".tmp: "), "{text}");
    #[cfg(target_os = "linux")]
    {
        let error = RealDisk.write_synced(Path::new("/dev/full"), b"record").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}

fn a_folder_nobody_may_write_to_is_an_error_that_names_it() {
    // A file stands where the folder should be: refused for every user, the administrator too.
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("measurements");
    std::fs::write(&folder, "").unwrap();
    let error = Store::open(&folder).update(&device(), add_one).unwrap_err();
    assert!(error.to_string().contains(folder.to_str().unwrap()), "{error}");
    let denied = Faulty { fails_at: 3, failing: 1, error: Some(io::ErrorKind::PermissionDenied), ..Faulty::default() };
    let (result, changed) = update_on(&denied);
    assert!(matches!(result, Err(StoreError::Io { action: "write", .. })) && !changed);
    // Reading needs no lock and writes nothing.
    let (folder, store, _) = filled();
    std::fs::remove_file(folder.path().join(format!("{}.lock", device().file_stem()))).unwrap();
    let before = files(&folder);
    assert_eq!(store.read(&device()).unwrap().windows.len(), 9);
    assert_eq!(files(&folder), before);
}

fn leftovers_of_a_killed_writer_are_removed_by_the_next_update() {
    let (folder, store, _) = filled();
    let orphan = format!(".{}.4194304-0.tmp", device().file_stem());
    let others = format!(".{}.4194304-0.tmp", DeviceClass { total_gib: 8, ..device() }.file_stem());
    // A card whose name begins with the whole of this one's class: its writer is alive.
    let alike = DeviceClass { name: format!("{}.ti", device()), ..device() };
    let alike = format!(".{}.4194304-0.tmp", alike.file_stem());
    for name in [&orphan, &others, &alike] {
        std::fs::write(folder.path().join(name), "half a rec").unwrap();
    }
    store.update(&device(), add_one).unwrap();
    let left = files(&folder);
    assert!(!left.contains(&orphan) && left.contains(&others), "{left:?}");
    assert!(left.contains(&alike), "another card's file was removed: {left:?}");
}

fn nothing_is_written_where_nothing_changes() {
    let (folder, store, before) = filled();
    let disk = Faulty::default();
    on(&folder, &disk).update(&device(), |_| {}).unwrap();
    assert_eq!(disk.done.load(Ordering::SeqCst), 1, "it only read");
    assert_eq!(std::fs::read(store.path(&device())).unwrap(), before);
}

fn a_crowded_record_loses_first_what_can_never_count_again() {
    let (_folder, store, _) = filled();
    let mut record = store.read(&device()).unwrap();
    let mut superseded = window("a", 0, 512, 1);
    superseded.line.estimator_version = 1;
    record.windows.push(superseded);
    assert!(!record.is_crowded());
    // Ten windows: three warm-ups and one of an old estimator version can go.
    assert_eq!(record.clone().thin(8, &context().versions), 2);
    assert_eq!(record.thin(0, &context().versions), 4);
    assert_eq!(record.windows.len(), 6);
    assert!(record.windows.iter().all(|window| window.line.estimator_version == 2));
}
