//! A reset removes what one model measured on one kind of card, on every line, and nothing else.

use headroom_base::{Backend, DType, DeviceClass, GIB, LineKey, Window};
use headroom_calibration::{Attempt, Record, ResetError, Store, reset, reset_stored};

use super::attempt::keep;
use super::stage::Stage;
use crate::checks::{CheckError, Claim};

super::invariants![
    a_reset_leaves_what_other_models_measured_on_the_same_line,
    a_reset_covers_every_line_of_the_model,
    a_reset_leaves_other_kinds_of_cards,
    a_model_that_is_being_measured_is_not_reset,
];

/// Another model that prices on the same line.
const OTHER: &str = "another model";

/// A record in which the stage's model measured its line and a second one, and another model the first.
fn shared(stage: &Stage<'_>) -> Result<Record, CheckError> {
    let bench = stage.bench()?;
    let mut record = stage.record();
    stage.calibrate(&bench, &mut record, "first")?;
    let dtype = DType::ALL.into_iter().find(|dtype| *dtype != stage.key.dtype).unwrap_or(stage.key.dtype);
    let second = LineKey { dtype, ..stage.key.clone() };
    let copy = |record: &Record, id: &str, model: &str, line: &LineKey| -> (Attempt, Vec<Window>) {
        let attempt_id = headroom_base::AttemptId(id.to_owned());
        let attempt = Attempt { id: attempt_id.clone(), model: model.to_owned(), ..record.attempts[0].clone() };
        let of_first =
            record.windows.iter().filter(|window| window.attempt_id.as_ref() == Some(&record.attempts[0].id));
        let renamed = of_first.map(|window| Window {
            attempt_id: Some(attempt_id.clone()),
            model: model.to_owned(),
            line: line.clone(),
            ..window.clone()
        });
        (attempt, renamed.collect())
    };
    let (attempt, windows) = copy(&record, "second line", &stage.model.key, &second);
    keep(&mut record, attempt, windows);
    let (attempt, windows) = copy(&record, "other model", OTHER, &stage.key);
    keep(&mut record, attempt, windows);
    Ok(record)
}

fn windows_of(record: &Record, model: &str) -> usize {
    record.windows.iter().filter(|window| window.model == model).count()
}

fn refused(error: &ResetError) -> CheckError {
    CheckError::violated(error.to_string())
}

fn a_reset_leaves_what_other_models_measured_on_the_same_line(stage: &Stage<'_>) -> Result<(), CheckError> {
    let mut record = shared(stage)?;
    let before = windows_of(&record, OTHER);
    let context = stage.subject.context(stage.ground().versions);
    let answer = reset(&mut record, &stage.model.key, &context).map_err(|error| refused(&error))?;
    Claim::ResetLeavesOtherModels.equal("windows of the other model", windows_of(&record, OTHER), before)?;
    let named = answer.lines.iter().flat_map(|line| &line.measured_by).any(|by| by.model == OTHER);
    Claim::ResetLeavesOtherModels
        .holds(named, || "the answer does not say whose measurements still apply".to_owned())?;
    let has_fit = stage.knowledge(&record).fits().get(&stage.key).is_some();
    Claim::ResetLeavesOtherModels.holds(has_fit, || "the shared line has lost its fit".to_owned())
}

fn a_reset_covers_every_line_of_the_model(stage: &Stage<'_>) -> Result<(), CheckError> {
    let mut record = shared(stage)?;
    let context = stage.subject.context(stage.ground().versions);
    reset(&mut record, &stage.model.key, &context).map_err(|error| refused(&error))?;
    Claim::ResetCoversEveryLine.equal("windows of the model afterwards", windows_of(&record, &stage.model.key), 0)
}

fn a_reset_leaves_other_kinds_of_cards(stage: &Stage<'_>) -> Result<(), CheckError> {
    let folder = super::stores::folder()?;
    let store = Store::open(folder.path());
    let here = stage.subject.class();
    let other = DeviceClass::new("another card", 4 * GIB, Backend::Cuda);
    let record = shared(stage)?;
    for class in [&here, &other] {
        let mut of_class = record.clone();
        of_class.device = class.clone();
        of_class.windows.iter_mut().for_each(|window| window.device = class.clone());
        store.update(class, |kept| *kept = of_class).map_err(|error| CheckError::violated(error.to_string()))?;
    }
    let before = std::fs::read(store.path(&other)).map_err(|error| CheckError::violated(error.to_string()))?;
    let context = stage.subject.context(stage.ground().versions);
    reset_stored(&store, &here, &stage.model.key, &context).map_err(|error| refused(&error))?;
    let after = std::fs::read(store.path(&other)).map_err(|error| CheckError::violated(error.to_string()))?;
    Claim::ResetLeavesOtherCards.holds(before == after, || "the other card's file has changed".to_owned())
}

fn a_model_that_is_being_measured_is_not_reset(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench()?;
    let mut attempt = stage.begin(&bench, &stage.record(), "live")?;
    let first = attempt.plan.runs()[0];
    attempt.run(&first, 0)?;
    let mut record = attempt.so_far(&stage.record());
    let before = record.clone();
    let context = stage.subject.context(stage.ground().versions);
    let outcome = reset(&mut record, &stage.model.key, &context);
    let is_refused = matches!(outcome, Err(ResetError::Running { .. })) && record == before;
    Claim::RunningAttemptIsNotReset.holds(is_refused, || "a model was reset while it was being measured".to_owned())
}
