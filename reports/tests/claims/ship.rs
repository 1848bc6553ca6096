//! The shipped data is built from recordings and published figures: complete, in any order, and never silently less.

use std::collections::BTreeSet;

use crate::recorded::{h200, provenance, published, versions};
use headroom_base::{AllocatorKind, AttemptId, AttentionKernel, Backend, DeviceClass, GIB, Origin};
use headroom_calibration::{Attempt, Point, Shipped};
use headroom_reports::ship::{Built, ChangeKind, LeftOut, Refusal, Rules, build, changes, gone, outdated, refusals};
use headroom_reports::{Report, Trust};

crate::claims![
    the_recordings_make_lines_for_all_three_allocators,
    every_counted_window_lies_on_or_under_its_line_before_the_margin,
    the_bytes_are_the_same_whatever_the_order_and_however_often_a_report_comes,
    other_hard_environments_are_lines_of_their_own,
    a_line_says_where_each_of_its_numbers_comes_from,
    an_envelope_is_over_all_devices,
    simulated_untrusted_and_withdrawn_windows_are_behind_no_line_and_say_so,
    a_copy_that_is_withdrawn_withdraws_the_report,
    two_different_reports_of_one_name_are_refused,
    attempts_of_one_name_on_two_machines_are_judged_apart,
    only_a_finished_attempt_is_shipped,
    windows_of_no_calibration_change_no_line_and_are_said_to_be_left_out,
    nothing_is_refused_where_nothing_changes_or_lines_are_new,
    a_lost_device_is_refused_and_named,
    a_drop_below_a_measured_point_is_refused,
    a_change_beyond_the_set_share_is_refused_and_one_within_it_is_not,
    a_machine_far_from_the_others_is_named_and_the_others_are_not,
    what_is_said_of_a_machine_tells_its_allocators_apart,
    windows_left_out_for_one_kind_of_reason_are_of_one_kind,
    clean_windows_left_out_as_fragmented_are_named_where_they_lie_above_the_line,
    checking_compares_bytes_and_names_the_files_that_differ,
    the_versions_of_the_program_decide,
];

fn rules(reports: &[Report]) -> Rules {
    let windows = reports.iter().flat_map(|report| &report.windows);
    Rules::new(headroom_calibration::EstimatorVersions::newest_of(windows.map(|record| &record.window.line)))
}

fn built(reports: &[Report]) -> Built {
    build(reports, &rules(reports)).expect("reports of different names")
}

fn texts(built: &Built) -> Vec<String> {
    built.files.iter().map(Shipped::to_json).collect()
}

/// A report as another machine would write it: another card, another id, other demands.
fn other_machine(report: &Report, id: &str, card: &str, permille: u64) -> Report {
    let mut other = report.clone();
    let device = DeviceClass::new(card, 48 * GIB, Backend::Cuda);
    other.provenance = vec![provenance(id, Trust::Contributed)];
    for record in &mut other.attempts {
        record.report_id = id.into();
        record.device_uuid_hash = Some(format!("hash of {id}"));
        record.attempt.device = device.clone();
    }
    for record in &mut other.windows {
        record.window.device = device.clone();
        let measurement = &mut record.window.measurement;
        for bytes in [&mut measurement.deltas.reserved_peak_bytes, &mut measurement.deltas.allocated_peak_bytes] {
            *bytes = *bytes * permille / 1000;
        }
        measurement.deltas.driver_bytes = headroom_base::Reading::Unknown;
        measurement.demand_bytes = measurement.deltas.demand_bytes();
    }
    other
}

fn windows_of_no_calibration_change_no_line_and_are_said_to_be_left_out() {
    let (here, mut tried) = (h200(), h200());
    // Beside each window that counts one of another size that needs three times as much: it would raise its line.
    tried.windows.extend(here.windows.iter().filter(|record| record.counting.counts()).cloned().map(|mut record| {
        record.window.attempt_id = None;
        record.window.cost_units += record.window.cost_units / 2;
        record.window.measurement.demand_bytes *= 3;
        record
    }));
    let added = tried.windows.len() - here.windows.len();
    let [before, after] = [here, tried].map(|report| built(&[report]));
    assert_eq!((texts(&after), after.outliers.len()), (texts(&before), before.outliers.len()));
    let new = after.left_out.iter().filter(|(why, _)| !before.left_out.contains_key(why));
    let new: Vec<(String, usize)> = new.map(|(why, count)| (why.to_string(), *count)).collect();
    assert!(added > 100 && new == [("it belongs to no calibration".to_owned(), added)], "{new:?}");
}

