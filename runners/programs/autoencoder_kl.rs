//! `AutoencoderKL` and `AutoencoderKLFlux2`: an encoder and a decoder of residual blocks, with attention in the middle.

use headroom_base::Operation;
use headroom_family::architecture::{AutoencoderKl, AutoencoderKlFlux2};

use super::computation::Pointwise;
use super::derive::{Model, Request, Unsupported};
use super::layers::{Convolution, GroupNorm, Pieces};
use super::recorder::{Recorder, Tensor};
use super::residual::{Downsample, EPSILON, PixelAttention, ResnetBlock, Upsample};
use super::shape::Element;
use super::tiling::Tiles;

/// Residual blocks with attention between them.
#[derive(Clone, Debug)]
struct Middle {
    attention: Option<PixelAttention>,
    resnets: [ResnetBlock; 2],
}

impl Middle {
    fn new(channels: u64, groups: u64, attention: bool) -> Self {
        let resnet = ResnetBlock::new([channels, channels], groups, None);
        let attention = attention.then(|| PixelAttention::new(channels, groups));
        Self { attention, resnets: [resnet.clone(), resnet] }
    }

    fn parameters(&self, pieces: &mut Pieces) {
        if let Some(attention) = &self.attention {
            pieces.within("attentions.0", |p| attention.parameters(p));
        }
        for (index, resnet) in self.resnets.iter().enumerate() {
            pieces.within(format!("resnets.{index}"), |p| resnet.parameters(p));
        }
    }

    fn forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let mut hidden = {
            let _place = recorder.enter("resnets.0");
            self.resnets[0].forward(recorder, input, None)
        };
        if let Some(attention) = &self.attention {
            let _place = recorder.enter("attentions.0");
            hidden = attention.forward(recorder, &hidden);
        }
        let _place = recorder.enter("resnets.1");
        self.resnets[1].forward(recorder, &hidden, None)
    }
}

/// One resolution.
#[derive(Clone, Debug)]
struct Level {
    resnets: Vec<ResnetBlock>,
    downsample: Option<Downsample>,
    upsample: Option<Upsample>,
}

impl Level {
    fn parameters(&self, pieces: &mut Pieces) {
        for (index, resnet) in self.resnets.iter().enumerate() {
            pieces.within(format!("resnets.{index}"), |p| resnet.parameters(p));
        }
        if let Some(layer) = &self.downsample {
            pieces.within("downsamplers.0", |p| layer.parameters(p));
        }
        if let Some(layer) = &self.upsample {
            pieces.within("upsamplers.0", |p| layer.parameters(p));
        }
    }

    fn forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let mut hidden = input.clone();
        for (index, resnet) in self.resnets.iter().enumerate() {
            let _place = recorder.enter(format!("resnets.{index}"));
            hidden = resnet.forward(recorder, &hidden, None);
        }
        if let Some(layer) = &self.downsample {
            let _place = recorder.enter("downsamplers.0");
            hidden = layer.forward(recorder, &hidden);
        }
        if let Some(layer) = &self.upsample {
            let _place = recorder.enter("upsamplers.0");
            hidden = layer.forward(recorder, &hidden);
        }
        hidden
    }
}

/// What an encoder or a decoder is: convolution, levels and middle in the direction's order, convolution.
#[derive(Clone, Debug)]
struct Half {
    conv_in: Convolution,
    levels: Vec<Level>,
    middle: Middle,
    norm_out: GroupNorm,
    conv_out: Convolution,
    decodes: bool,
}

