//! From an architecture and a case to its program, and to its weights.

use headroom_base::{Case, DType, Extent, Operation};
use headroom_family::{Architecture, MOST_FRAMES, MOST_ITEMS, MOST_SIDE};

use super::autoencoder_kl::ImageAutoencoder;
use super::autoencoder_tiny::TinyAutoencoder;
use super::causal::VideoAutoencoder;
use super::clip::ClipText;
use super::computation::{Computation, Given, Source};
use super::estimator::converted;
use super::execution::Execution;
use super::flux::Flux;
use super::layers::Pieces;
use super::program::{Piece, Program};
use super::recorder::{Computed, Recorder, Tensor};
use super::shape::Element;
use super::t5::T5;
use super::unet::Unet;

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
    /// The operation uses a parameter that the model's list does not have: a defect of headroom.
    #[error("{architecture} computes with `{name}`, which is none of its parameters; please report this")]
    Parameter {
        /// The architecture's kind.
        architecture: &'static str,
        /// The parameter.
        name: String,
    },
    /// The architecture's programs do not run tile by tile.
    #[error(
        "{architecture} has no tiled {operation}; leave the tiling out, or use autoencoder_kl or autoencoder_kl_flux2"
    )]
    Tiling {
        /// The architecture's kind.
        architecture: &'static str,
        /// What was asked.
        operation: Operation,
    },
}

/// The most scores of attention at once, which some kernels write down: sums of their bytes stay below 2^64.
const MOST_SCORES: u128 = 1 << 58;

/// What is asked of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    kind: &'static str,
    pub(super) case: &'a Case,
}

impl Request<'_> {
    /// The refusal of an operation that the model does not have.
    pub(super) fn no_such_operation(&self, supported: &'static str) -> Unsupported {
        Unsupported::Operation { architecture: self.kind, operation: self.case.operation, supported }
    }

    /// The refusal of an extent.
    pub(super) fn no_such_extent(&self, supported: impl Into<String>) -> Unsupported {
        Unsupported::Extent { architecture: self.kind, case: *self.case, supported: supported.into() }
    }

    /// Items at once.
    pub(super) fn batch(&self) -> u64 {
        u64::from(self.case.batch)
    }

    /// Width, height and frames, each a positive multiple of what the model works on.
    pub(super) fn pixels(&self, side: u64) -> Result<[u64; 3], Unsupported> {
        let Extent::Pixels { width, height, frames } = self.case.extent else {
            return Err(self.no_such_extent("pixels"));
        };
        let extent = [width, height, frames].map(u64::from);
        if extent[..2].iter().any(|size| *size < side) || frames == 0 || self.case.batch == 0 {
            return Err(self.no_such_extent(format!("at least one item of {side} pixels each way")));
        }
        if extent[0].max(extent[1]) > MOST_SIDE || extent[2] > MOST_FRAMES {
            return Err(self.no_such_extent(format!("at most {MOST_SIDE} pixels each way and {MOST_FRAMES} frames")));
        }
        self.at_most(&extent)?;
        Ok(extent)
    }

    /// Refuses what no card could hold and no sum of bytes would be right for.
    fn at_most(&self, extent: &[u64]) -> Result<(), Unsupported> {
        let items = extent.iter().copied().map(u128::from).product::<u128>() * u128::from(self.case.batch);
        if items > MOST_ITEMS {
            return Err(self.no_such_extent(format!("at most {MOST_ITEMS} pixels or tokens at once")));
        }
        Ok(())
    }

    /// Refuses attention of so many heads over so many tokens where not even a number of bytes could say its scores.
    pub(super) fn attends(&self, heads: u64, tokens: u64) -> Result<(), Unsupported> {
        let scores = [heads, tokens, tokens, self.batch()].into_iter().map(u128::from).fold(1, u128::saturating_mul);
        if scores > MOST_SCORES {
            return Err(self.no_such_extent(format!("at most {MOST_SCORES} scores of attention at once")));
        }
        Ok(())
    }

    /// The pixels of one image.
    pub(super) fn image(&self, side: u64) -> Result<[u64; 2], Unsupported> {
        match self.pixels(side)? {
            [width, height, 1] => Ok([width, height]),
            _ => Err(self.no_such_extent("one frame")),
        }
    }

    /// Tokens of one text.
    pub(super) fn tokens(&self) -> Result<u64, Unsupported> {
        match self.case.extent {
            Extent::Text { tokens } if u64::from(tokens) > MOST_SIDE => {
                Err(self.no_such_extent(format!("at most {MOST_SIDE} tokens")))
            }
            Extent::Text { tokens } if tokens > 0 && self.case.batch > 0 => {
                self.at_most(&[u64::from(tokens)])?;
                Ok(u64::from(tokens))
            }
            _ => Err(self.no_such_extent("at least one token")),
        }
    }

    /// Refuses a tiled case.
    pub(super) fn untiled(&self) -> Result<(), Unsupported> {
        match self.case.tiling {
            None => Ok(()),
            Some(_) => Err(Unsupported::Tiling { architecture: self.kind, operation: self.case.operation }),
        }
    }
}

