//! What lies in device memory, kept where it was written.

use std::collections::BTreeMap;

const PIECE: u64 = 1 << 16;

#[derive(Default)]
pub struct Contents {
    pieces: BTreeMap<u64, Box<[u8]>>,
}

impl Contents {
    pub fn write(&mut self, to: u64, contents: &[u8]) {
        let (mut at, mut left) = (to, contents);
        while !left.is_empty() {
            let offset = (at % PIECE) as usize;
            let length = left.len().min(PIECE as usize - offset);
            let piece = self.pieces.entry(at / PIECE).or_insert_with(|| vec![0; PIECE as usize].into_boxed_slice());
            piece[offset..offset + length].copy_from_slice(&left[..length]);
            (at, left) = (at + length as u64, &left[length..]);
        }
    }

    /// The bytes from an address on; 0 where nothing was written.
    pub fn read(&self, from: u64, to: &mut [u8]) {
        let (mut at, mut left) = (from, to);
        while !left.is_empty() {
            let offset = (at % PIECE) as usize;
            let length = left.len().min(PIECE as usize - offset);
            let (now, later) = left.split_at_mut(length);
            match self.pieces.get(&(at / PIECE)) {
                Some(piece) => now.copy_from_slice(&piece[offset..offset + length]),
                None => now.fill(0),
            }
            (at, left) = (at + length as u64, later);
        }
    }

    /// The byte at an address; 0 where nothing was written.
    pub fn byte(&self, at: u64) -> u8 {
        self.pieces.get(&(at / PIECE)).map_or(0, |piece| piece[(at % PIECE) as usize])
    }
}
