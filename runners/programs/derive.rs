//! From an architecture and a case to its program, and to its weights.

use headroom_base::{Case, DType, Extent, Operation};
use headroom_family::Architecture;

use super::autoencoder_kl::ImageAutoencoder;
use super::autoencoder_tiny::TinyAutoencoder;
use super::causal::VideoAutoencoder;
use super::execution::Execution;
use super::layers::Pieces;
use super::program::{Piece, Program};
use super::recorder::{Recorder, Tensor};
use super::tiling::Tiles;

/// Why there is no program for a case.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// The architecture has no such operation.
    #[error("{architecture} has no {operation}; it has {supported}")]
    Operation {
        /// The architecture's kind.
        architecture: &'static str,
        /// What was asked.
        operation: Operation,
        /// What it has, comma separated.
        supported: &'static str,
    },
    /// The case's extent is not one the architecture takes.
    #[error("{architecture} takes {supported}, and the case is {case}")]
    Extent {
        /// The architecture's kind.
        architecture: &'static str,
        /// The case.
        case: Case,
        /// What it takes.
        supported: String,
    },
    /// The architecture's programs do not run tile by tile.
    #[error(
        "{architecture} has no tiled {operation}; tiled operations exist for autoencoder_kl and autoencoder_kl_flux2"
    )]
    Tiling {
        /// The architecture's kind.
        architecture: &'static str,
        /// What was asked.
        operation: Operation,
    },
}

/// The program of one operation.
///
/// # Errors
/// When the architecture has no such operation, or none for this extent; the error says what is supported.
pub fn program(architecture: &Architecture, case: &Case, execution: &Execution) -> Result<Program, Unsupported> {
    let recorder = Recorder::new(execution, case.dtype);
    match architecture {
        Architecture::AutoencoderKl(numbers) => image(&ImageAutoencoder::from(numbers), architecture, case, recorder),
        Architecture::AutoencoderKlFlux2(numbers) => {
            image(&ImageAutoencoder::from(numbers), architecture, case, recorder)
        }
        Architecture::AutoencoderKlQwenImage(numbers) | Architecture::AutoencoderKlWan(numbers) => {
            video(&VideoAutoencoder::from(numbers), architecture, case, recorder)
        }
        Architecture::AutoencoderTiny(numbers) => tiny(&TinyAutoencoder::from(numbers), architecture, case, recorder),
        _ => Err(Unsupported::Operation {
            architecture: architecture.kind(),
            operation: case.operation,
            supported: "none yet",
        }),
    }
}

/// Every parameter and buffer of the model with its size in `dtype`, in the order in which the reference moves them to
/// a device.
pub fn weights(architecture: &Architecture, dtype: DType) -> Vec<Piece> {
    let mut pieces = Pieces::new(dtype);
    match architecture {
        Architecture::AutoencoderKl(numbers) => ImageAutoencoder::from(numbers).parameters(&mut pieces),
        Architecture::AutoencoderKlFlux2(numbers) => ImageAutoencoder::from(numbers).parameters(&mut pieces),
        Architecture::AutoencoderKlQwenImage(numbers) | Architecture::AutoencoderKlWan(numbers) => {
            VideoAutoencoder::from(numbers).parameters(&mut pieces);
        }
        Architecture::AutoencoderTiny(numbers) => TinyAutoencoder::from(numbers).parameters(&mut pieces),
        _ => {}
    }
    pieces.into_list()
}

/// Width, height and frames of a case.
fn pixels(architecture: &Architecture, case: &Case) -> Result<[u64; 3], Unsupported> {
    match case.extent {
        Extent::Pixels { width, height, frames } => Ok([width, height, frames].map(u64::from)),
        Extent::Text { .. } => {
            Err(Unsupported::Extent { architecture: architecture.kind(), case: *case, supported: "pixels".to_owned() })
        }
    }
}

