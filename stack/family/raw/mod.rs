//! A family file as it is written, before anything is checked. The JSON Schema is made from these types.

pub(crate) mod scenario;

use headroom_base::{AllocatorKind, DType, Operation};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::architecture::{
    Architecture, AutoencoderKl, AutoencoderKlFlux2, AutoencoderTiny, CausalAutoencoder, ClipTextEncoder,
    FluxTransformer, T5Encoder, Unet2dCondition,
};
use crate::raw::scenario::RawScenario;
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

/// An architecture under its `kind`. The variants are [`Architecture`]'s; this mirror is read with places.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawArchitecture {
    AutoencoderKl(AutoencoderKl),
    AutoencoderKlFlux2(AutoencoderKlFlux2),
    AutoencoderKlQwenImage(CausalAutoencoder),
    AutoencoderKlWan(CausalAutoencoder),
    AutoencoderTiny(AutoencoderTiny),
    Unet2dCondition(Unet2dCondition),
    FluxTransformer(FluxTransformer),
    ClipTextEncoder(ClipTextEncoder),
    T5Encoder(T5Encoder),
}

impl From<RawArchitecture> for Architecture {
    fn from(raw: RawArchitecture) -> Self {
        match raw {
            RawArchitecture::AutoencoderKl(numbers) => Self::AutoencoderKl(numbers),
            RawArchitecture::AutoencoderKlFlux2(numbers) => Self::AutoencoderKlFlux2(numbers),
            RawArchitecture::AutoencoderKlQwenImage(numbers) => Self::AutoencoderKlQwenImage(numbers),
            RawArchitecture::AutoencoderKlWan(numbers) => Self::AutoencoderKlWan(numbers),
            RawArchitecture::AutoencoderTiny(numbers) => Self::AutoencoderTiny(numbers),
            RawArchitecture::Unet2dCondition(numbers) => Self::Unet2dCondition(numbers),
            RawArchitecture::FluxTransformer(numbers) => Self::FluxTransformer(numbers),
            RawArchitecture::ClipTextEncoder(numbers) => Self::ClipTextEncoder(numbers),
            RawArchitecture::T5Encoder(numbers) => Self::T5Encoder(numbers),
        }
    }
}

impl JsonSchema for RawArchitecture {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        Architecture::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Architecture::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::Findings;
    use crate::node::Node;
    use crate::reader::Reader;

    fn kinds() -> Vec<String> {
        let schema = serde_json::to_value(schemars::schema_for!(Architecture)).unwrap();
        let variants = schema["oneOf"].as_array().unwrap();
        variants.iter().map(|variant| variant["properties"]["kind"]["const"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_architecture_is_read_as_serde_reads_it() {
        let kinds = kinds();
        assert_eq!(kinds, Architecture::KINDS);
        for kind in kinds {
            let text = format!("kind: {kind}\n");
            let node = Node::parse(&text).unwrap();
            let findings = Findings::new("test.yaml", &text);
            let read = RawArchitecture::deserialize(Reader::new(&node, &findings));
            let problems = findings.into_problems();
            let read = Architecture::from(read.unwrap_or_else(|_| panic!("{kind}: {problems:?}")));
            let expected: Architecture = serde_json::from_value(serde_json::json!({ "kind": kind })).unwrap();
            assert_eq!(read, expected);
            assert_eq!(read.kind(), kind);
        }
    }
}
