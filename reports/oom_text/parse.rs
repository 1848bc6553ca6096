//! Finds the messages of a text and their figures, whatever version of PyTorch wrote them and however they were pasted.
//!
//! Four wordings exist for CUDA, HIP and XPU: `N cached` (up to 1.3), `N reserved in total by PyTorch` (1.4 to
//! 2.0), `GPU 0 has a total capacity of N of which M is free` (2.1 on, at first spelt `capacty`), and the
//! stream-ordered pool's small table. Metal has one of its own. All words here are without white space.

use super::deduce::missing_bytes;
use super::figureless::{self, Figureless};
use super::squeezed::{Figures, Way, squeezed};
use super::surroundings::Surroundings;
use super::{Api, OutOfMemory};

/// How messages begin.
const OPENINGS: [(&str, Api); 6] = [
    ("CUDAoutofmemory", Api::Cuda),
    ("HIPoutofmemory", Api::Hip),
    ("XPUoutofmemory", Api::Xpu),
    ("MPSbackendoutofmemory", Api::Mps),
    ("Allocationondevice", Api::Cuda),
    ("canNOTallocatememoryblock", Api::Xpu),
];

/// The variables that hold an allocator's settings.
const VARIABLES: [&str; 3] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"];

/// Why a text is not a message that can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseOomError {
    /// There is no such message in it.
    #[error(
        "the text holds no out-of-memory message of PyTorch: paste the line with `out of memory` and `Tried to allocate`"
    )]
    NoMessage,
    /// The message does not say how much was asked for.
    #[error("the message does not say how much was asked for (`Tried to allocate …`): paste all of it")]
    NoRequest,
}

/// What a text holds: messages with figures, in their order, and errors without any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pasted {
    /// Messages that say how much was asked for. What a log says of one in passing is none.
    pub messages: Vec<OutOfMemory>,
    /// Errors for want of memory that carry no figures, each once.
    pub figureless: Vec<Figureless>,
}

/// The message of one device that is the hardest to make up for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardest {
    /// Its figures.
    pub oom: OutOfMemory,
    /// Which of the text's messages it is, from 1.
    pub number: usize,
    /// How many the text has of this device.
    pub count: usize,
    /// Whether all of them say the same.
    pub are_alike: bool,
}

impl Pasted {
    /// For each device the message in which most is missing: what makes up for it makes up for the device's others, but
    /// not for those that state a cause of their own. Of equal ones it is the first; they are in the order of the text.
    pub fn hardest(&self) -> Vec<Hardest> {
        let mut devices: Vec<(Hardest, &OutOfMemory)> = Vec::new();
        let kind = |oom: &OutOfMemory| (oom.device, oom.block_limit.is_some());
        for (index, oom) in self.messages.iter().enumerate() {
            let number = index + 1;
            let Some((hardest, first)) = devices.iter_mut().find(|(hardest, _)| kind(&hardest.oom) == kind(oom)) else {
                devices.push((Hardest { oom: oom.clone(), number, count: 1, are_alike: true }, oom));
                continue;
            };
            hardest.count += 1;
            hardest.are_alike &= oom == *first;
            if missing_bytes(oom) > missing_bytes(&hardest.oom) {
                (hardest.number, hardest.oom) = (number, oom.clone());
            }
        }
        devices.into_iter().map(|(hardest, _)| hardest).collect()
    }
}

/// Reads all that a text says of memory that ran out. White space and what stands around the messages do not matter.
///
/// # Errors
/// When there is no message, or none says how much was asked for.
pub fn read(text: &str) -> Result<Pasted, ParseOomError> {
    let flat = squeezed(text);
    let around = Surroundings::of(text, &flat);
    // People paste the second half of the line too.
    let half = || flat.find("Triedtoallocate").map(|at| (Api::Cuda, at));
    let mut next = first_message(&flat).or_else(half);
    let has_message = next.is_some();
    let mut messages = Vec::new();
    while let Some((api, start)) = next {
        let message = one_message(&flat[start..]);
        messages.extend(read_one(api, around, message));
        let end = start + message.len();
        next = first_message(&flat[end..]).map(|(api, at)| (api, end + at));
    }
    let figureless = figureless::all(&flat, messages.is_empty());
    match (messages.is_empty() && figureless.is_empty(), has_message) {
        (false, _) => Ok(Pasted { messages, figureless }),
        (true, true) => Err(ParseOomError::NoRequest),
        (true, false) => Err(ParseOomError::NoMessage),
    }
}

/// Reads one message; none where it does not say how much was asked for.
fn read_one(api: Api, around: Surroundings, text: &str) -> Option<OutOfMemory> {
    use Way::{After, Before};
    let mut figures = Figures::new(text);
    let requested = figures.first(&[After("Triedtoallocate"), After("Requested:")])?;
    let allocated = figures.first(&[
        Before("isallocatedbyPyTorch"),
        Before("alreadyallocated"),
        After("Currentlyallocated:"),
        After("MPSallocated:"),
    ]);
    // `cached` was what is left of the reserve; later wordings say `reserved in total`, or again what is left.
    let in_total = figures.first(&[Before("reservedintotalbyPyTorch")]);
    let left = figures.first(&[Before("isreservedbyPyTorchbutunallocated"), Before("cached")]);
    let apart = |total: Option<_>| total.zip(allocated).filter(|_| left.is_none());
    Some(OutOfMemory {
        api,
        variable: variable(text).unwrap_or(api.variable()),
        expandable: around.expandable,
        host_ran_out: around.host_ran_out,
        stream_ordered: text.contains("Currentlyallocated"),
        device: figures.device(),
        requested,
        block_limit: figures.first(&[After("canNOTallocatememoryblockwithsizelargerthan")]),
        total: figures.first(&[
            After("totalcapacityof"),
            After("totalcapactyof"),
            Before("totalcapacity"),
            After("Devicelimit:"),
        ]),
        free: figures.first(&[Before("isfree"), Before("free;"), After("Free(accordingtoCUDA):")]),
        limit: figures.first(&[Before("allowed"), After("maxallowed:"), After("(setbyuser-suppliedmemoryfraction):")]),
        names_this_process: text.contains("thisprocesshas"),
        process: figures.first(&[After("thisprocesshas")]),
        others: figures.others(),
        allocated,
        reserved: in_total.or_else(|| left.zip(allocated).map(|(left, allocated)| allocated.plus(left))),
        unallocated: left.or_else(|| apart(in_total).map(|(total, allocated)| total.minus(allocated))),
        other_allocations: figures.first(&[After("otherallocations:")]),
        private_pools: figures.first(&[Before("allocatedinprivatepools")]),
        nonsense: figures.nonsense,
        decimal_units: figures.decimal_units,
    })
}

/// Where the first message begins, and whose it is.
fn first_message(text: &str) -> Option<(Api, usize)> {
    let whole = OPENINGS.into_iter().filter_map(|(opening, api)| text.find(opening).map(|at| (api, at)));
    whole.min_by_key(|(_, at)| *at)
}

/// The text up to where a second message begins.
fn one_message(text: &str) -> &str {
    let rest = text.get(1..).unwrap_or_default();
    let end = first_message(rest).map_or(text.len(), |(_, at)| at + 1);
    &text[..end]
}

/// The first variable that a message names.
fn variable(text: &str) -> Option<&'static str> {
    let named = VARIABLES.into_iter().filter_map(|variable| text.find(variable).map(|at| (at, variable)));
    named.min().map(|(_, variable)| variable)
}
