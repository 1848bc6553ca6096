//! The recordings of one H200 as reports, priced per architecture the way an estimator would.

use std::path::{Path, PathBuf};

use headroom_base::{Case, CostUnit, LineKey, Operation};
use headroom_calibration::EstimatorVersions;
use headroom_reports::import_public::{Published, import_public};
use headroom_reports::import_windows::{
    H200_TOTAL_BYTES, ImportError, Imported, Pricing, Recording, import_windows, report_of,
};
use headroom_reports::verdicts::judge;
use headroom_reports::{Provenance, Report, Trust};

/// Where the recordings lie.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(name)
}

/// One estimator per architecture: the models of a family share its line.
pub(crate) fn price(family: &str, case: &Case) -> Option<Pricing> {
    let (estimator, unit) = match (family, case.operation) {
        ("sd15" | "sdxl" | "sd3" | "flux", Operation::VaeDecode | Operation::VaeEncode) => {
            ("autoencoder_kl", CostUnit::PixelBytes)
        }
        ("flux2", Operation::VaeDecode | Operation::VaeEncode) => ("autoencoder_kl_flux2", CostUnit::PixelBytes),
        ("qwen-image", Operation::VaeDecode | Operation::VaeEncode) => {
            ("autoencoder_kl_qwen_image", CostUnit::PixelBytes)
        }
        ("wan", Operation::VaeDecode | Operation::VaeEncode) => ("autoencoder_kl_wan", CostUnit::PixelFrameBytes),
        ("taesd", Operation::VaeDecode | Operation::VaeEncode) => ("autoencoder_tiny", CostUnit::PixelBytes),
        ("sdxl", Operation::Denoise) => ("unet_sdxl", CostUnit::Tokens { side: 8, fixed: 0 }),
        ("flux", Operation::Denoise) => ("flux_transformer", CostUnit::Tokens { side: 16, fixed: 512 }),
        ("sdxl-clip-g", Operation::TextEncode) => ("clip_text", CostUnit::Tokens { side: 1, fixed: 0 }),
        ("t5-xxl", Operation::TextEncode) => ("t5_encoder", CostUnit::Tokens { side: 1, fixed: 0 }),
        _ => return None,
    };
    let line = LineKey {
        estimator: estimator.into(),
        estimator_version: 1,
        operation: case.operation,
        dtype: case.dtype,
        tiling: case.tiling,
        tokens: None,
    };
    Some(Pricing { model: family.into(), line, cost_units: unit.units(case), analytic_bytes: 0 })
}

/// The one card of the recordings.
pub(crate) fn total_bytes(device: &str) -> Option<u64> {
    (device == "NVIDIA H200").then_some(H200_TOTAL_BYTES)
}

/// Imports a text as the recording of that name.
pub(crate) fn import(name: &str, text: &str) -> Result<Imported, ImportError> {
    import_windows(Recording { name, report_id: "h200", total_bytes: &total_bytes, price: &price }, text)
}

/// What the files of the repository come from.
pub(crate) fn provenance(report_id: &str, trust: Trust) -> Provenance {
    Provenance {
        report_id: report_id.into(),
        tool_version: "0.1.0".into(),
        commit: None,
        created: "2026-11-30T00:00:00Z".into(),
        arguments: Vec::new(),
        trust,
        withdrawn: None,
        stopped: false,
    }
}

/// All recordings of the card as one report, judged.
pub(crate) fn h200() -> Report {
    let names = ["windows.jsonl", "windows-options.jsonl", "warm-server.jsonl"];
    let texts = names.map(|name| std::fs::read_to_string(data("h200").join(name)).expect("a readable recording"));
    let recordings: Vec<(&str, &str)> = names.into_iter().zip(texts.iter().map(String::as_str)).collect();
    let from = provenance("h200", Trust::Maintainer);
    let mut report = report_of(from, &recordings, &total_bytes, &price).expect("every line is a window");
    let versions = versions(&report);
    judge(&mut report, &versions);
    report
}

/// What others published, judged.
pub(crate) fn published() -> Published {
    let text = std::fs::read_to_string(data("public/measurements.csv")).expect("a readable table");
    let mut published = import_public("measurements.csv", &text, &price).expect("every row can be read");
    let versions = versions(&published.report);
    judge(&mut published.report, &versions);
    published
}

/// The newest versions a report knows.
pub(crate) fn versions(report: &Report) -> EstimatorVersions {
    EstimatorVersions::newest_of(report.windows.iter().map(|record| &record.window.line))
}

/// Imports a recording of the repository.
pub(crate) fn recording(name: &str) -> Imported {
    let text = std::fs::read_to_string(data("h200").join(name)).expect("a readable recording");
    import(name, &text).expect("every line is a window")
}
