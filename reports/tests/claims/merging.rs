//! A merged report is the same whatever the order and grouping of its parts, and loses nothing of them.

use headroom_reports::merge::{MergeError, merge};
use headroom_reports::{Check, MutantGrade, MutantReport, Outcome, Report, Trust};

use crate::recorded::{h200, provenance, published};

crate::claims![
    a_merged_report_is_the_same_in_any_order_and_grouping,
    nothing_is_lost_and_what_comes_twice_is_there_once,
    equal_windows_of_no_attempt_from_two_machines_stay_two,
    a_merged_report_reads_back_and_names_all_its_parts,
    reports_that_say_different_things_under_one_name_are_not_merged,
    what_a_stopped_run_had_not_ended_gives_way_to_what_ended_later,
    equal_trials_of_two_machines_stay_two,
    a_mutant_graded_on_several_machines_is_graded_once_in_any_order,
];

/// A change to a report.
type Change = fn(&mut Report);

/// Three reports: the card's recordings, somebody's trials with windows of no attempt, published figures.
fn parts() -> [Report; 3] {
    let mut trials = Report::new(provenance("trials", Trust::Ci));
    for (number, outcome) in Outcome::ALL.into_iter().filter(|outcome| *outcome != Outcome::NotRun).enumerate() {
        trials.trials.push(Check {
            family: "sdxl".into(),
            device: "card".into(),
            check: format!("check {number}"),
            outcome,
            message: None,
            notes: Vec::new(),
            seconds: 0.5,
            report_id: None,
        });
    }
    trials.windows = h200().windows.into_iter().take(3).collect();
    for record in &mut trials.windows {
        record.window.attempt_id = None;
    }
    // The same window seen twice in one report is two windows.
    trials.windows.push(trials.windows[0].clone());
    [h200(), trials, published().report]
}

fn a_merged_report_is_the_same_in_any_order_and_grouping() {
    let [first, second, third] = parts();
    let all = merge(&[first.clone(), second.clone(), third.clone()]).unwrap();
    let pair = merge(&[second.clone(), first.clone()]).unwrap();
    for reports in [
        vec![third.clone(), first.clone(), second.clone()],
        vec![pair.clone(), third.clone()],
        vec![third.clone(), pair.clone(), second.clone()],
        vec![all.clone()],
        vec![all.clone(), all.clone(), first.clone()],
    ] {
        assert_eq!(merge(&reports).unwrap(), all);
    }
}

fn nothing_is_lost_and_what_comes_twice_is_there_once() {
    let parts = parts();
    let merged = merge(&parts).unwrap();
    let sum = |of: fn(&Report) -> usize| parts.iter().map(of).sum::<usize>();
    assert_eq!(merged.windows.len(), sum(|report| report.windows.len()));
    assert_eq!(merged.attempts.len(), sum(|report| report.attempts.len()));
    assert_eq!(merged.trials.len(), sum(|report| report.trials.len()));
    assert_eq!(merged.provenance.len(), sum(|report| report.provenance.len()));
    let demands =
        |report: &Report| report.windows.iter().map(|r| u128::from(r.window.measurement.demand_bytes)).sum::<u128>();
    assert_eq!(demands(&merged), parts.iter().map(demands).sum::<u128>());
}

fn equal_windows_of_no_attempt_from_two_machines_stay_two() {
    let [_, one, _] = parts();
    let mut two = one.clone();
    two.provenance[0].report_id = "other trials".into();
    let merged = merge(&[one.clone(), two.clone()]).unwrap();
    assert_eq!(merged.windows.len(), one.windows.len() + two.windows.len());
    assert_eq!(merge(&[merged.clone(), two, one]).unwrap(), merged);
}

fn a_merged_report_reads_back_and_names_all_its_parts() {
    let merged = merge(&parts()).unwrap();
    let text = headroom_reports::output::to_json(&merged).unwrap();
    let read = headroom_reports::format::parse_report(std::path::Path::new("merged.json"), &text).unwrap();
    assert_eq!(read, merged);
    let names: Vec<_> = read.provenance.iter().map(|from| from.report_id.as_str()).collect();
    assert!(names.contains(&"h200") && names.contains(&"trials") && names.is_sorted());
}

