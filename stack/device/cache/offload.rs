//! Moving pieces of a model to host memory.

use headroom_base::mutant;

use super::spec::Loading;
use super::state::{Slot, State};
use super::{Cache, CacheError, ModelKey};
use crate::allocator::NotAllocated;
use crate::probe::{HookError, HookPoint};

/// How much of a model is to go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Amount {
    /// All of it.
    All,
    /// Pieces of at least this size together, or all of it where it cannot be split.
    AtLeast(u64),
    /// The same, of the pieces that it can run without.
    OptionalAtLeast(u64),
}

/// Why a move failed. The pieces that went before are gone, the others are where they were.
#[derive(Debug)]
pub(super) enum MoveError {
    Hook(HookError),
    Free(NotAllocated),
}

impl MoveError {
    pub(super) fn of(self, key: &ModelKey) -> CacheError {
        let key = key.clone();
        match self {
            Self::Hook(source) => CacheError::Hook { key, source },
            Self::Free(source) => CacheError::NotHeld { key, source },
        }
    }
}

impl Cache {
    /// Moves pieces off and returns their bytes. The last loaded go first, those that the model can run without before
    /// the others.
    pub(super) fn offload_pieces(&self, state: &mut State, slot: Slot, amount: Amount) -> Result<u64, MoveError> {
        self.device().hook(HookPoint::Offloading).map_err(MoveError::Hook)?;
        let entry = state.entry_mut(slot);
        let (wanted, only_optional) = match amount {
            Amount::All => (u64::MAX, false),
            Amount::AtLeast(_) if entry.loading == Loading::Whole => (u64::MAX, false),
            Amount::AtLeast(bytes) => mutant!(
                "offload_whole_outside_calibration",
                "an ordinary lock throws whole models off the device where a few pieces would do",
                right: (bytes, false),
                wrong: (u64::MAX, false),
            ),
            Amount::OptionalAtLeast(bytes) => (bytes, true),
        };
        let mut chosen = Vec::new();
        let mut bytes = 0;
        for required in [false, true] {
            if required && only_optional {
                break;
            }
            for (index, piece) in entry.pieces.iter().enumerate().rev() {
                if bytes >= wanted {
                    break;
                }
                if piece.required == required && piece.holding.is_some() {
                    chosen.push(index);
                    bytes += piece.bytes;
                }
            }
        }
        let mut moved = 0;
        let outcome = self.device().change(|memory| {
            for index in chosen {
                let piece = &mut entry.pieces[index];
                if let Some(holding) = piece.holding {
                    memory.free(holding).map_err(MoveError::Free)?;
                    piece.holding = None;
                    moved += piece.bytes;
                }
            }
            Ok(())
        });
        entry.resident_bytes -= moved;
        outcome.map(|()| moved)
    }
}