fn image(
    model: &ImageAutoencoder,
    architecture: &Architecture,
    case: &Case,
    recorder: Recorder,
) -> Result<Program, Unsupported> {
    let [width, height, frames] = pixels(architecture, case)?;
    if frames != 1 {
        return Err(Unsupported::Extent {
            architecture: architecture.kind(),
            case: *case,
            supported: "one frame".to_owned(),
        });
    }
    let batch = u64::from(case.batch);
    let scale = model.scale;
    let output: Vec<Tensor> = match case.operation {
        Operation::VaeDecode => {
            let latents = recorder.input(
                "latents",
                &[batch, model.latent_channels, height / scale, width / scale],
                recorder.element(),
            );
            let decode = |tile: &Tensor| model.decode(&recorder, tile);
            let tiles = case.tiling.map(|tiling| Tiles::of_decode(tiling, scale));
            match tiles.filter(|tiles| tiles.are_needed(&latents)) {
                Some(tiles) => vec![tiles.run(&recorder, &latents, decode)],
                None => vec![decode(&latents)],
            }
        }
        Operation::VaeEncode => {
            let pixels = recorder.input("pixels", &[batch, model.image_channels, height, width], recorder.element());
            let encode = |tile: &Tensor| model.encode(&recorder, tile);
            let tiles = case.tiling.map(|tiling| Tiles::of_encode(tiling, scale));
            let moments = match tiles.filter(|tiles| tiles.are_needed(&pixels)) {
                Some(tiles) => tiles.run(&recorder, &pixels, encode),
                None => encode(&pixels),
            };
            recorder.distribution(moments)
        }
        operation => {
            return Err(Unsupported::Operation {
                architecture: architecture.kind(),
                operation,
                supported: "vae_decode, vae_encode",
            });
        }
    };
    let program = recorder.finish(*case);
    drop(output);
    Ok(program)
}

fn video(
    model: &VideoAutoencoder,
    architecture: &Architecture,
    case: &Case,
    recorder: Recorder,
) -> Result<Program, Unsupported> {
    let [width, height, frames] = pixels(architecture, case)?;
    if (frames - 1) % model.frame_scale != 0 {
        return Err(Unsupported::Extent {
            architecture: architecture.kind(),
            case: *case,
            supported: format!("one frame and any number of groups of {} more", model.frame_scale),
        });
    }
    if case.tiling.is_some() {
        return Err(Unsupported::Tiling { architecture: architecture.kind(), operation: case.operation });
    }
    let batch = u64::from(case.batch);
    let scale = model.scale;
    let output = match case.operation {
        Operation::VaeDecode => {
            let latent_frames = (frames - 1) / model.frame_scale + 1;
            let sizes = [batch, model.latent_channels, latent_frames, height / scale, width / scale];
            let latents = recorder.input("latents", &sizes, recorder.element());
            vec![model.decode(&recorder, &latents)]
        }
        Operation::VaeEncode => {
            let sizes = [batch, model.image_channels, frames, height, width];
            let pixels = recorder.input("pixels", &sizes, recorder.element());
            recorder.distribution(model.encode(&recorder, &pixels))
        }
        operation => {
            return Err(Unsupported::Operation {
                architecture: architecture.kind(),
                operation,
                supported: "vae_decode, vae_encode",
            });
        }
    };
    let program = recorder.finish(*case);
    drop(output);
    Ok(program)
}

fn tiny(
    model: &TinyAutoencoder,
    architecture: &Architecture,
    case: &Case,
    recorder: Recorder,
) -> Result<Program, Unsupported> {
    let [width, height, _] = pixels(architecture, case)?;
    let batch = u64::from(case.batch);
    let scale = model.scale;
    let output = match case.operation {
        Operation::VaeDecode => {
            let sizes = [batch, model.latent_channels, height / scale, width / scale];
            let latents = recorder.input("latents", &sizes, recorder.element());
            model.decode(&recorder, &latents)
        }
        _ => {
            let pixels = recorder.input("pixels", &[batch, model.image_channels, height, width], recorder.element());
            model.encode(&recorder, &pixels)
        }
    };
    let program = recorder.finish(*case);
    drop(output);
    Ok(program)
}
