//! Single convolution calls of PyTorch's, recorded on an H200: what each took as its workspace.

use headroom_base::{DType, MemoryLayout};
use serde::Deserialize;

/// One recorded call, after another of the same shape.
#[derive(Deserialize)]
pub(crate) struct RecordedCall {
    pub(crate) dtype: String,
    pub(crate) layout: String,
    pub(crate) batch: u64,
    pub(crate) channels: [u64; 2],
    pub(crate) size: Vec<u64>,
    pub(crate) kernel: Vec<u64>,
    pub(crate) stride: Vec<u64>,
    pad: Vec<u64>,
    /// Requested bytes that were allocated and given back within the call.
    freed: Vec<u64>,
}

impl RecordedCall {
    pub(crate) fn dtype(&self) -> DType {
        self.dtype.parse().unwrap()
    }

    pub(crate) fn layout(&self) -> MemoryLayout {
        if self.layout == "channels_last" { MemoryLayout::ChannelsLast } else { MemoryLayout::Contiguous }
    }

    pub(crate) fn output(&self) -> Vec<u64> {
        (0..self.size.len()).map(|d| (self.size[d] + 2 * self.pad[d] - self.kernel[d]) / self.stride[d] + 1).collect()
    }

    pub(crate) fn workspace_bytes(&self) -> u64 {
        self.freed.iter().sum()
    }
}

/// Every recorded call.
pub(crate) fn recorded_calls() -> Vec<RecordedCall> {
    let text = include_str!("../data/h200/conv-workspaces.jsonl");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
