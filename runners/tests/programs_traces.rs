//! Programs against every allocator event that was recorded on an H200.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use flate2::read::MultiGzDecoder;
use headroom_base::{AttentionKernel, Case, Extent, MemoryLayout, Operation, Tiling};
use headroom_family::Architecture;
use headroom_family::architecture::{
    AutoencoderKl, AutoencoderKlFlux2, AutoencoderTiny, CausalAutoencoder, ClipTextEncoder, FluxTransformer, T5Encoder,
    Unet2dCondition,
};
use headroom_runners::programs::{Execution, Step, program};
use serde_json::Value;

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/h200").join(name)
}

fn lines(name: &str) -> Vec<Value> {
    let Ok(file) = File::open(data(name)) else { return Vec::new() };
    BufReader::new(MultiGzDecoder::new(file))
        .lines()
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect()
}

fn architecture(family: &str, operation: Operation) -> Architecture {
    let flux = AutoencoderKl {
        latent_channels: 16,
        use_quant_conv: false,
        use_post_quant_conv: false,
        ..AutoencoderKl::default()
    };
    match (family, operation) {
        ("sdxl", Operation::Denoise) => Architecture::Unet2dCondition(Unet2dCondition::default()),
        ("flux", Operation::Denoise) => Architecture::FluxTransformer(FluxTransformer::default()),
        ("sdxl", _) => Architecture::AutoencoderKl(AutoencoderKl::default()),
        ("flux" | "sd3" | "z-image", _) => Architecture::AutoencoderKl(flux),
        ("cogview4", _) => Architecture::AutoencoderKl(AutoencoderKl {
            block_out_channels: vec![128, 512, 1024, 1024],
            layers_per_block: 3,
            mid_block_add_attention: false,
            ..flux
        }),
        ("flux2", _) => Architecture::AutoencoderKlFlux2(AutoencoderKlFlux2::default()),
        ("qwen-image", _) => Architecture::AutoencoderKlQwenImage(CausalAutoencoder::default()),
        ("wan", _) => Architecture::AutoencoderKlWan(CausalAutoencoder::default()),
        ("taesd", _) => Architecture::AutoencoderTiny(AutoencoderTiny::default()),
        ("taef1", _) => {
            Architecture::AutoencoderTiny(AutoencoderTiny { latent_channels: 16, ..AutoencoderTiny::default() })
        }
        ("t5-xxl", _) => Architecture::T5Encoder(T5Encoder::default()),
        ("sdxl-clip-g", _) => {
            Architecture::ClipTextEncoder(ClipTextEncoder { projection_dim: None, ..ClipTextEncoder::default() })
        }
        ("sdxl-clip-l", _) => Architecture::ClipTextEncoder(ClipTextEncoder {
            hidden_size: 768,
            intermediate_size: 3072,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            projection_dim: None,
            quick_gelu: true,
            ..ClipTextEncoder::default()
        }),
        _ => panic!("no architecture for {family}"),
    }
}

fn case(line: &Value) -> (Case, Execution) {
    let number = |key: &str| line[key].as_u64().map(|n| u32::try_from(n).unwrap());
    let text = |key: &str| line[key].as_str().unwrap();
    let extent = match number("tokens") {
        Some(tokens) => Extent::Text { tokens },
        None => Extent::Pixels {
            width: number("width").unwrap(),
            height: number("height").unwrap(),
            frames: number("frames").unwrap_or(1),
        },
    };
    let options = &line["options"];
    let tiling = options["tile"].as_u64().map(|tile| Tiling {
        tile_pixels: u32::try_from(tile).unwrap(),
        overlap_percent: (options["overlap"].as_f64().unwrap() * 100.0).round() as u32,
    });
    let case = Case {
        operation: text("operation").parse().unwrap(),
        dtype: text("dtype").parse().unwrap(),
        extent,
        batch: number("batch").unwrap_or(1),
        tiling,
    };
    let execution = Execution {
        attention: if options["attention"] == "math" { AttentionKernel::Math } else { AttentionKernel::Fused },
        memory_layout: if options["channels_last"] == true {
            MemoryLayout::ChannelsLast
        } else {
            MemoryLayout::Contiguous
        },
        convolution_benchmark: options["cudnn_benchmark"] == true,
        ..Execution::default()
    };
    (case, execution)
}

