//! What `advise` says of a family beside one operation: what is not in its figures, and the whole of a generation.

mod binary;

use binary::{BAD_INPUT, bytes, headroom, list, refused};
use headroom_base::{AllocatorKind, Bytes};
use serde_json::Value;

/// The answer as JSON, of which the text says every note.
#[track_caller]
fn advice(case: &[&str]) -> Value {
    let answer = headroom(&[&["advise", "--json"], case].concat()).json();
    let said = headroom(&[&["advise"], case].concat()).stdout;
    for note in list(&answer, "notes") {
        assert!(said.lines().any(|line| line == note.as_str().unwrap()), "{note} is not in: {said}");
    }
    answer
}

#[test]
fn advice_for_one_model_of_several_says_what_the_others_weigh_and_advice_for_the_only_one_does_not() {
    let weights = |operation: &str, extent: [&str; 2], model: &str| {
        let case = ["--family", "sdxl", "--operation", operation, "--dtype", "fp16", "--model", model];
        advice(&[&case[..], &extent].concat())
    };
    let size = ["--size", "512x512"];
    let tokens = ["--tokens", "77"];
    let decode = weights("vae_decode", size, "vae");
    let others = bytes(&decode, "others_weights_bytes");
    let says = format!("for model `vae` alone; the family's others weigh {}", Bytes(others));
    assert!(list(&decode, "notes")[0].as_str().unwrap().contains(&says), "{decode}");
    // Beside its weights a model has inputs, of a few MiB at most.
    let models =
        [("denoise", size, "unet"), ("text_encode", tokens, "text_encoder"), ("text_encode", tokens, "text_encoder_2")];
    let each = models.map(|(operation, extent, model)| bytes(&weights(operation, extent, model), "weights_bytes"));
    let with_inputs: u64 = each.iter().sum();
    assert!(others <= with_inputs && with_inputs - others < 8 << 20, "{others} of {with_inputs}");
    let alone = advice(&["--family", "taesd", "--operation", "vae_decode", "--dtype", "fp16", "--size", "512x512"]);
    assert_eq!((bytes(&alone, "others_weights_bytes"), list(&alone, "notes").len()), (0, 0), "{alone}");
}

#[test]
fn a_batch_that_the_familys_pipeline_does_not_run_is_told_from_the_one_that_it_runs() {
    let denoise = |more: &[&str]| {
        let case = ["--family", "sdxl", "--operation", "denoise", "--dtype", "fp16", "--size", "512x512"];
        advice(&[&case[..], more].concat())
    };
    let one = denoise(&[]);
    assert_eq!(bytes(&one, "pipeline_batch"), 2, "{one}");
    let notes = one["notes"].to_string();
    assert!(notes.contains("for batch 1") && notes.contains("runs denoise with batch 2: --batch 2"), "{notes}");
    let two = denoise(&["--batch", "2"]);
    assert!(two.get("pipeline_batch").is_none() && !two["notes"].to_string().contains("batch"), "{two}");
}

/// The least cards of a family's generation where ranges grow: all models on the card, and one at a time.
fn generation(family: &str, more: &[&str]) -> (Value, [Value; 2]) {
    let answer = headroom(&[&["advise", "--json", "--family", family], more].concat()).json();
    let growing = list(&answer, "settings").iter().find(|setting| setting["allocator"] == GROWING.name()).unwrap();
    let ways = ["all_resident", "one_at_a_time"].map(|way| growing[way].clone());
    (answer, ways)
}

/// Weights fill its pages but for the last of each kind.
const GROWING: AllocatorKind = AllocatorKind::ExpandableSegments;

#[test]
fn a_whole_generation_needs_what_its_largest_step_does_beside_all_models_or_beside_none() {
    let (answer, [all, one]) = generation("sdxl", &["--memory", "8GiB"]);
    let step = |more: &[&str]| {
        let answer = headroom(&[&["advise", "--json", "--family", "sdxl", "--dtype", "fp16"], more].concat()).json();
        let growing = list(&answer, "settings").iter().find(|setting| setting["allocator"] == GROWING.name()).unwrap();
        (bytes(growing, "least_capacity_bytes"), bytes(&answer, "others_weights_bytes"))
    };
    let size = ["--size", "1024x1024"];
    let (denoise, _) = step(&[&["--operation", "denoise", "--batch", "2"], &size[..]].concat());
    let (decode, beside_decode) = step(&[&["--operation", "vae_decode"], &size[..]].concat());
    assert_eq!((bytes(&one, "least_capacity_bytes"), &one["fits"]), (denoise.max(decode), &true.into()), "{answer}");
    assert!(one["step"].as_str().unwrap().starts_with("denoise fp16 1024x1024 batch 2"), "{answer}");
    let (least, sum) = (bytes(&all, "least_capacity_bytes"), decode + beside_decode);
    assert!(least.abs_diff(sum) <= 3 * GROWING.growth_step_bytes(), "{least} and {sum}");
    assert!(all["step"].as_str().unwrap().starts_with("vae_decode") && all["fits"] == false, "{answer}");
    assert_eq!(list(&answer, "notes").len(), 0, "{answer}");
}

#[test]
fn a_generation_with_a_step_of_which_nothing_is_known_never_fits_for_sure() {
    let (answer, [all, one]) = generation("qwen-image", &["--memory", "24GiB"]);
    assert_eq!((&all["fits"], &one["fits"]), (&false.into(), &false.into()), "{answer}");
    assert_eq!((&one["is_at_least"], list(&answer, "notes").len()), (&true.into(), 2), "{answer}");
    let (answer, [all, one]) = generation("qwen-image", &["--memory", "141GiB"]);
    assert_eq!((&all["fits"], &one["fits"]), (&Value::Null, &Value::Null), "{answer}");
    let said = headroom(&["advise", "--family", "qwen-image", "--memory", "141GiB"]).stdout;
    assert!(said.contains("unknown") && !said.contains(" yes "), "{said}");
    assert!(said.contains("denoise bf16 1024x1024 of transformer has no program"), "{said}");
}

#[test]
fn what_says_how_an_operation_runs_needs_the_operation() {
    for option in [&["--size", "64x64"][..], &["--tokens", "77"], &["--batch", "2"], &["--dtype", "fp16"]] {
        let ran = headroom(&[&["advise", "--family", "sdxl"], option].concat());
        refused(&ran, 2, &["--operation"]);
    }
    refused(&headroom(&["advise", "--family", "regressions"]), BAD_INPUT, &["no step with a program", "--operation"]);
}
