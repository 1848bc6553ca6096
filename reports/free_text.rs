//! Which texts of a report are free: written for people, by whatever failed or whoever wrote them.
//!
//! All other texts are identities or words of this program, and a report in which one of them was changed is no report
//! any more. The patterns name every field, so that a new one does not compile before somebody has decided what it is.

use headroom_base::{InvalidReason, Validity, Window};
use headroom_calibration::{Attempt, AttemptState, Counted, Uncounted};

use crate::report::{AttemptRecord, Check, MutantGrade, MutantReport, Provenance, Report, WindowRecord};

/// Changes every free text of a report, and nothing else of it.
pub(crate) fn each_free_text(report: &mut Report, change: &mut dyn FnMut(&mut String)) {
    // A device and a family's summary are made of identities and figures.
    let Report { format: _, provenance, devices: _, attempts, windows, trials, families: _, mutants } = report;
    provenance.iter_mut().for_each(|from| of_provenance(from, change));
    attempts.iter_mut().for_each(|record| of_attempt(record, change));
    windows.iter_mut().for_each(|record| of_window(record, change));
    trials.iter_mut().for_each(|trial| of_trial(trial, change));
    if let Some(MutantReport { grades }) = mutants {
        grades.iter_mut().for_each(|grade| of_grade(grade, change));
    }
}

fn of_provenance(from: &mut Provenance, change: &mut dyn FnMut(&mut String)) {
    let Provenance { report_id: _, tool_version: _, commit: _, created: _, arguments, trust: _, withdrawn, stopped: _ } =
        from;
    arguments.iter_mut().chain(withdrawn).for_each(change);
}

fn of_attempt(record: &mut AttemptRecord, change: &mut dyn FnMut(&mut String)) {
    let AttemptRecord { attempt: Attempt { state, .. }, report_id: _, device_uuid_hash: _, note } = record;
    match state {
        AttemptState::Failed { message } => change(message),
        AttemptState::Running | AttemptState::Finished | AttemptState::Stopped | AttemptState::Incomplete => {}
    }
    note.iter_mut().for_each(change);
}

fn of_window(record: &mut WindowRecord, change: &mut dyn FnMut(&mut String)) {
    let WindowRecord { window, counting, excluded_reason, trial: _, report_id: _, seconds: _, note } = record;
    let Window { measurement, .. } = window;
    match &mut measurement.validity {
        Validity::Invalid(reason) => of_reason(reason, change),
        Validity::Valid => {}
    }
    match counting {
        Counted::Excluded(Uncounted::Invalid { why }) => of_reason(why, change),
        Counted::Excluded(Uncounted::AttemptFailed { message }) => change(message),
        // What differs of two kinds of software is named by their identities.
        Counted::Counts | Counted::Excluded(_) => {}
    }
    excluded_reason.iter_mut().chain(note).for_each(change);
}

fn of_reason(reason: &mut InvalidReason, change: &mut dyn FnMut(&mut String)) {
    match reason {
        InvalidReason::OperationFailed { message }
        | InvalidReason::ProbeFailed { message }
        | InvalidReason::Unclear { message } => change(message),
        InvalidReason::ForeignLockAtOpen
        | InvalidReason::ForeignLockDuring
        | InvalidReason::OutOfMemory
        | InvalidReason::AllocatorRetry { .. }
        | InvalidReason::Spill { .. }
        | InvalidReason::NegativeDelta { .. }
        | InvalidReason::Oversubscribed
        | InvalidReason::Overlapped => {}
    }
}

fn of_trial(trial: &mut Check, change: &mut dyn FnMut(&mut String)) {
    let Check { family: _, device: _, check: _, outcome: _, message, notes, seconds: _, report_id: _ } = trial;
    message.iter_mut().chain(notes).for_each(change);
}

fn of_grade(grade: &mut MutantGrade, change: &mut dyn FnMut(&mut String)) {
    let MutantGrade {
        name: _,
        harm: _,
        place: _,
        claims: _,
        killed_by: _,
        failed_otherwise,
        reached_by: _,
        milliseconds: _,
    } = grade;
    failed_otherwise.iter_mut().for_each(change);
}
