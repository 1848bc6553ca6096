//! A reset removes what one model measured on one card, and nothing else.

use headroom_base::{DeviceClass, Operation, Window};
use headroom_calibration::{
    Attempt, BuiltIns, Knowledge, MeasuredBy, Platform, Record, ResetError, Store, reset, reset_stored, summarize_line,
};

use crate::fixture::{MODEL, context, device, finished, line, line_of, running, soft, straight, windows};

crate::claims![
    a_reset_leaves_other_models_windows_and_says_whose,
    a_reset_says_where_what_others_measured_is_too_little_to_apply,
    a_reset_covers_every_line_of_the_model,
    a_reset_of_a_model_that_measured_nothing_says_so_and_whose_measurements_apply,
    a_reset_on_one_card_leaves_the_others_files,
    a_model_that_is_being_measured_is_not_reset,
];

const PLATFORM: Platform = Platform { supported: true, generation_devices: 1, method_verified: true };

fn by(model: &str, windows: Vec<Window>) -> Vec<Window> {
    windows.into_iter().map(|window| Window { model: model.into(), ..window }).collect()
}

fn on(operation: Operation, windows: Vec<Window>) -> Vec<Window> {
    windows.into_iter().map(|window| Window { line: line_of(operation), ..window }).collect()
}

/// Models A and B have measured the decode line, A the encode line too; C prices on the decode line only.
fn shared() -> Record {
    let parts = [
        ("a", MODEL, windows("a", &straight(1_000))),
        ("a2", MODEL, on(Operation::VaeEncode, windows("a2", &straight(500)))),
        ("b", "model-b", by("model-b", windows("b", &straight(1_100)))),
    ];
    let mut record = Record::empty(device());
    record.note_retained(77);
    for (id, model, windows) in parts {
        record.keep_attempt(Attempt { model: model.into(), ..finished(id, &windows) });
        record.windows.extend(windows);
    }
    record
}

fn a_reset_leaves_other_models_windows_and_says_whose() {
    let mut record = shared();
    let answer = reset(&mut record, MODEL, &context()).unwrap();
    assert_eq!(answer.removed_windows, 18);
    let kept = by("model-b", windows("b", &straight(1_100)));
    assert_eq!(record.windows, kept);
    assert_eq!((record.attempts.len(), record.retained_bytes), (1, Some(77)));
    let said = "18 windows of model-a were removed; measurements of model-b still apply; \
                on its other lines built-in figures apply again.";
    assert_eq!(answer.summary(), said);
    let on_decode = answer.lines.iter().find(|remaining| remaining.line == line()).unwrap();
    assert_eq!(on_decode.measured_by, [MeasuredBy { model: "model-b".into(), windows: 6 }]);

    assert!(on_decode.is_calibrated());

    // Every model on the line is priced by what B measured alone.
    let knowledge = Knowledge::new(record.clone(), context(), soft("driver 1"));
    let fit = &knowledge.fits().get(&line()).unwrap().fit;
    assert_eq!((fit.windows, fit.coefficients.bytes_at(1_000)), (6, 1_100_000));
    assert!(knowledge.fits().get(&line_of(Operation::VaeEncode)).is_none());

    // The shared line stays calibrated, for the one that was reset and for the one that never measured.
    let knowledge = Knowledge::new(record, context(), soft("driver 1"));
    for model in [MODEL, "model-c"] {
        let summary = summarize_line(&knowledge, &line(), model, PLATFORM, &BuiltIns::default());
        assert_eq!(summary.own_windows, 0);
        assert!(summary.sizes.iter().all(|row| row.counted && row.calibrated.is_some()));
    }
}

fn a_reset_says_where_what_others_measured_is_too_little_to_apply() {
    // B measured two sizes, which made a line only together with A's three.
    let mut record = shared();
    record.windows.retain(|window| window.model == MODEL || window.cost_units < crate::fixture::units(1024));
    let answer = reset(&mut record, MODEL, &context()).unwrap();
    let on_decode = answer.lines.iter().find(|remaining| remaining.line == line()).unwrap();
    assert_eq!((on_decode.sizes, on_decode.is_calibrated()), (2, false));
    let said = "18 windows of model-a were removed; built-in figures apply again; \
                those of model-b are kept and too few to apply.";
    assert_eq!(answer.summary(), said);
    assert!(Knowledge::new(record, context(), soft("driver 1")).fits().get(&line()).is_none());
}

fn a_reset_covers_every_line_of_the_model() {
    let mut record = shared();
    reset(&mut record, MODEL, &context()).unwrap();
    assert!(record.windows.iter().all(|window| window.model != MODEL));
    let again = reset(&mut record, MODEL, &context()).unwrap();
    assert_eq!(again.removed_windows, 0);
    reset(&mut record, "model-b", &context()).unwrap();
    assert!(record.windows.is_empty());
    let nothing = reset(&mut record, "model-b", &context()).unwrap().summary();
    assert_eq!(nothing, "model-b had measured nothing; built-in figures apply.");
}

fn a_reset_of_a_model_that_measured_nothing_says_so_and_whose_measurements_apply() {
    let mut record = shared();
    let before = record.clone();
    let answer = reset(&mut record, "model-c", &context()).unwrap();
    assert_eq!(record, before);
    assert_eq!((answer.removed_windows, answer.lines.len()), (0, 2));
    let said = "model-c had measured nothing; measurements of model-a, model-b still apply on their lines.";
    assert_eq!(answer.summary(), said);

    // Of two sizes there is no line to apply.
    record.windows.retain(|window| window.model == "model-b" && window.cost_units < crate::fixture::units(1024));
    let said = "model-c had measured nothing; built-in figures apply; those of model-b are kept and too few to apply.";
    assert_eq!(reset(&mut record, "model-c", &context()).unwrap().summary(), said);
}

fn a_reset_on_one_card_leaves_the_others_files() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path());
    let other = DeviceClass { total_gib: 24, ..device() };
    for class in [device(), other.clone()] {
        let of_class = |record: &mut Record| {
            *record = shared();
            record.device = class.clone();
            record.windows.iter_mut().for_each(|window| window.device = class.clone());
        };
        store.update(&class, of_class).unwrap();
    }
    let untouched = std::fs::read(store.path(&other)).unwrap();
    let answer = reset_stored(&store, &device(), MODEL, &context()).unwrap();
    assert_eq!(answer.removed_windows, 18);
    assert_eq!(store.read(&device()).unwrap().windows.len(), 9);
    assert_eq!(std::fs::read(store.path(&other)).unwrap(), untouched);
}

fn a_model_that_is_being_measured_is_not_reset() {
    let mut record = shared();
    record.keep_attempt(running("a3", 9));
    let before = record.clone();
    let error = reset(&mut record, MODEL, &context()).unwrap_err();
    assert!(matches!(&error, ResetError::Running { attempt, .. } if attempt.0 == "a3"), "{error}");
    assert_eq!(record, before);
    assert!(reset(&mut record, "model-b", &context()).is_ok(), "another model's run is no obstacle");
}
