//! The page is whole in itself, its columns line up, and nothing from outside is markup in it.

use crate::recorded::h200;
use headroom_base::{AllocatorKind, Case, DType, Estimate, Operation, Origin, Source};
use headroom_calibration::{Coefficients, UnitRange};
use headroom_reports::html::{Replay, ReplayRow};
use headroom_reports::snapshot::{self, Moment};
use headroom_reports::{
    Check, EstimateRecord, FamilySummary, FitRecord, MutantGrade, MutantReport, Outcome, Report, html,
};

crate::claims![
    a_replay_page_shows_every_setting_what_is_stranded_and_every_peak,
    the_page_needs_nothing_beside_it,
    nothing_from_outside_is_markup,
    every_row_has_a_cell_for_every_column,
    a_line_is_drawn_with_its_points_and_both_fits_and_every_other_line_with_its_points,
    what_is_not_covered_and_what_failed_stand_out_and_the_two_kinds_of_coverage_stand_apart,
];

const HOSTILE: &str = "</td><script>alert(1)</script>\" onload='x' &amp;";

/// The recordings with a family's section, its fits and estimates taken from one of their lines.
fn report() -> Report {
    let mut report = h200();
    let window = report
        .windows
        .iter()
        .map(|record| record.window.clone())
        .find(|w| w.model == "sdxl" && w.environment.hard.allocator == AllocatorKind::Native && w.case.tiling.is_none())
        .unwrap();
    let fit = FitRecord {
        line: window.line.clone(),
        environment: window.environment.clone(),
        range: UnitRange { least_units: 524_288, largest_units: 4_718_592 },
        user: Coefficients::new(83 << 20, 2_113, 1),
        built_in: Coefficients::new(120 << 20, 2_300, 1),
    };
    let estimate = |side: u32, demand_bytes, origin| EstimateRecord {
        case: Case::image(Operation::VaeDecode, DType::Fp16, side, side),
        line: window.line.clone(),
        cost_units: u64::from(side) * u64::from(side) * 2,
        environment: window.environment.clone(),
        estimate: Estimate::new(0, 1 << 30, Source::User),
        demand_bytes,
        demand_origin: origin,
    };
    report.families.push(FamilySummary {
        family: "sdxl".into(),
        device: "h200".into(),
        class: window.device.clone(),
        simulated: false,
        plans: Vec::new(),
        fits: vec![fit],
        estimates: vec![
            estimate(512, Some(1 << 30), Some(Origin::Recorded)),
            estimate(1024, Some(2 << 30), Some(Origin::Simulated)),
            estimate(2048, None, None),
        ],
    });
    report.trials.push(Check {
        family: HOSTILE.into(),
        device: HOSTILE.into(),
        check: HOSTILE.into(),
        outcome: Outcome::Failed,
        message: Some(format!("{HOSTILE}\u{1b}[31m")),
        notes: vec![HOSTILE.into()],
        seconds: 1.0,
        report_id: None,
    });
    report.mutants = Some(MutantReport {
        grades: vec![MutantGrade {
            name: HOSTILE.into(),
            harm: HOSTILE.into(),
            killed_by: Vec::new(),
            reached_by: vec![HOSTILE.into()],
            ..MutantGrade::default()
        }],
    });
    report.provenance[0].arguments.push(HOSTILE.into());
    report.windows[0].window.model = HOSTILE.into();
    report
}

fn the_page_needs_nothing_beside_it() {
    let page = html::to_html(&report());
    for word in ["<script", "<link", "src=", "url(", "@import", "http://", "https://", "<iframe", "<img"] {
        assert!(!page.to_lowercase().contains(word), "{word}");
    }
    assert!(page.contains("prefers-color-scheme: dark"));
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
}

fn nothing_from_outside_is_markup() {
    let page = html::to_html(&report());
    assert!(!page.contains("alert(1)</script>") && !page.contains("onload='x'") && !page.contains('\u{1b}'));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot; onload=&#39;x&#39; &amp;amp;"));
}

