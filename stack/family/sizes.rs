//! Which sizes of an image or a clip a model takes: what its VAE makes of whole latents.

use crate::architecture::Architecture;
use crate::bounds::{MOST_FRAMES, MOST_SIDE};
use crate::family::{Family, Model};

/// A size that a model cannot have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Why.
    pub message: String,
    /// The nearest that it can have, where that is known.
    pub help: Option<String>,
}

impl Family {
    /// Why one of its models cannot have an image or a clip of so many pixels across, down and frames.
    pub fn misfit(&self, model: &Model, pixels: [u32; 3]) -> Option<Misfit> {
        misfit(&self.models, model, pixels)
    }
}

/// The same for a family that is not whole yet.
pub(crate) fn misfit(models: &[Model], model: &Model, [width, height, frames]: [u32; 3]) -> Option<Misfit> {
    let wrong = |message: String, help: Option<String>| Some(Misfit { message, help });
    let vae = vae_of(models, model);
    let patch = model.architecture().map_or(1, Architecture::latent_patch);
    let factor = vae.and_then(Architecture::vae_factor).unwrap_or(1).saturating_mul(patch);
    for (name, pixels) in [("width", width), ("height", height)] {
        if u64::from(pixels) > MOST_SIDE {
            return wrong(format!("a {name} of {pixels} pixels is more than {MOST_SIDE}"), None);
        }
        if !pixels.is_multiple_of(factor) {
            let (below, above) = (pixels / factor * factor, pixels.div_ceil(factor) * factor);
            let near = if below == 0 { above.to_string() } else { format!("{below} or {above}") };
            let whose = if patch > 1 { "the VAE's factor times the model's patch" } else { "the VAE's factor" };
            let message = format!("{name} {pixels} is not divisible by {factor}, {whose}");
            return wrong(message, Some(format!("write {near}")));
        }
    }
    if u64::from(frames) > MOST_FRAMES {
        return wrong(format!("{frames} frames are more than {MOST_FRAMES}"), None);
    }
    let step = vae.and_then(Architecture::frame_factor).unwrap_or(1);
    if frames > 1 && vae.is_some() && step == 1 {
        return wrong(format!("{frames} frames: the VAE of this family takes images, one frame each"), None);
    }
    let later = frames.saturating_sub(1);
    if !later.is_multiple_of(step) {
        let below = later / step * step + 1;
        let message = format!("{frames} frames: after the first they come in groups of {step}");
        return wrong(message, Some(format!("write {below} or {}", below + step)));
    }
    None
}

/// The VAE whose factor decides: the model's own, or the family's where the model denoises.
fn vae_of<'a>(models: &'a [Model], model: &'a Model) -> Option<&'a Architecture> {
    let own = model.architecture().filter(|known| known.vae_factor().is_some());
    own.or_else(|| models.iter().filter_map(Model::architecture).find(|known| known.vae_factor().is_some()))
}
