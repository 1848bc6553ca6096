//! The texts a family file writes for values that are no plain numbers: byte sizes, extents, known names.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use headroom_base::{AllocatorKind, Bytes, DType, Extent, MIB, Operation};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A number of bytes: `12GiB`, or a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteText(pub(crate) u64);

/// A signed number of bytes (a budget): `-72MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SignedByteText(pub(crate) i64);

/// How large a case is, as files and command lines write it, with its batch where that is part of the text.
///
/// ```
/// use headroom_base::Extent;
/// use headroom_family::Size;
/// let size: Size = "832x480x17 batch 2".parse().unwrap();
/// assert_eq!((size.extent, size.batch), (Extent::Pixels { width: 832, height: 480, frames: 17 }, Some(2)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    /// Pixels or tokens.
    pub extent: Extent,
    /// The batch, where the text names one.
    pub batch: Option<u32>,
}

/// A text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a size: write `1024x1024`, `832x480x17` (with frames) or `77 tokens`, with `batch 2` after it if need be"
)]
pub struct ParseSizeError {
    /// What was written.
    pub text: String,
}

impl FromStr for Size {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        let refused = || ParseSizeError { text: text.to_owned() };
        let (size, batch) = match text.split_once(" batch ") {
            Some((size, batch)) => (size.trim(), Some(positive(batch.trim()).ok_or_else(refused)?)),
            None => (text.trim(), None),
        };
        let extent = match size.strip_suffix("tokens").map(str::trim) {
            Some(tokens) => Extent::Text { tokens: positive(tokens).ok_or_else(refused)? },
            None => {
                let numbers: Option<Vec<u32>> = size.split(['x', '×']).map(positive).collect();
                match numbers.ok_or_else(refused)?[..] {
                    [width, height] => Extent::Pixels { width, height, frames: 1 },
                    [width, height, frames] => Extent::Pixels { width, height, frames },
                    _ => return Err(refused()),
                }
            }
        };
        Ok(Self { extent, batch })
    }
}

fn positive(text: &str) -> Option<u32> {
    let all_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| all_digits && *number > 0)
}

/// Deserializes from a text or a whole number.
struct TextOrNumber<T> {
    expecting: &'static str,
    of_text: fn(&str) -> Result<T, String>,
    of_number: fn(u64) -> Result<T, String>,
}

impl<'de, T> Visitor<'de> for TextOrNumber<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.of_text)(text).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        (self.of_number)(number).map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for ByteText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrNumber {
            expecting: "a number of bytes such as `12GiB`",
            of_text: |text| text.parse::<Bytes>().map(|bytes| Self(bytes.0)).map_err(|error| error.to_string()),
            of_number: |bytes| Ok(Self(bytes)),
        })
    }
}

impl<'de> Deserialize<'de> for SignedByteText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrNumber {
            expecting: "a number of bytes such as `12GiB` or `-72MiB`",
            of_text: |text| {
                let (sign, size) = text.strip_prefix('-').map_or((1, text), |size| (-1, size));
                let bytes = size.parse::<Bytes>().map_err(|error| error.to_string())?.0;
                i64::try_from(bytes).map(|bytes| Self(sign * bytes)).map_err(|error| error.to_string())
            },
            of_number: |bytes| i64::try_from(bytes).map(Self).map_err(|error| error.to_string()),
        })
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrNumber {
            expecting: "a size such as `1024x1024` or `77 tokens`",
            of_text: |text| text.parse().map_err(|error: ParseSizeError| error.to_string()),
            of_number: |tokens| format!("{tokens} tokens").parse().map_err(|error: ParseSizeError| error.to_string()),
        })
    }
}

const NUMBER_OF_BYTES: &str = r"^[0-9][0-9_,]*(\.[0-9]+)? ?(B|[KMGkmg][Ii][Bb])?$";

/// Implements the schema of a text that may also be written as a whole number.
macro_rules! text_schema {
    ($type:ty, $name:literal, $description:literal, $pattern:expr) => {
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "description": $description,
                    "anyOf": [{ "type": "string", "pattern": $pattern }, { "type": "integer" }],
                })
            }
        }
    };
}

text_schema!(ByteText, "Bytes", "A number of bytes in binary units: `12GiB`, `512MiB`.", NUMBER_OF_BYTES);
text_schema!(
    SignedByteText,
    "SignedBytes",
    "A number of bytes that may be negative: `-72MiB`.",
    r"^-?[0-9][0-9_,]*(\.[0-9]+)? ?(B|[KMGkmg][Ii][Bb])?$"
);
text_schema!(
    Size,
    "Size",
    "`1024x1024`, `832x480x17` (with frames) or `77 tokens`, with `batch 2` after it if need be.",
    r"^([0-9]+[x×][0-9]+([x×][0-9]+)?|[0-9]+ tokens)( batch [0-9]+)?$"
);

/// Names of base's enumerations, for the schema alone.
macro_rules! names_schema {
    ($type:ident, $of:ty, $name:literal) => {
        pub(crate) struct $type;

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "enum": <$of>::ALL.map(<$of>::name) })
            }
        }
    };
}

names_schema!(DTypeName, DType, "DType");
names_schema!(OperationName, Operation, "Operation");
names_schema!(AllocatorName, AllocatorKind, "Allocator");

/// What a CUDA context costs on the one card it was measured on (523.6 MiB on an H200), in whole driver pages.
pub(crate) const MEASURED_CONTEXT_BYTES: u64 = 524 * MIB;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_reads_what_a_case_prints() {
        let cases = [
            ("1024x768", Extent::Pixels { width: 1024, height: 768, frames: 1 }, None),
            ("832x480x17 batch 2", Extent::Pixels { width: 832, height: 480, frames: 17 }, Some(2)),
            ("77 tokens batch 3", Extent::Text { tokens: 77 }, Some(3)),
        ];
        for (text, extent, batch) in cases {
            assert_eq!(text.parse(), Ok(Size { extent, batch }));
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "1024",
            "1024x",
            "0x512",
            "1024x1024x0",
            "1x2x3x4",
            "-5x5",
            "+5x5",
            "77 token",
            "5x5 batch 0",
            "99999999999x1",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
