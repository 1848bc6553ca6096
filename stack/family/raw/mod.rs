//! A family file as it is written, before anything is checked. The JSON Schema is made from these types.

mod autoencoders;
pub(crate) mod numbers;
pub(crate) mod published;
pub(crate) mod scenario;
mod transformers;
mod unet;

use headroom_base::{AllocatorKind, DType, Operation};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::architecture::Architecture;
use crate::raw::autoencoders::{RawAutoencoderKl, RawAutoencoderKlFlux2, RawAutoencoderTiny, RawCausalAutoencoder};
use crate::raw::numbers::Mistakes;
use crate::raw::scenario::RawScenario;
use crate::raw::transformers::{RawClip, RawFlux, RawT5};
use crate::raw::unet::RawUnet;
use crate::reader::Tried;
use crate::words::{AllocatorName, ByteText, DTypeName, OperationName, Size};

/// A list of which every item is read whatever is wrong with the others.
pub(crate) type Section<T> = Tried<Vec<Tried<T>>>;

impl<T> Default for Tried<Vec<T>> {
    fn default() -> Self {
        Self(Some(Vec::new()))
    }
}

/// A model family: what it computes, where it is simulated, and what must hold.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Family")]
pub(crate) struct RawFamily {
    /// The family's name, the same as the file's: lower case, digits and dashes.
    pub(crate) name: String,
    /// What it is, in a sentence or two.
    pub(crate) description: String,
    /// Its models.
    #[serde(default)]
    pub(crate) models: Section<RawModel>,
    /// The steps of one generation, in order.
    #[serde(default)]
    pub(crate) pipeline: Section<RawStep>,
    /// What a calibration measures.
    #[serde(default)]
    pub(crate) calibration: Section<RawCalibration>,
    /// The devices it is simulated on.
    #[serde(default)]
    pub(crate) devices: Section<RawDevice>,
    /// What must hold on them.
    #[serde(default)]
    pub(crate) checks: Option<RawChecks>,
    /// Scripted cache scenarios with exact bytes.
    #[serde(default)]
    pub(crate) regressions: Section<RawScenario>,
}

/// A model: an architecture with its numbers, or plain byte sizes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Model")]
pub(crate) struct RawModel {
    /// Its key: `model`, or `model:submodel`.
    pub(crate) key: String,
    /// Its architecture, where its operations are known layer by layer.
    pub(crate) architecture: Option<RawArchitecture>,
    /// Its size, where they are not.
    pub(crate) weights: Option<RawWeights>,
    /// The element type its weights are stored in.
    #[schemars(with = "DTypeName")]
    pub(crate) dtype: DType,
    /// A safetensors file with its weights, relative to this file; synthetic weights otherwise.
    pub(crate) safetensors: Option<String>,
    /// The share of its weights that must be on the device to run, in percent.
    #[serde(default)]
    #[schemars(range(max = 100))]
    pub(crate) required_percent: u32,
    /// Whether it may run with a part of its weights on the device.
    #[serde(default = "yes")]
    pub(crate) partial_loading: bool,
    /// The name under which recordings of real devices have it.
    pub(crate) recorded_as: Option<String>,
}

const fn yes() -> bool {
    true
}

/// Weights of a model whose layers are not described.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Weights")]
pub(crate) struct RawWeights {
    /// In how many pieces they load.
    #[schemars(range(min = 1))]
    pub(crate) pieces: u32,
    /// All of them together.
    pub(crate) bytes: ByteText,
}

/// A step of the pipeline.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PipelineStep")]
pub(crate) struct RawStep {
    /// What runs.
    #[schemars(with = "OperationName")]
    pub(crate) operation: Operation,
    /// On which model.
    pub(crate) model: String,
    /// Models that are locked with it.
    #[serde(default)]
    pub(crate) with: Vec<String>,
    /// At which size.
    pub(crate) size: Size,
    /// In which element type; the model's own if left out.
    #[schemars(with = "Option<DTypeName>")]
    pub(crate) dtype: Option<DType>,
    /// Tile by tile.
    pub(crate) tiling: Option<RawTiling>,
}

