//! What `advise` says of the rest of a family, which is not in one operation's figures.

mod binary;

use binary::{bytes, headroom, list};
use headroom_base::Bytes;
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