impl Half {
    fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("conv_in", |p| self.conv_in.parameters(p));
        let levels = if self.decodes { "up_blocks" } else { "down_blocks" };
        for (index, level) in self.levels.iter().enumerate() {
            pieces.within(format!("{levels}.{index}"), |p| level.parameters(p));
        }
        pieces.within("mid_block", |p| self.middle.parameters(p));
        pieces.within("conv_norm_out", |p| self.norm_out.parameters(p));
        pieces.within("conv_out", |p| self.conv_out.parameters(p));
    }

    fn middle(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let _place = recorder.enter("mid_block");
        self.middle.forward(recorder, input)
    }

    fn forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let mut hidden = recorder.convolution("conv_in", &self.conv_in, input);
        let levels = if self.decodes { "up_blocks" } else { "down_blocks" };
        if self.decodes {
            hidden = self.middle(recorder, &hidden);
        }
        for (index, level) in self.levels.iter().enumerate() {
            let _place = recorder.enter(format!("{levels}.{index}"));
            hidden = level.forward(recorder, &hidden);
        }
        if !self.decodes {
            hidden = self.middle(recorder, &hidden);
        }
        hidden = recorder.group_norm("conv_norm_out", &self.norm_out, &hidden);
        hidden = recorder.map(&hidden, Pointwise::Silu, "silu");
        recorder.convolution("conv_out", &self.conv_out, &hidden)
    }
}

/// An image autoencoder.
#[derive(Clone, Debug)]
pub(super) struct ImageAutoencoder {
    encoder: Half,
    decoder: Half,
    quant: Option<Convolution>,
    post_quant: Option<Convolution>,
    /// Channels of the running statistics over latent patches, where the model holds them.
    patch_statistics: Option<u64>,
    image_channels: u64,
    latent_channels: u64,
    /// Pixels per latent along a side.
    scale: u64,
}

impl From<&AutoencoderKl> for ImageAutoencoder {
    fn from(numbers: &AutoencoderKl) -> Self {
        Self::new(numbers, &numbers.block_out_channels)
    }
}

impl From<&AutoencoderKlFlux2> for ImageAutoencoder {
    fn from(numbers: &AutoencoderKlFlux2) -> Self {
        let shared = AutoencoderKl {
            image_channels: numbers.image_channels,
            latent_channels: numbers.latent_channels,
            block_out_channels: numbers.block_out_channels.clone(),
            layers_per_block: numbers.layers_per_block,
            norm_num_groups: numbers.norm_num_groups,
            use_quant_conv: numbers.use_quant_conv,
            use_post_quant_conv: numbers.use_post_quant_conv,
            mid_block_add_attention: numbers.mid_block_add_attention,
        };
        let decoder = numbers.decoder_block_out_channels.as_ref().unwrap_or(&numbers.block_out_channels);
        let side = u64::from(numbers.patch_size);
        let patch = side * side * u64::from(numbers.latent_channels);
        Self { patch_statistics: Some(patch), ..Self::new(&shared, decoder) }
    }
}

impl ImageAutoencoder {
    fn new(numbers: &AutoencoderKl, decoder_channels: &[u32]) -> Self {
        let latent = u64::from(numbers.latent_channels);
        let quant = |used: bool, channels: u64| used.then(|| Convolution::flat(channels, channels, 1));
        Self {
            encoder: encoder(numbers),
            decoder: decoder(numbers, decoder_channels),
            quant: quant(numbers.use_quant_conv, 2 * latent),
            post_quant: quant(numbers.use_post_quant_conv, latent),
            patch_statistics: None,
            image_channels: u64::from(numbers.image_channels),
            latent_channels: latent,
            scale: 1 << (numbers.block_out_channels.len().max(1) - 1),
        }
    }

    /// Latents to pixels.
    fn decode(&self, recorder: &Recorder, latents: &Tensor) -> Tensor {
        let mut latents = latents.clone();
        if let Some(layer) = &self.post_quant {
            latents = recorder.convolution("post_quant_conv", layer, &latents);
        }
        let _place = recorder.enter("decoder");
        self.decoder.forward(recorder, &latents)
    }

    /// Pixels to the moments of a distribution over latents.
    fn encode(&self, recorder: &Recorder, pixels: &Tensor) -> Tensor {
        let hidden = {
            let _place = recorder.enter("encoder");
            self.encoder.forward(recorder, pixels)
        };
        match &self.quant {
            Some(layer) => recorder.convolution("quant_conv", layer, &hidden),
            None => hidden,
        }
    }
}

