//! A hundred thousand windows in one file: it stays correct, and the time and size are printed with `--nocapture`.

use std::time::Instant;

use headroom_base::{AttemptId, Backend, Bytes, DeviceClass, Window};
use headroom_calibration::{
    Attempt, Context, EstimatorVersions, Knowledge, Record, Store, reset_stored, store::MANY_WINDOWS,
    store::STORE_VERSION,
};

const WINDOWS: u32 = 100_000;
const RUNS: u32 = 18;

fn device() -> DeviceClass {
    DeviceClass::new("Card", 16 << 30, Backend::Cuda)
}

/// Attempts of two types, three sizes, one warm-up and two measured runs each, as SDXL's plan has them.
fn crowded() -> Record {
    let mut record = Record::empty(device());
    for number in 0..WINDOWS {
        let (attempt, run) = (number / RUNS, number % RUNS);
        let side = 512 + 256 * (run / 3 % 3);
        let dtype = if run < 9 { "fp16" } else { "fp32" };
        let kind = if run % 3 == 0 { "warmup" } else { "measured" };
        let units = u64::from(side) * u64::from(side) * 2;
        let demand = units * 1_000 + u64::from(attempt);
        let text = format!(
            r#"{{"model":"model-{}","line":{{"estimator":"autoencoder_kl","estimator_version":1,
            "operation":"vae_decode","dtype":"{dtype}"}},"case":{{"operation":"vae_decode","dtype":"{dtype}",
            "width":{side},"height":{side},"frames":1,"batch":1}},"cost_units":{units},"analytic_bytes":0,
            "device":{{"name":"Card","total_gib":16,"backend":"cuda"}},"environment":{{"hard":{{"backend":"cuda",
            "allocator":"native","framework":"torch 2.11.0+cu130"}},"soft":{{"driver":"580.159.04"}}}},
            "attempt_id":"a-{attempt}","run":{run},"kind":"{kind}","origin":"measured","estimate_bytes":{demand},
            "allocated_peak_bytes":{demand},"reserved_peak_bytes":{demand},"driver_bytes":{demand},
            "demand_bytes":{demand},"stretches":1,"retries":0,"residency":"full","validity":"valid"}}"#,
            attempt % 7,
        );
        let window: Window = serde_json::from_str(&text).unwrap();
        if run == 0 {
            let id = AttemptId(format!("a-{attempt}"));
            let environment = window.environment.clone();
            record.keep_attempt(Attempt::recorded(id, &window.model, device(), environment, RUNS));
        }
        record.windows.push(window);
    }
    record
}

#[test]
fn a_hundred_thousand_windows_in_one_file_are_read_and_thinned() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path());
    let record = crowded();
    let timed =
        |what: &str, began: Instant| eprintln!("{WINDOWS} windows: {what} in {:.2} s", began.elapsed().as_secs_f64());

    let began = Instant::now();
    store.update(&device(), |empty| *empty = record.clone()).unwrap();
    timed("written", began);
    let size = std::fs::metadata(store.path(&device())).unwrap().len();
    eprintln!(
        "{WINDOWS} windows: {} on disk, {} a window, format {STORE_VERSION}",
        Bytes(size),
        size / u64::from(WINDOWS)
    );

    let began = Instant::now();
    let read = store.read(&device()).unwrap();
    timed("read", began);
    assert_eq!(read, record);
    assert!(read.is_crowded() && read.windows.len() > MANY_WINDOWS);

    let hard = record.windows[0].environment.hard.clone();
    let soft = record.windows[0].environment.soft.clone();
    let versions = EstimatorVersions::newest_of(record.windows.iter().map(|window| &window.line));
    let began = Instant::now();
    let context = Context { device: device(), hard, versions };
    let knowledge = Knowledge::new(read, context.clone(), soft);
    timed("counted and fitted", began);
    assert_eq!(knowledge.fits().lines().count(), 2);

    let began = Instant::now();
    let dropped = store.update(&device(), |record| record.thin(MANY_WINDOWS, &context.versions)).unwrap();
    timed("thinned", began);
    // Only warm-ups go: everything measured counts, here or in another environment.
    assert_eq!(dropped, 33_334);
    let thinned = store.read(&device()).unwrap();
    assert_eq!(thinned.windows.len(), 66_666);

    // It is still too many, and none may go unasked: the way out is a model's reset, which takes a seventh.
    assert!(thinned.is_crowded());
    let began = Instant::now();
    let answer = reset_stored(&store, &device(), "model-0", &context).unwrap();
    timed("reset of one of 7 models", began);
    eprintln!("{WINDOWS} windows: {}", answer.summary());
    assert_eq!(store.read(&device()).unwrap().windows.len(), 66_666 - answer.removed_windows);
    assert!(answer.lines.iter().all(|line| line.is_calibrated() && line.measured_by.len() == 6));
}
