//! What is measured or predicted: one operation at one size, and its cost unit.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Element type of an operation's weights and activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE half precision.
    Fp16,
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    Fp32,
}

impl DType {
    /// Every element type, in the order they are listed to people.
    pub const ALL: [Self; 3] = [Self::Fp16, Self::Bf16, Self::Fp32];

    /// Bytes of one element.
    pub const fn element_bytes(self) -> u64 {
        match self {
            Self::Fp16 | Self::Bf16 => 2,
            Self::Fp32 => 4,
        }
    }

    /// The name used in files, on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
            Self::Fp32 => "fp32",
        }
    }
}

/// A step of a pipeline that needs working memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Latents to pixels.
    VaeDecode,
    /// Pixels to latents.
    VaeEncode,
    /// One step of a diffusion model.
    Denoise,
    /// Tokens to embeddings.
    TextEncode,
}

impl Operation {
    /// Every operation, in pipeline order of a text-to-image run, encode last.
    pub const ALL: [Self; 4] = [Self::TextEncode, Self::Denoise, Self::VaeDecode, Self::VaeEncode];

    /// The name used in files, on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::VaeDecode => "vae_decode",
            Self::VaeEncode => "vae_encode",
            Self::Denoise => "denoise",
            Self::TextEncode => "text_encode",
        }
    }
}

/// What other programs call things, and what they are called here.
const ELSEWHERE: [(&str, &str); 8] = [
    ("float16", "fp16"),
    ("half", "fp16"),
    ("f16", "fp16"),
    ("bfloat16", "bf16"),
    ("float32", "fp32"),
    ("float", "fp32"),
    ("f32", "fp32"),
    ("expandable", "expandable_segments"),
];

/// The name that is used here for a word of other programs: `fp16` for `float16` or `torch.float16`.
pub fn name_here(word: &str) -> Option<&'static str> {
    let bare = word.strip_prefix("torch.").unwrap_or(word);
    ELSEWHERE.iter().find(|(other, _)| bare.eq_ignore_ascii_case(other)).map(|(_, name)| *name)
}

/// A word that names no value of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is no {kind}{}: use one of {known}", self.meant())]
pub struct UnknownName {
    /// What was written.
    pub word: String,
    /// What was expected, for people ("dtype").
    pub kind: &'static str,
    /// The accepted words, comma separated.
    pub known: String,
}

impl UnknownName {
    /// Which of the accepted words was probably meant, for people.
    fn meant(&self) -> String {
        let mut known = self.known.split(", ");
        let here = name_here(&self.word);
        let meant = known.find(|name| Some(*name) == here || self.word.eq_ignore_ascii_case(name));
        meant.map(|name| format!(" (did you mean `{name}`?)")).unwrap_or_default()
    }
}

