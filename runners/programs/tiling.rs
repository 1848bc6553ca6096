//! Running an image autoencoder tile by tile: every tile's result is kept until all are there and blended.

use headroom_base::Tiling;

use super::computation::Pointwise;
use super::derive::{Request, Unsupported};
use super::recorder::{Recorder, Tensor};

/// Sizes of a tiled run, in the units of its input and output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    /// Side of a tile of the input.
    side: u64,
    /// From one tile of the input to the next.
    step: u64,
    /// Rows or columns of the output over which neighbours blend.
    blend: u64,
    /// What is kept of a tile's output.
    kept: u64,
}

impl Tiles {
    /// How a decode of this request runs in tiles of `tiling.tile_pixels` pixels: the input is latents, `scale` pixels
    /// each. `None` where one tile does.
    pub(super) fn of_decode(
        request: Request<'_>,
        [rows, columns]: [u64; 2],
        scale: u64,
    ) -> Result<Option<Self>, Unsupported> {
        let Some(tiling) = request.case.tiling else { return Ok(None) };
        Self::check(request, tiling, scale)?;
        let pixels = u64::from(tiling.tile_pixels);
        let tiles = Self::new(pixels / scale, pixels, u64::from(tiling.overlap_percent));
        Ok((rows > tiles.side || columns > tiles.side).then_some(tiles))
    }

    /// How an encode of this request runs in tiles of `tiling.tile_pixels` pixels: the output is latents, `scale` pixels
    /// each. `None` where one tile does.
    pub(super) fn of_encode(
        request: Request<'_>,
        [rows, columns]: [u64; 2],
        scale: u64,
    ) -> Result<Option<Self>, Unsupported> {
        let Some(tiling) = request.case.tiling else { return Ok(None) };
        Self::check(request, tiling, scale)?;
        let pixels = u64::from(tiling.tile_pixels);
        let tiles = Self::new(pixels, pixels / scale, u64::from(tiling.overlap_percent));
        if rows <= tiles.side && columns <= tiles.side {
            return Ok(None);
        }
        for size in [rows, columns] {
            // The last tile is the narrowest; the reference's encoder ends in an error on one that halves to nothing.
            let last = (size - 1) % tiles.step + 1;
            if last < scale {
                return Err(request.no_such_extent(format!(
                    "tiles of at least {scale} pixels, while tiles of {pixels} in steps of {} leave {last} of {size}: use another tile, or pad the image",
                    tiles.step
                )));
            }
        }
        Ok(Some(tiles))
    }

    fn check(request: Request<'_>, tiling: Tiling, scale: u64) -> Result<(), Unsupported> {
        if u64::from(tiling.tile_pixels) < scale {
            return Err(request.no_such_extent(format!("tiles of at least {scale} pixels")));
        }
        if tiling.overlap_percent >= 100 {
            return Err(request.no_such_extent("tiles that overlap by less than 100 %"));
        }
        Ok(())
    }

    fn new(input_side: u64, output_side: u64, overlap_percent: u64) -> Self {
        let blend = output_side * overlap_percent / 100;
        let step = input_side * (100 - overlap_percent) / 100;
        Self { side: input_side, step: step.max(1), blend, kept: output_side - blend }
    }

    /// Runs `operation` on every tile, then blends neighbours and joins what is kept.
    pub(super) fn run(&self, recorder: &Recorder, input: &Tensor, operation: impl Fn(&Tensor) -> Tensor) -> Tensor {
        let starts = |size: u64| (0..size).step_by(usize::try_from(self.step).unwrap_or(usize::MAX));
        let mut rows: Vec<Vec<Tensor>> = Vec::new();
        let mut tile = input.clone();
        for top in starts(input.size(2)) {
            let mut row = Vec::new();
            for left in starts(input.size(3)) {
                let height = self.side.min(input.size(2) - top);
                let width = self.side.min(input.size(3) - left);
                tile = operation(&input.narrow(2, top, height).narrow(3, left, width));
                row.push(tile.clone());
            }
            rows.push(row);
        }
        drop(tile);
        let _place = recorder.enter("blend");
        let mut joined: Vec<Tensor> = Vec::new();
        for (i, row) in rows.iter().enumerate() {
            let mut kept = Vec::new();
            for (j, tile) in row.iter().enumerate() {
                if i > 0 {
                    self.blend(recorder, &rows[i - 1][j], tile, 2);
                }
                if j > 0 {
                    self.blend(recorder, &row[j - 1], tile, 3);
                }
                kept.push(tile.narrow(2, 0, self.kept).narrow(3, 0, self.kept));
            }
            joined.push(recorder.cat(&kept.iter().collect::<Vec<_>>(), 3));
        }
        let output = recorder.cat(&joined.iter().collect::<Vec<_>>(), 2);
        drop(rows);
        drop(joined);
        output
    }

    /// Line by line: both neighbours scaled, then added, then copied into place.
    fn blend(&self, recorder: &Recorder, neighbour: &Tensor, tile: &Tensor, dimension: usize) {
        let lines = neighbour.size(dimension).min(tile.size(dimension)).min(self.blend);
        let last = neighbour.last(dimension, lines);
        for line in 0..lines {
            let share = line as f64 / lines as f64;
            let times = |factor| Pointwise::Affine { factor, summand: 0.0 };
            let own_line = tile.select(dimension, line);
            let theirs = recorder.scale(&last.select(dimension, line), times(1.0 - share), "scale neighbour");
            let own = recorder.scale(&own_line, times(share), "scale tile");
            let sum = recorder.combine(&theirs, &own, Pointwise::Add, "blend");
            recorder.pointwise(Pointwise::Copy, &[&sum], &own_line);
            drop(own);
            drop(theirs);
            drop(sum);
        }
    }
}
