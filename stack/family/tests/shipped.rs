//! The shipped family files hold no mistake and say what they are supposed to say.

use std::path::{Path, PathBuf};
use std::{env, fs};

use headroom_base::{DEFAULT_DEVICE_WORKING_BYTES, Operation};
use headroom_family::{Architecture, Family, Recordings, Weights, embedded_texts, json_schema};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../families")
}

fn shipped() -> Vec<Family> {
    Family::embedded().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_shipped_family_is_there_and_free_of_mistakes() {
    let names: Vec<String> = shipped().into_iter().map(|family| family.name).collect();
    let expected = [
        "cogview4",
        "flux",
        "flux2",
        "qwen-image",
        "regressions",
        "sd15",
        "sd3",
        "sdxl-img2img",
        "sdxl",
        "taesd",
        "text-encoders",
        "wan",
        "z-image",
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_folder_gives_the_same_families_as_those_compiled_in() {
    assert_eq!(Family::load_dir(&folder(), Recordings::Any).unwrap(), shipped());
}

#[test]
fn a_file_is_named_after_its_family_and_begins_with_the_editors_hint() {
    for (file, text) in embedded_texts() {
        assert_eq!(text.lines().next(), Some("# yaml-language-server: $schema=schema.json"), "{file}");
        assert_eq!(format!("{}.yaml", Family::parse(text, file).unwrap().name), *file);
    }
}

/// Run with `HEADROOM_BLESS=1` to write the schema anew after a change of the format.
#[test]
fn the_kept_schema_is_the_one_the_types_give() {
    let path = folder().join("schema.json");
    if env::var_os("HEADROOM_BLESS").is_some() {
        fs::write(&path, json_schema()).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), json_schema(), "run again with HEADROOM_BLESS=1");
}

#[test]
fn a_recording_belongs_to_one_model_alone() {
    let mut owners = Vec::new();
    for family in shipped() {
        for model in family.models {
            let Some(recorded) = model.recorded_as else { continue };
            for operation in Operation::ALL {
                if let Weights::Architecture(architecture) = &model.weights
                    && architecture.runs(operation)
                {
                    let owner = (recorded.clone(), operation);
                    assert!(!owners.contains(&owner), "{owner:?} belongs to {}/{} too", family.name, model.key);
                    owners.push(owner);
                }
            }
        }
    }
    let recorded = ["sdxl", "flux", "qwen-image", "taesd", "wan", "sdxl-clip-g", "t5-xxl"];
    assert!(recorded.iter().all(|name| owners.iter().any(|(owner, _)| owner == name)), "{owners:?}");
}

#[test]
fn a_model_given_in_bytes_is_called_partly_resident_exactly_where_it_does_not_fit() {
    let mut judged = 0;
    for family in shipped() {
        for model in &family.models {
            let Weights::Bytes { bytes, .. } = model.weights else { continue };
            for device in &family.devices {
                let taken = device.context_bytes + device.outside_bytes + DEFAULT_DEVICE_WORKING_BYTES;
                let named = family
                    .checks
                    .partly_resident
                    .iter()
                    .any(|entry| entry.model == model.key && entry.devices.contains(&device.name));
                assert_eq!(named, bytes + taken > device.memory_bytes, "{} {} {}", family.name, model.key, device.name);
                judged += 1;
            }
        }
    }
    assert_eq!(judged, 11 * 7, "models in bytes on devices");
}

#[test]
fn one_line_runs_wider_than_its_model_is_stored() {
    let family = shipped().into_iter().find(|family| family.name == "text-encoders").unwrap();
    let wider = family.calibration.lines.iter().filter(|line| {
        let model = family.model(&line.model).unwrap();
        matches!(model.architecture(), Some(Architecture::ClipTextEncoder(_)))
            && line.dtype.element_bytes() > model.dtype.element_bytes()
    });
    assert_eq!(wider.count(), 1);
}

#[test]
fn an_operation_finds_the_model_that_the_calibration_measures() {
    let family = shipped().into_iter().find(|family| family.name == "sdxl-img2img").unwrap();
    let found = Operation::ALL.map(|operation| family.model_for(operation).unwrap().key.as_str());
    assert_eq!(found, ["text_encoder_2", "unet", "vae", "vae"]);
}

/// What the lines are named after. Files say all of it; no default of a program's stands in for what they leave out.
#[test]
fn the_shipped_files_say_the_models_that_lines_are_named_after() {
    let families = shipped();
    let said = |family: &str, key: &str| {
        let family = families.iter().find(|known| known.name == family).unwrap();
        family.model(key).unwrap().architecture().unwrap().clone()
    };
    for family in ["sdxl", "sdxl-img2img"] {
        assert_eq!(said(family, "unet"), Architecture::Unet2dCondition(Default::default()));
        assert_eq!(said(family, "vae"), Architecture::AutoencoderKl(Default::default()));
        assert_eq!(said(family, "text_encoder_2"), Architecture::ClipTextEncoder(Default::default()));
    }
    assert_eq!(said("flux", "transformer"), Architecture::FluxTransformer(Default::default()));
    for (family, key) in [("flux", "text_encoder_2"), ("sd3", "text_encoder_3"), ("text-encoders", "t5-xxl")] {
        assert_eq!(said(family, key), Architecture::T5Encoder(Default::default()));
    }
    assert_eq!(said("flux2", "vae"), Architecture::AutoencoderKlFlux2(Default::default()));
    assert_eq!(said("qwen-image", "vae"), Architecture::AutoencoderKlQwenImage(Default::default()));
    assert_eq!(said("wan", "vae"), Architecture::AutoencoderKlWan(Default::default()));
    assert_eq!(said("taesd", "vae"), Architecture::AutoencoderTiny(Default::default()));
}
