//! One operation's allocator events, with the state it began in and the counters around it.

use headroom_base::AllocatorKind;
use serde::Deserialize;
use serde_json::Value;

/// A block of the state a trace begins in.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "(u64, u64, u64, String)")]
pub struct TraceBlock {
    /// Where it is.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// What was asked for.
    pub requested_bytes: u64,
    /// PyTorch's word for its state, "active_allocated" or "inactive".
    pub state: String,
}

impl From<(u64, u64, u64, String)> for TraceBlock {
    fn from((address, bytes, requested_bytes, state): (u64, u64, u64, String)) -> Self {
        Self { address, bytes, requested_bytes, state }
    }
}

/// A segment of the state a trace begins in.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TraceSegment {
    /// Where it is.
    pub address: u64,
    /// Its size.
    #[serde(rename = "total_size")]
    pub bytes: u64,
    /// "small" or "large".
    pub segment_type: String,
    /// Whether it lies in an expandable range.
    #[serde(default)]
    pub is_expandable: bool,
    /// Its blocks by address.
    pub blocks: Vec<TraceBlock>,
}

/// The counters around a trace, by PyTorch's short names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
pub struct TraceCounters {
    /// Bytes handed out.
    pub allocated: u64,
    /// Bytes taken from the driver.
    pub reserved: u64,
    /// Bytes of free blocks with a neighbour.
    pub inactive_split: u64,
    /// Bytes of blocks that are not free.
    pub active: u64,
    /// Bytes asked for.
    pub requested: u64,
    /// The peak of `allocated`.
    pub peak_allocated: u64,
    /// The peak of `reserved`.
    pub peak_reserved: u64,
    /// The peak of `active`.
    pub peak_active: u64,
    /// Allocator retries.
    pub retries: u64,
    /// Failed allocations.
    pub ooms: u64,
    /// Segments.
    pub segments: u64,
}

/// One recorded operation.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct TraceRecording {
    /// The device it ran on.
    #[serde(default)]
    pub device: String,
    /// The allocator it ran on.
    pub allocator: AllocatorKind,
    /// The model family.
    #[serde(default)]
    pub family: String,
    /// The operation.
    #[serde(default)]
    pub operation: String,
    /// The number format.
    #[serde(default)]
    pub dtype: String,
    /// Width in pixels.
    #[serde(default)]
    pub width: Option<u32>,
    /// Height in pixels.
    #[serde(default)]
    pub height: Option<u32>,
    /// Frames.
    #[serde(default)]
    pub frames: Option<u32>,
    /// What else the line says of the case, such as `batch` and `options`.
    #[serde(flatten)]
    pub rest: serde_json::Map<String, Value>,
    /// The allocator's state when it began.
    pub start: Vec<TraceSegment>,
    /// The counters when it began.
    pub before: TraceCounters,
    /// The counters when it ended.
    pub after: TraceCounters,
    /// Every event: PyTorch's word for it, an address, a size.
    pub events: Vec<(String, u64, u64)>,
}

impl TraceRecording {
    /// What the line says under `name` of the case that was run.
    pub fn field(&self, name: &str) -> Option<Value> {
        match name {
            "family" => Some(self.family.clone().into()),
            "operation" => Some(self.operation.clone().into()),
            "dtype" => Some(self.dtype.clone().into()),
            "width" => self.width.map(Value::from),
            "height" => self.height.map(Value::from),
            "frames" => self.frames.map(Value::from),
            other => self.rest.get(other).cloned(),
        }
    }
}

pub(super) fn from_json(value: Value) -> Result<TraceRecording, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}
