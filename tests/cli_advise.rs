//! What `advise` says of a family beside one operation: what is not in its figures, and the whole of a generation.

mod binary;

use std::path::Path;

use binary::{BAD_INPUT, bytes, headroom, list, refused, root, text};
use headroom_base::{AllocatorKind, Bytes, GIB, MIB};
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
    let says = format!("for model `vae` alone; the others that the family's pipeline uses weigh {}", Bytes(others));
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
    for setting in list(&answer, "settings") {
        let is_at_least = ["all_resident", "one_at_a_time"].map(|way| setting[way]["is_at_least"] == true);
        assert_eq!((is_at_least, &setting["is_bound"]), ([true, true], &false.into()), "{setting}");
    }
    let said = headroom(&["advise", "--family", "qwen-image", "--memory", "141GiB"]).stdout;
    assert!(said.contains("unknown") && !said.contains(" yes "), "{said}");
    assert_eq!((said.matches("> ").count(), said.matches('≤').count()), (6, 0), "{said}");
    assert!(said.lines().any(|line| line.starts_with(">: this at the least")), "{said}");
    assert!(said.contains("denoise bf16 1024x1024 of transformer has no program"), "{said}");
}

#[test]
fn below_all_that_a_step_without_a_program_is_known_to_need_nothing_is_claimed_to_fit_or_to_be_an_upper_bound() {
    // A text encoder needs more than what is known of the transformer, whose step has no program.
    let (answer, _) = generation("sd3", &["--memory", "24GiB"]);
    for setting in list(&answer, "settings") {
        let one = &setting["one_at_a_time"];
        assert!(one["step"].as_str().unwrap().starts_with("text_encode"), "{setting}");
        assert_eq!((&one["is_at_least"], &setting["is_bound"]), (&true.into(), &false.into()), "{setting}");
        assert_eq!((&one["fits"], &setting["all_resident"]["fits"]), (&Value::Null, &Value::Null), "{setting}");
    }
    // What the pool is certain to need is no more than what any other setting does.
    let least = |index: usize| bytes(&list(&answer, "settings")[index]["one_at_a_time"], "least_capacity_bytes");
    assert!(least(2) <= least(0) && least(2) <= least(1), "{answer}");
}

/// TAESD with another model beside it, of 12 GiB, and with the steps of its pipeline said once more by `again`.
fn taesd_beside_a_large_model(folder: &Path, again: &str) {
    const RECORDED: &str = "    recorded_as: taesd\n";
    const STEP: &str = "  - { operation: vae_decode, model: vae, size: 512x512 }\n";
    let large = format!("{RECORDED}  - {{ key: large, weights: {{ pieces: 40, bytes: 12GiB }}, dtype: fp16 }}\n");
    let family = std::fs::read_to_string(root().join("families/taesd.yaml")).unwrap();
    assert_eq!((family.matches(RECORDED).count(), family.matches(STEP).count()), (1, 1));
    let steps = format!("{STEP}{again}");
    std::fs::write(folder.join("taesd.yaml"), family.replace(RECORDED, &large).replace(STEP, &steps)).unwrap();
}

const SMALL_DECODE: [&str; 6] = ["--operation", "vae_decode", "--dtype", "fp16", "--size", "512x512"];

#[test]
fn a_step_that_locks_another_model_is_not_the_same_step_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let again = "  - { operation: vae_decode, model: vae, size: 512x512, with: [large] }\n";
    taesd_beside_a_large_model(folder.path(), again);
    let (answer, [_, one]) = generation("taesd", &["--families", text(folder.path()), "--memory", "12GiB"]);
    assert!(bytes(&one, "least_capacity_bytes") > 12 * GIB && one["fits"] == false, "{answer}");
    assert_eq!(one["step"], "vae_decode fp16 512x512 of vae with large", "{answer}");
}

#[test]
fn a_model_that_no_step_of_the_pipeline_uses_is_named_and_counted_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    taesd_beside_a_large_model(folder.path(), "");
    let families = ["--family", "taesd", "--families", text(folder.path())];
    let whole = advice(&families);
    assert!(bytes(&whole, "weights_bytes") < GIB, "{whole}");
    let notes = whole["notes"].to_string();
    assert!(notes.contains("no step of the pipeline uses model `large`: the 12.00 GiB"), "{notes}");
    let single = advice(&[&families[..], &SMALL_DECODE].concat());
    assert_eq!((bytes(&single, "others_weights_bytes"), list(&single, "notes").len()), (0, 0), "{single}");
}

