//! The store under another writer, a writer that dies, and files that are not for it.

use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headroom_base::{Backend, DeviceClass, GIB};
use headroom_calibration::store::{Disk, RealDisk};
use headroom_calibration::{Record, Store, StoreError};

use super::stage::Stage;
use crate::checks::{CheckError, Claim};

super::invariants![
    a_second_writer_waits_and_neither_loses_anything,
    a_writer_that_dies_in_the_middle_leaves_the_old_file,
    a_file_that_cannot_be_read_is_kept,
    a_file_of_another_card_is_kept_and_not_used,
    an_update_that_changes_nothing_writes_nothing,
];

/// A folder that goes when it is dropped.
pub(super) fn folder() -> Result<tempfile::TempDir, CheckError> {
    tempfile::tempdir().map_err(said)
}

fn said(error: impl Display) -> CheckError {
    CheckError::violated(error.to_string())
}

/// A record with one calibration in it.
fn calibrated(stage: &Stage<'_>) -> Result<Record, CheckError> {
    let bench = stage.bench()?;
    let mut record = stage.record();
    stage.calibrate(&bench, &mut record, "first")?;
    Ok(record)
}

/// The second writer comes while the first one has read and not yet written: held there, not by chance.
fn a_second_writer_waits_and_neither_loses_anything(stage: &Stage<'_>) -> Result<(), CheckError> {
    let (folder, measured, class) = (folder()?, calibrated(stage)?, stage.subject.class());
    let store = Store::open(folder.path());
    let second = Store::open(folder.path()).with_lock_wait(Duration::ZERO);
    let mut meanwhile = None;
    let first = store.update(&class, |record| {
        meanwhile = Some(second.update(&class, |record| record.note_retained(7)));
        *record = measured.clone();
    });
    first.map_err(said)?;
    let waited = matches!(meanwhile, Some(Err(StoreError::Locked { .. })));
    Claim::StoreHasOneWriter.holds(waited, || format!("a second writer was let in: {meanwhile:?}"))?;
    second.update(&class, |record| record.note_retained(7)).map_err(said)?;
    let kept = store.read(&class).map_err(said)?;
    let (windows, retained) = (kept.windows.len(), kept.retained_bytes);
    Claim::StoreHasOneWriter.equal("windows and retained bytes", (windows, retained), (measured.windows.len(), Some(7)))
}

/// A disk on which a write stops half-way, as it does when the process is killed.
#[derive(Debug)]
struct Dying;

impl Disk for Dying {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        RealDisk.read(path)
    }

    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        RealDisk.write_synced(path, &bytes[..bytes.len() / 2])?;
        Err(io::Error::other("killed"))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        RealDisk.sync_folder(folder)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        RealDisk.list(folder)
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        Err(io::Error::other("killed"))
    }
}

fn a_writer_that_dies_in_the_middle_leaves_the_old_file(stage: &Stage<'_>) -> Result<(), CheckError> {
    let (folder, measured, class) = (folder()?, calibrated(stage)?, stage.subject.class());
    let store = Store::open(folder.path());
    store.update(&class, |record| *record = measured.clone()).map_err(said)?;
    let dying = Store::open(folder.path()).with_disk(Dying);
    let killed = dying.update(&class, |record| record.note_retained(7)).is_err();
    Claim::StoreIsReplacedWhole.holds(killed, || "a write that was cut off is said to have succeeded".to_owned())?;
    let whole = store.read(&class).is_ok_and(|record| record == measured);
    Claim::StoreIsReplacedWhole.holds(whole, || "the old record is gone after a write was cut off".to_owned())
}

/// What becomes of a file that is no record of this card when somebody updates it.
fn updated_over(stage: &Stage<'_>, class: &DeviceClass, text: &str) -> Result<(bool, bool), CheckError> {
    let folder = folder()?;
    let store = Store::open(folder.path());
    fs::write(store.path(class), text).map_err(said)?;
    let measured = calibrated(stage)?;
    let refused = store.update(class, |record| record.windows.extend(measured.windows)).is_err();
    let kept = fs::read_to_string(store.path(class)).is_ok_and(|now| now == text);
    Ok((refused, kept))
}

fn a_file_that_cannot_be_read_is_kept(stage: &Stage<'_>) -> Result<(), CheckError> {
    let class = stage.subject.class();
    for text in ["half a rec", r#"{"version":99,"device":"of a later program"}"#] {
        let (refused, kept) = updated_over(stage, &class, text)?;
        Claim::UnreadableFileIsKept.holds(refused && kept, || format!("`{text}` was overwritten"))?;
    }
    Ok(())
}

fn a_file_of_another_card_is_kept_and_not_used(stage: &Stage<'_>) -> Result<(), CheckError> {
    let other = Record::empty(DeviceClass::new("another card", 4 * GIB, Backend::Cuda)).to_json();
    let (refused, kept) = updated_over(stage, &stage.subject.class(), &other)?;
    Claim::OtherCardsFileIsKept.holds(refused && kept, || "another card's file was used or overwritten".to_owned())
}

fn an_update_that_changes_nothing_writes_nothing(stage: &Stage<'_>) -> Result<(), CheckError> {
    let (folder, measured, class) = (folder()?, calibrated(stage)?, stage.subject.class());
    Store::open(folder.path()).update(&class, |record| *record = measured).map_err(said)?;
    // On a disk on which every write fails, an update that changes nothing succeeds.
    let dying = Store::open(folder.path()).with_disk(Dying);
    let outcome = dying.update(&class, |record| record.windows.len());
    Claim::UnchangedFileIsNotWritten.holds(outcome.is_ok(), || "an unchanged file was written again".to_owned())
}
