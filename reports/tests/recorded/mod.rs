//! The recordings of one H200 as reports, priced per architecture the way an estimator would.

use std::path::{Path, PathBuf};

use headroom_base::{Case, CostUnit, LineKey, Operation};
use headroom_reports::import_windows::{H200_TOTAL_BYTES, ImportError, Imported, Pricing, Recording, import_windows};

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

/// Imports a recording of the repository.
#[allow(dead_code, reason = "each test binary uses a part of this module")]
pub(crate) fn recording(name: &str) -> Imported {
    let text = std::fs::read_to_string(data("h200").join(name)).expect("a readable recording");
    import(name, &text).expect("every line is a window")
}
