//! What a text says around its messages: whether ranges that grow can be had at all, and what else ran out.

use super::Expandable;

/// What holds for every message of a text.
#[derive(Clone, Copy)]
pub(super) struct Surroundings {
    /// Whether ranges that grow can be had.
    pub(super) expandable: Expandable,
    /// Whether the computer's own memory ran out too.
    pub(super) host_ran_out: bool,
}

impl Surroundings {
    /// Reads them from a text, as it is and without its white space.
    pub(super) fn of(text: &str, squeezed: &str) -> Self {
        Self {
            expandable: expandable(text, squeezed),
            host_ran_out: squeezed.contains("DefaultCPUAllocator:notenoughmemory"),
        }
    }
}

/// Whether `expandable_segments` can be had where the text comes from.
fn expandable(text: &str, squeezed: &str) -> Expandable {
    if squeezed.contains("expandable_segmentsnotsupportedonthisplatform") {
        Expandable::SaidUnsupported
    } else if has_windows_path(text) {
        Expandable::Windows
    } else {
        Expandable::Possible
    }
}

/// A drive's letter alone, a colon and a backslash: `C:\`.
fn has_windows_path(text: &str) -> bool {
    text.match_indices(":\\").any(|(at, _)| {
        let mut before = text[..at].chars().rev();
        let is_drive = before.next().is_some_and(|letter| letter.is_ascii_alphabetic());
        is_drive && !before.next().is_some_and(char::is_alphanumeric)
    })
}
