//! Weights on the host: where they come from, who shares them, who needs them to stay.

mod host;
mod mapped;

pub(crate) use host::PinCount;
pub use host::{HostCopy, HostPin, HostStore};
pub use mapped::{MappedWeights, TensorSpan, WeightsError};
