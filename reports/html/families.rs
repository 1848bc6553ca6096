//! A section for each family and device: coverage, estimates, cases that do not fit, and a chart of every line.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use headroom_base::{Bytes, DeviceClass, HardEnvironment, LineKey, Verdict};
use headroom_calibration::Coefficients;

use super::chart::{Chart, Dot};
use super::escape::Escaped;
use super::table::{Cell, Column, table};
use crate::family_summary::{EstimateRecord, FamilySummary, FitRecord};
use crate::report::{Report, WindowRecord};
use crate::summary::{ratio, share};

/// What one chart is about: a device, a line, an environment.
type Place<'a> = (&'a DeviceClass, &'a LineKey, &'a HardEnvironment);

/// A section for each family and device, and one for lines that no family's section shows.
pub(super) fn sections(report: &Report) -> String {
    let mut places: BTreeMap<Place<'_>, Vec<&WindowRecord>> = BTreeMap::new();
    for record in &report.windows {
        let window = &record.window;
        places.entry((&window.device, &window.line, &window.environment.hard)).or_default().push(record);
    }
    let mut html = String::new();
    for summary in &report.families {
        html.push_str(&heading(summary));
        html.push_str(&estimates(&summary.estimates));
        html.push_str(&not_fitting(summary));
        let charts = summary.fits.iter().map(|fit| {
            let place = (&summary.class, &fit.line, &fit.environment.hard);
            chart(place, places.get(&place).map_or(&[], Vec::as_slice), Some(fit)).to_html()
        });
        html.push_str(&grid(charts));
    }
    let shown = |place: &Place<'_>| {
        let mut fits = report.families.iter().flat_map(|summary| summary.fits.iter().map(move |fit| (summary, fit)));
        fits.any(|(summary, fit)| *place == (&summary.class, &fit.line, &fit.environment.hard))
    };
    let others = places.iter().filter(|(place, _)| !shown(place));
    let others = grid(others.map(|(place, windows)| chart(*place, windows, None).to_html()));
    if !others.is_empty() {
        let _ = write!(html, "<h2>Lines measured</h2>\n{others}");
    }
    html
}

fn heading(summary: &FamilySummary) -> String {
    let coverage = summary.coverage();
    let kind = if summary.simulated { "simulated" } else { "hardware" };
    format!(
        "<h2>{} on {} <span class=\"muted\">({}, {kind})</span></h2>\n<p>Covered by their reservation: {} simulated, {} \
         recorded. Largest reservation over demand: {}.</p>\n",
        Escaped(&summary.family),
        Escaped(&summary.device),
        Escaped(&summary.class),
        share(coverage.simulated),
        share(coverage.recorded),
        summary.largest_reserved_permille().map_or_else(|| "unknown".into(), ratio),
    )
}

fn estimates(estimates: &[EstimateRecord]) -> String {
    if estimates.is_empty() {
        return String::new();
    }
    let columns = [
        Column::Words("Operation"),
        Column::Words("Type"),
        Column::Words("Size"),
        Column::Words("Allocator"),
        Column::Number("Demand"),
        Column::Number("Reserved"),
        Column::Number("Analytic"),
        Column::Number("Measured part"),
        Column::Number("Margin"),
        Column::Number("Over demand"),
        Column::Words("Source"),
    ];
    let rows = estimates.iter().map(|record| {
        let estimate = &record.estimate;
        let short = record.demand_bytes.is_some_and(|demand| demand > estimate.reservation_bytes);
        let over = record.reserved_permille().map(ratio);
        [
            Cell::from(record.case.operation),
            Cell::from(record.case.dtype),
            Cell::from(record.case.size_label()),
            Cell::from(record.environment.hard.allocator),
            Cell::or_unknown(record.demand_bytes.map(Bytes)),
            Cell::from(Bytes(estimate.reservation_bytes)),
            Cell::from(Bytes(estimate.analytic_bytes)),
            Cell::from(Bytes(estimate.empirical_bytes)),
            Cell::from(Bytes(estimate.margin_bytes)),
            if short { Cell::marked("too little", "bad") } else { Cell::or_unknown(over) },
            Cell::from(estimate.source.name()),
        ]
    });
    table(columns, rows)
}

fn not_fitting(summary: &FamilySummary) -> String {
    let columns =
        [Column::Words("Case"), Column::Number("Needs"), Column::Number("Short by"), Column::Number("Capacity")];
    let rows: Vec<[Cell; 4]> = summary
        .plans
        .iter()
        .flat_map(|plan| plan.cases.iter().map(move |case| (plan, case)))
        .filter_map(|(plan, planned)| match planned.verdict {
            Verdict::Fits => None,
            Verdict::DoesNotFit { needed_bytes, short_bytes } => Some([
                Cell::from(planned.priced.case),
                Cell::from(Bytes(needed_bytes)),
                Cell::from(Bytes(short_bytes)),
                Cell::from(headroom_base::SignedBytes(plan.capacity.capacity_bytes)),
            ]),
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    format!("<details><summary>{} planned cases do not fit</summary>\n{}</details>\n", rows.len(), table(columns, rows))
}

fn grid(charts: impl Iterator<Item = String>) -> String {
    let charts: String = charts.collect();
    if charts.is_empty() { charts } else { format!("<div class=\"charts\">\n{charts}</div>\n") }
}

fn chart(place: Place<'_>, windows: &[&WindowRecord], fit: Option<&FitRecord>) -> Chart {
    let (device, line, hard) = place;
    let dots = windows.iter().map(|record| Dot {
        units: record.window.cost_units,
        // The lines are without the analytic part, so the dots are too.
        bytes: record.window.measurement.demand_bytes.saturating_sub(record.window.analytic_bytes),
        excluded: record.excluded_reason.clone(),
        label: format!("{} {}", record.window.model, record.window.case.size_label()),
    });
    let ends = |coefficients: Option<Coefficients>| {
        let (fit, line) = fit.zip(coefficients)?;
        let units = [fit.range.least_units, fit.range.largest_units];
        Some(units.map(|units| (units, line.bytes_at(units))).to_vec())
    };
    Chart {
        title: line.to_string(),
        subtitle: format!("{device}, {}", environment(hard)),
        dots: dots.collect(),
        user: ends(fit.and_then(|fit| fit.user)).unwrap_or_default(),
        built_in: ends(fit.and_then(|fit| fit.built_in)).unwrap_or_default(),
    }
}

fn environment(hard: &HardEnvironment) -> String {
    let mut words = vec![hard.allocator.to_string(), hard.framework.clone()];
    if !hard.allocator_settings.is_empty() {
        words.push(hard.allocator_settings.clone());
    }
    if hard.attention != headroom_base::AttentionKernel::default() {
        words.push(format!("{} attention", hard.attention));
    }
    if hard.convolution_benchmark {
        words.push("convolution benchmark".into());
    }
    if hard.memory_layout != headroom_base::MemoryLayout::default() {
        words.push(hard.memory_layout.to_string());
    }
    words.join(", ")
}
