//! The GPUs of this machine: listed without a context, and lent to one trial at a time.
//!
//! A trial takes its turn on a card in three steps: among the trials of this process, by the card's lease among
//! processes, and by looking whether anybody else computes on it. To look, the card is opened, once per process; one that
//! is too full for that, or that another process holds for itself, is busy as one is on which others compute.

mod attached;
mod open;
#[cfg(test)]
pub(crate) mod posing;
#[cfg(test)]
mod tests;
mod turn;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

pub(crate) use attached::{missing_libraries, too_old};
pub use open::{Attached, Ballast, CardFacts, OpenGpu};
pub(crate) use open::{beside_allocators, uuid_hash};
pub use turn::{NoTurn, Turn};

/// What a panic said.
pub(crate) fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// Opens a card: what drives it from then on.
pub type Opener = Box<dyn Fn() -> Result<Arc<dyn Attached>, NoTurn> + Send + Sync>;

/// The GPUs of this machine, or why there is none.
#[derive(Debug)]
pub struct Gpus {
    cards: Vec<Arc<AttachedGpu>>,
    none_because: String,
}

impl Gpus {
    /// Those that the driver lists and that this program can compute on. No context is made.
    pub fn attached() -> Self {
        match attached::listed() {
            Ok(cards) => Self::of(cards),
            Err(reason) => Self::none(reason),
        }
    }

    /// None, for this reason.
    pub fn none(reason: impl Into<String>) -> Self {
        Self { cards: Vec::new(), none_because: reason.into() }
    }

    /// These cards. A single one is named `gpu` in trials, several by the beginnings of their identities.
    pub fn of(cards: Vec<(CardFacts, Opener)>) -> Self {
        let several = cards.len() > 1;
        let named = cards.into_iter().map(|(facts, opener)| {
            let name = if several { short_name(&facts.uuid) } else { "gpu".to_owned() };
            Arc::new(AttachedGpu::new(name, facts, opener))
        });
        Self { cards: named.collect(), none_because: "no GPU is attached".to_owned() }
    }

    /// The cards, in the driver's order.
    pub fn cards(&self) -> &[Arc<AttachedGpu>] {
        &self.cards
    }

    /// Why there is none, where there is none.
    pub fn none_because(&self) -> Option<&str> {
        self.cards.is_empty().then_some(&self.none_because)
    }

    /// The card that this name means: for `gpu` the one with the most memory, otherwise the one whose identity begins so,
    /// whether or not others are attached.
    ///
    /// # Errors
    /// When no card is meant, or more than one.
    pub fn named(&self, name: &str) -> Result<&Arc<AttachedGpu>, GpuNameError> {
        if let Some(reason) = self.none_because() {
            return Err(GpuNameError::None { reason: reason.to_owned() });
        }
        let best = || self.cards.iter().max_by_key(|card| card.facts().total_bytes);
        if let Some(card) = best().filter(|_| name.eq_ignore_ascii_case("gpu")) {
            return Ok(card);
        }
        let name_of = |card: &Arc<AttachedGpu>| full_name(&card.facts().uuid);
        let begins = |card: &&Arc<AttachedGpu>| name_of(card).starts_with(&name.to_ascii_lowercase());
        let long_enough = name.len() >= SHORT_NAME_CHARS;
        let meant: Vec<_> = self.cards.iter().filter(|card| long_enough && begins(card)).collect();
        let listed = |cards: &mut dyn Iterator<Item = String>| cards.collect::<Vec<_>>().join(", ");
        match *meant {
            [card] => Ok(card),
            [] => {
                let known = listed(&mut self.cards.iter().map(|card| short_name(&card.facts().uuid)));
                Err(GpuNameError::Unknown { name: name.to_owned(), known })
            }
            _ => {
                let meant = listed(&mut meant.into_iter().map(name_of));
                Err(GpuNameError::Ambiguous { name: name.to_owned(), meant })
            }
        }
    }
}

/// Why a name means no attached card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuNameError {
    /// None is attached that can be used.
    #[error("no GPU to run on: {reason}")]
    None {
        /// Why.
        reason: String,
    },
    /// None has this name.
    #[error("no GPU is named `{name}`; there are {known}, and `gpu`")]
    Unknown {
        /// The name.
        name: String,
        /// The names that cards have.
        known: String,
    },
    /// Several identities begin so.
    #[error("`{name}` means more than one GPU: {meant}; write more digits")]
    Ambiguous {
        /// The name.
        name: String,
        /// The cards in full.
        meant: String,
    },
}

/// The length of `gpu-` and 8 digits.
pub(crate) const SHORT_NAME_CHARS: usize = 12;

/// A card's name by its whole identity.
fn full_name(uuid: &str) -> String {
    let uuid = uuid.to_ascii_lowercase();
    format!("gpu-{}", uuid.trim_start_matches("gpu-"))
}

/// The name by which a card of this identity is meant wherever a device is named: `gpu-` and the
/// first 8 digits.
pub(crate) fn short_name(uuid: &str) -> String {
    full_name(uuid).chars().take(SHORT_NAME_CHARS).collect()
}

/// Whose turn it is, and whether anybody's can be.
#[derive(Debug, Default)]
struct State {
    taken: bool,
    broken: Option<String>,
}

/// A GPU of this machine, open or not.
pub struct AttachedGpu {
    name: String,
    facts: CardFacts,
    opener: Opener,
    open: OnceLock<Arc<OpenGpu>>,
    state: Mutex<State>,
    turn_ended: Condvar,
}

impl std::fmt::Debug for AttachedGpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttachedGpu").field("name", &self.name).field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl AttachedGpu {
    fn new(name: String, facts: CardFacts, opener: Opener) -> Self {
        let (open, state, turn_ended) = (OnceLock::new(), Mutex::default(), Condvar::new());
        Self { name, facts, opener, open, state, turn_ended }
    }

    /// The card's name in those of trials.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is known of the card before it is opened.
    pub const fn facts(&self) -> &CardFacts {
        &self.facts
    }

    /// Opens the card, once per process: later calls get what the first one got that could.
    ///
    /// # Errors
    /// [`NoTurn::Busy`] where it may be opened later; otherwise nobody gets a turn on it any more.
    fn open(&self) -> Result<Arc<OpenGpu>, NoTurn> {
        if let Some(open) = self.open.get() {
            return Ok(Arc::clone(open));
        }
        let open = || {
            let attached = (self.opener)()?;
            let open = OpenGpu::new(self.name.clone(), self.facts.clone(), attached);
            open.map(Arc::new).map_err(|error| NoTurn::of_opening(&error))
        };
        // The bindings panic where a library is not what it seems. One card that cannot be opened must not take the
        // trials of all others with it.
        let opened = catch_unwind(AssertUnwindSafe(open))
            .unwrap_or_else(|panic| Err(NoTurn::Unusable(format!("opening it panicked: {}", words_of(&*panic)))));
        match opened {
            Ok(open) => Ok(Arc::clone(self.open.get_or_init(|| open))),
            Err(NoTurn::Unusable(reason)) => {
                self.give_up(reason.clone());
                Err(NoTurn::Unusable(reason))
            }
            Err(busy) => Err(busy),
        }
    }

    /// Nobody gets a turn on this card any more in this process, for this reason. The first reason stays.
    pub fn give_up(&self, reason: impl Into<String>) {
        self.state().broken.get_or_insert_with(|| reason.into());
        self.turn_ended.notify_all();
    }

    /// Why nobody gets a turn on this card any more.
    pub fn given_up_because(&self) -> Option<String> {
        self.state().broken.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