/// What a calibration measures of one model: every operation in every element type at every size.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Calibration")]
pub(crate) struct RawCalibration {
    /// The model.
    pub(crate) model: String,
    /// The operations.
    #[schemars(with = "Vec<OperationName>")]
    pub(crate) operations: Vec<Tried<Operation>>,
    /// The element types.
    #[schemars(with = "Vec<DTypeName>")]
    pub(crate) dtypes: Vec<Tried<DType>>,
    /// At least three sizes.
    pub(crate) sizes: Vec<Tried<Size>>,
    /// Sizes that are not calibrated and on which the fit is tried.
    #[serde(default)]
    pub(crate) held_out: Vec<Tried<Size>>,
    /// How many at once, where a size does not say.
    pub(crate) batch: Option<u32>,
    /// Tile by tile.
    pub(crate) tiling: Option<RawTiling>,
}

/// A VAE run tile by tile.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Tiling")]
pub(crate) struct RawTiling {
    /// Side of a tile in pixels.
    pub(crate) tile: u32,
    /// Share of a tile that neighbours overlap, in percent.
    #[serde(default = "quarter")]
    #[schemars(range(max = 99))]
    pub(crate) overlap: u32,
}

const fn quarter() -> u32 {
    25
}

/// A simulated device.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Device")]
pub(crate) struct RawDevice {
    /// Its memory.
    pub(crate) memory: ByteText,
    /// Its name in trials; the memory (`12gib`) if left out.
    pub(crate) name: Option<String>,
    /// What this process's context costs there; 524 MiB, measured on an H200, if left out.
    pub(crate) context: Option<ByteText>,
    /// What other processes hold.
    pub(crate) outside: Option<ByteText>,
    /// The allocators it is tried with; all if left out.
    #[schemars(with = "Option<Vec<AllocatorName>>")]
    pub(crate) allocators: Option<Vec<Tried<AllocatorKind>>>,
}

/// What must hold on every device.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Checks")]
pub(crate) struct RawChecks {
    /// How much of a measured model is on the device at least, where its case is planned: 100 if left out.
    #[schemars(range(max = 100))]
    pub(crate) residency_percent: Option<u32>,
    /// How many of the held-out sizes the reservation covers at least: 100 if left out.
    #[schemars(range(max = 100))]
    pub(crate) coverage_percent: Option<u32>,
    /// How much more than the demand may be reserved for a calibrated size.
    pub(crate) over_reservation_percent: Option<RawOverReservation>,
    /// Models that some devices cannot hold whole.
    pub(crate) partly_resident: Vec<Tried<RawPartlyResident>>,
    /// Operations that some devices can only run tile by tile.
    pub(crate) tiling_needed: Vec<Tried<RawTilingNeeded>>,
}

/// Limits on the reservation over the demand, per allocator.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OverReservation")]
pub(crate) struct RawOverReservation {
    /// Fixed segments.
    pub(crate) native: u32,
    /// Expandable segments.
    pub(crate) expandable_segments: u32,
    /// The driver's stream-ordered pool.
    pub(crate) cuda_malloc_async: u32,
}

/// A model that some devices cannot hold whole.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PartlyResident")]
pub(crate) struct RawPartlyResident {
    /// The model.
    pub(crate) model: String,
    /// Their names.
    pub(crate) devices: Vec<String>,
}

/// An operation that some devices can only run tile by tile.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TilingNeeded")]
pub(crate) struct RawTilingNeeded {
    /// The model.
    pub(crate) model: String,
    /// The operation.
    #[schemars(with = "OperationName")]
    pub(crate) operation: Operation,
    /// The element type; the model's own if left out.
    #[schemars(with = "Option<DTypeName>")]
    pub(crate) dtype: Option<DType>,
    /// The size that does not fit untiled.
    pub(crate) size: Size,
    /// The tiling with which it does.
    pub(crate) tiling: RawTiling,
    /// Names of the devices.
    pub(crate) devices: Vec<String>,
    /// The allocators under which it does not fit there; all if left out.
    #[schemars(with = "Option<Vec<AllocatorName>>")]
    pub(crate) allocators: Option<Vec<Tried<AllocatorKind>>>,
}

