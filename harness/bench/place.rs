//! Where a family is looked at: a card that exists as numbers, or one that is attached.

use headroom_base::{
    AllocatorKind, AttentionKernel, Backend, DeviceClass, Environment, HardEnvironment, MemoryLayout, Origin, Reading,
    SoftEnvironment,
};
use headroom_family::SimulatedDevice;
use headroom_reports::DeviceRecord;
use headroom_runners::SIMULATED_FRAMEWORK;

use crate::gpu::OpenGpu;

/// The driver's name in simulated environments.
const SIMULATED_DRIVER: &str = "simulated";

/// A card, simulated or attached. What checks ask of one they ask of the other.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// A card of a family file.
    Simulated(&'a SimulatedDevice),
    /// A card of this machine.
    Gpu(&'a OpenGpu),
}

impl<'a> From<&'a SimulatedDevice> for Place<'a> {
    fn from(device: &'a SimulatedDevice) -> Self {
        Self::Simulated(device)
    }
}

impl<'a> From<&'a OpenGpu> for Place<'a> {
    fn from(gpu: &'a OpenGpu) -> Self {
        Self::Gpu(gpu)
    }
}

impl Place<'_> {
    /// Its name in those of trials.
    pub fn name(&self) -> &str {
        match self {
            Self::Simulated(device) => &device.name,
            Self::Gpu(gpu) => gpu.name(),
        }
    }

    /// Its memory by the driver.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::Simulated(device) => device.memory_bytes,
            Self::Gpu(gpu) => gpu.facts().total_bytes,
        }
    }

    /// What this process takes beside its allocator: its context, and the libraries that were set up.
    pub fn context_bytes(&self) -> u64 {
        match self {
            Self::Simulated(device) => device.context_bytes,
            Self::Gpu(gpu) => gpu.context_bytes(),
        }
    }

    /// What others hold.
    pub fn outside_bytes(&self) -> u64 {
        match self {
            Self::Simulated(device) => device.outside_bytes,
            Self::Gpu(gpu) => gpu.others_bytes(),
        }
    }

    /// What the driver is known to keep after frees.
    pub const fn retained(&self) -> Reading {
        match self {
            Self::Simulated(_) => Reading::Bytes(0),
            Self::Gpu(gpu) => gpu.retained(),
        }
    }

    /// The allocators to try on it.
    pub fn allocators(&self) -> &[AllocatorKind] {
        match self {
            Self::Simulated(device) => &device.allocators,
            Self::Gpu(gpu) => &gpu.facts().allocators,
        }
    }

    /// Whether it exists only in software.
    pub const fn is_simulated(&self) -> bool {
        matches!(self, Self::Simulated(_))
    }

    /// The kind of card: simulated cards of one size are one class.
    pub fn class(&self) -> DeviceClass {
        match self {
            Self::Simulated(device) => DeviceClass::new("simulated", device.memory_bytes, Backend::Cuda),
            Self::Gpu(gpu) => gpu.facts().class(),
        }
    }

    /// The software around the card: what a simulation stands for, or what really computes there.
    pub fn environment(&self, allocator: AllocatorKind) -> Environment {
        let Self::Gpu(gpu) = self else { return simulated_environment(allocator) };
        let simulated = simulated_environment(allocator);
        Environment {
            hard: HardEnvironment { framework: gpu.facts().framework.clone(), ..simulated.hard },
            soft: SoftEnvironment { driver: gpu.facts().driver.clone() },
        }
    }

    /// Where figures taken on it come from.
    pub const fn origin(&self) -> Origin {
        match self {
            Self::Simulated(_) => Origin::Simulated,
            Self::Gpu(_) => Origin::Measured,
        }
    }

    /// A hash of the identity of an attached card.
    pub fn uuid_hash(&self) -> Option<String> {
        match self {
            Self::Simulated(_) => None,
            Self::Gpu(gpu) => Some(gpu.facts().uuid_hash()),
        }
    }

    /// The card as reports list it.
    pub fn record(&self) -> DeviceRecord {
        let driver = match self {
            Self::Simulated(_) => SIMULATED_DRIVER.to_owned(),
            Self::Gpu(gpu) => gpu.facts().driver.clone(),
        };
        DeviceRecord { class: self.class(), uuid_hash: self.uuid_hash(), driver, simulated: self.is_simulated() }
    }
}

/// The environment of every simulation under this allocator.
pub fn simulated_environment(allocator: AllocatorKind) -> Environment {
    Environment {
        hard: HardEnvironment {
            backend: Backend::Cuda,
            allocator,
            allocator_settings: String::new(),
            framework: SIMULATED_FRAMEWORK.to_owned(),
            attention: AttentionKernel::default(),
            convolution_benchmark: false,
            memory_layout: MemoryLayout::default(),
        },
        soft: SoftEnvironment { driver: SIMULATED_DRIVER.to_owned() },
    }
}
