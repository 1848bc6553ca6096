//! What of a snapshot cannot be taken at its word, said plainly.

use std::collections::BTreeSet;
use std::fmt;

use super::model::{BlockState, Event, Snapshot};

/// A reason to read a snapshot's figures with care.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// No events were recorded: only the state is known.
    NoEvents {
        /// The device.
        device: i64,
    },
    /// Memory was live before the first event.
    BeginsInTheMiddle {
        /// The device.
        device: i64,
        /// Blocks allocated before it.
        blocks: usize,
        /// Their requested bytes.
        bytes: u64,
    },
    /// The ring buffer has overwritten older events.
    EventsLost {
        /// The device.
        device: i64,
        /// Live blocks whose stack was recorded and whose allocation is gone.
        blocks: usize,
    },
    /// Events that cannot have followed each other.
    EventsMissing {
        /// The device.
        device: i64,
        /// How many do not fit what is before or after.
        contradictions: u64,
    },
    /// More than one device.
    SeveralDevices {
        /// Which.
        devices: Vec<i64>,
    },
    /// More than one stream: a replay merges them.
    SeveralStreams {
        /// The device.
        device: i64,
        /// How many.
        streams: usize,
    },
    /// Private pools (CUDA graphs, `MemPool`): their free memory serves nobody else.
    PrivatePools {
        /// The device.
        device: i64,
        /// How many.
        pools: usize,
        /// What they hold.
        reserved_bytes: u64,
    },
    /// Words this program does not know.
    NewerFormat {
        /// Which, each with how often it stands there.
        words: Vec<String>,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEvents { device } => write!(
                f,
                "device {device}: no events were recorded, so only the final state is known; call \
                 torch.cuda.memory._record_memory_history() before the work"
            ),
            Self::BeginsInTheMiddle { device, blocks, bytes } => write!(
                f,
                "device {device}: {blocks} blocks ({}) were allocated before the first event; where and in which \
                 order is not known",
                headroom_base::Bytes(*bytes)
            ),
            Self::EventsLost { device, blocks } => write!(
                f,
                "device {device}: the ring buffer lost events (the allocations of {blocks} live blocks are gone); \
                 raise max_entries of _record_memory_history"
            ),
            Self::EventsMissing { device, contradictions } => {
                write!(f, "device {device}: {contradictions} events do not fit those around them; some are missing")
            }
            Self::SeveralDevices { devices } => {
                let devices: Vec<String> = devices.iter().map(i64::to_string).collect();
                write!(f, "several devices ({}); each is treated alone", devices.join(", "))
            }
            Self::SeveralStreams { device, streams } => {
                write!(f, "device {device}: {streams} streams; a replay merges them, which may reserve less")
            }
            Self::PrivatePools { device, pools, reserved_bytes } => write!(
                f,
                "device {device}: {pools} private pools hold {}; their free memory serves nobody else, and a replay \
                 does not keep them apart",
                headroom_base::Bytes(*reserved_bytes)
            ),
            Self::NewerFormat { words } => {
                write!(
                    f,
                    "the snapshot has words this program does not know ({}): its format is newer",
                    words.join(", ")
                )
            }
        }
    }
}

impl Snapshot {
    /// Everything a reader must know before believing the figures.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        if !self.unknown.is_empty() {
            let words = self.unknown.iter().map(|(word, count)| format!("{word} × {count}")).collect();
            warnings.push(Warning::NewerFormat { words });
        }
        let devices = self.devices();
        if devices.len() > 1 {
            warnings.push(Warning::SeveralDevices { devices: devices.clone() });
        }
        for device in devices {
            self.device_warnings(device, &mut warnings);
        }
        warnings
    }

    fn device_warnings(&self, device: i64, warnings: &mut Vec<Warning>) {
        let trace = self.trace(device);
        if trace.is_empty() {
            warnings.push(Warning::NoEvents { device });
        } else {
            self.event_warnings(device, warnings);
        }
        let of_segments = self.segments_of(device).map(|segment| segment.stream);
        let streams: BTreeSet<i64> = of_segments.chain(trace.iter().map(|event| event.stream)).collect();
        if streams.len() > 1 {
            warnings.push(Warning::SeveralStreams { device, streams: streams.len() });
        }
        let private = || self.segments_of(device).filter(|segment| segment.private_pool.is_some());
        let pools: BTreeSet<_> = private().filter_map(|segment| segment.private_pool).collect();
        if !pools.is_empty() {
            let reserved_bytes = private().map(|segment| segment.total_bytes).sum();
            warnings.push(Warning::PrivatePools { device, pools: pools.len(), reserved_bytes });
        }
    }

    fn event_warnings(&self, device: i64, warnings: &mut Vec<Warning>) {
        let beginning = self.beginning(device);
        if !beginning.live.is_empty() {
            let (blocks, bytes) = (beginning.live.len(), beginning.live.values().sum());
            warnings.push(Warning::BeginsInTheMiddle { device, blocks, bytes });
        }
        // Stacks are kept from the moment recording begins. A live block that has one was allocated since
        // then, so its event was recorded too and must have been overwritten.
        let recorded: BTreeSet<u64> = self.trace(device).iter().filter(is_alloc).map(|event| event.address).collect();
        let lost = self
            .segments_of(device)
            .flat_map(|segment| &segment.blocks)
            .filter(|block| block.state != BlockState::Free && block.stack.is_some())
            .filter(|block| !recorded.contains(&block.address))
            .count();
        if lost > 0 {
            warnings.push(Warning::EventsLost { device, blocks: lost });
        }
        if beginning.contradictions > 0 {
            let contradictions = beginning.contradictions;
            warnings.push(Warning::EventsMissing { device, contradictions });
        }
    }
}

fn is_alloc(event: &&Event) -> bool {
    event.action == super::model::Action::Alloc
}