/// `(allocates, size rounded to a block, serial of the allocation)`.
type Event = (bool, u64, usize);

fn recorded(line: &Value) -> Vec<Event> {
    let mut live = HashMap::new();
    let mut events = Vec::new();
    let mut serial = 0;
    for event in line["events"].as_array().unwrap() {
        let (action, address, size) =
            (event[0].as_str().unwrap(), event[1].as_u64().unwrap(), event[2].as_u64().unwrap());
        match action {
            "alloc" => {
                live.insert(address, serial);
                events.push((true, size, serial));
                serial += 1;
            }
            "free_requested" => events.push((false, size, live.remove(&address).unwrap_or(usize::MAX))),
            _ => {}
        }
    }
    events
}

fn predicted(line: &Value) -> Option<Vec<Event>> {
    let (case, execution) = case(line);
    let program = program(&architecture(line["family"].as_str().unwrap(), case.operation), &case, &execution).ok()?;
    let mut serials = HashMap::new();
    let mut events = Vec::new();
    for step in &program.steps {
        match step {
            Step::Allocate { role: headroom_runners::programs::Role::Persistent, .. } => {}
            Step::Allocate { tensor, bytes, .. } => {
                serials.insert(*tensor, (serials.len(), *bytes));
                events.push((true, *bytes, serials[tensor].0));
            }
            Step::Free { tensor } => {
                let (serial, bytes) = serials[tensor];
                events.push((false, bytes, serial));
            }
        }
    }
    Some(events)
}

/// How many events two sequences have in common, in order: the longest common subsequence, found by the shortest edit.
fn common(ours: &[(bool, u64)], theirs: &[(bool, u64)]) -> usize {
    let (n, m) = (ours.len() as isize, theirs.len() as isize);
    let most = n + m;
    let mut reach = vec![0_isize; 2 * most as usize + 2];
    let at = |diagonal: isize| (diagonal + most) as usize;
    for edits in 0..=most {
        for diagonal in (-edits..=edits).step_by(2) {
            let down = diagonal == -edits || (diagonal != edits && reach[at(diagonal - 1)] < reach[at(diagonal + 1)]);
            let mut x = if down { reach[at(diagonal + 1)] } else { reach[at(diagonal - 1)] + 1 };
            while x < n && x - diagonal < m && ours[x as usize] == theirs[(x - diagonal) as usize] {
                x += 1;
            }
            reach[at(diagonal)] = x;
            if x >= n && x - diagonal >= m {
                return ((most - edits) / 2) as usize;
            }
        }
    }
    0
}

#[test]
fn probe() {
    let only = std::env::var("ONLY").unwrap_or_default();
    for name in ["trace-native.jsonl.gz", "trace-held-out-native.jsonl.gz"] {
        for line in lines(name) {
            let label = format!(
                "{} {} {} {}x{}x{} b{} t{} {}",
                line["family"],
                line["operation"],
                line["dtype"],
                line["width"],
                line["height"],
                line["frames"],
                line["batch"],
                line["tokens"],
                line["options"]
            )
            .replace('"', "");
            if !label.contains(&only) {
                continue;
            }
            let Some(ours) = predicted(&line) else {
                println!("{label}: unsupported");
                continue;
            };
            let theirs = recorded(&line);
            let plain = |events: &[Event]| events.iter().map(|e| (e.0, e.1.next_multiple_of(512))).collect::<Vec<_>>();
            let (a, b) = (plain(&ours), plain(&theirs));
            let share = common(&a, &b) as f64 / a.len().max(b.len()) as f64;
            println!("{label}: {} recorded, {} predicted, {:.2} % in common", theirs.len(), ours.len(), 100.0 * share);
            if only.is_empty() {
                continue;
            }
            let mut from = 0;
            if let Some(at) = a.iter().zip(&b).position(|(a, b)| a != b) {
                from = at.saturating_sub(3);
            }
            println!(
                "  first difference at {}: ours {:?}\n theirs {:?}",
                from + 3,
                &ours[from..ours.len().min(from + 10)],
                &theirs[from..theirs.len().min(from + 10)]
            );
        }
    }
}
