//! The `--option KEY=VALUE` pairs of an operation: tiling, and the switches of the framework that change its memory.

use headroom_base::{AttentionKernel, HardEnvironment, MemoryLayout, Tiling};

/// What diffusers overlaps tiles by unless told otherwise, in percent of a tile.
const USUAL_OVERLAP_PERCENT: u32 = 25;

/// The keys, each with the values it takes.
const KNOWN: [(&str, &str); 5] = [
    ("tile", "pixels along the side of a tile, for example tile=512"),
    ("overlap", "percent of a tile that neighbours share, for example overlap=25"),
    ("attention", "fused or math"),
    ("layout", "contiguous or channels_last"),
    ("cudnn_benchmark", "true or false"),
];

/// How an operation is run, as far as the command line says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Tile by tile.
    pub tiling: Option<Tiling>,
    /// How attention is computed.
    pub attention: AttentionKernel,
    /// The order of dimensions in memory.
    pub memory_layout: MemoryLayout,
    /// Whether the convolution library searches for its fastest algorithm.
    pub convolution_benchmark: bool,
}

/// An option that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No such key.
    #[error("there is no option `{key}`{}; known are {}", suggestion(key), known())]
    UnknownKey {
        /// What was written.
        key: String,
    },
    /// The key takes other values.
    #[error("option `{key}={value}`: it takes {takes}")]
    Value {
        /// The key.
        key: String,
        /// What was written.
        value: String,
        /// What it takes.
        takes: &'static str,
    },
    /// The key is there twice.
    #[error("option `{key}` is given twice: leave one of them out")]
    Twice {
        /// The key.
        key: String,
    },
    /// An overlap of nothing.
    #[error("option `overlap` needs `tile` beside it, for example tile=512")]
    OverlapAlone,
}

fn known() -> String {
    KNOWN.map(|(key, takes)| format!("{key} ({takes})")).join(", ")
}

fn suggestion(key: &str) -> String {
    let near = KNOWN.iter().map(|(known, _)| (strsim::jaro_winkler(key, known), known));
    let best = near.filter(|(likeness, _)| *likeness > 0.75).max_by(|left, right| left.0.total_cmp(&right.0));
    best.map(|(_, known)| format!(" (did you mean `{known}`?)")).unwrap_or_default()
}

impl Options {
    /// Reads the pairs.
    ///
    /// # Errors
    /// For a key that is not known or given twice, and for a value that its key does not take.
    pub fn read(pairs: &[(String, String)]) -> Result<Self, OptionError> {
        let mut options = Self::default();
        let (mut tile, mut overlap) = (None, None);
        for (index, (key, value)) in pairs.iter().enumerate() {
            let Some((_, takes)) = KNOWN.into_iter().find(|(known, _)| known == key) else {
                return Err(OptionError::UnknownKey { key: key.clone() });
            };
            if pairs[..index].iter().any(|(earlier, _)| earlier == key) {
                return Err(OptionError::Twice { key: key.clone() });
            }
            let wrong = || OptionError::Value { key: key.clone(), value: value.clone(), takes };
            match key.as_str() {
                "tile" => tile = Some(value.parse().ok().filter(|pixels| *pixels > 0).ok_or_else(wrong)?),
                "overlap" => overlap = Some(percent(value).ok_or_else(wrong)?),
                "attention" => options.attention = value.parse().map_err(|_| wrong())?,
                "layout" => options.memory_layout = value.parse().map_err(|_| wrong())?,
                _ => options.convolution_benchmark = truth(value).ok_or_else(wrong)?,
            }
        }
        options.tiling = match (tile, overlap) {
            (None, Some(_)) => return Err(OptionError::OverlapAlone),
            (Some(tile_pixels), overlap) => {
                Some(Tiling { tile_pixels, overlap_percent: overlap.unwrap_or(USUAL_OVERLAP_PERCENT) })
            }
            (None, None) => None,
        };
        Ok(options)
    }

    /// The environment with these switches.
    #[must_use]
    pub fn applied_to(&self, hard: HardEnvironment) -> HardEnvironment {
        HardEnvironment {
            attention: self.attention,
            memory_layout: self.memory_layout,
            convolution_benchmark: self.convolution_benchmark,
            ..hard
        }
    }
}

/// `25` and `25%` are percent, `0.25` is a share; below 100 percent, since tiles that overlap whole never end.
fn percent(text: &str) -> Option<u32> {
    let percent = match text.strip_suffix('%').unwrap_or(text) {
        share if share.contains('.') && !text.ends_with('%') => {
            let share: f64 = share.parse().ok().filter(|share| (0.0..1.0).contains(share))?;
            // Half a percent and more is rounded up, as recordings are.
            (share * 100.0).round() as u32
        }
        whole => whole.trim().parse().ok()?,
    };
    (percent < 100).then_some(percent)
}

fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Options, OptionError> {
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Options::read(&pairs)
    }

    #[test]
    fn every_key_reaches_its_place_and_none_reaches_another() {
        let usual = Options::default();
        let tiling = |overlap_percent| Some(Tiling { tile_pixels: 512, overlap_percent });
        let cases = [
            (vec![], usual),
            (vec![("tile", "512")], Options { tiling: tiling(25), ..usual }),
            (vec![("overlap", "0.5"), ("tile", "512")], Options { tiling: tiling(50), ..usual }),
            (vec![("tile", "512"), ("overlap", "30%")], Options { tiling: tiling(30), ..usual }),
            (vec![("attention", "math")], Options { attention: AttentionKernel::Math, ..usual }),
            (vec![("layout", "channels_last")], Options { memory_layout: MemoryLayout::ChannelsLast, ..usual }),
            (vec![("cudnn_benchmark", "true")], Options { convolution_benchmark: true, ..usual }),
        ];
        for (pairs, expected) in cases {
            assert_eq!(read(&pairs), Ok(expected), "{pairs:?}");
        }
    }

    #[test]
    fn what_is_not_understood_names_key_value_and_what_is_known() {
        let cases = [
            (vec![("titel", "512")], "tile"),
            (vec![("color", "red")], "cudnn_benchmark"),
            (vec![("tile", "0")], "tile=0"),
            (vec![("tile", "-1")], "tile=-1"),
            (vec![("tile", "512"), ("overlap", "100")], "overlap=100"),
            (vec![("tile", "512"), ("overlap", "-0.5")], "overlap=-0.5"),
            (vec![("overlap", "25")], "needs `tile`"),
            (vec![("tile", "1"), ("tile", "2")], "twice"),
            (vec![("attention", "flash")], "fused or math"),
            (vec![("cudnn_benchmark", "perhaps")], "true or false"),
        ];
        for (pairs, says) in cases {
            let error = read(&pairs).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
