//! Blocks and their neighbours: a slab in which a handle's index leads straight to its block.

use super::sizes::PoolKind;

/// An index that stands for "no block".
pub(super) const NONE: u32 = u32::MAX;

/// What a block is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockState {
    /// Handed out.
    Allocated,
    /// Cached: memory that can be handed out again.
    Free,
    /// Addresses of an expandable range with no memory behind them.
    Unmapped,
    /// An entry of the slab that holds no block.
    Vacant,
}

/// A piece of a segment. Exactly one cache line: a free touches the block and its two neighbours.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) requested_bytes: u64,
    /// The number of the allocation that it is handed out as; 0 while it is not.
    pub(super) serial: u64,
    /// The pool's search count when it was last put among the free blocks.
    pub(super) freed_at: u64,
    /// The block before it in its segment.
    pub(super) previous: u32,
    /// The block after it in its segment.
    pub(super) next: u32,
    /// The expandable range it belongs to, or [`NONE`].
    pub(super) range: u32,
    pub(super) state: BlockState,
    pub(super) pool: PoolKind,
}

impl Block {
    /// No block: what others are made from.
    pub(super) const VACANT: Self = Self {
        address: 0,
        bytes: 0,
        requested_bytes: 0,
        serial: 0,
        freed_at: 0,
        previous: NONE,
        next: NONE,
        range: NONE,
        state: BlockState::Vacant,
        pool: PoolKind::Small,
    };

    /// Whether it has a neighbour in its segment.
    #[inline]
    pub(super) fn is_split(&self) -> bool {
        self.previous != NONE || self.next != NONE
    }

    #[inline]
    pub(super) fn is_expandable(&self) -> bool {
        self.range != NONE
    }
}

/// All blocks of an allocator.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    entries: Vec<Block>,
    vacant: Vec<u32>,
}

impl Blocks {
    /// Adds a block and returns its index.
    #[inline]
    pub(super) fn insert(&mut self, block: Block) -> u32 {
        if let Some(index) = self.vacant.pop() {
            self.entries[index as usize] = block;
            return index;
        }
        let index = self.entries.len() as u32;
        assert!(index != NONE, "fewer than 2^32 - 1 blocks");
        self.entries.push(block);
        index
    }

    /// Removes a block; its entry is used again.
    #[inline]
    pub(super) fn remove(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.state = BlockState::Vacant;
        entry.serial = 0;
        self.vacant.push(index);
    }

    /// The block of a handle, if the handle is one of this allocator and still live.
    #[inline]
    pub(super) fn live(&self, index: u32, serial: u64) -> Option<&Block> {
        self.entries.get(index as usize).filter(|block| block.serial == serial && serial != 0)
    }

    /// Puts `new` directly before `index` in its segment.
    #[inline]
    pub(super) fn link_before(&mut self, new: u32, index: u32) {
        let previous = std::mem::replace(&mut self[index].previous, new);
        self[new].previous = previous;
        self[new].next = index;
        if previous != NONE {
            self[previous].next = new;
        }
    }

    /// Puts `new` directly after `index` in its segment.
    pub(super) fn link_after(&mut self, new: u32, index: u32) {
        let next = std::mem::replace(&mut self[index].next, new);
        self[new].next = next;
        self[new].previous = index;
        if next != NONE {
            self[next].previous = new;
        }
    }

    /// Takes `index` out of its segment's chain.
    #[inline]
    pub(super) fn unlink(&mut self, index: u32) {
        let Block { previous, next, .. } = self[index];
        if previous != NONE {
            self[previous].next = next;
        }
        if next != NONE {
            self[next].previous = previous;
        }
    }

    /// The first blocks of all segments, with their indices, in no particular order.
    pub(super) fn heads(&self) -> impl Iterator<Item = (u32, &Block)> {
        (0..).zip(&self.entries).filter(|(_, block)| block.state != BlockState::Vacant && block.previous == NONE)
    }
}

impl std::ops::Index<u32> for Blocks {
    type Output = Block;
    #[inline]
    fn index(&self, index: u32) -> &Block {
        &self.entries[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Blocks {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Block {
        &mut self.entries[index as usize]
    }
}
