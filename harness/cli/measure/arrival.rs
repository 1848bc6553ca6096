//! Whether what was copied is there: a fast copy of the wrong bytes is no copy.

use headroom_device::cuda::CudaContext;
use headroom_device::cuda::upload::{PinnedBuffer, fill, read_back};
use headroom_device::device::UploadPart;

use super::Failure;

/// What is read back at a time.
const AT_A_TIME_BYTES: usize = 64 << 20;

/// What lies in memory before it is copied to, so that nothing is there from the manner before.
const OLD: u8 = 0xff;

/// Reads back what is on a device.
pub(super) struct Arrival<'a> {
    context: &'a CudaContext,
    /// Pinned, since reading back into other memory takes ten times as long.
    there: PinnedBuffer,
}

impl<'a> Arrival<'a> {
    pub(super) fn new(context: &'a CudaContext) -> Result<Self, Failure> {
        Ok(Self { context, there: PinnedBuffer::new(context, AT_A_TIME_BYTES)? })
    }

    /// Overwrites where the parts go.
    pub(super) fn spoil(&self, parts: &[UploadPart<'_>]) -> Result<(), Failure> {
        Ok(parts.iter().try_for_each(|part| fill(self.context, part.to, OLD))?)
    }

    /// Compares every byte of the parts with what is on the device.
    pub(super) fn check(&mut self, what: &str, parts: &[UploadPart<'_>]) -> Result<(), Failure> {
        for (index, part) in parts.iter().enumerate() {
            let mut start_bytes = 0;
            for expected in part.contents.chunks(AT_A_TIME_BYTES) {
                let (there, _) = self.there.split_at_mut(expected.len());
                read_back(self.context, part.to, start_bytes as u64, there)?;
                if there != expected {
                    let at = there.iter().zip(expected).take_while(|(there, expected)| there == expected).count();
                    let (at, parts) = (start_bytes + at, parts.len());
                    return Err(Failure::Wrong(format!(
                        "{what}: part {index} of {parts} arrived otherwise from byte {at} on"
                    )));
                }
                start_bytes += expected.len();
            }
        }
        Ok(())
    }
}
