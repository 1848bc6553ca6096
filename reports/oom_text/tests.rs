//! Messages as people paste them, of every wording, become figures and an explanation that follows from them.

mod causes;
mod help;
mod holders;
mod texts;
mod wordings;

use headroom_base::{GIB, MIB, Reading};

use super::{Explanation, Figure, Finding, Help, OutOfMemory, explain, read as read_text};

/// A size as it is read from a message: a fraction of a byte counts as one.
fn gib(text: &str) -> u64 {
    let (whole, hundredths) = text.split_once('.').unwrap();
    let number: u64 = format!("{whole}{hundredths}").parse().unwrap();
    (number * GIB).div_ceil(100)
}

fn known(figure: Option<Figure>) -> Reading {
    Reading::from(figure.map(|figure| figure.bytes))
}

/// The first message of a text, explained.
fn read(text: &str) -> (OutOfMemory, Explanation) {
    let oom = read_text(text).expect(text).messages.remove(0);
    let explanation = explain(&oom);
    (oom, explanation)
}

fn environment(explanation: &Explanation) -> Option<&str> {
    explanation.help.iter().find_map(|suggestion| match &suggestion.help {
        Help::Environment { line, .. } => Some(line.as_str()),
        _ => None,
    })
}

/// All that is said of a message, a sentence a line.
fn said(text: &str) -> String {
    let (_, Explanation { findings, help }) = read(text);
    let findings = findings.iter().map(Finding::to_string);
    findings.chain(help.iter().map(ToString::to_string)).collect::<Vec<_>>().join("\n")
}

#[track_caller]
fn assert_says(said: &str, words: &[&str]) {
    words.iter().for_each(|words| assert!(said.contains(words), "`{words}` is not in: {said}"));
}

#[track_caller]
fn assert_never_says(said: &str, words: &[&str]) {
    words.iter().for_each(|words| assert!(!said.contains(words), "`{words}` is in: {said}"));
}

// https://github.com/pytorch/pytorch/issues/35901
const SPLIT_SEGMENT: &str = "RuntimeError: CUDA out of memory. Tried to allocate 10.84 GiB (GPU 0; 23.65 GiB total \
    capacity; 1.06 GiB already allocated; 10.26 GiB free; 12.53 GiB reserved in total by PyTorch)";

// https://github.com/kijai/ComfyUI-CCSR/issues/14
const POOL: &str = "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 9.28 \
    GiB\nRequested               : 4.00 GiB\nDevice limit            : 16.00 GiB\nFree (according to CUDA): 0 bytes\n\
    PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n";

/// A message of a 12 GiB card: what was asked for, free, held by this process outside its tensors and unused.
fn message(requested_mib: u64, free_mib: u64, others_mib: u64, unused_mib: u64) -> String {
    let process_mib = 12 * 1024 - free_mib - others_mib;
    let allocated_mib = process_mib - unused_mib;
    format!(
        "CUDA out of memory. Tried to allocate {requested_mib}.00 MiB. GPU 0 has a total capacity of 12.00 GiB of which \
         {free_mib}.00 MiB is free. Including non-PyTorch memory, this process has {process_mib}.00 MiB memory in use. Of \
         the allocated memory {allocated_mib}.00 MiB is allocated by PyTorch, and {unused_mib}.00 MiB is reserved by \
         PyTorch but unallocated."
    )
}
