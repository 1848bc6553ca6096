//! Findings as sentences.

use std::fmt;

use super::Expandable;
use super::deduce::Contradiction;
use super::figure::Size;
use super::finding::{Finding, Possibility};

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LargerThanDevice { .. }
            | Self::BlockLimit { .. }
            | Self::Stranded { .. }
            | Self::TooLittle { .. }
            | Self::TooClose { .. }
            | Self::BesideTensorsTooLittle { .. } => self.shortage(f),
            Self::FreeUnknown { .. }
            | Self::DriverHadTooLittle { .. }
            | Self::DriverHadEnough { .. }
            | Self::Perhaps(_)
            | Self::OverWatermark { .. } => self.refusal(f),
            Self::OthersHold { .. }
            | Self::NamedIsItself { .. }
            | Self::ProcessImpossible { .. }
            | Self::Unaccounted { .. }
            | Self::OutsideAllocator { .. }
            | Self::Limited { .. }
            | Self::PrivatePools { .. }
            | Self::MoreThanDevice { .. } => self.holder(f),
            Self::NotExpandable(why) => write!(
                f,
                "expandable_segments, which joins free pieces, is not available here: {}",
                match why {
                    Expandable::SaidUnsupported => "the text says that the platform does not support it",
                    Expandable::Windows | Expandable::Possible =>
                        "the paths are of Windows, where PyTorch does not have it",
                }
            ),
            Self::Contradicting(Contradiction { whole, whole_bytes, part, part_bytes }) => write!(
                f,
                "the figures contradict each other: {} {part} of {} {whole}; nothing is concluded from them",
                Size(*part_bytes),
                Size(*whole_bytes)
            ),
            Self::Nonsense { figures } => {
                write!(f, "{} is no size: the platform does not report it, and it is ignored", figures.join(", "))
            }
            Self::DecimalUnits => f.write_str("figures in decimal units are read as the binary ones PyTorch means"),
        }
    }
}

