//! Families that are not shipped: files of published models, as somebody writes them who adds one, run green whole.

mod binary;

use binary::{headroom, text};
use headroom::catalogue::Catalogue;
use headroom_base::DType;
use headroom_family::Model;
use headroom_reports::{Outcome, Report};
use headroom_runners::programs::weights;

/// Each file with the parameters of its models, from the published configurations: text encoder, UNet and VAE of Stable
/// Diffusion 2.1 (OpenCLIP-H's 23 layers of 24), and FLUX.1 schnell's transformer.
const PARAMETERS: [(&str, u64); 2] =
    [("sd21", 340_387_840 + 865_910_724 + 83_653_863), ("flux-schnell", 11_891_178_560)];

#[test]
fn published_models_that_nobody_shipped_pass_every_simulated_check_and_have_their_parameters() {
    let folder = "tests/data/families";
    let output = tempfile::tempdir().unwrap();
    let run = headroom(&["run", "--families", folder, "--output", text(output.path())]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let report = std::fs::read_to_string(output.path().join("report.json")).unwrap();
    let report: Report = serde_json::from_str(&report).unwrap();
    let files = std::fs::read_dir(binary::root().join(folder)).unwrap().count();
    let passed = |check: &str| {
        let of_it = report.trials.iter().filter(|trial| trial.check == check);
        of_it.filter(|trial| trial.outcome == Outcome::Passed).count()
    };
    for check in ["plan", "calibration", "pipeline", "capacity", "perturbed", "scripted"] {
        assert!(passed(check) >= files && files > 4, "{check}: {} of {files}", passed(check));
    }
    let catalogue = Catalogue::load(Some(&binary::root().join(folder))).unwrap();
    for (name, parameters) in PARAMETERS {
        let architectures = catalogue.family(name).unwrap().models.iter().filter_map(Model::architecture);
        let pieces = architectures.flat_map(|architecture| weights(architecture, DType::Fp16));
        let elements = pieces.filter(|piece| piece.floating).map(|piece| piece.bytes / DType::Fp16.element_bytes());
        assert_eq!(elements.sum::<u64>(), parameters, "{name}");
    }
}
