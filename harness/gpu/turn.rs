//! A trial's turn on a card: among this process's trials, then among processes, then alone on the card.

use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use headroom_base::{Bytes, GIB};
use headroom_device::DriverError;
use headroom_device::lease::{DeviceLease, HolderInfo, LeaseError};

use super::{AttachedGpu, OpenGpu};
use crate::variables::PATIENCE;

/// What another may hold of a card that is not busy: a desktop, or the idle context of a process that waits for its turn.
/// Whoever computes holds more.
const IDLE_BYTES: u64 = GIB;

/// The part of a card that several who wait may hold together: more than it leaves too little to try anything on.
const IDLE_PART: u64 = 8;

/// How long a process that has just ended may keep its memory.
const TO_GO: Duration = Duration::from_secs(10);

/// How often it is looked meanwhile whether it has.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a trial gets no turn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTurn {
    /// Somebody else has the card.
    #[error("{0}")]
    Busy(String),
    /// The card cannot be used by this process.
    #[error("{0}")]
    Unusable(String),
}

/// The driver's code of a card that another process holds for itself (compute mode "exclusive process").
const HELD_BY_ANOTHER: i64 = 46;

impl NoTurn {
    /// What it means that the driver failed while a card was being opened.
    pub(crate) fn of_opening(error: &DriverError) -> Self {
        let held = matches!(error, DriverError::Failed { code: HELD_BY_ANOTHER, .. });
        if held || error.is_out_of_memory() { Self::no_room_to_open(error) } else { Self::Unusable(error.to_string()) }
    }

    /// The lease of the card of this name stayed with its holder for as long as was waited.
    pub(crate) fn leased(name: &str, holder: &HolderInfo, waited: Duration) -> Self {
        Self::Busy(format!("{name} is leased to {holder}; waited {} s ({PATIENCE})", waited.as_secs()))
    }

    /// The card cannot be opened for as long as others hold so much of it, or all.
    pub(super) fn no_room_to_open(error: impl std::fmt::Display) -> Self {
        Self::Busy(format!("it cannot be opened, full or held by another process: {error}"))
    }
}

/// A card that is this trial's until it is dropped.
#[derive(Debug)]
pub struct Turn {
    gpu: Arc<AttachedGpu>,
    open: Option<Arc<OpenGpu>>,
    lease: Option<DeviceLease>,
}

impl AttachedGpu {
    /// Waits for a turn. `words` is what other processes are told who wait for this one.
    ///
    /// # Errors
    /// When the card is broken, cannot be opened, or stays with somebody else for longer than `patience`.
    pub fn turn(self: &Arc<Self>, words: &str, folder: &Path, patience: Duration) -> Result<Turn, NoTurn> {
        self.turn_with(words, folder, patience, TO_GO)
    }

    /// The same, with so much time for what a process that has just ended holds.
    pub(super) fn turn_with(
        self: &Arc<Self>,
        words: &str,
        folder: &Path,
        patience: Duration,
        to_go: Duration,
    ) -> Result<Turn, NoTurn> {
        let mut state = self.state();
        while state.taken && state.broken.is_none() {
            state = self.turn_ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(reason) = &state.broken {
            return Err(NoTurn::Unusable(reason.clone()));
        }
        state.taken = true;
        drop(state);
        let mut turn = Turn { gpu: Arc::clone(self), open: None, lease: None };
        turn.lease = Some(self.leased(words, folder, patience)?);
        let open = not_busy_within(to_go, || {
            let open = self.open()?;
            alone_on(&open).map(|()| open)
        });
        turn.open = Some(open?);
        Ok(turn)
    }

    fn leased(&self, words: &str, folder: &Path, patience: Duration) -> Result<DeviceLease, NoTurn> {
        let waits = |holder: &HolderInfo| {
            // Whom nobody can tell waits all the same.
            let _ = writeln!(std::io::stderr(), "{words} waits for {}, leased to {holder}", self.name());
        };
        DeviceLease::acquire(folder, &self.facts().uuid, words, patience, waits).map_err(|error| match error {
            LeaseError::Held { holder, waited, .. } => NoTurn::leased(self.name(), &holder, waited),
            LeaseError::Io { .. } | LeaseError::NotOwn { .. } => NoTurn::Unusable(error.to_string()),
        })
    }
}

/// Tries again while a card is busy, which may pass after a moment.
fn not_busy_within<T>(to_go: Duration, mut attempt: impl FnMut() -> Result<T, NoTurn>) -> Result<T, NoTurn> {
    let began = Instant::now();
    loop {
        match attempt() {
            Err(NoTurn::Busy(_)) if began.elapsed() < to_go => std::thread::sleep(PAUSE),
            ended => return ended,
        }
    }
}

/// Whether nobody else computes on a card.
fn alone_on(open: &OpenGpu) -> Result<(), NoTurn> {
    let others = open.look_for_others().map_err(|error| NoTurn::Unusable(error.to_string()))?;
    // Where the driver tells of each process, several may wait their turn.
    let most_bytes = open.facts().total_bytes / IDLE_PART;
    let is_idle = |each: Vec<u64>| {
        let of_nobody = others.saturating_sub(each.iter().sum());
        others <= most_bytes && of_nobody <= IDLE_BYTES && each.iter().all(|bytes| *bytes <= IDLE_BYTES)
    };
    if others <= IDLE_BYTES || open.attached().others().is_some_and(is_idle) {
        return Ok(());
    }
    let (others, idle) = (Bytes(others), Bytes(IDLE_BYTES));
    Err(NoTurn::Busy(format!(
        "others hold {others} of {}: somebody computes on it (up to {idle} is idle)",
        open.name()
    )))
}

impl Turn {
    /// The card.
    pub fn open(&self) -> Option<&Arc<OpenGpu>> {
        self.open.as_ref()
    }

    /// Looks after a trial that failed whether the card is to blame: a context that is lost stays lost, and a card that
    /// others have begun to use says nothing.
    ///
    /// # Errors
    /// [`NoTurn::Busy`] when others hold more of the card than when the turn began.
    pub fn look_after_a_failure(&self) -> Result<(), NoTurn> {
        let Some(open) = &self.open else { return Ok(()) };
        if let Err(error) = open.attached().synchronize() {
            self.gpu.give_up(format!("{} was lost to an earlier trial of this process: {error}", self.gpu.name()));
            return Ok(());
        }
        alone_on(open)
    }

    /// The card stays with this turn for ever: whoever had it did not end.
    pub fn never_ends(gpu: &AttachedGpu, who: &str) {
        gpu.give_up(format!("{who}, an earlier trial of this process, has not ended and still holds {}", gpu.name()));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Another process may have it before the next trial of this one.
        self.lease.take();
        self.gpu.state().taken = false;
        self.gpu.turn_ended.notify_all();
    }
}