impl Finding {
    /// How what was asked for compares with what there was.
    fn shortage(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LargerThanDevice { requested_bytes, total_bytes } => write!(
                f,
                "one request of {} can never fit: the device has {}",
                Size(*requested_bytes),
                Size(*total_bytes)
            ),
            Self::BlockLimit { requested_bytes, limit_bytes } => write!(
                f,
                "the platform allocates no block larger than {}, and {} were asked for at once: how much is free does not \
                 matter",
                Size(*limit_bytes),
                Size(*requested_bytes)
            ),
            Self::Stranded { requested_bytes, unallocated_bytes, free_bytes } => {
                write!(
                    f,
                    "{} were asked for while the allocator held {} unused and ",
                    Size(*requested_bytes),
                    Size(*unallocated_bytes)
                )?;
                match free_bytes {
                    Some(free) => write!(f, "the driver had {} free", Size(*free))?,
                    None => f.write_str("what the driver had free is not said")?,
                }
                f.write_str(": the unused memory lies in pieces that are too small and cannot be given back")
            }
            Self::TooLittle { requested_bytes, unused_bytes, short_bytes } => write!(
                f,
                "{} were asked for and {} were unused in all, free or in the allocator: {} are missing whatever the \
                 allocator does",
                Size(*requested_bytes),
                Size(*unused_bytes),
                Size(*short_bytes)
            ),
            Self::TooClose { requested_bytes, unused_bytes } => write!(
                f,
                "{} were asked for and {} were unused in all, free or in the allocator: that is as much within the printed \
                 precision, so nothing is missing for sure, and nearly all of it would have had to be in one piece",
                Size(*requested_bytes),
                Size(*unused_bytes)
            ),
            Self::BesideTensorsTooLittle { requested_bytes, at_most_bytes, short_bytes } => write!(
                f,
                "{} were asked for, and at most the {} that are in no tensor can have been unused: {} are missing whatever \
                 the allocator does; what the driver had free is not said",
                Size(*requested_bytes),
                Size(*at_most_bytes),
                Size(*short_bytes)
            ),
            // Those that `fmt` sends elsewhere.
            _ => Ok(()),
        }
    }

    /// What the driver said, and what it leaves open.
    fn refusal(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FreeUnknown { requested_bytes } => write!(
                f,
                "{} were asked for and what the driver had free is not said: why it failed does not follow from the figures",
                Size(*requested_bytes)
            ),
            Self::DriverHadTooLittle { requested_bytes, free_bytes } => write!(
                f,
                "{} were asked for and the driver had {} free; how much the allocator held unused is not said",
                Size(*requested_bytes),
                Size(*free_bytes)
            ),
            Self::DriverHadEnough { requested_bytes, free_bytes } => write!(
                f,
                "the driver says {} are free, enough for the {} asked for: why it was refused is not in the figures; the \
                 possibilities follow, the likeliest first",
                Size(*free_bytes),
                Size(*requested_bytes)
            ),
            Self::Perhaps(possibility) => write!(f, "perhaps {possibility}"),
            Self::OverWatermark { requested_bytes, held_bytes, limit_bytes, short_bytes } => {
                write!(
                    f,
                    "{} were asked for with {} held already, other allocations counted, of {} that are allowed: ",
                    Size(*requested_bytes),
                    Size(*held_bytes),
                    Size(*limit_bytes)
                )?;
                match short_bytes {
                    Some(short) => write!(f, "{} too much", Size(*short)),
                    None => f.write_str("as much within the printed precision, so it is over by a few MiB at most"),
                }
            }
            // Those that `fmt` sends elsewhere.
            _ => Ok(()),
        }
    }

    /// Who holds what.
    fn holder(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OthersHold { bytes, processes: 0 } => write!(f, "other processes hold {}", Size(*bytes)),
            Self::OthersHold { bytes, processes: 1 } => write!(f, "a named process holds {}", Size(*bytes)),
            Self::OthersHold { bytes, processes } => write!(f, "{processes} named processes hold {}", Size(*bytes)),
            Self::NamedIsItself { pid, reserved_bytes } => {
                match pid {
                    Some(pid) => write!(f, "process {pid} is this program itself")?,
                    None => f.write_str("one of the named processes is this program itself")?,
                }
                write!(
                    f,
                    ", as seen from outside a container: with the {} of its allocator beside what is named the figures would \
                     exceed the device",
                    Size(*reserved_bytes)
                )
            }
            Self::ProcessImpossible { process_bytes, reserved_bytes } => write!(
                f,
                "this process is said to hold {}, less than the {} of its allocator: what it holds is not known",
                Size(*process_bytes),
                Size(*reserved_bytes)
            ),
            Self::Unaccounted { bytes } => write!(
                f,
                "{} are neither free nor the allocator's: this process's context and libraries, and processes that are not \
                 named; the message does not say which",
                Size(*bytes)
            ),
            Self::OutsideAllocator { bytes } => write!(
                f,
                "{} of this process are outside PyTorch's allocator: the context, libraries and their workspaces",
                Size(*bytes)
            ),
            Self::Limited { limit_bytes, total_bytes: Some(total) } => {
                write!(f, "this process may use {} of {}", Size(*limit_bytes), Size(*total))
            }
            Self::Limited { limit_bytes, total_bytes: None } => {
                write!(f, "this process may use {}", Size(*limit_bytes))
            }
            Self::PrivatePools { bytes } => {
                write!(f, "{} are in private pools (CUDA graphs), where nothing else can use them", Size(*bytes))
            }
            Self::MoreThanDevice { process_bytes, total_bytes } => write!(
                f,
                "this process is said to hold {} of {}: the driver moved memory to the host, or does not know; no setting of \
                 the allocator helps against that",
                Size(*process_bytes),
                Size(*total_bytes)
            ),
            // Those that `fmt` sends elsewhere.
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Possibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit { hundredths: None } => f.write_str(
                "a limit on this process's memory that the message does not print (set_per_process_memory_fraction)",
            ),
            Self::Limit { hundredths: Some(hundredths) } => write!(
                f,
                "a limit on this process's memory that the message does not print: with the request it stands at {}.{:02} of \
                 the device within the printed precision, as set_per_process_memory_fraction would set it",
                hundredths / 100,
                hundredths % 100
            ),
            Self::NotContiguous => f.write_str(
                "what is free does not lie in one piece in the driver's address space, and a segment has to",
            ),
            Self::Unused { bytes } => {
                write!(f, "the {} that the allocator holds unused, in pieces that it cannot give back", Size(*bytes))
            }
            Self::HostMemory { is_said: true } => {
                f.write_str("the computer's own memory, which the text says ran out: on Windows it backs the device's")
            }
            Self::HostMemory { is_said: false } => {
                f.write_str("the computer's own memory and page file, which have to back the device's on Windows")
            }
            Self::GivenBackSince => {
                f.write_str("memory that was given back after the failure and before these figures were read")
            }
        }
    }
}
