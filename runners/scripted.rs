//! A device whose true need is scripted: what an operation takes is what a function says, in one piece.

use headroom_device::device::Device;

use crate::runner::{Inputs, RunError, Runner, Work, release_all};

/// Runs every operation as one allocation of a scripted size.
pub struct ScriptedRunner {
    need: Box<dyn Fn(&Work<'_>) -> u64 + Send + Sync>,
}

impl std::fmt::Debug for ScriptedRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptedRunner").finish_non_exhaustive()
    }
}

impl ScriptedRunner {
    /// A runner whose operations need the bytes that `need` says.
    pub fn new(need: impl Fn(&Work<'_>) -> u64 + Send + Sync + 'static) -> Self {
        Self { need: Box::new(need) }
    }
}

impl Runner for ScriptedRunner {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn persistent_bytes(&self, _: &Device) -> u64 {
        0
    }

    fn prepare(&self, _: &Device, _: &Work<'_>) -> Result<Inputs, RunError> {
        Ok(Inputs::default())
    }

    fn run(&self, device: &Device, work: &Work<'_>) -> Result<(), RunError> {
        let holding = device.allocate((self.need)(work))?;
        release_all(device, [holding])
    }
}
