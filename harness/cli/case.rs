//! From the words of a command line to a case: sizes, counts, and the limits of what is reckoned with.

use headroom_base::{Bytes, Case, DType, Extent, MIB, Operation, Tiling};

/// The longest side or text.
const MOST_SIDE: u32 = 1 << 16;

/// The most pixels or tokens at once: 16 images of the largest size.
const MOST_ITEMS: u128 = 1 << 36;

/// The most tiles: 16,384 pixels each way in tiles of 512 are 1,849.
const MOST_TILES: u64 = 1 << 12;

/// Reads `1216x832`.
pub(super) fn parse_size(text: &str) -> Result<(u32, u32), String> {
    let number = |part: &str| part.parse::<u32>().ok().filter(|pixels| *pixels > 0);
    text.split_once(['x', 'X', '×'])
        .and_then(|(width, height)| Some((number(width)?, number(height)?)))
        .ok_or_else(|| format!("`{text}` is no size: write WIDTHxHEIGHT in pixels, for example 1024x1024"))
}

/// Reads a size of memory. Whoever leaves the unit of a few digits out does not mean bytes.
pub(super) fn parse_memory(text: &str) -> Result<Bytes, String> {
    let bytes = text.parse::<Bytes>().map_err(|error| error.to_string())?;
    if bytes.0 >= MIB || text.contains(|letter: char| letter.is_ascii_alphabetic()) {
        return Ok(bytes);
    }
    let number = text.trim();
    // Nobody has thousands of GiB.
    let unit = if bytes.0 < 1_000 { "GiB" } else { "MiB" };
    Err(format!("`{number}` has no unit: write {number}{unit}"))
}

/// The parts of a command line that make a case.
pub(super) struct CaseParts {
    /// The operation.
    pub(super) operation: Operation,
    /// The element type.
    pub(super) dtype: DType,
    /// Pixels.
    pub(super) size: Option<(u32, u32)>,
    /// Frames.
    pub(super) frames: u32,
    /// How many at once.
    pub(super) batch: u32,
    /// Tokens.
    pub(super) tokens: Option<u32>,
    /// Tile by tile.
    pub(super) tiling: Option<Tiling>,
}

impl CaseParts {
    /// The case, or what is wrong with it.
    ///
    /// # Errors
    /// A zero where a count is meant, or an extent that the operation does not have.
    pub(super) fn case(&self) -> Result<Case, String> {
        let operation = self.operation;
        let extent = match (self.size, self.tokens) {
            (Some(_), _) if operation == Operation::TextEncode => {
                return Err(format!("{operation} has no --size: give --tokens, for example --tokens 77"));
            }
            (None, Some(_)) if operation != Operation::TextEncode => {
                return Err(format!("{operation} has no --tokens: give --size, for example --size 1024x1024"));
            }
            (Some((width, height)), _) => Extent::Pixels { width, height, frames: positive("frames", self.frames)? },
            (None, Some(tokens)) => Extent::Text { tokens: positive("tokens", tokens)? },
            (None, None) if operation == Operation::TextEncode => {
                return Err(format!("{operation} needs --tokens, for example --tokens 77"));
            }
            (None, None) => return Err(format!("{operation} needs --size, for example --size 1024x1024")),
        };
        let batch = positive("batch", self.batch)?;
        check_magnitude(extent, batch)?;
        check_tiles(extent, self.tiling)?;
        Ok(Case { operation, dtype: self.dtype, extent, batch, tiling: self.tiling })
    }
}

/// More tiles than this are a slip of the finger: a program has a few hundred events for each.
fn check_tiles(extent: Extent, tiling: Option<Tiling>) -> Result<(), String> {
    let (Extent::Pixels { width, height, .. }, Some(tiling)) = (extent, tiling) else { return Ok(()) };
    let kept = u64::from(tiling.tile_pixels) * u64::from(100_u32.saturating_sub(tiling.overlap_percent)) / 100;
    let along = |pixels: u32| u64::from(pixels).div_ceil(kept.max(1));
    match along(width) * along(height) {
        tiles if tiles > MOST_TILES => Err(format!(
            "{width}x{height} in tiles of {} pixels makes {tiles} tiles, and headroom reckons with {MOST_TILES}: choose a larger tile",
            tiling.tile_pixels
        )),
        _ => Ok(()),
    }
}