/// An architecture under its `kind`, as files write it. The variants are [`Architecture`]'s.
///
/// A number that is left out is what diffusers or transformers make of it where they have a rule, which is then said with
/// the field; one without such a rule is needed. A published `config.json` can stand here whole, beside `kind`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(tag = "kind", rename = "Architecture", transform = with_published_keys)]
pub(crate) enum RawArchitecture {
    /// diffusers' `AutoencoderKL`: Stable Diffusion, SDXL, SD3, FLUX.1, CogView4, Z-Image.
    AutoencoderKl(RawAutoencoderKl),
    /// diffusers' `AutoencoderKLFlux2`: FLUX.2.
    AutoencoderKlFlux2(RawAutoencoderKlFlux2),
    /// diffusers' `AutoencoderKLQwenImage`: causal 3-D convolutions, one frame per step.
    AutoencoderKlQwenImage(RawCausalAutoencoder),
    /// diffusers' `AutoencoderKLWan` of Wan 2.1: causal 3-D convolutions, one latent frame per step.
    AutoencoderKlWan(RawCausalAutoencoder),
    /// diffusers' `AutoencoderTiny`: TAESD.
    AutoencoderTiny(RawAutoencoderTiny),
    /// diffusers' `UNet2DConditionModel`: Stable Diffusion 1.5 and 2.1, SDXL.
    Unet2dCondition(RawUnet),
    /// diffusers' `FluxTransformer2DModel`: FLUX.1.
    FluxTransformer(RawFlux),
    /// transformers' `CLIPTextModel` and, with a projection, `CLIPTextModelWithProjection`.
    ClipTextEncoder(RawClip),
    /// transformers' `T5EncoderModel` with gated feed-forward layers (T5 1.1).
    T5Encoder(RawT5),
}

impl RawArchitecture {
    /// The architecture with every number. Where one is needed and not there, or two are at odds, it is in `mistakes`, and
    /// what is given back is of no use.
    pub(crate) fn resolve(&self, mistakes: &mut Mistakes) -> Architecture {
        match self {
            Self::AutoencoderKl(raw) => Architecture::AutoencoderKl(raw.resolve(mistakes)),
            Self::AutoencoderKlFlux2(raw) => Architecture::AutoencoderKlFlux2(raw.resolve(mistakes)),
            Self::AutoencoderKlQwenImage(raw) => Architecture::AutoencoderKlQwenImage(raw.resolve(mistakes)),
            Self::AutoencoderKlWan(raw) => Architecture::AutoencoderKlWan(raw.resolve(mistakes)),
            Self::AutoencoderTiny(raw) => Architecture::AutoencoderTiny(raw.resolve(mistakes)),
            Self::Unet2dCondition(raw) => Architecture::Unet2dCondition(raw.resolve(mistakes)),
            Self::FluxTransformer(raw) => Architecture::FluxTransformer(raw.resolve(mistakes)),
            Self::ClipTextEncoder(raw) => Architecture::ClipTextEncoder(raw.resolve(mistakes)),
            Self::T5Encoder(raw) => Architecture::T5Encoder(raw.resolve(mistakes)),
        }
    }
}

/// Adds to each kind the keys of published configurations that may stand there too.
fn with_published_keys(schema: &mut schemars::Schema) {
    let Some(kinds) = schema.get_mut("oneOf").and_then(serde_json::Value::as_array_mut) else { return };
    for kind in kinds {
        let Some(name) = kind["properties"]["kind"]["const"].as_str().map(str::to_owned) else { continue };
        for (key, answer) in published::keys(&name) {
            kind["properties"][key] = answer.schema();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_can_be_read_under_its_kind() {
        let schema = serde_json::to_value(schemars::schema_for!(RawArchitecture)).unwrap();
        let kinds = schema["oneOf"].as_array().unwrap().iter();
        let kinds: Vec<_> = kinds.map(|kind| kind["properties"]["kind"]["const"].as_str().unwrap()).collect();
        assert_eq!(kinds, Architecture::KINDS);
        assert!(kinds.iter().all(|kind| published::keys(kind).count() > 0));
    }
}
