//! The shipped coefficients: one file per backend and allocator, compiled in, each number with its origin.

use headroom_base::{AllocatorKind, Backend, DeviceClass, Estimate, HardEnvironment, LineKey, Origin, Source};
use serde::{Deserialize, Serialize};

use crate::coefficients::Coefficients;
use crate::fit::UnitRange;

/// The format this program writes and reads.
pub const SHIPPED_VERSION: u32 = 1;

/// Everything shipped for one backend and allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shipped {
    /// The format, [`SHIPPED_VERSION`].
    pub version: u32,
    /// The backend.
    pub backend: Backend,
    /// The allocator.
    pub allocator: AllocatorKind,
    /// The lines, ordered by line and then environment.
    pub lines: Vec<ShippedLine>,
}

/// One line, an envelope over all devices measured under one environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShippedLine {
    /// What it prices.
    pub line: LineKey,
    /// The software its windows were measured with; other groups are other lines.
    pub environment: HardEnvironment,
    /// The line, without margin.
    #[serde(flatten)]
    pub coefficients: Coefficients,
    /// The sizes it was measured at.
    #[serde(flatten)]
    pub range: UnitRange,
    /// How many windows are behind it.
    pub windows: usize,
    /// Each measured size, smallest first.
    pub sizes: Vec<ShippedSize>,
    /// Sizes of which windows that were left out as fragmented needed more than this line reserves, margin and all: the
    /// rule flags clean ones too, and whoever relies on the line should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out_above: Vec<ShippedSize>,
    /// Where the windows came from, ordered.
    pub sources: Vec<ShippedSource>,
}

/// One measured size of a line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShippedSize {
    /// Cost units.
    pub units: u64,
    /// The sizes that have these cost units, for people ("1024x1024").
    pub labels: Vec<String>,
    /// The most any counted window needed beyond its analytic part.
    pub largest_remainder_bytes: u64,
    /// How many windows were counted.
    pub windows: usize,
}

/// Windows of one device and origin behind a line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShippedSource {
    /// The device.
    pub device: DeviceClass,
    /// What kind of figure it is.
    pub origin: Origin,
    /// Who measured what with what, for people; a web address where it is published.
    pub text: String,
    /// How many windows.
    pub windows: usize,
}

/// Why a shipped file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ShippedError {
    /// It is not what this program writes.
    #[error("the shipped data cannot be read: {source}; build it again with `headroom ship`")]
    Unreadable {
        /// Where and why.
        #[from]
        source: serde_json::Error,
    },
    /// It has another format.
    #[error("the shipped data has format {found}, this program reads {SHIPPED_VERSION}")]
    OtherVersion {
        /// The format found.
        found: u32,
    },
}

impl ShippedLine {
    /// What the line reserves at a size, beside what is known exactly.
    pub fn reserved_bytes(&self, units: u64) -> u64 {
        let numerator = self.coefficients.numerator_at(units);
        Estimate::of_fraction(0, numerator, self.coefficients.denominator(), Source::BuiltIn).reservation_bytes
    }

    /// Of the windows that were left out and needed more than the line reserves, the one that needed most beyond it: its
    /// size, and what was missing as a share of what is reserved.
    pub fn worst_left_out(&self) -> Option<(&ShippedSize, f64)> {
        let share = |size: &ShippedSize| {
            let reserved = self.reserved_bytes(size.units);
            size.largest_remainder_bytes.saturating_sub(reserved) as f64 / reserved.max(1) as f64
        };
        let sizes = self.left_out_above.iter().map(|size| (size, share(size)));
        sizes.max_by(|(_, left), (_, right)| left.total_cmp(right))
    }
}

impl Shipped {
    /// The data of one file, its lines in the order that makes the file the same whatever order they came in.
    pub fn new(backend: Backend, allocator: AllocatorKind, mut lines: Vec<ShippedLine>) -> Self {
        for line in &mut lines {
            line.sizes.sort();
            line.left_out_above.sort();
            line.sources.sort();
        }
        lines.sort_by(|left, right| (&left.line, &left.environment).cmp(&(&right.line, &right.environment)));
        Self { version: SHIPPED_VERSION, backend, allocator, lines }
    }

