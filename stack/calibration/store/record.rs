//! What is kept of one device class, and its text: one window or attempt a line.

use std::collections::HashSet;

use headroom_base::{AttemptId, DeviceClass, Reading, RunKind, Window};
use serde::{Deserialize, Serialize};

use crate::attempt::{Attempt, AttemptError, AttemptState};
use crate::counting::EstimatorVersions;

/// The format this program writes. A field that a reader must not lose raises it; optional fields that are
/// left out when absent do not.
pub const STORE_VERSION: u32 = 1;

/// Beyond this many windows every update is felt (each rewrites the file), and a record is [crowded](Record::is_crowded).
pub const MANY_WINDOWS: usize = 10_000;

/// Everything kept of one device class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    /// The kind of card.
    pub device: DeviceClass,
    /// The most the driver was seen to keep after this process's frees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retained_bytes: Option<u64>,
    /// The attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// The windows, in the order they were measured.
    pub windows: Vec<Window>,
}

/// Why a text is no record that this program may use.
#[derive(Debug)]
pub(super) enum Unusable {
    /// It is not a record.
    Unreadable(serde_json::Error),
    /// It is of a later program.
    Newer { found: u32 },
}

impl Record {
    /// The record of a card nobody measured.
    pub const fn empty(device: DeviceClass) -> Self {
        Self { version: STORE_VERSION, device, retained_bytes: None, attempts: Vec::new(), windows: Vec::new() }
    }

    /// What the driver keeps after frees, for a plan: unknown where it was never recorded.
    pub fn retained(&self) -> Reading {
        self.retained_bytes.into()
    }

    /// Notes what the driver was seen to keep; the largest is kept.
    pub fn note_retained(&mut self, bytes: u64) {
        self.retained_bytes = Some(self.retained_bytes.map_or(bytes, |largest| largest.max(bytes)));
    }

    /// Keeps an attempt that has ended, such as a recording's: in the place of the one with its id, or as the newest.
    /// One that runs is [begun](Self::begin_attempt) instead.
    pub fn keep_attempt(&mut self, attempt: Attempt) {
        match self.attempts.iter_mut().find(|kept| kept.id == attempt.id) {
            Some(kept) => *kept = attempt,
            None => self.attempts.push(attempt),
        }
    }

    /// Keeps an attempt that begins, and returns it under the name it has here: its own, or where that is taken, its
    /// own and the first number that is free. Within one [update](super::Store::update), two that begin at the same
    /// moment get two names.
    pub fn begin_attempt(&mut self, mut attempt: Attempt) -> Attempt {
        let wanted = attempt.id.0.clone();
        let mut number = 1_u64;
        while self.knows(&attempt.id) {
            number += 1;
            attempt.id.0 = format!("{wanted}-{number}");
        }
        self.attempts.push(attempt.clone());
        attempt
    }

    fn knows(&self, id: &AttemptId) -> bool {
        self.attempts.iter().any(|kept| kept.id == *id) || self.windows_of(id).next().is_some()
    }

    fn windows_of(&self, id: &AttemptId) -> impl Iterator<Item = &Window> {
        self.windows.iter().filter(move |window| window.attempt_id.as_ref() == Some(id))
    }