impl Model for ImageAutoencoder {
    fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("encoder", |p| self.encoder.parameters(p));
        pieces.within("decoder", |p| self.decoder.parameters(p));
        if let Some(layer) = &self.quant {
            pieces.within("quant_conv", |p| layer.parameters(p));
        }
        if let Some(layer) = &self.post_quant {
            pieces.within("post_quant_conv", |p| layer.parameters(p));
        }
        if let Some(channels) = self.patch_statistics {
            pieces.within("bn", |p| {
                p.parameter("running_mean", &[channels]);
                p.parameter("running_var", &[channels]);
                p.buffer("num_batches_tracked", &[1], Element::Int64);
            });
        }
    }

    fn run(&self, recorder: &Recorder, request: Request<'_>) -> Result<Vec<Tensor>, Unsupported> {
        let [width, height] = request.image(self.scale)?;
        let batch = request.batch();
        if request.case.tiling.is_none() {
            request.attends(1, (width / self.scale) * (height / self.scale))?;
        }
        match request.case.operation {
            Operation::VaeDecode => {
                let sizes = [batch, self.latent_channels, height / self.scale, width / self.scale];
                let latents = recorder.input("latents", &sizes);
                Ok(vec![match Tiles::of_decode(request, [sizes[2], sizes[3]], self.scale)? {
                    Some(tiles) => tiles.run(recorder, &latents, |tile| self.decode(recorder, tile)),
                    None => self.decode(recorder, &latents),
                }])
            }
            Operation::VaeEncode => {
                let sizes = [batch, self.image_channels, height, width];
                let pixels = recorder.input("pixels", &sizes);
                let moments = match Tiles::of_encode(request, [height, width], self.scale)? {
                    Some(tiles) => tiles.run(recorder, &pixels, |tile| self.encode(recorder, tile)),
                    None => self.encode(recorder, &pixels),
                };
                Ok(recorder.distribution(moments))
            }
            _ => Err(request.no_such_operation("vae_decode, vae_encode")),
        }
    }
}

fn encoder(numbers: &AutoencoderKl) -> Half {
    let groups = u64::from(numbers.norm_num_groups);
    let channels: Vec<u64> = numbers.block_out_channels.iter().map(|&c| u64::from(c)).collect();
    let (first, last) = (channels.first().copied().unwrap_or(1), channels.last().copied().unwrap_or(1));
    let mut inputs = first;
    let mut levels = Vec::new();
    for (index, &outputs) in channels.iter().enumerate() {
        let mut resnets = Vec::new();
        for _ in 0..numbers.layers_per_block {
            resnets.push(ResnetBlock::new([inputs, outputs], groups, None));
            inputs = outputs;
        }
        let downsample = (index + 1 < channels.len()).then(|| Downsample::new(outputs, true));
        levels.push(Level { resnets, downsample, upsample: None });
    }
    Half {
        conv_in: Convolution::flat(u64::from(numbers.image_channels), first, 3),
        levels,
        middle: Middle::new(last, groups, numbers.mid_block_add_attention),
        norm_out: GroupNorm { groups, channels: last, epsilon: EPSILON },
        conv_out: Convolution::flat(last, 2 * u64::from(numbers.latent_channels), 3),
        decodes: false,
    }
}

fn decoder(numbers: &AutoencoderKl, channels: &[u32]) -> Half {
    let groups = u64::from(numbers.norm_num_groups);
    let channels: Vec<u64> = channels.iter().rev().map(|&c| u64::from(c)).collect();
    let (first, last) = (channels.first().copied().unwrap_or(1), channels.last().copied().unwrap_or(1));
    let mut inputs = first;
    let mut levels = Vec::new();
    for (index, &outputs) in channels.iter().enumerate() {
        let mut resnets = Vec::new();
        for _ in 0..=numbers.layers_per_block {
            resnets.push(ResnetBlock::new([inputs, outputs], groups, None));
            inputs = outputs;
        }
        let upsample = (index + 1 < channels.len()).then(|| Upsample::new(outputs));
        levels.push(Level { resnets, downsample: None, upsample });
    }
    Half {
        conv_in: Convolution::flat(u64::from(numbers.latent_channels), first, 3),
        levels,
        middle: Middle::new(first, groups, numbers.mid_block_add_attention),
        norm_out: GroupNorm { groups, channels: last, epsilon: EPSILON },
        conv_out: Convolution::flat(last, u64::from(numbers.image_channels), 3),
        decodes: true,
    }
}
