//! `AutoencoderTiny`: a chain of plain convolutions with rectified linear units.

use headroom_base::Operation;
use headroom_family::architecture::AutoencoderTiny;

use super::computation::Pointwise;
use super::derive::{Model, Request, Unsupported};
use super::layers::{Convolution, Pieces};
use super::recorder::{Recorder, Tensor};

/// Where latents begin to be squashed.
const SQUASHED: f64 = 3.0;

const fn times(factor: f64) -> Pointwise {
    Pointwise::Affine { factor, summand: 0.0 }
}

const fn plus(summand: f64) -> Pointwise {
    Pointwise::Affine { factor: 1.0, summand }
}

/// One link of the chain.
#[derive(Clone, Debug)]
enum Link {
    Convolution(Convolution),
    Activation,
    Block([Convolution; 3]),
    Upsample,
}

/// An encoder or a decoder.
#[derive(Clone, Debug)]
struct Chain(Vec<Link>);

impl Chain {
    fn parameters(&self, pieces: &mut Pieces) {
        for (index, link) in self.0.iter().enumerate() {
            pieces.within(format!("layers.{index}"), |p| match link {
                Link::Convolution(layer) => layer.parameters(p),
                Link::Block(layers) => {
                    for (position, layer) in layers.iter().enumerate() {
                        p.within(format!("conv.{}", 2 * position), |p| layer.parameters(p));
                    }
                }
                Link::Activation | Link::Upsample => {}
            });
        }
    }

    fn forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let mut hidden = input.clone();
        for (index, link) in self.0.iter().enumerate() {
            let _place = recorder.enter(format!("layers.{index}"));
            hidden = match link {
                Link::Convolution(layer) => layer.forward(recorder, &hidden),
                Link::Activation => recorder.map(&hidden, Pointwise::Relu, "relu"),
                Link::Block(layers) => block(recorder, layers, &hidden),
                Link::Upsample => recorder.upsample_nearest(&hidden, [2 * hidden.size(2), 2 * hidden.size(3)]),
            };
        }
        hidden
    }
}

fn block(recorder: &Recorder, layers: &[Convolution; 3], input: &Tensor) -> Tensor {
    let mut hidden = recorder.convolution("conv.0", &layers[0], input);
    hidden = recorder.map(&hidden, Pointwise::Relu, "relu");
    hidden = recorder.convolution("conv.2", &layers[1], &hidden);
    hidden = recorder.map(&hidden, Pointwise::Relu, "relu");
    hidden = recorder.convolution("conv.4", &layers[2], &hidden);
    hidden = recorder.combine(&hidden, input, Pointwise::Add, "add residual");
    recorder.map(&hidden, Pointwise::Relu, "relu")
}

/// A distilled autoencoder.
#[derive(Clone, Debug)]
pub(super) struct TinyAutoencoder {
    encoder: Chain,
    decoder: Chain,
    image_channels: u64,
    latent_channels: u64,
    /// Pixels per latent along a side.
    scale: u64,
}

impl From<&AutoencoderTiny> for TinyAutoencoder {
    fn from(numbers: &AutoencoderTiny) -> Self {
        Self {
            encoder: encoder(numbers),
            decoder: decoder(numbers),
            image_channels: u64::from(numbers.image_channels),
            latent_channels: u64::from(numbers.latent_channels),
            scale: 1 << (numbers.num_encoder_blocks.len().max(1) - 1),
        }
    }
}

impl TinyAutoencoder {
    /// Latents are squashed softly before, and pixels rescaled after.
    fn decode(&self, recorder: &Recorder, latents: &Tensor) -> Tensor {
        let _place = recorder.enter("decoder");
        let mut squashed = recorder.scale(latents, Pointwise::Over(SQUASHED), "scale latents");
        squashed = recorder.map(&squashed, Pointwise::Tanh, "tanh");
        squashed = recorder.scale(&squashed, times(SQUASHED), "scale back");
        squashed = self.decoder.forward(recorder, &squashed);
        let stretched = recorder.scale(&squashed, times(2.0), "scale pixels");
        recorder.scale(&stretched, plus(-1.0), "shift pixels")
    }

    /// Pixels are rescaled before.
    fn encode(&self, recorder: &Recorder, pixels: &Tensor) -> Tensor {
        let _place = recorder.enter("encoder");
        let shifted = recorder.scale(pixels, plus(1.0), "shift pixels");
        let scaled = recorder.scale(&shifted, Pointwise::Over(2.0), "scale pixels");
        drop(shifted);
        self.encoder.forward(recorder, &scaled)
    }
}

impl Model for TinyAutoencoder {
    fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("encoder", |p| self.encoder.parameters(p));
        pieces.within("decoder", |p| self.decoder.parameters(p));
    }

    fn run(&self, recorder: &Recorder, request: Request<'_>) -> Result<Vec<Tensor>, Unsupported> {
        let [width, height] = request.image(self.scale)?;
        request.untiled()?;
        match request.case.operation {
            Operation::VaeDecode => {
                let sizes = [request.batch(), self.latent_channels, height / self.scale, width / self.scale];
                let latents = recorder.input("latents", &sizes);
                Ok(vec![self.decode(recorder, &latents)])
            }
            Operation::VaeEncode => {
                let sizes = [request.batch(), self.image_channels, height, width];
                let pixels = recorder.input("pixels", &sizes);
                Ok(vec![self.encode(recorder, &pixels)])
            }
            _ => Err(request.no_such_operation("vae_decode, vae_encode")),
        }
    }
}

fn encoder(numbers: &AutoencoderTiny) -> Chain {
    let mut links = Vec::new();
    let mut last = u64::from(numbers.image_channels);
    for (index, (&blocks, &channels)) in
        numbers.num_encoder_blocks.iter().zip(&numbers.encoder_block_out_channels).enumerate()
    {
        let channels = u64::from(channels);
        links.push(Link::Convolution(if index == 0 {
            Convolution::flat(last, channels, 3)
        } else {
            Convolution::flat(channels, channels, 3).strided(2, 1).without_bias()
        }));
        links.extend(blocks_of(channels, blocks));
        last = channels;
    }
    links.push(Link::Convolution(Convolution::flat(last, u64::from(numbers.latent_channels), 3)));
    Chain(links)
}

fn decoder(numbers: &AutoencoderTiny) -> Chain {
    let stages = numbers.num_decoder_blocks.len();
    let first = numbers.decoder_block_out_channels.first().copied().map_or(1, u64::from);
    let mut links =
        vec![Link::Convolution(Convolution::flat(u64::from(numbers.latent_channels), first, 3)), Link::Activation];
    for (index, (&blocks, &channels)) in
        numbers.num_decoder_blocks.iter().zip(&numbers.decoder_block_out_channels).enumerate()
    {
        let channels = u64::from(channels);
        links.extend(blocks_of(channels, blocks));
        if index + 1 == stages {
            links.push(Link::Convolution(Convolution::flat(channels, u64::from(numbers.image_channels), 3)));
        } else {
            links.push(Link::Upsample);
            links.push(Link::Convolution(Convolution::flat(channels, channels, 3).without_bias()));
        }
    }
    Chain(links)
}

fn blocks_of(channels: u64, count: u32) -> impl Iterator<Item = Link> {
    let layer = Convolution::flat(channels, channels, 3);
    (0..count).map(move |_| Link::Block([layer.clone(), layer.clone(), layer.clone()]))
}