/// Implements `FromStr` and `Display` for an enum with `ALL` and `name`.
macro_rules! named {
    ($type:ty, $kind:literal) => {
        impl std::str::FromStr for $type {
            type Err = $crate::case::UnknownName;

            fn from_str(word: &str) -> Result<Self, Self::Err> {
                Self::ALL.into_iter().find(|value| value.name() == word).ok_or_else(|| {
                    let known = Self::ALL.map(Self::name).join(", ");
                    $crate::case::UnknownName { word: word.to_owned(), kind: $kind, known }
                })
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
pub(crate) use named;

named!(DType, "dtype");
named!(Operation, "operation");

/// How large the input or output is, in the operation's own terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Extent {
    /// An image or a video, in output pixels (decode, denoise) or input pixels (encode).
    Pixels {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
        /// 1 for an image.
        frames: u32,
    },
    /// A text.
    Text {
        /// Tokens of one sequence.
        tokens: u32,
    },
}

/// A VAE run tile by tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Tiling {
    /// Side of a tile in pixels.
    pub tile_pixels: u32,
    /// Share of a tile that neighbours overlap, in percent.
    pub overlap_percent: u32,
}

/// One operation at one size: what a window measures and an estimate prices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Case {
    /// The operation.
    pub operation: Operation,
    /// Element type it computes in.
    pub dtype: DType,
    /// Its size.
    #[serde(flatten)]
    pub extent: Extent,
    /// Images, videos or texts at once.
    pub batch: u32,
    /// Set where a VAE runs tile by tile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiling: Option<Tiling>,
}

impl Case {
    /// One untiled image of `width` × `height` pixels.
    pub const fn image(operation: Operation, dtype: DType, width: u32, height: u32) -> Self {
        Self { operation, dtype, extent: Extent::Pixels { width, height, frames: 1 }, batch: 1, tiling: None }
    }

    /// One text of `tokens` tokens.
    pub const fn text(dtype: DType, tokens: u32) -> Self {
        Self { operation: Operation::TextEncode, dtype, extent: Extent::Text { tokens }, batch: 1, tiling: None }
    }

    /// The same case with `frames` frames; a text has none and stays as it is.
    #[must_use]
    pub const fn with_frames(mut self, frames: u32) -> Self {
        if let Extent::Pixels { width, height, .. } = self.extent {
            self.extent = Extent::Pixels { width, height, frames };
        }
        self
    }

    /// The same case `batch` times at once.
    #[must_use]
    pub const fn with_batch(mut self, batch: u32) -> Self {
        self.batch = batch;
        self
    }

    /// The same case run tile by tile.
    #[must_use]
    pub const fn with_tiling(mut self, tiling: Tiling) -> Self {
        self.tiling = Some(tiling);
        self
    }

    /// Size and batch alone, for people: `1024x1024`, `832x480x17 batch 2`, `77 tokens`.
    pub fn size_label(&self) -> String {
        let mut label = match self.extent {
            Extent::Pixels { width, height, frames: 1 } => format!("{width}x{height}"),
            Extent::Pixels { width, height, frames } => format!("{width}x{height}x{frames}"),
            Extent::Text { tokens } => format!("{tokens} tokens"),
        };
        if self.batch != 1 {
            label.push_str(&format!(" batch {}", self.batch));
        }
        if let Some(tiling) = self.tiling {
            label.push_str(&format!(" tile {} overlap {} %", tiling.tile_pixels, tiling.overlap_percent));
        }
        label
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.operation, self.dtype, self.size_label())
    }
}

/// What an operation's working memory grows with. The estimator of an architecture says which one it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CostUnit {
    /// Pixels of one frame × bytes per element × batch: operations that hold one frame at a time.
    PixelBytes,
    /// Pixels × frames × bytes per element × batch: operations that hold the whole clip.
    PixelFrameBytes,
    /// Pixels × the frames held at once × bytes per element × batch: operations that go through a clip in chunks.
    PixelChunkBytes {
        /// Frames of a chunk; a shorter clip holds all of its own.
        frames: u32,
    },
    /// Tokens × batch, where an image has one token per square of `side` pixels, and `fixed` more.
    Tokens {
        /// Pixels along the side of the square one token covers (UNet: 8, FLUX.1: 16).
        side: u32,
        /// Tokens that come on top whatever the size (FLUX.1: its text).
        fixed: u32,
    },
}

impl CostUnit {
    /// The number of units of a case; never 0 for a case with positive sizes, and at most 2^64 − 1, which no
    /// device reaches.
    pub fn units(self, case: &Case) -> u64 {
        let product = |factors: &[u64]| factors.iter().fold(1_u64, |product, factor| product.saturating_mul(*factor));
        let element_bytes = case.dtype.element_bytes();
        let per_item = match (self, case.extent) {
            (Self::PixelBytes, Extent::Pixels { width, height, .. }) => {
                product(&[u64::from(width), u64::from(height), element_bytes])
            }
            (Self::PixelFrameBytes, Extent::Pixels { width, height, frames }) => {
                product(&[u64::from(width), u64::from(height), u64::from(frames), element_bytes])
            }
            (Self::PixelChunkBytes { frames: chunk }, Extent::Pixels { width, height, frames }) => {
                product(&[u64::from(width), u64::from(height), u64::from(frames.min(chunk)), element_bytes])
            }
            (Self::Tokens { side, fixed }, Extent::Pixels { width, height, frames }) => {
                let across = u64::from(width.div_ceil(side));
                let down = u64::from(height.div_ceil(side));
                product(&[across, down, u64::from(frames)]).saturating_add(u64::from(fixed))
            }
            (_, Extent::Text { tokens }) => u64::from(tokens),
        };
        per_item.saturating_mul(u64::from(case.batch))
    }
}

