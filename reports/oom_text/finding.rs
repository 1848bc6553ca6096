//! What a message's figures can say.

use super::Expandable;
use super::deduce::Contradiction;

/// Something the figures say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// More was asked for than the device has.
    LargerThanDevice {
        /// What was asked for.
        requested_bytes: u64,
        /// What the device has.
        total_bytes: u64,
    },
    /// One block of this size cannot be had on the platform, whatever is free.
    BlockLimit {
        /// What was asked for.
        requested_bytes: u64,
        /// The largest block.
        limit_bytes: u64,
    },
    /// What the allocator holds unused would have been enough, in pieces that are too small or cannot be given back.
    Stranded {
        /// What was asked for.
        requested_bytes: u64,
        /// Reserved and not handed out.
        unallocated_bytes: u64,
        /// Free by the driver, where that is known.
        free_bytes: Option<u64>,
    },
    /// Even with every unused byte it would not have fitted.
    TooLittle {
        /// What was asked for.
        requested_bytes: u64,
        /// Free by the driver and unused by the allocator, together.
        unused_bytes: u64,
        /// What is missing.
        short_bytes: u64,
    },
    /// What was unused and what was asked for are too close for two decimals.
    TooClose {
        /// What was asked for.
        requested_bytes: u64,
        /// Free by the driver and unused by the allocator, together.
        unused_bytes: u64,
    },
    /// What the driver had free is not said, and even all that is in no tensor would not have been enough.
    BesideTensorsTooLittle {
        /// What was asked for.
        requested_bytes: u64,
        /// All of the device that is in no tensor.
        at_most_bytes: u64,
        /// What is missing.
        short_bytes: u64,
    },
    /// What the driver had free is not said, and nothing follows.
    FreeUnknown {
        /// What was asked for.
        requested_bytes: u64,
    },
    /// The driver had too little, and what the allocator held unused is not said.
    DriverHadTooLittle {
        /// What was asked for.
        requested_bytes: u64,
        /// Free by the driver.
        free_bytes: u64,
    },
    /// The driver had enough free memory, so something else refused.
    DriverHadEnough {
        /// What was asked for.
        requested_bytes: u64,
        /// Free by the driver.
        free_bytes: u64,
    },
    /// What may have refused it.
    Perhaps(Possibility),
    /// Metal's limit would have been exceeded.
    OverWatermark {
        /// What was asked for.
        requested_bytes: u64,
        /// What was held already.
        held_bytes: u64,
        /// What is allowed.
        limit_bytes: u64,
        /// What is missing; none where two decimals do not tell.
        short_bytes: Option<u64>,
    },
    /// Other processes hold memory.
    OthersHold {
        /// How much.
        bytes: u64,
        /// How many they are, where the message names them.
        processes: usize,
    },
    /// A process that the message names by number is this program itself, as seen from outside a container.
    NamedIsItself {
        /// Its number; none where several hold enough to be it.
        pid: Option<u64>,
        /// What its allocator holds.
        reserved_bytes: u64,
    },
    /// What this process is said to hold is less than its allocator does.
    ProcessImpossible {
        /// What it is said to hold.
        process_bytes: u64,
        /// What its allocator holds.
        reserved_bytes: u64,
    },
    /// Memory that is neither free nor the allocator's nor a named process's.
    Unaccounted {
        /// How much.
        bytes: u64,
    },
    /// The process holds memory that its allocator does not know: context, libraries, other allocators.
    OutsideAllocator {
        /// How much.
        bytes: u64,
    },
    /// A limit was set on this process.
    Limited {
        /// The limit.
        limit_bytes: u64,
        /// What the device has, where that is known.
        total_bytes: Option<u64>,
    },
    /// Private pools hold memory that nothing else can use.
    PrivatePools {
        /// How much.
        bytes: u64,
    },
    /// The process is said to hold more than the device has: memory was moved to the host, or the figure is wrong.
    MoreThanDevice {
        /// What it is said to hold.
        process_bytes: u64,
        /// What the device has.
        total_bytes: u64,
    },
    /// Ranges that grow would be the setting to try, and cannot be had.
    NotExpandable(Expandable),
    /// Figures of which one cannot be larger than the other, and is.
    Contradicting(Contradiction),
    /// Figures that no device can have: the platform does not report them.
    Nonsense {
        /// As they were printed.
        figures: Vec<String>,
    },
    /// Figures in decimal units, read as the binary ones PyTorch prints.
    DecimalUnits,
}

/// Why a request may fail for which the driver had enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Possibility {
    /// A limit on this process that the message does not print.
    Limit {
        /// The share of the device at which the process stood, in hundredths, where it is a round one.
        hundredths: Option<u64>,
    },
    /// What is free does not lie in one piece in the driver's address space.
    NotContiguous,
    /// The allocator holds much that is unused.
    Unused {
        /// How much.
        bytes: u64,
    },
    /// The computer's own memory, which has to back the device's on Windows.
    HostMemory {
        /// Whether the text says that it ran out.
        is_said: bool,
    },
    /// Memory was given back after the failure.
    GivenBackSince,
}
