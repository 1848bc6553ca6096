//! Calibrations that nothing disturbed: every window whole and valid, every planned run done.

use headroom_base::{AllocatorKind, Residency, Window};
use headroom_reports::Report;

use super::kept::{self, Runs};
use super::priced::is_of_a_calibration;

/// Windows of such calibrations, warm-ups too.
fn windows(report: &Report) -> impl Iterator<Item = &Window> {
    report.windows.iter().filter(|record| is_of_a_calibration(record)).map(|record| &record.window)
}

/// Whether a window can be believed and its model lay on the card as a whole.
fn is_whole(window: &Window) -> bool {
    window.measurement.residency == Residency::Full && window.measurement.validity.is_valid()
}

/// How many of them are whole, in one sentence.
pub(crate) fn sentence(runs: &Runs) -> String {
    let all = || runs.iter().flat_map(|(_, report)| windows(report));
    let whole = all().filter(|window| is_whole(window)).count();
    format!(
        "Of the {} windows of undisturbed calibrations, warm-ups too, {whole} are valid and of a model that lay on the card as \
         a whole.\n\n",
        all().count()
    )
}

/// Runs of a family's undisturbed calibrations under an allocator: planned, finished, and with a window.
pub(crate) fn runs_under(report: &Report, kind: AllocatorKind) -> [usize; 3] {
    let of_kind = || windows(report).filter(|window| window.environment.hard.allocator == kind);
    let is_its = |id: &headroom_base::AttemptId| of_kind().any(|window| window.attempt_id.as_ref() == Some(id));
    let attempts = report.attempts.iter().map(|record| &record.attempt).filter(|attempt| is_its(&attempt.id));
    let [planned, finished] = attempts.fold([0, 0], |[planned, finished], attempt| {
        [planned + attempt.planned_runs as usize, finished + attempt.finished_runs.len()]
    });
    [planned, finished, of_kind().count()]
}

#[test]
fn every_window_of_an_undisturbed_calibration_is_valid_and_of_a_wholly_resident_model() {
    let mut seen = 0;
    for (name, report) in kept::all_reports() {
        for window in windows(&report) {
            assert!(is_whole(window), "{name}: {:?} {:?}", window.case, window.measurement);
            seen += 1;
        }
    }
    assert!(seen > 1000, "{seen} windows");
}

#[test]
fn every_planned_run_of_an_undisturbed_calibration_was_done_and_left_a_window() {
    for (name, report) in kept::all_reports().filter(|(_, report)| report.mutants.is_none()) {
        for kind in AllocatorKind::ALL {
            let [planned, finished, with_a_window] = runs_under(&report, kind);
            assert!(planned > 0, "{name} {kind}");
            assert_eq!((finished, with_a_window), (planned, planned), "{name} {kind}");
        }
    }
}

/// SDXL's decode in half and in single precision, at three sizes, three times each.
#[test]
fn sdxls_decode_ran_eighteen_times_under_each_allocator_and_no_size_of_it_was_reserved_below_its_need() {
    let catalogue = headroom::catalogue::Catalogue::load(None).unwrap();
    let runs = kept::runs(&catalogue);
    let (_, report) = runs.iter().find(|(name, _)| name == "sdxl").unwrap();
    let rows = super::summary::sdxl_rows(&catalogue, &runs);
    for kind in AllocatorKind::ALL {
        assert_eq!(runs_under(report, kind), [18; 3], "{kind}");
        let rows: Vec<_> = rows.iter().filter(|row| row.allocator == kind).collect();
        for is_calibrated in [true, false] {
            assert!(rows.iter().any(|row| row.is_calibrated == is_calibrated), "{kind}: sizes of both kinds");
        }
        for row in rows {
            assert!(row.demand_bytes > 0 && row.short_bytes() == 0, "{row:?}");
        }
    }
}