/// The windows under the native allocator alone, whose lines are straight enough to scale as a whole.
fn native(mut report: Report) -> Report {
    report.windows.retain(|record| record.window.environment.hard.allocator == AllocatorKind::Native);
    report
}

fn shuffled(report: &Report) -> Report {
    let mut report = report.clone();
    report.windows.sort_by_key(|record| (record.window.run.wrapping_mul(2_654_435_761), record.window.model.clone()));
    report.attempts.reverse();
    report.devices.reverse();
    report
}

fn the_recordings_make_lines_for_all_three_allocators() {
    let built = built(&[h200()]);
    let names: Vec<_> = built.files.iter().map(|file| Shipped::file_name(file.backend, file.allocator)).collect();
    assert_eq!(names, ["cuda-native.json", "cuda-expandable_segments.json", "cuda-cuda_malloc_async.json"]);
    for file in &built.files {
        let lines: BTreeSet<String> = file
            .lines
            .iter()
            .filter(|line| line.environment.attention == AttentionKernel::Fused && line.line.tiling.is_none())
            .map(|line| line.line.to_string())
            .collect();
        for line in [
            "autoencoder_kl v1 vae_decode fp16",
            "autoencoder_kl v1 vae_decode fp32",
            "autoencoder_kl v1 vae_encode fp16",
            "autoencoder_kl v1 vae_encode fp32",
            "autoencoder_kl_qwen_image v1 vae_decode bf16",
            "autoencoder_kl_qwen_image v1 vae_encode bf16",
            "unet_sdxl v1 denoise fp16",
        ] {
            assert!(lines.contains(line), "{line} is not among {lines:?}");
        }
        // These two were recorded under the native allocator alone.
        for line in ["autoencoder_kl v1 vae_decode bf16", "autoencoder_kl v1 vae_encode bf16"] {
            assert_eq!(lines.contains(line), file.allocator == AllocatorKind::Native, "{line}");
        }
    }
}

fn every_counted_window_lies_on_or_under_its_line_before_the_margin() {
    let reports = [h200(), published().report];
    let built = built(&reports);
    let (mut under, mut checked) = (0, 0);
    for window in reports.iter().flat_map(|report| &report.windows).filter(|record| record.counting.counts()) {
        let window = &window.window;
        let lines = built.files.iter().flat_map(|file| &file.lines);
        for line in lines.filter(|line| line.line == window.line && line.environment == window.environment.hard) {
            checked += 1;
            under += u32::from(line.coefficients.bytes_at(window.cost_units) < Point::from(window).remainder_bytes());
        }
    }
    assert_eq!(under, 0, "of {checked}");
    assert!(checked > 450, "{checked}");
}

fn the_bytes_are_the_same_whatever_the_order_and_however_often_a_report_comes() {
    let (first, second, third) = (h200(), other_machine(&h200(), "other", "RTX 4090", 980), published().report);
    let straight = built(&[first.clone(), second.clone(), third.clone()]);
    let merged = headroom_reports::merge::merge(&[second.clone(), first.clone()]).unwrap();
    for reports in [
        vec![third.clone(), second.clone(), first.clone()],
        vec![shuffled(&second), shuffled(&third), shuffled(&first)],
        vec![first.clone(), second.clone(), first.clone(), third.clone()],
        vec![merged.clone(), third.clone()],
        vec![third.clone(), first.clone(), merged],
    ] {
        let again = built(&reports);
        assert_eq!(texts(&again), texts(&straight));
        assert_eq!(again.left_out, straight.left_out);
    }
    for text in texts(&straight) {
        assert_eq!(Shipped::parse(&text).unwrap().to_json(), text);
    }
}

fn other_hard_environments_are_lines_of_their_own() {
    let built = built(&[h200()]);
    let decode = |attention, layout| {
        let lines = built.files.iter().flat_map(|file| &file.lines);
        lines
            .filter(|line| line.line.to_string() == "autoencoder_kl v1 vae_decode fp16")
            .filter(|line| line.environment.allocator == AllocatorKind::Native)
            .filter(|line| !line.environment.convolution_benchmark)
            .find(|line| line.environment.attention == attention && line.environment.memory_layout == layout)
            .cloned()
            .expect("a line of its own")
    };
    use headroom_base::MemoryLayout::{ChannelsLast, Contiguous};
    let (usual, math) = (decode(AttentionKernel::Fused, Contiguous), decode(AttentionKernel::Math, Contiguous));
    let largest = |line: &headroom_calibration::ShippedLine| line.coefficients.bytes_at(1536 * 1536 * 2);
    assert!(largest(&math) * 5 > largest(&usual) * 6, "{} and {}", largest(&math), largest(&usual));
    assert_ne!(decode(AttentionKernel::Fused, ChannelsLast).coefficients, usual.coefficients);
    assert!(usual.windows > math.windows);
}