/// Bytes of a reservation that are known exactly and therefore carry no margin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnalyticTerm {
    /// What it is, for people ("fp32 copy of the weights").
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECODE: Case = Case::image(Operation::VaeDecode, DType::Fp16, 1024, 512);

    #[test]
    fn every_factor_of_a_case_is_in_its_cost_unit() {
        let pixels = 1024 * 512;
        let cases = [
            (CostUnit::PixelBytes, DECODE, pixels * 2),
            (CostUnit::PixelBytes, Case { dtype: DType::Fp32, ..DECODE }, pixels * 4),
            (CostUnit::PixelBytes, DECODE.with_batch(3), pixels * 6),
            (CostUnit::PixelBytes, DECODE.with_frames(9), pixels * 2),
            (CostUnit::PixelFrameBytes, DECODE.with_frames(9), pixels * 18),
            (CostUnit::PixelChunkBytes { frames: 4 }, DECODE, pixels * 2),
            (CostUnit::PixelChunkBytes { frames: 4 }, DECODE.with_frames(17), pixels * 8),
            (CostUnit::Tokens { side: 16, fixed: 512 }, DECODE.with_batch(2), (64 * 32 + 512) * 2),
            (CostUnit::Tokens { side: 16, fixed: 0 }, Case::text(DType::Bf16, 77).with_batch(2), 154),
        ];
        for (unit, case, units) in cases {
            assert_eq!(unit.units(&case), units, "{unit:?} of {case}");
        }
    }

    #[test]
    fn a_size_beyond_every_device_saturates() {
        let huge = Case::image(Operation::VaeDecode, DType::Fp32, u32::MAX, u32::MAX);
        let huge = huge.with_frames(u32::MAX).with_batch(u32::MAX);
        let units = [
            CostUnit::PixelBytes,
            CostUnit::PixelFrameBytes,
            CostUnit::PixelChunkBytes { frames: 4 },
            CostUnit::Tokens { side: 1, fixed: 512 },
        ];
        assert_eq!(units.map(|unit| unit.units(&huge)), [u64::MAX; 4]);
    }

    #[test]
    fn names_round_trip_and_unknown_ones_list_what_is_known() {
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        for operation in Operation::ALL {
            assert_eq!(operation.name().parse(), Ok(operation));
        }
        let error = "fp17".parse::<DType>().unwrap_err().to_string();
        assert!(error.contains("fp17") && error.contains("fp16, bf16, fp32"), "{error}");
        assert!(!error.contains("did you mean"), "{error}");
    }

    #[test]
    fn what_other_programs_call_an_element_type_is_answered_with_its_name_here() {
        let cases = [
            ("float16", "fp16"),
            ("Half", "fp16"),
            ("torch.bfloat16", "bf16"),
            ("float32", "fp32"),
            ("float", "fp32"),
            ("FP16", "fp16"),
        ];
        for (word, name) in cases {
            let error = word.parse::<DType>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{word}` is no dtype (did you mean `{name}`?)")), "{error}");
        }
        // The name here of something else is no suggestion.
        let error = "float16".parse::<Operation>().unwrap_err().to_string();
        assert!(!error.contains("did you mean"), "{error}");
    }

    #[test]
    fn a_case_keeps_its_shape_in_json() {
        let cases = [DECODE, DECODE.with_frames(17).with_batch(2), Case::text(DType::Fp16, 77)];
        for case in cases {
            let json = serde_json::to_string(&case).unwrap();
            assert_eq!(serde_json::from_str::<Case>(&json).unwrap(), case, "{json}");
        }
        assert!(!serde_json::to_string(&DECODE).unwrap().contains("tiling"));
    }
}
