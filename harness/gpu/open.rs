//! One attached card that is open, and what a bench asks of whoever drives it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headroom_base::{AllocatorKind, Backend, DeviceClass, Reading};
use headroom_device::device::DeviceParts;
use headroom_device::{Device, DriverError, MemoryInfo, Settings};
use headroom_runners::cuda::{Convolutions, Executed, OutputsSeen};
use headroom_runners::programs::Computation;
use headroom_runners::{RunError, Runner, Work};

/// Memory that lies outside every allocator until this is dropped: what another program on the card would hold.
pub type Ballast = Box<dyn Send>;

/// An attached card as its driver shows it. The stack above is the one of simulated cards.
pub trait Attached: Send + Sync + fmt::Debug {
    /// A new device on the card, with an allocator of its own. What it still holds when it is dropped goes back to the
    /// driver.
    ///
    /// # Errors
    /// When the driver refuses.
    fn parts(&self, settings: Settings) -> Result<DeviceParts, DriverError>;

    /// What executes operations on the card: one value for the life of the process, since libraries keep what they set
    /// up.
    fn runner(&self) -> Arc<dyn Runner>;

    /// Free and total bytes of the card.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    fn memory(&self) -> Result<MemoryInfo, DriverError>;

    /// What the driver says this process holds on the card now. Unknown is never 0.
    ///
    /// # Errors
    /// When the question itself broke.
    fn process_bytes(&self) -> Result<Reading, DriverError>;

    /// What each other process holds on the card; none where not all of them are told.
    fn others(&self) -> Option<Vec<u64>>;

    /// What the process held right after its context was made.
    fn context_bytes(&self) -> Reading;

    /// What libraries and kernels made the process grow by so far, by name, beside every allocator.
    fn libraries(&self) -> Vec<(&'static str, u64)>;

    /// The operation as the runner executes it.
    ///
    /// # Errors
    /// When it is not known, or a library cannot tell.
    fn executed(&self, work: &Work<'_>) -> Result<Executed, RunError>;

    /// Executes a computation whose parameters and inputs hold what it says of them, and returns each output's values,
    /// row by row, and who computed its convolutions. What it needs lies on `device` meanwhile.
    ///
    /// # Errors
    /// When there is no room, or a launch fails.
    fn results(&self, device: &Device, computation: Computation) -> Result<(Vec<Vec<f64>>, Convolutions), RunError>;

    /// Runs an operation once, counts what of its results is infinite or no number, and looks whether their values vary.
    ///
    /// # Errors
    /// As [`Runner::run`].
    fn outputs_seen(&self, device: &Device, work: &Work<'_>) -> Result<OutputsSeen, RunError>;

    /// Takes memory outside every allocator.
    ///
    /// # Errors
    /// When there is too little.
    fn ballast(&self, bytes: u64) -> Result<Ballast, DriverError>;

    /// Waits for everything that was begun.
    ///
    /// # Errors
    /// When something of it failed. Where the context is lost this fails from then on.
    fn synchronize(&self) -> Result<(), DriverError>;

    /// The runner's workspaces on a device that is about to go are given back to its allocator.
    ///
    /// # Errors
    /// When the device says that it does not hold one of them.
    fn leave(&self, device: &Device) -> Result<(), RunError>;
}

/// What is known of a card before it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardFacts {
    /// The driver's name of it.
    pub model: String,
    /// Its identity.
    pub uuid: String,
    /// Its memory by the driver API.
    pub total_bytes: u64,
    /// The driver's version.
    pub driver: String,
    /// The software that computes on it, as the hard environment names it.
    pub framework: String,
    /// The allocators that its driver can serve.
    pub allocators: Vec<AllocatorKind>,
}

impl CardFacts {
    /// The kind of card.
    pub fn class(&self) -> DeviceClass {
        DeviceClass::new(&self.model, self.total_bytes, Backend::Cuda)
    }

    /// Tells it apart from other cards in reports.
    pub fn uuid_hash(&self) -> String {
        uuid_hash(&self.uuid)
    }
}

/// Tells two cards apart without naming them: the first 16 digits of the identity's SHA-256.
pub(crate) fn uuid_hash(uuid: &str) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(uuid.as_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// An attached card that is open in this process.
#[derive(Debug)]
pub struct OpenGpu {
    name: String,
    facts: CardFacts,
    attached: Arc<dyn Attached>,
    retained: Reading,
    others_bytes: AtomicU64,
}

/// What is taken and given back to see what the driver keeps of it.
const TO_GIVE_BACK_BYTES: u64 = 256 << 20;

impl OpenGpu {
    /// The card of these facts, named `name` in trials, under whoever drives it.
    ///
    /// # Errors
    /// When the driver cannot be asked, or the card is too full to see what the driver keeps of memory given back.
    pub fn new(name: impl Into<String>, facts: CardFacts, attached: Arc<dyn Attached>) -> Result<Self, DriverError> {
        let retained = match retained(&*attached) {
            // Not for as long as the card is open: it would stay unknown after whoever holds the card has gone.
            Err(full) if full.is_out_of_memory() => return Err(full),
            other => other.unwrap_or(Reading::Unknown),
        };
        let open = Self { name: name.into(), facts, attached, retained, others_bytes: AtomicU64::new(0) };
        open.look_for_others()?;
        Ok(open)
    }

    /// What the driver was seen to keep of memory that was given back.
    pub const fn retained(&self) -> Reading {
        self.retained
    }

    /// The card's name in those of trials.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is known of the card.
    pub const fn facts(&self) -> &CardFacts {
        &self.facts
    }

    /// Whoever drives it.
    pub fn attached(&self) -> &Arc<dyn Attached> {
        &self.attached
    }

    /// What the process holds on the card beside its allocators: its context, and what libraries took so far.
    pub fn context_bytes(&self) -> u64 {
        beside_allocators(&*self.attached)
    }

    /// What others held when they were last looked for.
    pub fn others_bytes(&self) -> u64 {
        self.others_bytes.load(Ordering::SeqCst)
    }

    /// Looks how much of the card others hold. No device of this process may hold anything where the driver does not
    /// tell what the process holds: it would be taken for others'.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    pub fn look_for_others(&self) -> Result<u64, DriverError> {
        let MemoryInfo { free_bytes, total_bytes } = self.attached.memory()?;
        let own_bytes = self.attached.process_bytes()?.known().unwrap_or_else(|| self.context_bytes());
        let others_bytes = total_bytes.saturating_sub(free_bytes).saturating_sub(own_bytes);
        self.others_bytes.store(others_bytes, Ordering::SeqCst);
        Ok(others_bytes)
    }
}

/// What the process holds beside its allocators: its context, where the driver tells, and what libraries took so far.
pub(crate) fn beside_allocators(attached: &dyn Attached) -> u64 {
    let libraries: u64 = attached.libraries().iter().map(|(_, bytes)| bytes).sum();
    attached.context_bytes().known().unwrap_or(0) + libraries
}

/// What the driver keeps of memory that this process gives back; unknown where it does not tell.
fn retained(attached: &dyn Attached) -> Result<Reading, DriverError> {
    let before = attached.process_bytes()?;
    drop(attached.ballast(TO_GIVE_BACK_BYTES)?);
    let after = attached.process_bytes()?;
    let kept = |before: u64, after: u64| Reading::Bytes(after.saturating_sub(before));
    Ok(before.known().zip(after.known()).map_or(Reading::Unknown, |(before, after)| kept(before, after)))
}
