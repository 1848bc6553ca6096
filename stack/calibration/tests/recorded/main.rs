//! What the rules make of the runs recorded on an H200: exact figures, printed with `--nocapture`.

mod recordings;

use std::collections::BTreeMap;

use headroom_base::{AllocatorKind, RunKind, Window};
use headroom_calibration::anchored::PredictionTerms;
use headroom_calibration::cross_validation::{HeldOut, Method, Sample, SampledLine, Score, leave_one_size_out};
use headroom_calibration::{Counted, Point, Uncounted, count, fit};

use recordings::Recording;

/// The measured windows of a recording, each with its verdict.
fn judged(recording: &Recording) -> Vec<(Window, Counted)> {
    let of_allocator = |allocator| {
        let (windows, context) = recording.of(allocator);
        let verdicts = count(&windows, &recording.attempts, &context);
        windows.into_iter().zip(verdicts)
    };
    AllocatorKind::ALL
        .into_iter()
        .flat_map(of_allocator)
        .filter(|(window, _)| window.kind == RunKind::Measured)
        .collect()
}

fn flagged(judged: &[(Window, Counted)]) -> Vec<String> {
    let flagged = judged.iter().filter_map(|(window, verdict)| match verdict.reason()? {
        Uncounted::Fragmented(surplus) => {
            let allocator = window.environment.hard.allocator;
            Some(format!("{} {} {allocator}: {surplus}", window.model, window.case))
        }
        other => panic!("{}: {other}", window.case),
    });
    flagged.collect()
}

/// Reserved ÷ allocated.
fn ratio(window: &Window) -> f64 {
    let deltas = &window.measurement.deltas;
    deltas.reserved_peak_bytes as f64 / deltas.allocated_peak_bytes as f64
}

#[test]
fn false_flags_over_clean_windows_are_counted() {
    let judged = judged(&Recording::read("windows.jsonl"));
    let flagged = flagged(&judged);
    for line in &flagged {
        eprintln!("false flag: {line}");
    }
    eprintln!("fragmentation: {} of {} clean measured windows flagged", flagged.len(), judged.len());
    assert_eq!((flagged.len(), judged.len()), (6, 337));
}

#[test]
fn misses_over_a_warm_server_are_counted() {
    let clean = Recording::read("windows.jsonl");
    let judged = judged(&Recording::read("warm-server.jsonl"));
    let mut clean_ratio: BTreeMap<String, f64> = BTreeMap::new();
    for window in clean.windows.iter().filter(|window| window.kind == RunKind::Measured) {
        let key = format!("{} {} {}", window.model, window.case, window.environment.hard.allocator);
        let largest = clean_ratio.entry(key).or_insert(0.0);
        *largest = ratio(window).max(*largest);
    }
    // Sizes that only the warm server ran are held against their own best run there.
    let mut best_ratio: BTreeMap<String, f64> = BTreeMap::new();
    let key_of = |window: &Window| format!("{} {} {}", window.model, window.case, window.environment.hard.allocator);
    for (window, _) in &judged {
        let best = best_ratio.entry(key_of(window)).or_insert(f64::INFINITY);
        *best = ratio(window).min(*best);
    }
    let (mut beside_clean, mut swollen, mut missed) = (0, 0, Vec::new());
    for (window, verdict) in &judged {
        let key = key_of(window);
        let clean = clean_ratio.get(&key);
        beside_clean += usize::from(clean.is_some());
        let growth = ratio(window) / clean.unwrap_or(&best_ratio[&key]);
        swollen += usize::from(growth > 1.10);
        if growth > 1.10 && verdict.counts() {
            missed.push(format!("{key}: {growth:.3}"));
        }
        eprintln!("warm: {key}: {:.3}, {growth:.3} of clean, counts {}", ratio(window), verdict.counts());
    }
    let caught = flagged(&judged).len();
    eprintln!(
        "fragmentation: {caught} of {} warm windows flagged; {beside_clean} have clean ones beside them; {swollen} grew over \
         1.10, missed: {missed:?}",
        judged.len()
    );
    assert_eq!((caught, judged.len(), beside_clean, swollen, missed.len()), (0, 36, 18, 1, 1));
}

