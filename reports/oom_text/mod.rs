//! The pasted text of a PyTorch out-of-memory message: its figures, what they mean, and what would help.

mod explain;
mod help;
mod parse;
#[cfg(test)]
mod tests;

pub use explain::{Explanation, Finding, explain};
pub use help::{Help, Short, Suggestion};
pub use parse::{ParseOomError, parse, parse_hardest};

use headroom_base::Reading;

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
            Self::Xpu => "PYTORCH_XPU_ALLOC_CONF",
            Self::Mps => "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
        }
    }
}

/// Another process named in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OtherProcess {
    /// Its number.
    pub pid: u64,
    /// What it holds.
    pub bytes: Reading,
}

/// The figures of one message. What a message does not say, or says as nonsense, is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Whose message it is.
    pub api: Api,
    /// Whether the driver's stream-ordered pool served the request.
    pub stream_ordered: bool,
    /// The device's number.
    pub device: Option<u32>,
    /// What was asked for.
    pub requested_bytes: u64,
    /// What the device has.
    pub total_bytes: Reading,
    /// What the driver says is free.
    pub free_bytes: Reading,
    /// What this process may use, where a limit was set.
    pub limit_bytes: Reading,
    /// What this process holds, by the driver.
    pub process_bytes: Reading,
    /// Other processes it names.
    pub others: Vec<OtherProcess>,
    /// In use by tensors.
    pub allocated_bytes: Reading,
    /// Taken from the driver.
    pub reserved_bytes: Reading,
    /// In private pools (CUDA graphs).
    pub private_pools_bytes: Reading,
    /// Figures that no device can have, as they were printed.
    pub nonsense: Vec<String>,
    /// Whether a figure was printed in decimal units, which PyTorch never means.
    pub decimal_units: bool,
}

/// The message of a text that is the hardest to make up for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardest {
    /// Its figures.
    pub oom: OutOfMemory,
    /// Which of the text's messages it is, from 1.
    pub number: usize,
    /// How many the text has.
    pub count: usize,
    /// Whether all of them say the same.
    pub are_alike: bool,
}

impl OutOfMemory {
    /// Reserved and not handed out; unknown where one of the two is.
    pub fn unallocated_bytes(&self) -> Reading {
        let both = self.reserved_bytes.known().zip(self.allocated_bytes.known());
        Reading::from(both.map(|(reserved, allocated)| reserved.saturating_sub(allocated)))
    }
}