fn every_row_has_a_cell_for_every_column() {
    let page = html::to_html(&report());
    let tables: Vec<&str> = page.split("<table>").skip(1).map(|rest| rest.split("</table>").next().unwrap()).collect();
    assert!(tables.len() >= 6, "{}", tables.len());
    for table in tables {
        let columns = table.matches("<th ").count();
        for row in table.split("<tr>").skip(2) {
            assert_eq!(row.matches("<td").count(), columns, "{row}");
        }
        let right: Vec<bool> =
            table.split("<th ").skip(1).map(|th| th.split('>').next().unwrap().contains("number")).collect();
        let row = table.split("<tr>").nth(2).unwrap();
        let cells: Vec<bool> = row.split("<td").skip(1).map(|td| td.starts_with(" class=\"number\"")).collect();
        assert_eq!(cells, right, "a column's cells stand under its header");
    }
}

fn a_line_is_drawn_with_its_points_and_both_fits_and_every_other_line_with_its_points() {
    let report = report();
    let page = html::to_html(&report);
    let figures: Vec<&str> = page.split("<figure>").skip(1).collect();
    let fitted = figures.iter().find(|figure| figure.contains("class=\"user\"")).expect("a fitted line");
    assert!(fitted.contains("class=\"shipped\"") && fitted.contains("class=\"counted\""));
    assert!(fitted.contains("class=\"uncounted\"") && fitted.contains("does not count: warm-up run"));
    let places: std::collections::BTreeSet<_> = report
        .windows
        .iter()
        .map(|record| (&record.window.device, &record.window.line, &record.window.environment.hard))
        .collect();
    assert_eq!(figures.len(), places.len());
    let dots = page.matches("<circle").count();
    assert_eq!(dots, report.windows.len());
}

fn what_is_not_covered_and_what_failed_stand_out_and_the_two_kinds_of_coverage_stand_apart() {
    let page = html::to_html(&report());
    assert!(page.contains("<span class=\"bad\">too little</span>"));
    assert!(page.contains("0 of 1 simulated, 1 of 1") && page.contains("recorded"));
    assert!(page.contains("<span class=\"bad\">something does not hold</span>"));
    assert!(page.contains("<span class=\"bad\">survived</span>"));
    assert!(page.contains("<span class=\"muted\">unknown</span>"));
}

fn a_replay_page_shows_every_setting_what_is_stranded_and_every_peak() {
    let snapshot = snapshot::read(&crate::recorded::data("h200/snapshot-oom-native.pickle.gz")).unwrap();
    let (moments, stranded) = (snapshot.timeline(0), snapshot.stranded(0));
    let row = |name: &str, reserved_peak_bytes, runs_out, is_bound: bool| ReplayRow {
        name: name.into(),
        environment: format!("PYTORCH_ALLOC_CONF={name}"),
        allocated_peak_bytes: 1 << 30,
        reserved_peak_bytes,
        least_capacity_bytes: (!is_bound).then_some(reserved_peak_bytes),
        runs_out,
        is_bound,
    };
    let rows = [row("native", 10 << 30, Some(true), false), row(HOSTILE, 8 << 30, Some(false), true)];
    let page = html::replay_page(&Replay {
        title: HOSTILE,
        warnings: &snapshot.warnings().iter().map(ToString::to_string).collect::<Vec<_>>(),
        moments: &moments,
        rows: &rows,
        memory_bytes: Some(9 << 30),
        stranded: Some(&stranded),
    });
    assert!(!page.contains("<script") && !page.contains("https://"));
    assert_eq!(page.matches("<rect").count(), 2);
    assert_eq!((page.matches("class=\"bar-bad\"").count(), page.matches("<polyline").count()), (1, 2));
    assert!(page.contains("19 segments") && page.contains("≤ 8,192 MiB") && page.contains("never fits"));
    assert!(page.contains("allocated before the first event"));
    // The highest point of the reserved curve is the peak itself, whatever was left out between.
    let many: Vec<Moment> = (0..50_000)
        .map(|event| Moment { reserved_bytes: if event == 33_333 { 5 << 30 } else { 1 << 30 }, ..Moment::default() })
        .collect();
    let page = html::replay_page(&Replay {
        title: "x",
        warnings: &[],
        moments: &many,
        rows: &[],
        memory_bytes: None,
        stranded: None,
    });
    let curve = page.split("<polyline class=\"shipped\" points=\"").nth(1).unwrap().split('"').next().unwrap();
    let heights: Vec<f64> =
        curve.split_whitespace().map(|point| point.split_once(',').unwrap().1.parse().unwrap()).collect();
    assert!(heights.len() <= 1_000);
    assert_eq!(heights.iter().filter(|height| **height < heights[0]).count(), 1);
}
