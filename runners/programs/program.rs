//! An operation as data: the tensors it allocates and frees, in order, and what of it makes the peak.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use headroom_base::Case;

/// The size every allocation is rounded up to by the caching allocator.
const BLOCK_BYTES: u64 = 512;

/// A tensor of one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(pub u32);

/// What a tensor is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The result of an operator.
    Output,
    /// A copy that exists because the next operator wants another layout or element type.
    Copy,
    /// Scratch memory of one operator.
    Workspace,
    /// A library's own workspace: allocated at its first use and kept for the life of the process.
    Persistent,
    /// A copy of weights in the element type that the operation runs in.
    Weights,
}

impl Role {
    /// The word shown to people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Copy => "copy",
            Self::Workspace => "workspace",
            Self::Persistent => "persistent",
            Self::Weights => "weights",
        }
    }
}

/// Where in the model a tensor is made, and by what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The module's path ("decoder.mid_block.resnets.0.conv1").
    pub place: Arc<str>,
    /// The operator or what of it ("conv2d", "group_norm mean").
    pub operator: &'static str,
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.place.is_empty() {
            return f.write_str(self.operator);
        }
        write!(f, "{} {}", self.place, self.operator)
    }
}

/// One thing that happens to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A tensor comes to life.
    Allocate {
        /// Which.
        tensor: TensorId,
        /// Bytes it asks for.
        bytes: u64,
        /// Where it is made.
        label: Label,
        /// What it is there for.
        role: Role,
    },
    /// A tensor's last holder lets go.
    Free {
        /// Which.
        tensor: TensorId,
    },
}

/// A tensor's name and size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its name in the reference's own words ("decoder.conv_in.weight").
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Whether its element type is the model's, and changes with it.
    pub floating: bool,
}

/// An operation as a list of allocations and frees.
///
/// The inputs are there before it starts and the outputs are still there when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// What it executes.
    pub case: Case,
    /// The tensors that the operation is given.
    pub inputs: Vec<Piece>,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// A tensor that lives at some step of a program.
#[derive(Clone, Copy, Debug)]
pub struct Live<'a> {
    /// The step that allocated it.
    pub since: usize,
    /// Which tensor.
    pub tensor: TensorId,
    /// Bytes it asked for.
    pub bytes: u64,
    /// Where it was made.
    pub label: &'a Label,
    /// What it is there for.
    pub role: Role,
}

/// Whether the libraries' persistent workspaces are made by a run or are there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Run {
    /// The first run of a process: libraries set themselves up.
    First,
    /// Any later run.
    Later,
}

impl Program {
    /// Bytes that are live after each step, each tensor rounded to the allocator's block unit.
    pub fn live_bytes(&self, run: Run) -> Vec<u64> {
        let mut sizes = HashMap::new();
        let mut live = 0;
        self.steps
            .iter()
            .map(|step| {
                match step {
                    Step::Allocate { role: Role::Persistent, .. } if run == Run::Later => {}
                    Step::Allocate { tensor, bytes, .. } => {
                        let rounded = bytes.next_multiple_of(BLOCK_BYTES);
                        sizes.insert(*tensor, rounded);
                        live += rounded;
                    }
                    Step::Free { tensor } => live -= sizes.remove(tensor).unwrap_or(0),
                }
                live
            })
            .collect()
    }

    /// The first step at which the most bytes are live, and how many they are; `None` for an empty program.
    pub fn peak(&self, run: Run) -> Option<(usize, u64)> {
        let live = self.live_bytes(run);
        let most = live.iter().copied().max()?;
        Some((live.iter().position(|bytes| *bytes == most)?, most))
    }

    /// The tensors that live after step `at`, in the order in which they were allocated.
    pub fn live_at(&self, at: usize) -> Vec<Live<'_>> {
        let mut live: BTreeMap<usize, Live<'_>> = BTreeMap::new();
        let mut made_at = HashMap::new();
        for (since, step) in self.steps.iter().enumerate().take(at + 1) {
            match step {
                Step::Allocate { tensor, bytes, label, role } => {
                    made_at.insert(*tensor, since);
                    live.insert(since, Live { since, tensor: *tensor, bytes: *bytes, label, role: *role });
                }
                Step::Free { tensor } => {
                    made_at.remove(tensor).and_then(|since| live.remove(&since));
                }
            }
        }
        live.into_values().collect()
    }

    /// Bytes of the workspaces that stay after the first run.
    pub fn persistent_bytes(&self) -> u64 {
        self.allocations().filter(|live| live.role == Role::Persistent).map(|live| live.bytes).sum()
    }

    /// Every allocation, in order.
    pub fn allocations(&self) -> impl Iterator<Item = Live<'_>> {
        self.steps.iter().enumerate().filter_map(|(since, step)| match step {
            Step::Allocate { tensor, bytes, label, role } => {
                Some(Live { since, tensor: *tensor, bytes: *bytes, label, role: *role })
            }
            Step::Free { .. } => None,
        })
    }
}