fn reports_that_say_different_things_under_one_name_are_not_merged() {
    let [first, ..] = parts();
    let [_, trials, _] = parts();
    let mut contradicts = trials.clone();
    contradicts.trials[0].outcome = Outcome::Passed;
    for copies in [[trials.clone(), contradicts.clone()], [contradicts, trials]] {
        let error = merge(&copies).unwrap_err().to_string();
        assert!(error.contains("`trials`") && error.contains("sdxl::card::check 0"), "{error}");
    }
    let changes: [(&str, Change); 3] = [
        ("where it comes from", |report| report.provenance[0].created = "2020-01-01T00:00:00Z".into()),
        ("run 0", |report| report.windows[0].window.cost_units += 1),
        ("attempt", |report| report.attempts[0].attempt.planned_runs += 1),
    ];
    for (what, change) in changes {
        let mut other = first.clone();
        change(&mut other);
        let error = merge(&[first.clone(), other]).unwrap_err();
        assert!(error.to_string().contains("`h200`") && error.to_string().contains(what), "{error}");
    }
    assert_eq!(merge(&[]), Err(MergeError::Nothing));
}

/// The report of trials as it was written after so many of them.
fn interim(whole: &Report, ended: usize) -> Report {
    let mut interim = whole.clone();
    interim.provenance[0].stopped = true;
    for trial in &mut interim.trials[ended..] {
        trial.outcome = Outcome::NotRun;
        trial.message = Some("the run was stopped before its end".into());
        trial.seconds = 0.0;
    }
    interim
}

fn what_a_stopped_run_had_not_ended_gives_way_to_what_ended_later() {
    let [_, whole, _] = parts();
    let final_alone = merge(std::slice::from_ref(&whole)).unwrap();
    let (early, late) = (interim(&whole, 1), interim(&whole, 2));
    for copies in [[early.clone(), whole.clone()], [whole.clone(), early.clone()]] {
        assert_eq!(merge(&copies).unwrap(), final_alone);
    }
    let stopped = merge(&[late.clone(), early.clone()]).unwrap();
    assert_eq!(stopped, merge(&[early, late]).unwrap());
    assert!(stopped.is_stopped() && !stopped.holds());
    // A program that does not know the outcome must not read it; a whole report stays readable by all.
    assert_eq!((stopped.format.readable_by, final_alone.format.readable_by), (3, 1));
    let ended = stopped.trials.iter().filter(|trial| trial.message.is_none()).count();
    assert_eq!((stopped.trials.len(), ended), (whole.trials.len(), 2));
    assert_eq!(merge(&[stopped, whole]).unwrap(), final_alone);
}

fn equal_trials_of_two_machines_stay_two() {
    let [_, one, _] = parts();
    let mut two = one.clone();
    two.provenance[0].report_id = "other trials".into();
    let merged = merge(&[one.clone(), two.clone()]).unwrap();
    assert_eq!(merged.trials.len(), one.trials.len() + two.trials.len());
    assert_eq!(merge(&[two, merged.clone(), one.clone()]).unwrap(), merged);
    // An older program did not say where the trials of a merged report come from.
    let mut older = merge(&[one.clone(), h200()]).unwrap();
    older.trials.iter_mut().for_each(|trial| trial.report_id = None);
    assert_eq!(merge(&[older, one.clone()]).unwrap().trials.len(), one.trials.len());
}

fn a_mutant_graded_on_several_machines_is_graded_once_in_any_order() {
    let graded = |id: &str, killed_by: &[&str], milliseconds| {
        let mut report = Report::new(provenance(id, Trust::Ci));
        let grade = MutantGrade {
            name: "credit_left_out".into(),
            killed_by: killed_by.iter().map(ToString::to_string).collect(),
            milliseconds,
            ..MutantGrade::default()
        };
        report.mutants = Some(MutantReport { grades: vec![grade] });
        report
    };
    let [one, two, three] = [graded("1", &["a"], 5), graded("2", &["a", "b"], 9), graded("3", &[], 7)];
    let merged = merge(&[one.clone(), two.clone(), three.clone()]).unwrap();
    assert_eq!(merged.mutants.as_ref().unwrap().verdict(), "1 graded, 1 killed, 0 survived");
    assert_eq!(merge(&[three.clone(), two.clone(), one.clone()]).unwrap(), merged);
    assert_eq!(merge(&[two, merge(&[three, one]).unwrap()]).unwrap(), merged);
}