    /// The name of its file: `cuda-native.json`.
    pub fn file_name(backend: Backend, allocator: AllocatorKind) -> String {
        format!("{backend}-{allocator}.json")
    }

    /// The text of its file, the same bytes for the same data.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("plain values always serialize");
        text.push('\n');
        text
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// For text that is no such file, and for another format.
    pub fn parse(text: &str) -> Result<Self, ShippedError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_str(text)?;
        if version != SHIPPED_VERSION {
            return Err(ShippedError::OtherVersion { found: version });
        }
        Ok(serde_json::from_str(text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headroom_base::{DType, Operation};

    fn line(estimator: &str, framework: &str) -> ShippedLine {
        let size = |units| ShippedSize { units, labels: vec![], largest_remainder_bytes: 1, windows: 2 };
        let source = |text: &str| ShippedSource {
            device: DeviceClass::new("Card", 16 << 30, Backend::Cuda),
            origin: Origin::Recorded,
            text: text.into(),
            windows: 3,
        };
        ShippedLine {
            line: LineKey {
                estimator: estimator.into(),
                estimator_version: 1,
                operation: Operation::VaeDecode,
                dtype: DType::Fp16,
                tiling: None,
                tokens: None,
            },
            environment: HardEnvironment {
                backend: Backend::Cuda,
                allocator: AllocatorKind::Native,
                allocator_settings: String::new(),
                framework: framework.into(),
                attention: Default::default(),
                convolution_benchmark: false,
                memory_layout: Default::default(),
            },
            coefficients: Coefficients::new(10, 3, 7).expect("not 0"),
            range: UnitRange { least_units: 1, largest_units: 3 },
            windows: 6,
            sizes: vec![size(3), size(1), size(2)],
            left_out_above: Vec::new(),
            sources: vec![source("b"), source("a")],
        }
    }

    fn file(lines: Vec<ShippedLine>) -> Shipped {
        Shipped::new(Backend::Cuda, AllocatorKind::Native, lines)
    }

    #[test]
    fn the_file_is_the_same_whatever_order_its_lines_came_in_and_reads_back() {
        let lines = || vec![line("vae", "torch 2"), line("vae", "torch 1"), line("unet", "torch 2")];
        let text = file(lines()).to_json();
        assert_eq!(file(lines().into_iter().rev().collect()).to_json(), text);
        assert_eq!(Shipped::parse(&text).unwrap(), file(lines()));
        assert!(text.ends_with("}\n") && text.contains("\"bytes_per_unit\": \"3/7\""), "{text}");
    }

    #[test]
    fn another_format_and_nonsense_are_refused() {
        let newer = file(vec![]).to_json().replace("\"version\": 1", "\"version\": 2");
        assert!(matches!(Shipped::parse(&newer), Err(ShippedError::OtherVersion { found: 2 })));
        let misspelt = file(vec![]).to_json().replace("lines", "line");
        assert!(matches!(Shipped::parse(&misspelt), Err(ShippedError::Unreadable { .. })));
    }

    #[test]
    fn every_compiled_in_file_reads_and_no_line_is_below_a_measured_point() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/shipped");
        let mut names: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        let expected = AllocatorKind::ALL.map(|allocator| Shipped::file_name(Backend::Cuda, allocator));
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>(), expected.iter().collect());
        for name in names {
            let text = std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
            let shipped = Shipped::parse(&text).unwrap();
            assert_eq!(Shipped::file_name(shipped.backend, shipped.allocator), name);
            assert_eq!(shipped.to_json(), text, "{name} is not as it would be written");
            for line in &shipped.lines {
                assert_eq!(line.windows, line.sizes.iter().map(|size| size.windows).sum::<usize>(), "{}", line.line);
                for size in &line.sizes {
                    let priced_bytes = line.coefficients.bytes_at(size.units);
                    assert!(priced_bytes >= size.largest_remainder_bytes, "{} at {}", line.line, size.units);
                }
            }
        }
    }
}
