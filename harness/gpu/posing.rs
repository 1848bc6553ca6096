//! A simulated card that poses as an attached one, so that everything around a GPU runs where there is none.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use headroom_base::{AllocatorKind, GIB, MIB, Reading};
use headroom_device::device::{DeviceId, DeviceParts};
use headroom_device::driver::{CardSettings, DriverCall, SimulatedCard, SimulatedDriver};
use headroom_device::readers::{Platform, UnknownReader};
use headroom_device::{Address, Device, Driver, DriverError, MemoryInfo, Settings};
use headroom_runners::cuda::{Convolutions, Executed, OutputsSeen};
use headroom_runners::programs::Computation;
use headroom_runners::programs::computation::{Kernel, Launch, View};
use headroom_runners::reference::{Contents, execute};
use headroom_runners::{Inputs, RunError, Runner, SimulatedRunner, Work};

use super::{Attached, Ballast, CardFacts, NoTurn, Opener};

/// What the posing card's context costs: as on a real one, what is free is no whole number of pages.
const CONTEXT_BYTES: u64 = 516 * MIB + 300 * 1024;

/// What its library takes when it is set up, and again when it first computes.
const LIBRARY_BYTES: u64 = 68 * MIB;

/// A simulated card that poses as attached.
#[derive(Debug)]
pub(crate) struct Posing {
    card: SimulatedCard,
    context_bytes: u64,
    runner: Arc<Loading>,
    devices: AtomicU64,
    /// Whether its context is lost.
    pub(crate) lost: AtomicBool,
    /// Whether one value of every computation is wrong.
    pub(crate) computes_wrong: AtomicBool,
    /// How many results of every run are no numbers.
    pub(crate) not_finite: AtomicU64,
    /// Whether the results of runs of full size are all zeros.
    pub(crate) computes_nothing: AtomicBool,
    /// Whether its library refuses every convolution.
    pub(crate) convolutions_refused: AtomicBool,
    /// Whether the library refuses those alone whose channels lie innermost.
    pub(crate) innermost_refused: AtomicBool,
    /// Whether its driver tells nobody what a process holds.
    pub(crate) process_denied: AtomicBool,
    /// What its driver says that each other process holds.
    pub(crate) others: Mutex<Option<Vec<u64>>>,
    /// The allocators that its driver can serve.
    pub(crate) allocators: Mutex<Vec<AllocatorKind>>,
    /// Whether nobody could tell what it held when it was opened.
    pub(crate) context_unknown: AtomicBool,
    /// With what opening it fails, and how often it still does.
    pub(crate) openings_fail: Mutex<Option<(i64, u64)>>,
}

impl Posing {
    pub(crate) fn with_gib(gib: u64) -> Arc<Self> {
        Self::computing(gib, SimulatedRunner::new())
    }

    /// One of so many bytes, of which its context takes so many: neither need be whole pages.
    #[cfg(feature = "mutants")]
    pub(crate) fn of_bytes(total_bytes: u64, context_bytes: u64) -> Arc<Self> {
        Self::made(total_bytes, context_bytes, SimulatedRunner::new())
    }

    /// The same, on which another runner executes operations than the one it tells of.
    pub(crate) fn computing(gib: u64, runner: SimulatedRunner) -> Arc<Self> {
        Self::made(gib * GIB, CONTEXT_BYTES, runner)
    }

    fn made(total_bytes: u64, context_bytes: u64, runner: SimulatedRunner) -> Arc<Self> {
        let card = SimulatedCard::new(CardSettings { context_bytes, ..CardSettings::new(total_bytes) });
        let runner = Arc::new(Loading { runner, card: card.clone(), taken: Mutex::default() });
        runner.take();
        Arc::new(Self {
            card,
            context_bytes,
            runner,
            devices: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            computes_wrong: AtomicBool::new(false),
            not_finite: AtomicU64::new(0),
            computes_nothing: AtomicBool::new(false),
            convolutions_refused: AtomicBool::new(false),
            innermost_refused: AtomicBool::new(false),
            process_denied: AtomicBool::new(false),
            others: Mutex::default(),
            allocators: Mutex::new(AllocatorKind::ALL.to_vec()),
            context_unknown: AtomicBool::new(false),
            openings_fail: Mutex::default(),
        })
    }

    /// The card as it is.
    pub(crate) fn card(&self) -> &SimulatedCard {
        &self.card
    }

