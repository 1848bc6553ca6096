//! What the figures of a message mean, and what would help, in the order of how likely it is to.

use super::causes::{main_cause, metal, moved_to_host};
use super::deduce::{beyond_device, contradictions};
use super::elsewhere::held_elsewhere;
use super::finding::Finding;
use super::help::{Help, Short, Suggestion};
use super::{Api, Expandable, OutOfMemory};

/// What a message means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// What the figures say.
    pub findings: Vec<Finding>,
    /// What to try: first what can be enough by itself, the most promising first, then what cannot.
    pub help: Vec<Suggestion>,
}

/// Explains a message's figures.
pub fn explain(oom: &OutOfMemory) -> Explanation {
    let mut said = Explanation::default();
    let contradictions = contradictions(oom);
    if !contradictions.is_empty() {
        said.findings.extend(contradictions.into_iter().map(Finding::Contradicting));
        said.help(Help::PasteAgain);
    } else if let Some(limit) = oom.block_limit {
        let (requested_bytes, limit_bytes) = (oom.requested.bytes, limit.bytes);
        said.find(Finding::BlockLimit { requested_bytes, limit_bytes });
        said.help(Help::SmallerRequests { limit_bytes });
    } else if oom.api == Api::Mps {
        metal(oom, &mut said);
    } else if let Some((held, total)) = beyond_device(oom) {
        moved_to_host(oom, held, total, &mut said);
    } else {
        main_cause(oom, &mut said);
        held_elsewhere(oom, &mut said);
    }
    if let Some(pools) = oom.private_pools.filter(|pools| pools.bytes > 0) {
        said.find(Finding::PrivatePools { bytes: pools.bytes });
    }
    if !oom.nonsense.is_empty() {
        said.find(Finding::Nonsense { figures: oom.nonsense.clone() });
    }
    if oom.decimal_units {
        said.find(Finding::DecimalUnits);
    }
    let had_enough = said.findings.iter().any(|finding| matches!(finding, Finding::Perhaps(_)));
    if said.help.is_empty() && !had_enough {
        said.help(Help::NeedSomeLess { at_most_bytes: None });
    }
    // Stable: what is equal in this stays in the order of its promise.
    said.help.sort_by_key(|suggestion| suggestion.short.is_some());
    if matches!(oom.api, Api::Cuda | Api::Hip) {
        said.help(Help::RecordSnapshot);
    }
    said
}

impl Explanation {
    pub(super) fn find(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Help that can be enough by itself.
    pub(super) fn help(&mut self, help: Help) {
        self.help.push(help.into());
    }

    /// The setting that makes unused pieces usable; where it cannot be had that is said, and what can.
    pub(super) fn join_pieces(&mut self, oom: &OutOfMemory, short: Option<Short>) {
        let variable = oom.variable;
        let can_grow = oom.expandable == Expandable::Possible;
        let (value, why) = match (oom.api, oom.stream_ordered, can_grow) {
            (Api::Xpu | Api::Mps, ..) => return,
            (_, true, true) => (
                "backend:native,expandable_segments:True",
                "the driver's pool grows in steps of 32 MiB and keeps them; PyTorch's own growing ranges do not",
            ),
            (_, true, false) => (
                "backend:native",
                "the driver's pool grows in steps of 32 MiB and keeps them; PyTorch's own allocator gives back segments that \
                 are unused as a whole",
            ),
            (_, false, true) => {
                ("expandable_segments:True", "in ranges that grow, free pieces join and their whole pages go back")
            }
            (_, false, false) => {
                ("max_split_size_mb:128", "larger blocks are no longer split, so that they can go back as a whole")
            }
        };
        if !can_grow {
            self.find(Finding::NotExpandable(oom.expandable));
        }
        self.help.push(Suggestion { help: Help::Environment { line: format!("{variable}={value}"), why }, short });
    }

    /// The setting under which a segment needs no room in one piece, where it can be had.
    pub(super) fn map_pieces(&mut self, oom: &OutOfMemory) {
        match (oom.api, oom.expandable) {
            (Api::Xpu | Api::Mps, _) => {}
            (_, Expandable::Possible) => self.help(Help::Environment {
                line: format!("{}=expandable_segments:True", oom.variable),
                why: "ranges that grow are mapped piece by piece, and need no free memory in one piece",
            }),
            (_, why) => self.find(Finding::NotExpandable(why)),
        }
    }
}