/// The counted windows of every line, per allocator; pooled over the families that share a line, or family by
/// family.
fn sampled_lines(recording: &Recording, pooled: bool) -> Vec<(AllocatorKind, SampledLine)> {
    let mut lines: BTreeMap<(AllocatorKind, String), Vec<Sample>> = BTreeMap::new();
    for (window, _) in judged(recording).iter().filter(|(_, verdict)| verdict.counts()) {
        let family = if pooled { "" } else { window.model.as_str() };
        let key = (window.environment.hard.allocator, format!("{family} {}", window.line));
        lines.entry(key).or_default().push(Sample { point: Point::from(window), predicted_bytes: None });
    }
    let terms = |allocator: AllocatorKind| PredictionTerms {
        step_bytes: allocator.growth_step_bytes(),
        is_upper_bound: allocator == AllocatorKind::CudaMallocAsync,
    };
    lines
        .into_iter()
        .map(|((allocator, name), samples)| {
            (allocator, SampledLine { name: format!("{name} {allocator}"), predictions: terms(allocator), samples })
        })
        .collect()
}

fn held_out(pooled: bool) -> Vec<(AllocatorKind, HeldOut)> {
    let lines = sampled_lines(&Recording::read("windows.jsonl"), pooled);
    lines
        .iter()
        .flat_map(|(allocator, line)| {
            leave_one_size_out(line, Method::Envelope).into_iter().map(|sample| (*allocator, sample))
        })
        .collect()
}

fn print(name: &str, score: &Score) {
    eprintln!(
        "{name}: {} under of {}, upper bound {:.1} %, up to {:.1} % short; over: median {:.1} %, p95 {:.1} %, worst {:.1} %",
        score.under,
        score.held_out,
        100.0 * score.under_rate_upper,
        100.0 * score.worst_short_share,
        100.0 * score.over_p50,
        100.0 * score.over_p95,
        100.0 * score.over_worst,
    );
}

fn is_autoencoder(sample: &HeldOut) -> bool {
    sample.line.contains("vae_")
}

#[test]
fn every_counted_window_lies_on_or_under_its_line() {
    let (mut lines, mut windows) = (0, 0);
    for (_, line) in sampled_lines(&Recording::read("windows.jsonl"), true) {
        let points: Vec<Point> = line.samples.iter().map(|sample| sample.point).collect();
        let Ok(fit) = fit(&points) else { continue };
        lines += 1;
        for point in &points {
            windows += 1;
            assert!(point.remainder_bytes() <= fit.coefficients.bytes_at(point.units), "{}", line.name);
        }
    }
    eprintln!("envelope: {windows} counted windows of {lines} lines, none above its line");
    assert!(lines > 20 && windows > 250);
}

#[test]
fn native_and_expandable_lines_hold_for_sizes_they_never_saw_inside_the_range() {
    for (allocator, sample) in held_out(true).iter().filter(|(_, sample)| sample.inside) {
        assert!(*allocator == AllocatorKind::CudaMallocAsync || !sample.is_under(), "{sample:?}");
    }
}

#[test]
fn the_envelope_is_scored_on_sizes_it_never_saw() {
    let scored = |pooled: bool, keep: &dyn Fn(&AllocatorKind, &HeldOut) -> bool| {
        let samples = held_out(pooled);
        Score::of(samples.iter().filter(|(allocator, sample)| keep(allocator, sample)).map(|(_, sample)| sample))
            .unwrap()
    };
    for allocator in AllocatorKind::ALL {
        let score = scored(true, &|of, sample| *of == allocator && is_autoencoder(sample));
        print(&format!("autoencoders, shared lines, {allocator}"), &score);
    }
    let shared = scored(true, &|_, sample| is_autoencoder(sample));
    print("autoencoders, shared lines", &shared);
    assert_eq!((shared.under, shared.held_out), (2, 220));
    let apart = scored(false, &|_, sample| is_autoencoder(sample));
    print("autoencoders, each model by itself", &apart);
    assert_eq!((apart.under, apart.held_out), (6, 220));
    let others = scored(false, &|of, sample| *of != AllocatorKind::CudaMallocAsync && is_autoencoder(sample));
    assert_eq!(others.under, 0, "all of them are of the stream-ordered pool");
    let denoise = scored(true, &|_, sample| !is_autoencoder(sample));
    print("UNet denoise, all three allocators", &denoise);
    assert_eq!((denoise.under, denoise.held_out), (10, 24));
    print("every line with four sizes", &scored(true, &|_, _| true));
}
