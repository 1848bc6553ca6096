//! The pasted text of a PyTorch out-of-memory message: its figures, what they mean, and what would help.

mod causes;
mod deduce;
mod elsewhere;
mod explain;
mod figure;
mod figureless;
mod finding;
mod help;
mod parse;
mod sentences;
mod squeezed;
mod surroundings;
#[cfg(test)]
mod tests;

pub use deduce::Contradiction;
pub use explain::{Explanation, explain};
pub use figure::Figure;
pub use figureless::Figureless;
pub use finding::{Finding, Possibility};
pub use help::{Help, Short, Suggestion};
pub use parse::{Hardest, ParseOomError, Pasted, read};

/// Whose message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    /// NVIDIA CUDA.
    Cuda,
    /// AMD ROCm.
    Hip,
    /// Intel XPU.
    Xpu,
    /// Apple Metal.
    Mps,
}

impl Api {
    /// The environment variable its allocator reads.
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Cuda => "PYTORCH_CUDA_ALLOC_CONF",
            Self::Hip => "PYTORCH_HIP_ALLOC_CONF",
            Self::Xpu => "PYTORCH_ALLOC_CONF",
            Self::Mps => "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
        }
    }
}

/// Whether ranges that grow (`expandable_segments`) can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expandable {
    /// As far as the text says.
    Possible,
    /// PyTorch said in the text that they are not supported.
    SaidUnsupported,
    /// The text has paths of Windows, where they are not supported.
    Windows,
}

/// A process named in a message by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OtherProcess {
    /// Its number.
    pub pid: u64,
    /// What it holds.
    pub held: Option<Figure>,
}

/// The figures of one message. What a message does not say, or says as nonsense, is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Whose message it is.
    pub api: Api,
    /// The environment variable that it names, or else the one of its kind.
    pub variable: &'static str,
    /// Whether ranges that grow can be had.
    pub expandable: Expandable,
    /// Whether the text says that the computer's own memory ran out too.
    pub host_ran_out: bool,
    /// Whether the driver's stream-ordered pool served the request.
    pub stream_ordered: bool,
    /// The device's number.
    pub device: Option<u32>,
    /// What was asked for.
    pub requested: Figure,
    /// The largest single block that the platform allocates, where it says so.
    pub block_limit: Option<Figure>,
    /// What the device has.
    pub total: Option<Figure>,
    /// What the driver says is free.
    pub free: Option<Figure>,
    /// What this process may use, where a limit was set.
    pub limit: Option<Figure>,
    /// Whether it speaks of this process apart from those with a number.
    pub names_this_process: bool,
    /// What this process holds, by the driver.
    pub process: Option<Figure>,
    /// Processes it names by number: this one may be among them.
    pub others: Vec<OtherProcess>,
    /// In use by tensors.
    pub allocated: Option<Figure>,
    /// Taken from the driver.
    pub reserved: Option<Figure>,
    /// Reserved and not handed out.
    pub unallocated: Option<Figure>,
    /// What Metal counts beside the allocator.
    pub other_allocations: Option<Figure>,
    /// In private pools (CUDA graphs).
    pub private_pools: Option<Figure>,
    /// Figures that no device can have, as they were printed.
    pub nonsense: Vec<String>,
    /// Whether a figure was printed in decimal units, which PyTorch never means.
    pub decimal_units: bool,
}