fn a_line_says_where_each_of_its_numbers_comes_from() {
    let built = built(&[h200(), published().report]);
    let file = &built.files[0];
    let published = file.lines.iter().find(|line| line.sources.iter().any(|s| s.origin == Origin::Published));
    let published = published.expect("published figures have three sizes somewhere");
    assert!(published.sources[0].text.contains("https://"), "{:?}", published.sources);
    let recorded = file.lines.iter().find(|line| line.sources.iter().any(|s| s.origin == Origin::Recorded)).unwrap();
    assert!(recorded.sources[0].text.contains("report h200 (maintainer)"), "{:?}", recorded.sources);
    for line in &file.lines {
        assert_eq!(line.windows, line.sizes.iter().map(|size| size.windows).sum::<usize>());
        assert_eq!(line.windows, line.sources.iter().map(|source| source.windows).sum::<usize>());
        assert!(line.sizes.len() >= 3);
    }
}

fn an_envelope_is_over_all_devices() {
    let (here, there) = (h200(), other_machine(&h200(), "other", "RTX 4090", 1_200));
    let (alone, both) = (built(std::slice::from_ref(&here)), built(&[here, there]));
    let units = 1024 * 1024 * 2;
    for (alone, both) in alone.files[0].lines.iter().zip(&both.files[0].lines) {
        assert_eq!(alone.line, both.line);
        assert!(both.coefficients.bytes_at(units) >= alone.coefficients.bytes_at(units), "{}", both.line);
        assert_eq!(both.windows, 2 * alone.windows);
        assert_eq!(both.sources.iter().map(|source| &source.device).collect::<BTreeSet<_>>().len(), 2);
    }
}

fn simulated_untrusted_and_withdrawn_windows_are_behind_no_line_and_say_so() {
    let (here, mut simulated) = (h200(), other_machine(&h200(), "simulated", "RTX 4090", 3_000));
    for record in &mut simulated.windows {
        record.window.origin = Origin::Simulated;
    }
    let contributed = other_machine(&h200(), "contributed", "RTX 3090", 3_000);
    let mut withdrawn = other_machine(&h200(), "withdrawn", "RTX 3080", 3_000);
    withdrawn.provenance[0].withdrawn = Some("wrong driver".into());
    let listed = other_machine(&h200(), "listed", "RTX 3070", 3_000);
    let alone = built(std::slice::from_ref(&here));
    let all = [here, simulated, contributed, withdrawn, listed];
    let mut strict = rules(&all);
    strict.trusted.remove(&Trust::Contributed);
    strict.withdrawn.insert("listed".into(), "wrong card".into());
    let all_built = build(&all, &strict).unwrap();
    assert_eq!(texts(&all_built), texts(&alone));
    let counted = alone.files.iter().flat_map(|file| &file.lines).map(|line| line.windows).sum::<usize>();
    for reason in [
        LeftOut::Simulated,
        LeftOut::Untrusted(Trust::Contributed),
        LeftOut::Withdrawn("wrong driver".into()),
        LeftOut::Withdrawn("wrong card".into()),
    ] {
        assert!(all_built.left_out[&reason] >= counted, "{reason}: {:?}", all_built.left_out);
    }
}

fn a_copy_that_is_withdrawn_withdraws_the_report() {
    let (here, other) = (h200(), other_machine(&h200(), "other", "RTX 4090", 2_000));
    let mut withdrawn = other.clone();
    withdrawn.provenance[0].withdrawn = Some("wrong card".into());
    let alone = built(std::slice::from_ref(&here));
    assert_eq!(texts(&built(&[here.clone(), other.clone(), withdrawn.clone()])), texts(&alone));
    assert_eq!(texts(&built(&[withdrawn, other, here])), texts(&alone));
}