    /// Keeps how far a [begun](Self::begin_attempt) attempt came and all its windows so far, in the place of what was
    /// kept of it before. Called after each run and when it ends, it leaves after a crash what had finished, marked as
    /// running; see [`break_off_all_but`](Self::break_off_all_but).
    ///
    /// # Errors
    /// For an attempt that was not begun here or has ended, and where the one of its name is another, or has a window
    /// that this one lacks. Nothing is changed then.
    pub fn keep_progress(&mut self, attempt: Attempt, windows: Vec<Window>) -> Result<(), AttemptError> {
        let id = &attempt.id;
        let kept = self.attempts.iter().position(|kept| kept.id == *id);
        let Some(index) = kept else { return Err(AttemptError::NotBegun { attempt: id.clone() }) };
        let kept = &self.attempts[index];
        // Another process may have taken it for broken off: it goes on all the same.
        if !matches!(kept.state, AttemptState::Running | AttemptState::Incomplete) {
            return Err(AttemptError::Ended { attempt: id.clone(), state: kept.state.clone() });
        }
        let foreign = |window: &Window| window.attempt_id.as_ref() != Some(id);
        let loses = self.windows_of(id).any(|window| !windows.contains(window));
        if !kept.began_as(&attempt) || loses || windows.iter().any(foreign) {
            return Err(AttemptError::OfAnother { attempt: id.clone() });
        }
        self.windows.retain(foreign);
        self.windows.extend(windows);
        self.attempts[index] = attempt;
        Ok(())
    }

    /// Takes every attempt that is marked as running, but is not among the `live` ones, as broken off: its
    /// process was killed. To be called by the one process that runs calibrations, on what it reads.
    pub fn break_off_all_but(&mut self, live: &[AttemptId]) {
        for attempt in self.attempts.iter_mut().filter(|attempt| !live.contains(&attempt.id)) {
            attempt.broke_off();
        }
    }

    /// Whether there are so many windows that updates are slow. [`thin`](Self::thin) drops what can never count
    /// again; where the rest is still too much, it is measurements that count, and only a person can say which
    /// model's may go ([`reset`](crate::reset::reset)).
    pub const fn is_crowded(&self) -> bool {
        self.windows.len() > MANY_WINDOWS
    }

    /// Drops windows that can never count again, the oldest first, until `keep` are left or no such window is:
    /// warm-ups, invalid ones, those of attempts that ended unfinished or are not known, and those of estimator
    /// versions that are no longer current. Returns how many went. Windows that count now or would count in
    /// another environment are never dropped.
    pub fn thin(&mut self, keep: usize, versions: &EstimatorVersions) -> usize {
        let alive = |attempt: &&Attempt| matches!(attempt.state, AttemptState::Finished | AttemptState::Running);
        let alive: HashSet<&AttemptId> = self.attempts.iter().filter(alive).map(|attempt| &attempt.id).collect();
        let mut surplus = self.windows.len().saturating_sub(keep);
        let before = self.windows.len();
        self.windows.retain(|window| {
            let dead = window.kind == RunKind::Warmup
                || !window.measurement.validity.is_valid()
                || !window.attempt_id.as_ref().is_some_and(|id| alive.contains(id))
                || !versions.is_current(&window.line);
            let drop = dead && surplus > 0;
            surplus -= usize::from(drop);
            !drop
        });
        before - self.windows.len()
    }

    /// The text of the file: the same bytes for the same record, one attempt or window a line.
    pub fn to_json(&self) -> String {
        let mut text = format!("{{\"version\":{},\n\"device\":{},\n", self.version, json(&self.device));
        if let Some(bytes) = self.retained_bytes {
            text.push_str(&format!("\"retained_bytes\":{bytes},\n"));
        }
        push_list(&mut text, "attempts", &self.attempts);
        text.push_str(",\n");
        push_list(&mut text, "windows", &self.windows);
        text.push_str("}\n");
        text
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Unusable> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        // The version first: what a later program wrote need not look like a record of this one.
        let Version { version } = serde_json::from_slice(bytes).map_err(Unusable::Unreadable)?;
        if version > STORE_VERSION {
            return Err(Unusable::Newer { found: version });
        }
        serde_json::from_slice(bytes).map_err(Unusable::Unreadable)
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain values always serialize")
}

fn push_list(text: &mut String, name: &str, items: &[impl Serialize]) {
    text.push_str(&format!("\"{name}\":["));
    for (index, item) in items.iter().enumerate() {
        text.push_str(if index == 0 { "\n" } else { ",\n" });
        text.push_str(&json(item));
    }
    text.push_str(if items.is_empty() { "]" } else { "\n]" });
}
