//! Published figures become windows with their source and its doubts, or are listed as saying too little.

use std::collections::BTreeSet;

use crate::recorded::{data, price, published};
use headroom_base::{AttentionKernel, InvalidReason, MIB, Origin, Validity};
use headroom_reports::Trust;
use headroom_reports::import_public::import_public;

crate::claims![
    every_row_is_a_window_or_is_listed_with_the_reason,
    each_source_has_a_provenance_of_its_own_labelled_published,
    what_a_source_takes_back_or_infers_does_not_count,
    a_published_figure_keeps_its_bytes_and_its_card,
    a_cell_that_cannot_be_read_is_named_with_file_line_and_column,
];

fn every_row_is_a_window_or_is_listed_with_the_reason() {
    let published = published();
    assert_eq!(published.report.windows.len() + published.left_out.len(), 105);
    let reasons: Vec<_> = ["the card or its memory", "the allocator", "the reserved bytes"]
        .into_iter()
        .map(|reason| published.left_out.iter().filter(|row| row.reason.starts_with(reason)).count())
        .collect();
    assert_eq!(reasons, [9, 6, 1]);
    for record in &published.report.windows {
        assert_eq!(record.window.origin, Origin::Published);
        assert!(record.note.is_some());
    }
}

fn each_source_has_a_provenance_of_its_own_labelled_published() {
    let report = published().report;
    let sources: BTreeSet<_> = report.provenance.iter().map(|from| from.report_id.as_str()).collect();
    assert_eq!(sources.len(), report.provenance.len());
    assert!(report.provenance.iter().all(|from| from.trust == Trust::Published));
    assert!(report.attempts.iter().all(|attempt| sources.contains(attempt.report_id.as_str())));
    assert!(sources.iter().all(|source| source.starts_with("https://")));
}

fn what_a_source_takes_back_or_infers_does_not_count() {
    let report = published().report;
    let mut doubtful = 0;
    for record in &report.windows {
        let note = record.note.clone().unwrap().to_lowercase();
        let doubted = note.contains("inferred") || note.contains("anomaly") || record.window.case.tiling.is_some();
        if doubted {
            doubtful += 1;
            let validity = &record.window.measurement.validity;
            assert!(matches!(validity, Validity::Invalid(InvalidReason::Unclear { .. })), "{note}");
            assert!(!record.counting.counts());
            assert!(record.excluded_reason.as_ref().unwrap().contains("leaves open"));
        }
    }
    assert_eq!(doubtful, 4 + 11, "4 inferred, 11 tiled");
    assert_eq!(report.windows.iter().filter(|record| record.counting.counts()).count(), 69);
}

fn a_published_figure_keeps_its_bytes_and_its_card() {
    let report = published().report;
    let found = report
        .windows
        .iter()
        .find(|r| r.window.model == "flux" && r.window.case.to_string() == "vae_decode fp16 768x768")
        .expect("a row of the table");
    assert_eq!(found.window.device.to_string(), "NVIDIA GeForce RTX 4090 24 GiB cuda");
    assert_eq!(found.window.measurement.demand_bytes, 2_376 * MIB);
    assert_eq!(found.window.measurement.deltas.allocated_peak_bytes, 1_285_849_088);
    assert_eq!(found.window.environment.hard.framework, "torch 2.7.1+cu128");
    let with_weights = report.windows.iter().filter(|r| r.note.as_ref().unwrap().contains("absolute peak incl."));
    for record in with_weights {
        assert_eq!(record.window.measurement.demand_bytes, record.window.measurement.deltas.reserved_peak_bytes);
    }
    let math = report.windows.iter().filter(|r| r.window.environment.hard.attention == AttentionKernel::Math);
    assert_eq!(math.count(), 3);
}

fn a_cell_that_cannot_be_read_is_named_with_file_line_and_column() {
    let text = std::fs::read_to_string(data("public/measurements.csv")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let broken = |right: &str, wrong: &str| {
        let changed = lines[2].replacen(right, wrong, 1);
        assert_ne!(changed, lines[2], "{right}");
        let text = [lines[0], lines[1], &changed, lines[3]].join("\n");
        import_public("figures.csv", &text, &price).unwrap_err().to_string()
    };
    for (right, wrong, column) in
        [("vae_decode", "vae_decod", "operation"), (",fp16,", ",fp61,", "dtype"), (",cuda,", ",coda,", "backend")]
    {
        let error = broken(right, wrong);
        assert!(error.contains(&format!("figures.csv, line 3, column `{column}`")), "{error}");
    }
    let error = broken(",512,512,", ",wide,512,");
    assert!(error.contains("figures.csv") && error.contains("line: 3"), "{error}");
    assert!(import_public("x.csv", "a,b\n1,2\n", &price).is_err());
}
