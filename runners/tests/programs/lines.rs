//! What shares a line: cases of as many cost units need about the same, whatever else they are.

use headroom_base::{AllocatorKind, Case, DType, Operation};
use headroom_device::Settings;
use headroom_family::Architecture;
use headroom_family::architecture::{ClipTextEncoder, T5Encoder, Unet2dCondition};
use headroom_runners::programs::{
    Execution, Start, cost_units, line, predict, predict_program, predicted_demand_bytes, program, weights,
};

use super::cases::architectures;

/// Cases of as many cost units: a wide image, a tall one and two small ones; a text and shorter ones together.
fn alike(operation: Operation, dtype: DType) -> Vec<Case> {
    if operation == Operation::TextEncode {
        return [(64, 1), (32, 2), (16, 4)].map(|(tokens, batch)| Case::text(dtype, tokens).with_batch(batch)).to_vec();
    }
    let image = |width, height| Case::image(operation, dtype, width, height);
    vec![image(1024, 512), image(512, 1024), image(512, 512).with_batch(2)]
}

fn allocated(architecture: &Architecture, case: &Case) -> u64 {
    let prediction = predict(architecture, case, &Execution::default(), AllocatorKind::Native);
    prediction.unwrap_or_else(|error| panic!("{case}: {error}")).later.allocated_peak_bytes
}

#[test]
fn cases_of_as_many_units_on_one_line_need_the_same_to_a_fifth() {
    let mut compared = 0;
    for (architecture, operations) in architectures() {
        for operation in operations {
            for dtype in [DType::Fp16, DType::Fp32] {
                let all = alike(operation, dtype);
                for (index, case) in all.iter().enumerate() {
                    for other in &all[..index] {
                        let units = [case, other].map(|case| cost_units(&architecture, case));
                        if units[0] != units[1] || line(&architecture, case) != line(&architecture, other) {
                            continue;
                        }
                        let [bytes, others] = [case, other].map(|case| allocated(&architecture, case));
                        // Two small images decode in less than one as large as both: workspaces do not double.
                        let fifth = bytes.max(others) / 5;
                        assert!(bytes.abs_diff(others) <= fifth, "{case} needs {bytes}, {other} {others} bytes");
                        compared += 1;
                    }
                }
            }
        }
    }
    assert!(compared > 50, "{compared} pairs");
}

/// T5's attention writes a score for each pair of tokens.
#[test]
fn texts_of_another_length_are_priced_on_another_line_where_scores_lie_in_memory() {
    let t5 = Architecture::T5Encoder(T5Encoder::default());
    let long = Case::text(DType::Bf16, 2_048);
    let short = Case::text(DType::Bf16, 512).with_batch(4);
    assert_eq!(cost_units(&t5, &long), cost_units(&t5, &short));
    assert!(allocated(&t5, &long) > 2 * allocated(&t5, &short));
    assert_ne!(line(&t5, &long), line(&t5, &short));
    assert_eq!(line(&t5, &short), line(&t5, &Case::text(DType::Bf16, 512)), "batches of one length share theirs");
    assert!(line(&t5, &long).to_string().ends_with("text_encode bf16 2048 tokens"), "{}", line(&t5, &long));
}

#[test]
fn models_of_other_widths_price_on_other_lines_and_deeper_ones_on_the_same() {
    let image = Case::image(Operation::Denoise, DType::Fp16, 512, 512);
    let text = Case::text(DType::Fp16, 77);
    let unet = |change: fn(&mut Unet2dCondition)| {
        let mut numbers = Unet2dCondition::default();
        change(&mut numbers);
        (Architecture::Unet2dCondition(numbers), image)
    };
    let t5 = |change: fn(&mut T5Encoder)| {
        let mut numbers = T5Encoder::default();
        change(&mut numbers);
        (Architecture::T5Encoder(numbers), text)
    };
    let clip = |change: fn(&mut ClipTextEncoder)| {
        let mut numbers = ClipTextEncoder::default();
        change(&mut numbers);
        (Architecture::ClipTextEncoder(numbers), text)
    };
    let cases = [
        (unet(|_| {}), unet(|numbers| numbers.transformer_layers_per_block = vec![0, 2, 4]), true),
        (unet(|_| {}), unet(|numbers| numbers.in_channels = 9), true),
        (unet(|_| {}), unet(|numbers| numbers.attention_heads = vec![5, 10, 40]), false),
        (unet(|_| {}), unet(|numbers| numbers.transformer_layers_per_block = vec![2, 2, 10]), false),
        (unet(|_| {}), unet(|numbers| numbers.layers_per_block = 1), false),
        (unet(|_| {}), unet(|numbers| numbers.cross_attention_dim = 768), false),
        (t5(|_| {}), t5(|numbers| numbers.num_layers = 12), true),
        (t5(|_| {}), t5(|numbers| numbers.d_ff = 65_536), false),
        (t5(|_| {}), t5(|numbers| numbers.num_heads = 16), false),
        (clip(|_| {}), clip(|numbers| numbers.num_hidden_layers = 23), true),
        (clip(|_| {}), clip(|numbers| numbers.intermediate_size = 1_280), false),
    ];
    for (index, ((one, case), (other, _), shares)) in cases.iter().enumerate() {
        assert_eq!(
            line(one, case) == line(other, case),
            *shares,
            "{index}: {} and {}",
            line(one, case),
            line(other, case)
        );
    }
}

/// What is left of the last segments depends on what libraries hold, and an estimate knows nothing of that.
#[test]
fn a_prediction_that_prices_is_the_larger_of_a_fresh_process_and_one_with_its_libraries_ready() {
    let execution = Execution::default();
    let mut larger_than_fresh = 0;
    for (architecture, operations) in architectures() {
        for operation in operations {
            let case = match operation {
                Operation::TextEncode => Case::text(DType::Fp16, 64).with_batch(3),
                _ => Case::image(operation, DType::Fp16, 512, 512),
            };
            for kind in AllocatorKind::ALL {
                let fresh = predict(&architecture, &case, &execution, kind).unwrap().demand_bytes();
                let program = program(&architecture, &case, &execution).unwrap();
                let start = Start::LibrariesReady(execution.workspaces);
                let settings = Settings::of_kind(kind);
                let ready = predict_program(&program, &weights(&architecture, DType::Fp16), &settings, start).unwrap();
                let priced = predicted_demand_bytes(&architecture, &case, &execution, kind).unwrap();
                assert_eq!(priced, fresh.max(ready.demand_bytes()), "{case} {kind}");
                larger_than_fresh += usize::from(priced > fresh);
            }
        }
    }
    assert!(larger_than_fresh > 0);
}
