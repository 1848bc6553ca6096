//! A run's report holds every window that a figure of it was taken from, and those of no calibration join no fit.

use std::sync::{Arc, LazyLock};

use headroom::run::{provenance, run_trials};
use headroom::trials::{Trial, trials};
use headroom::world::World;
use headroom_base::{Origin, Residency, RunKind, Validity, Window};
use headroom_calibration::{Attempt, Counted, EstimatorVersions, Uncounted};
use headroom_reports::verdicts::verdicts;
use headroom_reports::{Outcome, Report, WindowRecord, html};

/// The family's checks on one simulated card, its capacity, and what was recorded of it.
static REPORT: LazyLock<Report> = LazyLock::new(|| {
    let world = Arc::new(World::load(None).unwrap());
    let wanted = |trial: &Trial| trial.family().name == "taesd" && matches!(trial.device(), "8gib" | "h200" | "fitted");
    let chosen: Vec<Trial> = trials(&world).into_iter().filter(wanted).collect();
    let report = run_trials(&chosen, provenance(Vec::new()), &|_, _| {});
    assert!(report.trials.len() > 6 && report.count(Outcome::Passed) == report.trials.len());
    report
});

/// The windows of a check that belong to no attempt.
fn apart(check: &str) -> Vec<&'static WindowRecord> {
    let of_the_check = |record: &&WindowRecord| record.trial.as_deref().is_some_and(|trial| trial.ends_with(check));
    REPORT.windows.iter().filter(of_the_check).filter(|record| record.window.attempt_id.is_none()).collect()
}

#[test]
fn every_demand_beside_an_estimate_is_that_of_a_window_in_the_report() {
    let mut left_out = 0;
    for summary in &REPORT.families {
        for estimate in &summary.estimates {
            let Some(demand) = estimate.demand_bytes else { continue };
            let mut its = REPORT.windows.iter().filter(|record| {
                let Window { device, environment, case, line, measurement, .. } = &record.window;
                (device, &environment.hard, case, line)
                    == (&summary.class, &estimate.environment.hard, &estimate.case, &estimate.line)
                    && measurement.demand_bytes == demand
                    && estimate.demand_origin == Some(record.window.origin)
            });
            let what = format!("{} {} {demand}", summary.device, estimate.case);
            let found = its.next().unwrap_or_else(|| panic!("{what} is in no window"));
            assert_eq!(found.window.cost_units, estimate.cost_units, "{what}");
            left_out += usize::from(found.window.attempt_id.is_none());
        }
    }
    assert!(left_out >= 6, "{left_out} sizes that were left out of a calibration are seen");
}

#[test]
fn a_size_that_was_left_out_of_a_calibration_ran_undisturbed_with_its_whole_model_on_the_device() {
    let held_out = apart("::8gib::calibration");
    assert!(held_out.len() >= 6, "{}", held_out.len());
    for record in held_out {
        let measurement = &record.window.measurement;
        assert_eq!((&measurement.validity, measurement.residency), (&Validity::Valid, Residency::Full));
        assert!(measurement.deltas.allocated_peak_bytes > 0 && measurement.deltas.reserved_peak_bytes > 0);
        assert_eq!((record.window.kind, record.window.origin), (RunKind::Measured, Origin::Simulated));
        assert_eq!(record.counting, Counted::Excluded(Uncounted::NoAttempt));
    }
}

#[test]
fn the_measured_windows_of_pipeline_and_capacity_are_in_the_report() {
    let family = World::load(None).unwrap().catalogue.family("taesd").unwrap().clone();
    let (pipeline, capacity) = (apart("::8gib::pipeline"), apart("::fitted::capacity"));
    for step in &family.pipeline {
        let its = pipeline.iter().filter(|record| record.window.case == step.case).count();
        assert_eq!(its % 3, 0, "{}: as often under each of three allocators", step.case);
        assert!(its > 0 || family.model(&step.model).is_some_and(|model| model.architecture().is_none()));
    }
    let is = |wanted: fn(&Validity) -> bool| capacity.iter().any(|record| wanted(&record.window.measurement.validity));
    assert!(is(Validity::is_valid) && is(|validity| !validity.is_valid()), "tries on cards that suffice and do not");
}

#[test]
fn a_window_of_no_calibration_has_a_reason_joins_no_fit_and_changes_no_verdict() {
    let without = REPORT.windows.iter().filter(|record| record.window.attempt_id.is_some());
    let (without, all): (Vec<&WindowRecord>, Vec<&WindowRecord>) = (without.collect(), REPORT.windows.iter().collect());
    let attempts: Vec<Attempt> = REPORT.attempts.iter().map(|record| record.attempt.clone()).collect();
    let judged = |records: &[&WindowRecord]| {
        let windows: Vec<Window> = records.iter().map(|record| record.window.clone()).collect();
        let versions = EstimatorVersions::newest_of(windows.iter().map(|window| &window.line));
        verdicts(&windows, &attempts, &versions)
    };
    let with_them = judged(&all);
    for (record, verdict) in all.iter().zip(&with_them) {
        assert_eq!(record.counting, *verdict, "{}", record.window.case);
        assert_eq!(record.excluded_reason, verdict.reason().map(ToString::to_string));
        assert!(record.window.attempt_id.is_some() || !verdict.counts());
    }
    let of_attempts = all.iter().zip(with_them).filter(|(record, _)| record.window.attempt_id.is_some());
    assert_eq!(of_attempts.map(|(_, verdict)| verdict).collect::<Vec<_>>(), judged(&without));
    assert!(without.len() < all.len());
}

#[test]
fn a_window_of_no_calibration_is_drawn_muted_with_its_reason() {
    let page = html::to_html(&REPORT);
    let dots: Vec<&str> = page.split("<circle class=\"").skip(1).collect();
    assert_eq!(dots.len(), REPORT.windows.len());
    let counted = |dot: &&&str| dot.starts_with("counted");
    let counts = REPORT.windows.iter().filter(|record| record.counting.counts()).count();
    assert_eq!(dots.iter().filter(counted).count(), counts);
    let said = "does not count: it belongs to no calibration</title>";
    let apart = dots.iter().filter(|dot| dot.contains(said));
    assert!(apart.clone().count() > 6 && apart.clone().all(|dot| dot.starts_with("uncounted")));
}