    /// The card as the driver would list it. It says that it is of another kind than simulated ones.
    pub(crate) fn listed(self: &Arc<Self>, uuid: &str) -> (CardFacts, Opener) {
        let facts = CardFacts {
            model: "Posing Card".to_owned(),
            uuid: uuid.to_owned(),
            total_bytes: self.card.settings().total_bytes,
            driver: "1.2.3".to_owned(),
            framework: "posing 0.1".to_owned(),
            allocators: self.allocators.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        };
        let card = Arc::clone(self);
        let opener = move || {
            let mut fails = card.openings_fail.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((code, left)) = fails.as_mut().filter(|(_, left)| *left > 0) else {
                return Ok(Arc::clone(&card) as Arc<dyn Attached>);
            };
            *left -= 1;
            let reason = "planted".to_owned();
            Err(NoTurn::of_opening(&DriverError::Failed { call: DriverCall::Context, code: *code, reason }))
        };
        (facts, Box::new(opener))
    }
}

impl Posing {
    /// Who is said to compute a computation's convolutions.
    fn convolutions(&self, computation: &Computation) -> Convolutions {
        let [all, innermost] =
            [&self.convolutions_refused, &self.innermost_refused].map(|flag| flag.load(Ordering::SeqCst));
        let convolves = |launch: &&Launch| matches!(launch.kernel, Kernel::Convolution { .. });
        let refused = |launch: &&Launch| all || innermost && has_channels_innermost(&launch.reads[0]);
        let launches = || computation.launches.iter().filter(convolves);
        let by_own_kernel = launches().filter(refused).count();
        let by_library = launches().count() - by_own_kernel;
        Convolutions { by_library, by_own_kernel }
    }
}

fn has_channels_innermost(view: &View) -> bool {
    view.sizes.get(1).is_some_and(|channels| *channels > 1) && view.strides[1] == 1
}

impl Attached for Posing {
    fn parts(&self, settings: Settings) -> Result<DeviceParts, DriverError> {
        let number = self.devices.fetch_add(1, Ordering::SeqCst);
        let driver = GivingBack::new(&self.card);
        let class = headroom_base::DeviceClass::new("Posing Card", 0, headroom_base::Backend::Cuda);
        let mut parts =
            DeviceParts::over_driver(DeviceId::new(format!("posing#{number}")), class, driver, settings, true);
        if self.process_denied.load(Ordering::SeqCst) {
            parts.reader = Box::new(UnknownReader { platform: Platform::Nvml });
        }
        Ok(parts)
    }

    fn runner(&self) -> Arc<dyn Runner> {
        Arc::clone(&self.runner) as Arc<dyn Runner>
    }

    fn executed(&self, work: &Work<'_>) -> Result<Executed, RunError> {
        let computation = headroom_runners::programs::computation(work.architecture, &work.case, &work.execution)?;
        let convolutions = self.convolutions(&computation);
        Ok(Executed { program: computation.program, differences: Vec::new(), convolutions })
    }

    fn results(&self, _: &Device, computation: Computation) -> Result<(Vec<Vec<f64>>, Convolutions), RunError> {
        let failed =
            |error: headroom_runners::reference::ReferenceError| RunError::Failed { message: error.to_string() };
        let results = execute(&computation, &Contents::default()).map_err(failed)?;
        let mut values: Vec<Vec<f64>> = results.outputs.into_iter().map(|output| output.values).collect();
        if self.computes_wrong.load(Ordering::SeqCst) {
            values[0][0] += 1.0;
        }
        Ok((values, self.convolutions(&computation)))
    }

    fn outputs_seen(&self, device: &Device, work: &Work<'_>) -> Result<OutputsSeen, RunError> {
        self.runner.run(device, work)?;
        let computation = headroom_runners::programs::computation(work.architecture, &work.case, &work.execution)?;
        let vary = vec![!self.computes_nothing.load(Ordering::SeqCst); computation.outputs.len()];
        Ok(OutputsSeen { not_finite: self.not_finite.load(Ordering::SeqCst), vary })
    }

    fn memory(&self) -> Result<MemoryInfo, DriverError> {
        self.card.driver().memory()
    }

    fn process_bytes(&self) -> Result<Reading, DriverError> {
        if self.process_denied.load(Ordering::SeqCst) {
            return Ok(Reading::Unknown);
        }
        self.card.driver().process_bytes()
    }

