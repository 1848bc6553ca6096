//! Errors for want of memory that say no more than that: what they are, and what can be done.

use super::figure::{Figure, Size};
use super::squeezed::{Figures, Way};

/// An error that carries no figures of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Figureless {
    /// The driver's own error, passed on as it is.
    Driver,
    /// cuBLAS could not take memory.
    Blas,
    /// cuDNN could not take memory.
    Dnn,
    /// cuDNN found no algorithm, mostly because no workspace fits.
    Convolution,
    /// PyTorch failed while it put its message together.
    Assertion,
    /// The stream-ordered pool's message without its table.
    BareAllocation,
    /// Host memory ran out, not the device's.
    Host {
        /// What was asked for.
        requested: Option<Figure>,
    },
}

/// Words of each, without white space. Those of the host say what was asked for.
const WORDS: [(&str, Figureless); 9] = [
    ("CUDAerror:outofmemory", Figureless::Driver),
    ("HIPerror:outofmemory", Figureless::Driver),
    ("CUBLAS_STATUS_ALLOC_FAILED", Figureless::Blas),
    ("CUDNN_STATUS_ALLOC_FAILED", Figureless::Dnn),
    // What cuDNN 9 calls it.
    ("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", Figureless::Dnn),
    ("UnabletofindavalidcuDNNalgorithm", Figureless::Convolution),
    ("NVML_SUCCESS==rINTERNALASSERTFAILED", Figureless::Assertion),
    (BARE, Figureless::BareAllocation),
    ("DefaultCPUAllocator:", Figureless::Host { requested: None }),
];

const BARE: &str = "Allocationondevice";

/// Every such error of a squeezed text, once each. Where a message has figures, one without adds nothing to it.
pub(super) fn all(text: &str, is_alone: bool) -> Vec<Figureless> {
    let found = WORDS.into_iter().filter(|(words, _)| match *words {
        BARE => is_alone && is_bare(text),
        words => text.contains(words),
    });
    let mut all = Vec::new();
    for (_, error) in found {
        let error = match error {
            Figureless::Host { .. } => {
                let asked = [Way::After("youtriedtoallocate"), Way::After("can'tallocatememory:youtriedtoallocate")];
                Figureless::Host { requested: Figures::new(text).first(&asked) }
            }
            error => error,
        };
        if !all.contains(&error) {
            all.push(error);
        }
    }
    all
}

/// Where the sentence goes on its table was there too, and was not pasted.
fn is_bare(text: &str) -> bool {
    text.match_indices(BARE).any(|(at, words)| {
        let rest = text[at + words.len()..].trim_start_matches(|letter: char| letter.is_ascii_digit());
        !rest.starts_with("wouldexceed")
    })
}

impl Figureless {
    /// The words it is known by.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "out of memory, as the driver says it (`CUDA error: out of memory`)",
            Self::Blas => "cuBLAS could not take memory (`CUBLAS_STATUS_ALLOC_FAILED`)",
            Self::Dnn => {
                "cuDNN could not take memory (`CUDNN_STATUS_ALLOC_FAILED`, since cuDNN 9 \
                 `CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED`)"
            }
            Self::Convolution => "cuDNN found no algorithm (`Unable to find a valid cuDNN algorithm`)",
            Self::Assertion => "an assertion in the allocator (`NVML_SUCCESS == r`)",
            Self::BareAllocation => "the device ran out of memory (`Allocation on device`)",
            Self::Host { .. } => "host memory ran out (`DefaultCPUAllocator`)",
        }
    }

    /// What it means.
    pub fn meaning(self) -> String {
        match self {
            Self::Driver => {
                "a call outside PyTorch's allocator found no memory on the device: a context, a library or a \
                             kernel; it carries no figures"
                    .to_owned()
            }
            Self::Blas => {
                "a library takes its handle's workspace outside PyTorch's allocator, and the device was full; it \
                           carries no figures"
                    .to_owned()
            }
            Self::Dnn => {
                "a library takes what its handle and its plans need outside PyTorch's allocator, and the device was full; \
                 it carries no figures"
                    .to_owned()
            }
            Self::Convolution => {
                "mostly no workspace fitted on the device, at times an installation or an element type that \
                                  cuDNN does not serve; it carries no figures"
                    .to_owned()
            }
            Self::Assertion => {
                "the device ran out of memory and PyTorch then could not ask the driver's library (NVML) who \
                                holds it, so that its own message with the figures was lost"
                    .to_owned()
            }
            Self::BareAllocation => {
                "the table with the figures (`Currently allocated`, `Requested`, `Device limit`) is not \
                                     in the text"
                    .to_owned()
            }
            Self::Host { requested } => {
                let asked =
                    requested.map_or_else(String::new, |asked| format!(" {} were asked for;", Size(asked.bytes)));
                format!(
                    "it is the computer's memory that ran out, not the device's:{asked} no figure is about the device"
                )
            }
        }
    }

    /// What can be done, the most promising first.
    pub fn help(self) -> Vec<&'static str> {
        const ADVISE: &str = "`headroom advise` says what an operation needs and whether a card is large enough, from its \
                              program alone";
        const SNAPSHOT: &str = "record a memory snapshot (torch.cuda.memory._record_memory_history, then _dump_snapshot) and \
                                replay it here: it has the figures that this error lacks";
        const LEAVE_ROOM: &str = "leave room beside PyTorch's allocator: tiles, a smaller size or batch, or fewer models on \
                                  the device";
        match self {
            Self::Host { .. } => {
                vec![
                    "free host memory: close other programs, load fewer models at once, or enlarge swap or the page file",
                ]
            }
            Self::BareAllocation => vec!["look for the table in the console's log, and paste it", ADVISE, SNAPSHOT],
            Self::Assertion => vec![ADVISE, SNAPSHOT],
            Self::Driver | Self::Blas | Self::Dnn | Self::Convolution => vec![LEAVE_ROOM, ADVISE, SNAPSHOT],
        }
    }
}
