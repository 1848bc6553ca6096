//! Parts of any size cut and packed into chunks of one buffer, so that every thread has the same to do.

use std::ops::Range;

use crate::cuda::memory::destination;
use crate::device::UploadPart;
use crate::driver::DriverError;

/// Where pieces start in a buffer: on such boundaries as on the device.
const ALIGNMENT_BYTES: usize = 512;

/// What is not worth a copy of its own: less room than this is left over rather than filled with a sliver.
const SLIVER_BYTES: usize = 64 << 10;

/// Contents that can be read where they are go up in chunks of at most this: large enough for full speed, small enough
/// to be shared out.
const DIRECT_BYTES: usize = 64 << 20;

/// A stretch of contents and where it goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    /// Its address on the device.
    pub(super) to: u64,
    /// The contents.
    pub(super) from: &'a [u8],
    /// Where they lie in the buffer of their chunk.
    pub(super) at: usize,
}

/// What one thread copies at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Its pieces, by their place in the plan.
    pub(super) pieces: Range<usize>,
    /// Whether it is copied from where it is, without a buffer.
    pub(super) direct: bool,
}

/// Everything to be copied.
#[derive(Debug, Default)]
pub(super) struct Chunks<'a> {
    pieces: Vec<Piece<'a>>,
    chunks: Vec<Chunk>,
    /// How far the buffer of the last chunk is filled.
    filled: usize,
}

impl<'a> Chunks<'a> {
    /// Cuts `parts` for buffers of `buffer_bytes`; `is_pinned` says which contents need none.
    ///
    /// # Errors
    /// When a part goes to memory that is not of this process, or is longer than the memory it goes to.
    pub(super) fn cut(
        parts: &[UploadPart<'a>],
        buffer_bytes: usize,
        is_pinned: impl Fn(&[u8]) -> bool,
    ) -> Result<Self, DriverError> {
        let mut chunks = Self::default();
        for part in parts {
            chunks.add(destination(part)?, part.contents, is_pinned(part.contents), buffer_bytes);
        }
        Ok(chunks)
    }

    /// The chunks, in the order in which they are to be copied.
    pub(super) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// The pieces of a chunk, in the order of their place in its buffer.
    pub(super) fn pieces(&self, chunk: &Chunk) -> &[Piece<'a>] {
        self.pieces.get(chunk.pieces.clone()).unwrap_or_default()
    }

    fn add(&mut self, mut to: u64, mut contents: &'a [u8], direct: bool, buffer_bytes: usize) {
        let most_bytes = if direct { DIRECT_BYTES } else { buffer_bytes };
        while !contents.is_empty() {
            let at = self.filled.next_multiple_of(ALIGNMENT_BYTES);
            let room = most_bytes.saturating_sub(at);
            let other_kind = self.chunks.last().is_none_or(|last| last.direct != direct);
            if other_kind || (room < contents.len() && room < SLIVER_BYTES.min(most_bytes)) {
                self.chunks.push(Chunk { pieces: self.pieces.len()..self.pieces.len(), direct });
                self.filled = 0;
                continue;
            }
            let (now, later) = contents.split_at(room.min(contents.len()));
            self.pieces.push(Piece { to, from: now, at });
            self.filled = at + now.len();
            if let Some(last) = self.chunks.last_mut() {
                last.pieces.end = self.pieces.len();
            }
            to += now.len() as u64;
            contents = later;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUFFER: usize = 4 << 20;

    /// The plan for contents of these sizes, laid out one behind the other on a device; odd ones are pinned.
    fn plan<'a>(sizes: &[usize], memory: &'a [u8], buffer_bytes: usize, pinned: bool) -> Chunks<'a> {
        let mut chunks = Chunks::default();
        let (mut to, mut start) = (1 << 30, 0);
        for (index, size) in sizes.iter().enumerate() {
            chunks.add(to, &memory[start..start + size], pinned && index % 2 == 1, buffer_bytes);
            to += size.next_multiple_of(ALIGNMENT_BYTES) as u64;
            start += size;
        }
        chunks
    }

    fn bytes(chunks: &Chunks<'_>, chunk: &Chunk) -> usize {
        chunks.pieces(chunk).iter().map(|piece| piece.from.len()).sum()
    }

    #[test]
    fn pieces_of_half_a_buffer_fill_as_few_chunks_as_one_large_part() {
        let memory = vec![0; 64 << 20];
        let small = plan(&[2 << 20; 32], &memory, BUFFER, false);
        let large = plan(&[64 << 20], &memory, BUFFER, false);
        for chunks in [&small, &large] {
            assert_eq!(chunks.chunks().len(), 16);
            assert!(chunks.chunks().iter().all(|chunk| bytes(chunks, chunk) == BUFFER));
        }
    }

    #[test]
    fn many_tiny_pieces_share_a_chunk() {
        let memory = vec![0; 1000 * 100];
        let chunks = plan(&[100; 1000], &memory, BUFFER, false);
        assert_eq!(chunks.chunks(), [Chunk { pieces: 0..1000, direct: false }]);
    }

    #[test]
    fn nothing_makes_no_chunk() {
        assert!(plan(&[0, 0], &[], BUFFER, true).chunks().is_empty());
    }

    proptest! {
        #[test]
        fn every_byte_goes_up_once_in_order_and_no_buffer_overflows(
            sizes in prop::collection::vec(prop_oneof![0_usize..5000, Just(0), 0_usize..300_000], 0..30),
            buffer_bytes in prop_oneof![Just(512_usize), Just(4096), Just(128 << 10), Just(BUFFER)],
            pinned in any::<bool>(),
        ) {
            let memory = vec![0; sizes.iter().sum()];
            let chunks = plan(&sizes, &memory, buffer_bytes, pinned);
            let mut next_piece = 0;
            for chunk in chunks.chunks() {
                prop_assert_eq!(chunk.pieces.start, next_piece);
                prop_assert!(!chunk.pieces.is_empty(), "an empty chunk");
                next_piece = chunk.pieces.end;
                let mut free_from = 0;
                for piece in chunks.pieces(chunk) {
                    prop_assert!(piece.at >= free_from, "two pieces lie on each other");
                    free_from = piece.at + piece.from.len();
                }
                prop_assert!(chunk.direct || free_from <= buffer_bytes, "{free_from} bytes in {buffer_bytes}");
            }
            prop_assert_eq!(next_piece, chunks.pieces.len());
            // Where each byte of the memory goes, by the pieces and by the parts.
            let mut start = 0;
            let mut to = 1 << 30;
            let mut pieces = chunks.pieces.iter();
            for size in sizes {
                let mut copied = 0;
                while copied < size {
                    let piece = pieces.next().expect("a piece for every byte");
                    prop_assert_eq!(piece.from.as_ptr(), memory[start + copied..].as_ptr());
                    prop_assert_eq!(piece.to, to + copied as u64);
                    copied += piece.from.len();
                }
                prop_assert_eq!(copied, size);
                start += size;
                to += size.next_multiple_of(ALIGNMENT_BYTES) as u64;
            }
            prop_assert!(pieces.next().is_none());
        }
    }
}