/// Beyond these no model has an input, and the sums of bytes would leave 64 bits.
fn check_magnitude(extent: Extent, batch: u32) -> Result<(), String> {
    let (side, items) = match extent {
        Extent::Pixels { width, height, frames } => {
            (width.max(height), [width, height, frames].map(u128::from).iter().product::<u128>())
        }
        Extent::Text { tokens } => (tokens, u128::from(tokens)),
    };
    if side > MOST_SIDE {
        return Err(format!("{side} is more than headroom reckons with: at most {MOST_SIDE} pixels a side, or tokens"));
    }
    if items * u128::from(batch) > MOST_ITEMS {
        return Err(format!(
            "size × frames × batch is more than headroom reckons with ({MOST_ITEMS}): ask for less at once"
        ));
    }
    Ok(())
}

fn positive(name: &str, number: u32) -> Result<u32, String> {
    if number == 0 { Err(format!("--{name} must be at least 1")) } else { Ok(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_two_positive_numbers() {
        assert_eq!(parse_size("1216x832"), Ok((1216, 832)));
        for text in ["1216", "0x832", "12x", "x", "1216x832x1", "-1x2"] {
            assert!(parse_size(text).unwrap_err().contains(text), "{text}");
        }
    }

    #[test]
    fn a_size_of_memory_has_a_unit_or_is_at_least_a_mebibyte() {
        for (text, bytes) in [("12GiB", 12 << 30), ("512 KiB", 512 << 10), ("1048576", MIB), ("25769803776", 24 << 30)]
        {
            assert_eq!(parse_memory(text), Ok(Bytes(bytes)), "{text}");
        }
        for (text, says) in [
            ("12", "12GiB"),
            (" 12 ", "12GiB"),
            ("7.5", "7.5GiB"),
            ("12288", "12288MiB"),
            ("12,288", "12,288MiB"),
            ("1048575", "no unit"),
            ("lots", "12GiB"),
        ] {
            let error = parse_memory(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    fn decode(width: u32, height: u32) -> CaseParts {
        CaseParts {
            operation: Operation::VaeDecode,
            dtype: DType::Fp16,
            size: Some((width, height)),
            frames: 1,
            batch: 1,
            tokens: None,
            tiling: None,
        }
    }

    #[test]
    fn what_no_model_takes_is_refused_before_anything_is_multiplied() {
        let tiles = |tile_pixels| Some(Tiling { tile_pixels, overlap_percent: 25 });
        let cases = [
            (CaseParts { batch: 0, ..decode(64, 64) }, "--batch"),
            (CaseParts { frames: 0, ..decode(64, 64) }, "--frames"),
            (decode(1 << 17, 64), "pixels a side"),
            (CaseParts { batch: 1 << 20, ..decode(1 << 16, 1 << 16) }, "less at once"),
            (CaseParts { tiling: tiles(8), ..decode(4096, 4096) }, "larger tile"),
            (CaseParts { operation: Operation::TextEncode, ..decode(64, 64) }, "--tokens"),
            (CaseParts { size: None, tokens: Some(77), ..decode(64, 64) }, "--size"),
            (CaseParts { size: None, ..decode(64, 64) }, "vae_decode needs --size"),
            (
                CaseParts { operation: Operation::TextEncode, size: None, ..decode(64, 64) },
                "text_encode needs --tokens",
            ),
        ];
        for (parts, says) in cases {
            let error = parts.case().unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        assert!(CaseParts { tiling: tiles(512), ..decode(16_384, 16_384) }.case().is_ok());
    }
}
