//! Executes an operation's program on a device that keeps no contents.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};

use headroom_device::device::{Device, DeviceId, Holding};

use crate::programs::{Label, Program, Role, Step, TensorId, program};
use crate::runner::{Inputs, RunError, Runner, Work, release_all};

/// The framework whose programs these are: the version whose recordings the programs are held against.
pub const SIMULATED_FRAMEWORK: &str = "torch 2.11.0+cu130";

/// Workspaces that come out larger than the rules say, by seeded steps: a library's choice that no fit is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkspaceSteps {
    /// Chooses which workspaces grow.
    pub seed: u64,
    /// By how much one of them grows, in percent of its size; one in four does.
    pub percent: u64,
}

impl WorkspaceSteps {
    /// What a workspace of `bytes` takes. Equal sizes grow alike, as a library decides by shape.
    fn grown(self, bytes: u64) -> u64 {
        let mixed = (bytes ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if mixed >> 62 == 0 { bytes + bytes / 100 * self.percent } else { bytes }
    }
}

/// Runs programs. One value stands for one process: library workspaces stay on each device after their first use.
#[derive(Debug, Default)]
pub struct SimulatedRunner {
    steps: Option<WorkspaceSteps>,
    persistent: Mutex<HashMap<(DeviceId, &'static str), Holding>>,
}

impl SimulatedRunner {
    /// A runner whose workspaces are those of the rules.
    pub fn new() -> Self {
        Self::default()
    }

    /// A runner whose workspaces step.
    pub fn with_workspace_steps(steps: WorkspaceSteps) -> Self {
        Self { steps: Some(steps), ..Self::default() }
    }

    /// Executes a program once; see [`Runner::run`].
    ///
    /// # Errors
    /// When the device has no room, or disagrees about what is held.
    pub fn run_program(&self, device: &Device, program: &Program) -> Result<(), RunError> {
        let mut live = HashMap::new();
        let outcome = self.execute(device, program, &mut live);
        let released = release_all(device, live.into_values());
        outcome.and(released)
    }

    fn execute(
        &self,
        device: &Device,
        program: &Program,
        live: &mut HashMap<TensorId, Holding>,
    ) -> Result<(), RunError> {
        for step in &program.steps {
            match step {
                Step::Allocate { bytes, label, role: Role::Persistent, .. } => self.keep(device, label, *bytes)?,
                Step::Allocate { tensor, bytes, role, .. } => {
                    let bytes = match (role, self.steps) {
                        (Role::Workspace, Some(steps)) => steps.grown(*bytes),
                        _ => *bytes,
                    };
                    live.insert(*tensor, device.allocate(bytes)?);
                }
                Step::Free { tensor } => {
                    // A tensor that is not live here is a library workspace, which stays.
                    if let Some(holding) = live.remove(tensor) {
                        release_all(device, [holding])?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes a library's workspace on its first use on this device.
    fn keep(&self, device: &Device, label: &Label, bytes: u64) -> Result<(), RunError> {
        let mut persistent = self.persistent.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (device.id().clone(), label.operator);
        if let Entry::Vacant(place) = persistent.entry(key) {
            place.insert(device.allocate(bytes)?);
        }
        Ok(())
    }
}

impl Runner for SimulatedRunner {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn persistent_bytes(&self, device: &Device) -> u64 {
        let persistent = self.persistent.lock().unwrap_or_else(PoisonError::into_inner);
        persistent.iter().filter(|((id, _), _)| id == device.id()).map(|(_, holding)| holding.bytes()).sum()
    }

    fn prepare(&self, device: &Device, work: &Work<'_>) -> Result<Inputs, RunError> {
        let program = program(work.architecture, &work.case, &work.execution)?;
        Inputs::place(device, program.inputs.iter().map(|piece| piece.bytes))
    }

    fn run(&self, device: &Device, work: &Work<'_>) -> Result<(), RunError> {
        self.run_program(device, &program(work.architecture, &work.case, &work.execution)?)
    }
}
