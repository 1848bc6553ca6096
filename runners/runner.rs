//! What executes one operation on one device, and how it can fail.

use headroom_base::{Case, HardEnvironment};
use headroom_device::AllocationError;
use headroom_device::cache::WeightHolding;
use headroom_device::device::{Device, Holding};
use headroom_family::architecture::Architecture;

use crate::programs::{Execution, Unsupported};

/// One operation to execute.
#[derive(Clone, Debug)]
pub struct Work<'a> {
    /// Whose operation it is.
    pub architecture: &'a Architecture,
    /// What runs, at which size.
    pub case: Case,
    /// How it runs.
    pub execution: Execution,
    /// The model's weights, in the order of its list; none while the inputs are prepared.
    pub weights: &'a [WeightHolding],
    /// The inputs, in the order of the program's; none while they are prepared.
    pub inputs: &'a [Holding],
}

/// The tensors an operation is given. They lie on the device before its window opens.
#[derive(Debug, Default)]
#[must_use = "inputs stay on the device until they are given back"]
pub struct Inputs {
    holdings: Vec<Holding>,
}

impl Inputs {
    /// Puts pieces of these sizes on the device: all of them, or none.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn place(device: &Device, sizes_bytes: impl IntoIterator<Item = u64>) -> Result<Self, RunError> {
        let mut inputs = Self::default();
        for bytes in sizes_bytes {
            match device.allocate(bytes) {
                Ok(holding) => inputs.holdings.push(holding),
                Err(error) => {
                    inputs.release(device)?;
                    return Err(error.into());
                }
            }
        }
        Ok(inputs)
    }

    /// Where they lie, in the order in which they were placed.
    pub fn holdings(&self) -> &[Holding] {
        &self.holdings
    }

    /// Takes them off the device.
    ///
    /// # Errors
    /// When the device says that it does not hold one of them; the others are given back all the same.
    pub fn release(self, device: &Device) -> Result<(), RunError> {
        release_all(device, self.holdings)
    }
}

/// Frees every holding and reports the first that could not be.
pub(crate) fn release_all(device: &Device, holdings: impl IntoIterator<Item = Holding>) -> Result<(), RunError> {
    let mut outcome = Ok(());
    for holding in holdings {
        if let Err(error) = device.free(holding) {
            outcome = outcome.and(Err(RunError::Inconsistent { message: error.to_string() }));
        }
    }
    outcome
}

/// Why an operation did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The device had no room.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// A library beside the allocator found no room on the device.
    #[error("{message}")]
    LibraryOutOfMemory {
        /// What it said.
        message: String,
    },
    /// No program is known for it.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The device and the runner disagree about what is held: a defect of headroom, never of the model.
    #[error("the device and the runner disagree: {message}; please report this with the command line")]
    Inconsistent {
        /// What the device said.
        message: String,
    },
    /// The operation failed for a reason of its own.
    #[error("{message}")]
    Failed {
        /// What it said.
        message: String,
    },
}

impl RunError {
    /// Whether the device ran out of memory.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Allocation(error) => error.is_out_of_memory(),
            Self::LibraryOutOfMemory { .. } => true,
            Self::Unsupported(_) | Self::Inconsistent { .. } | Self::Failed { .. } => false,
        }
    }
}

/// Executes operations on a device.
pub trait Runner: Send + Sync {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Puts the operation's inputs on the device.
    ///
    /// # Errors
    /// When the device has no room, or the operation is not known.
    fn prepare(&self, device: &Device, work: &Work<'_>) -> Result<Inputs, RunError>;

    /// Executes the operation once. Whatever happens, what it allocated is freed, except library workspaces that
    /// stay for the life of the process.
    ///
    /// # Errors
    /// As [`RunError`] says.
    fn run(&self, device: &Device, work: &Work<'_>) -> Result<(), RunError>;

    /// Bytes of library workspaces that earlier runs left on a device.
    fn persistent_bytes(&self, device: &Device) -> u64;

    /// How the operation is executed in an environment.
    fn execution(&self, environment: &HardEnvironment) -> Execution {
        Execution {
            attention: environment.attention,
            memory_layout: environment.memory_layout,
            convolution_benchmark: environment.convolution_benchmark,
            ..Execution::default()
        }
    }
}