fn two_different_reports_of_one_name_are_refused() {
    let here = h200();
    let mut changed = here.clone();
    changed.windows[7].window.measurement.demand_bytes += 1;
    for (first, second) in [(&here, &changed), (&changed, &here)] {
        let reports = [first.clone(), second.clone()];
        let error = build(&reports, &rules(&reports)).unwrap_err().to_string();
        assert!(error.contains("`h200`"), "{error}");
    }
    let mut moved = here.clone();
    moved.provenance[0].commit = Some("another".into());
    assert!(build(&[here.clone(), moved], &rules(&[here])).is_err());
    assert!(build(&[], &Rules::new(Default::default())).is_err());
}

fn attempts_of_one_name_on_two_machines_are_judged_apart() {
    // The other machine's smallest size is twice as fragmented; pooled, it would hide or flag the rest.
    let (here, other) = (h200(), other_machine(&h200(), "other", "RTX 4090", 1_000));
    assert_eq!(here.attempts[0].attempt.id, other.attempts[0].attempt.id);
    let merged = headroom_reports::merge::merge(&[here.clone(), other]).unwrap();
    assert_eq!(merged.attempts.len(), 2 * here.attempts.len());
    let ids: BTreeSet<&AttemptId> = merged.windows.iter().filter_map(|r| r.window.attempt_id.as_ref()).collect();
    let known: BTreeSet<&AttemptId> = merged.attempts.iter().map(|record| &record.attempt.id).collect();
    assert_eq!(ids, known);
    assert_eq!(merged.windows.len(), 2 * here.windows.len());
}

fn clean_windows_left_out_as_fragmented_are_named_where_they_lie_above_the_line() {
    let built = built(&[h200()]);
    let flagged: usize =
        built.left_out.iter().filter(|(reason, _)| reason.kind() == "fragmented").map(|(_, windows)| windows).sum();
    let lines = || built.files.iter().flat_map(|file| &file.lines);
    let above = lines().flat_map(|line| line.left_out_above.iter().map(move |size| (line, size)));
    let (mut windows, mut most) = (0, 0);
    for (line, size) in above {
        assert!(size.largest_remainder_bytes > line.reserved_bytes(size.units), "{}", line.line);
        windows += size.windows;
        most = most.max(size.largest_remainder_bytes - line.reserved_bytes(size.units));
    }
    assert!(windows > 0 && windows < flagged, "{windows} of {flagged}");
    assert!(most > 1 << 30, "{most}");
    // What a report that nobody trusts left out is behind no line.
    let untrusted = Report { provenance: vec![provenance("h200", Trust::Contributed)], ..h200() };
    let rules = Rules { trusted: [Trust::Ci].into(), ..rules(std::slice::from_ref(&untrusted)) };
    assert!(build(&[untrusted], &rules).unwrap().files.iter().all(|file| file.lines.is_empty()));
}

fn only_a_finished_attempt_is_shipped() {
    let mut stopped = h200();
    for record in &mut stopped.attempts {
        let attempt = &record.attempt;
        let running = Attempt { state: headroom_calibration::AttemptState::Running, ..attempt.clone() };
        record.attempt = running;
        record.attempt.stop(1).unwrap();
    }
    let built = built(&[stopped]);
    assert_eq!(built.files.iter().map(|file| file.lines.len()).sum::<usize>(), 0);
}

fn nothing_is_refused_where_nothing_changes_or_lines_are_new() {
    let here = built(&[h200()]);
    assert!(changes(&here.files, &here.files).is_empty());
    assert!(refusals(&here.files, &here.files, 10).is_empty());
    let added = changes(&[], &here.files);
    assert!(added.iter().all(|change| matches!(change.kind, ChangeKind::Added { .. })) && !added.is_empty());
    assert!(refusals(&[], &here.files, 10).is_empty());
}

fn a_lost_device_is_refused_and_named() {
    let (here, other) = (h200(), other_machine(&h200(), "other", "RTX 4090", 999));
    let (both, alone) = (built(&[here.clone(), other]), built(&[here]));
    let refused = refusals(&both.files, &alone.files, 10);
    assert!(refused.iter().all(|r| matches!(r, Refusal::LosesDevice { device, .. } if device.name == "RTX 4090")));
    let lines = both.files.iter().map(|file| file.lines.len()).sum::<usize>();
    assert_eq!(refused.len(), lines);
    let gone = refusals(&both.files, &[], 10);
    assert_eq!(gone.len(), 2 * lines);
    assert!(changes(&both.files, &alone.files).iter().any(|change| change.to_string().contains("without RTX 4090")));
}