#[test]
fn a_model_whose_weights_lie_in_a_file_needs_what_the_file_holds() {
    let folder = tempfile::tempdir().unwrap();
    let family = std::fs::read_to_string(root().join("families/taesd.yaml")).unwrap();
    let held = 256 * MIB;
    let header = format!(r#"{{"a":{{"dtype":"U8","shape":[{held}],"data_offsets":[0,{held}]}}}}"#);
    let start = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    let weights = folder.path().join("w.safetensors");
    std::fs::write(&weights, &start).unwrap();
    std::fs::File::options().write(true).open(&weights).unwrap().set_len(start.len() as u64 + held).unwrap();
    let with_file = family.replacen("dtype: fp16", "safetensors: w.safetensors\n    dtype: fp16", 1);
    std::fs::write(folder.path().join("taesd.yaml"), with_file).unwrap();
    let families = ["--families", text(folder.path())];
    // The weights that follow from the architecture are 5 MiB, which the file's take the place of.
    let more = held - 5 * MIB..=held + 2 * GROWING.growth_step_bytes();
    let ([_, synthetic], [_, file]) = (generation("taesd", &[]).1, generation("taesd", &families).1);
    let least = |need: &Value| bytes(need, "least_capacity_bytes");
    let growth = least(&file).checked_sub(least(&synthetic));
    assert!(growth.is_some_and(|growth| more.contains(&growth)), "{growth:?}");
    for dtype in ["fp16", "fp32"] {
        let case = ["--family", "taesd", "--operation", "vae_decode", "--dtype", dtype, "--size", "512x512"];
        let single = advice(&[&case[..], &families].concat());
        // As they lie in the file, whatever they are run in; beside them there are a few MiB of inputs.
        let beyond = bytes(&single, "weights_bytes").checked_sub(held);
        assert!(beyond.is_some_and(|beyond| beyond < 4 * MIB), "{single}");
        let said = headroom(&[&["advise"], &case[..], &families].concat()).stdout;
        assert!(said.contains("MiB in fp16, and"), "{said}");
    }
}

#[test]
fn an_upper_bound_above_the_card_does_not_say_that_it_does_not_fit_and_what_is_allocated_does() {
    let case = ["--family", "sdxl", "--operation", "vae_decode", "--dtype", "fp16", "--size", "1024x1024"];
    let pool = |answer: &Value| list(answer, "settings")[2].clone();
    let ample = advice(&case);
    let [context, weights, kept] =
        ["context_bytes", "weights_bytes", "workspaces_bytes"].map(|name| bytes(&ample, name));
    let certain = context + weights + kept + bytes(&pool(&ample), "allocated_peak_bytes");
    let bound = bytes(&pool(&ample), "least_capacity_bytes");
    assert!(certain + 2 < bound, "{ample}");
    let asked = [(certain - 1, false.into()), (certain, Value::Null), (bound - 1, Value::Null), (bound, true.into())];
    for (memory, fits) in asked {
        let answer = advice(&[&case[..], &["--memory", &format!("{memory}B")]].concat());
        assert_eq!(pool(&answer)["fits"], fits, "{memory}: {answer}");
    }
    let said = headroom(&[&["advise", "--memory", "3200MiB"], &case[..]].concat()).stdout;
    for words in
        ["unknown: the card is smaller than the bound", "No setting is sure to fit 3,200 MiB. Tile by tile it fits"]
    {
        assert!(said.contains(words), "`{words}` is not in: {said}");
    }
    let whole = headroom(&["advise", "--json", "--family", "sdxl", "--memory", "10GiB"]).json();
    assert!(bytes(&pool(&whole)["all_resident"], "least_capacity_bytes") > 10 * GIB, "{whole}");
    assert_eq!(pool(&whole)["all_resident"]["fits"], Value::Null, "{whole}");
    let small = headroom(&["advise", "--json", "--family", "sdxl", "--memory", "6GiB"]).json();
    assert_eq!(pool(&small)["all_resident"]["fits"], false, "{small}");
}

#[test]
fn what_says_how_an_operation_runs_needs_the_operation() {
    for option in [&["--size", "64x64"][..], &["--tokens", "77"], &["--batch", "2"], &["--dtype", "fp16"]] {
        let ran = headroom(&[&["advise", "--family", "sdxl"], option].concat());
        refused(&ran, 2, &["--operation"]);
    }
    refused(&headroom(&["advise", "--family", "regressions"]), BAD_INPUT, &["no step with a program", "--operation"]);
}