/// A model made of layers: what it holds, and how it executes an operation.
pub(super) trait Model {
    /// Every parameter and buffer, in the order in which the reference moves them to a device.
    fn parameters(&self, pieces: &mut Pieces);

    /// Executes the case; what is returned is the operation's output.
    fn run(&self, recorder: &Recorder, request: Request<'_>) -> Result<Vec<Tensor>, Unsupported>;
}

fn model(architecture: &Architecture) -> Box<dyn Model> {
    match architecture {
        Architecture::AutoencoderKl(numbers) => Box::new(ImageAutoencoder::from(numbers)),
        Architecture::AutoencoderKlFlux2(numbers) => Box::new(ImageAutoencoder::from(numbers)),
        Architecture::AutoencoderKlQwenImage(numbers) | Architecture::AutoencoderKlWan(numbers) => {
            Box::new(VideoAutoencoder::from(numbers))
        }
        Architecture::AutoencoderTiny(numbers) => Box::new(TinyAutoencoder::from(numbers)),
        Architecture::Unet2dCondition(numbers) => Box::new(Unet::from(numbers)),
        Architecture::FluxTransformer(numbers) => Box::new(Flux::from(numbers)),
        Architecture::ClipTextEncoder(numbers) => Box::new(ClipText::from(numbers)),
        Architecture::T5Encoder(numbers) => Box::new(T5::from(numbers)),
    }
}

/// The program of one operation.
///
/// # Errors
/// When the architecture has no such operation, or none for this extent; the error says what is supported.
pub fn program(architecture: &Architecture, case: &Case, execution: &Execution) -> Result<Program, Unsupported> {
    let recorder = Recorder::new(execution, case.dtype);
    let copies: Vec<Tensor> = match execution.stored {
        Some(stored) if stored != case.dtype => {
            converted(architecture, case.dtype).map(|bytes| recorder.converted_weight(bytes)).collect()
        }
        _ => Vec::new(),
    };
    let output = model(architecture).run(&recorder, Request { kind: architecture.kind(), case })?;
    drop(copies);
    let (program, _) = recorder.finish(*case);
    drop(output);
    Ok(program)
}

/// The program of one operation with what it computes.
///
/// # Errors
/// As [`program`], and where the operation asks for a parameter that the model does not have.
pub fn computation(
    architecture: &Architecture,
    case: &Case,
    execution: &Execution,
) -> Result<Computation, Unsupported> {
    let recorder = Recorder::computing(execution, case.dtype);
    let stored = execution.stored.unwrap_or(case.dtype);
    let parameters = parameters(architecture, stored);
    let mut copies = Vec::new();
    for (index, given) in parameters.iter().enumerate() {
        let source = Source::Parameter(index);
        let floating = matches!(given.element, Element::Float(_));
        let copy = (floating && stored != case.dtype).then(|| recorder.converted(source, given, case.dtype));
        recorder.know_parameter(&given.name, source, copy.as_ref(), given.element);
        copies.extend(copy);
    }
    let output = model(architecture).run(&recorder, Request { kind: architecture.kind(), case })?;
    let outputs = output.iter().map(Tensor::view).collect();
    recorder.forget_parameters();
    drop(copies);
    let (program, computed) = recorder.finish(*case);
    drop(output);
    let Computed { inputs, launches, unknown } = computed.unwrap_or_default();
    match unknown {
        Some(name) => Err(Unsupported::Parameter { architecture: architecture.kind(), name }),
        None => Ok(Computation { program, launches, inputs, parameters, outputs }),
    }
}

/// Every parameter and buffer of the model with its size in `dtype`, in the order in which the reference moves them to
/// a device.
pub fn weights(architecture: &Architecture, dtype: DType) -> Vec<Piece> {
    parameters(architecture, dtype).iter().map(Piece::from).collect()
}

fn parameters(architecture: &Architecture, dtype: DType) -> Vec<Given> {
    let mut pieces = Pieces::new(dtype);
    model(architecture).parameters(&mut pieces);
    pieces.into_list()
}