    fn others(&self) -> Option<Vec<u64>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn context_bytes(&self) -> Reading {
        if self.context_unknown.load(Ordering::SeqCst) { Reading::Unknown } else { Reading::Bytes(self.context_bytes) }
    }

    fn libraries(&self) -> Vec<(&'static str, u64)> {
        let taken = self.runner.taken.lock().unwrap_or_else(PoisonError::into_inner);
        vec![("posing library", taken.len() as u64 * LIBRARY_BYTES)]
    }

    fn ballast(&self, bytes: u64) -> Result<Ballast, DriverError> {
        let mut holder = GivingBack::new(&self.card);
        holder.allocate(bytes)?;
        Ok(Box::new(holder))
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        let lost = self.lost.load(Ordering::SeqCst);
        let reason = "an illegal memory access was encountered".to_owned();
        if lost { Err(DriverError::Failed { call: DriverCall::Memory, code: 700, reason }) } else { Ok(()) }
    }

    fn leave(&self, _: &Device) -> Result<(), RunError> {
        // Each device has a name of its own, and gives back what it held.
        Ok(())
    }
}

/// A simulated runner whose library takes memory of the card when it is set up and when it first computes.
#[derive(Debug)]
struct Loading {
    runner: SimulatedRunner,
    card: SimulatedCard,
    taken: Mutex<Vec<Address>>,
}

impl Loading {
    fn take(&self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.extend(self.card.driver().allocate(LIBRARY_BYTES).ok());
    }
}

impl Runner for Loading {
    fn name(&self) -> &'static str {
        "posing"
    }

    fn prepare(&self, device: &Device, work: &Work<'_>) -> Result<Inputs, RunError> {
        self.runner.prepare(device, work)
    }

    fn run(&self, device: &Device, work: &Work<'_>) -> Result<(), RunError> {
        if self.taken.lock().unwrap_or_else(PoisonError::into_inner).len() < 2 {
            self.take();
        }
        self.runner.run(device, work)
    }

    fn persistent_bytes(&self, device: &Device) -> u64 {
        self.runner.persistent_bytes(device)
    }
}

/// A simulated driver that gives back what it holds when it is dropped, as real ones do.
#[derive(Debug)]
struct GivingBack {
    driver: SimulatedDriver,
    allocated: BTreeSet<u64>,
    mapped: BTreeSet<(u64, u64, u64)>,
}

impl GivingBack {
    fn new(card: &SimulatedCard) -> Self {
        Self { driver: card.driver(), allocated: BTreeSet::new(), mapped: BTreeSet::new() }
    }
}

impl Driver for GivingBack {
    fn memory(&mut self) -> Result<MemoryInfo, DriverError> {
        self.driver.memory()
    }

    fn granularity_bytes(&self) -> u64 {
        self.driver.granularity_bytes()
    }

    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError> {
        let address = self.driver.allocate(bytes)?;
        self.allocated.insert(address.0);
        Ok(address)
    }

    fn free(&mut self, address: Address) -> Result<(), DriverError> {
        self.driver.free(address)?;
        self.allocated.remove(&address.0);
        Ok(())
    }

    fn reserve(&mut self, bytes: u64) -> Result<Address, DriverError> {
        self.driver.reserve(bytes)
    }

    fn release(&mut self, address: Address, bytes: u64) -> Result<(), DriverError> {
        self.driver.release(address, bytes)
    }

    fn map(&mut self, address: Address, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        self.driver.map(address, bytes, page_bytes)?;
        let pages = (address.0..address.0 + bytes).step_by(page_bytes as usize);
        self.mapped.extend(pages.map(|page| (page, page_bytes, page_bytes)));
        Ok(())
    }

    fn unmap(&mut self, address: Address, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        self.driver.unmap(address, bytes, page_bytes)?;
        self.mapped.retain(|(page, ..)| !(address.0..address.0 + bytes).contains(page));
        Ok(())
    }

    fn process_bytes(&mut self) -> Result<Reading, DriverError> {
        self.driver.process_bytes()
    }

    fn spilled_bytes(&mut self) -> Result<Reading, DriverError> {
        self.driver.spilled_bytes()
    }
}

impl Drop for GivingBack {
    fn drop(&mut self) {
        for address in std::mem::take(&mut self.allocated) {
            self.driver.free(Address(address)).expect("it was allocated here");
        }
        for (page, bytes, page_bytes) in std::mem::take(&mut self.mapped) {
            self.driver.unmap(Address(page), bytes, page_bytes).expect("it was mapped here");
        }
    }
}