fn a_drop_below_a_measured_point_is_refused() {
    let (high, low) = (other_machine(&h200(), "a", "RTX 4090", 1_000), other_machine(&h200(), "b", "RTX 4090", 950));
    let (before, after) = (built(&[high]), built(&[low]));
    let refused = refusals(&before.files, &after.files, 10);
    let below = refused.iter().filter(|refusal| matches!(refusal, Refusal::BelowMeasured { .. })).count();
    assert_eq!(below, before.files.iter().map(|file| file.lines.len()).sum::<usize>());
    assert!(refusals(&after.files, &before.files, 10).is_empty(), "a rise of 5 % is no drop");
}

fn a_change_beyond_the_set_share_is_refused_and_one_within_it_is_not() {
    let here = native(h200());
    let (low, high) = (other_machine(&here, "a", "RTX 4090", 1_000), other_machine(&here, "b", "RTX 4090", 1_080));
    let (before, after) = (built(&[low]), built(&[high]));
    assert!(refusals(&before.files, &after.files, 10).is_empty());
    let refused = refusals(&before.files, &after.files, 5);
    assert!(!refused.is_empty());
    assert!(refused.iter().all(|refusal| matches!(refusal, Refusal::ChangesTooMuch { limit_percent: 5, .. })));
    let moved = changes(&before.files, &after.files);
    assert!(moved.iter().any(|change| change.to_string().contains("+8.0 %")), "{}", moved[0]);
}

fn a_machine_far_from_the_others_is_named_and_the_others_are_not() {
    let machines: Vec<Report> = [1_000, 1_010, 990, 1_005, 1_600]
        .into_iter()
        .enumerate()
        .map(|(number, permille)| other_machine(&h200(), &format!("m{number}"), "RTX 4090", permille))
        .collect();
    let named: BTreeSet<String> =
        built(&machines).outliers.into_iter().map(|outlier| outlier.machine.report_id).collect();
    assert_eq!(named, BTreeSet::from(["m4".to_owned()]));
    assert!(built(&machines[..4]).outliers.is_empty());
    assert!(built(&machines[3..]).outliers.is_empty(), "of two machines nobody knows which is the odd one");
}

fn what_is_said_of_a_machine_tells_its_allocators_apart() {
    let machine = |(number, permille)| other_machine(&h200(), &format!("m{number}"), "RTX 4090", permille);
    let machines: Vec<Report> = [1_000, 1_010, 990, 1_005, 1_600].into_iter().enumerate().map(machine).collect();
    let said: Vec<String> = built(&machines).outliers.iter().map(ToString::to_string).collect();
    let distinct: BTreeSet<&String> = said.iter().collect();
    assert_eq!(distinct.len(), said.len(), "{said:#?}");
    assert!(said.iter().any(|text| text.contains("cuda expandable_segments")), "{said:#?}");
}

fn windows_left_out_for_one_kind_of_reason_are_of_one_kind() {
    let left_out = built(&[h200()]).left_out;
    let kinds: BTreeSet<String> = left_out.keys().map(LeftOut::kind).collect();
    assert!(kinds.len() < left_out.len(), "{left_out:#?}");
    assert!(kinds.iter().all(|kind| !kind.contains(|c: char| c.is_ascii_digit())), "{kinds:?}");
}

fn checking_compares_bytes_and_names_the_files_that_differ() {
    let here = built(&[h200()]);
    let mut standing: Vec<(String, String)> =
        here.files.iter().map(|f| (Shipped::file_name(f.backend, f.allocator), f.to_json())).collect();
    assert!(outdated(&here.files, &standing).is_empty());
    standing[1].1 = standing[1].1.replacen("\"windows\": ", "\"windows\": 1", 1);
    standing[2].1 = standing[2].1.replace('\n', "\r\n");
    standing.push(("rocm-native.json".into(), String::new()));
    standing.push(("notes.json".into(), String::new()));
    assert_eq!(gone(&here.files, &standing), ["rocm-native.json"]);
    assert_eq!(outdated(&here.files, &standing), [standing[1].0.as_str(), "rocm-native.json"]);
    assert_eq!(outdated(&here.files, &[]).len(), here.files.len());
}

fn the_versions_of_the_program_decide() {
    let here = h200();
    let newer: headroom_calibration::EstimatorVersions = [("autoencoder_kl".to_owned(), 2_u32)].into_iter().collect();
    assert!(versions(&here).is_current(&here.windows[0].window.line));
    let built = build(&[here], &Rules::new(newer)).unwrap();
    assert_eq!(built.files.iter().map(|file| file.lines.len()).sum::<usize>(), 0);
}
