//! The checks that wrong decisions are graded by, and how one of them ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use headroom_base::AllocatorKind;
use headroom_family::Family;

use crate::bench::{BenchError, Subject};
use crate::checks::invariants::{EVERYWHERE, OF_A_FAMILY};
use crate::checks::{self, CheckError, Claim, Evidence};
use crate::gpu::OpenGpu;
use crate::trials::{ON_EACH_DEVICE, on_a_gpu};
use crate::world::World;

/// Longer than any of these checks takes on a slow machine, many times over.
const LIMIT: Duration = Duration::from_secs(60);

/// The same on an attached card, where operations are executed.
const LIMIT_ON_A_GPU: Duration = Duration::from_secs(300);

/// The check of what a card computes: it is about kernels, passes no decision that others do not, and is slow.
const COMPUTES: &str = "computes";

/// The families whose models the invariants are looked at with: one small model, and one whose reservation is for the
/// most part known exactly, so that a margin in the wrong place shows.
const FAMILIES: [&str; 2] = ["taesd", "text-encoders"];

/// Runs a check.
type Run = Arc<dyn Fn(&World) -> Result<Evidence, CheckError> + Send + Sync>;

/// One check.
#[derive(Clone)]
pub struct GradingCheck {
    /// Its name in the matrix.
    pub name: String,
    run: Run,
    limit: Duration,
    /// Whether it executes operations on an attached card, which takes its time.
    pub(super) executes: bool,
}

impl std::fmt::Debug for GradingCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It holds.
    Green,
    /// A claim is broken.
    Broken(Claim, String),
    /// It failed without naming a claim, or panicked.
    Otherwise(String),
    /// It cannot be looked at on an attached card.
    NotHere,
    /// It did not end in time. It may still be running.
    TimedOut,
}

impl GradingCheck {
    fn new(name: String, run: impl Fn(&World) -> Result<Evidence, CheckError> + Send + Sync + 'static) -> Self {
        Self { name, run: Arc::new(run), limit: LIMIT, executes: false }
    }

    fn on_a_gpu(self, executes: bool) -> Self {
        Self { limit: LIMIT_ON_A_GPU, executes, ..self }
    }

    /// Runs it in a thread of its own, within a time limit.
    pub fn run(&self, world: &Arc<World>) -> Ended {
        let (sender, receiver) = channel();
        let (run, world) = (Arc::clone(&self.run), Arc::clone(world));
        std::thread::spawn(move || {
            // The receiver is gone after the time limit; then nobody wants the answer.
            let _ = sender.send(catch_unwind(AssertUnwindSafe(|| run(&world))));
        });
        let ended = receiver.recv_timeout(self.limit);
        match ended.map(|ended| ended.map(|ended| ended.map_err(|error| error.split().0))) {
            Ok(Ok(Ok(evidence))) if evidence.seen > 0 => Ended::Green,
            Ok(Ok(Ok(_))) => Ended::Otherwise("it saw nothing".to_owned()),
            Ok(Ok(Err(CheckError::Broken { claim, text }))) => Ended::Broken(claim, text),
            Ok(Ok(Err(CheckError::Bench(BenchError::NotOnAnAttachedCard)))) => Ended::NotHere,
            Ok(Ok(Err(error))) => Ended::Otherwise(error.to_string()),
            Ok(Err(_)) => Ended::Otherwise("it panicked".to_owned()),
            Err(_) => Ended::TimedOut,
        }
    }
}

/// Every check that wrong decisions are graded by.
pub fn grading_checks(world: &World) -> Vec<GradingCheck> {
    let mut found = Vec::new();
    for (index, family) in world.catalogue.families().iter().enumerate() {
        scenarios(index, family, &mut found);
        if FAMILIES.contains(&family.name.as_str()) {
            invariants(index, family, &mut found);
            of_the_family(index, family, &mut found);
        }
    }
    for area in EVERYWHERE {
        for invariant in area.invariants {
            let name = format!("{}/{}", area.name, invariant.name);
            found.push(GradingCheck::new(name, move |world| invariant.check(world)));
        }
    }
    found
}

fn scenarios(family: usize, value: &Family, found: &mut Vec<GradingCheck>) {
    for (index, scenario) in value.regressions.iter().enumerate() {
        let name = format!("{}::scripted::{}", value.name, scenario.name);
        let run = move |world: &World| checks::scenario(&world.catalogue.families()[family].regressions[index]);
        found.push(GradingCheck::new(name, run));
    }
}

fn invariants(family: usize, value: &Family, found: &mut Vec<GradingCheck>) {
    for area in OF_A_FAMILY {
        for invariant in area.invariants {
            let name = format!("{}::{}/{}", value.name, area.name, invariant.name);
            found.push(GradingCheck::new(name, move |world| {
                on_the_smallest(world, family, |subject| invariant.check(subject, world.ground()))
            }));
        }
    }
}

/// The checks that every family has on every device, here on its smallest.
fn of_the_family(family: usize, value: &Family, found: &mut Vec<GradingCheck>) {
    for check in ON_EACH_DEVICE {
        let name = format!("{}::{}", value.name, check.name);
        let run = move |world: &World| on_the_smallest(world, family, |subject| (check.run)(subject, world.ground()));
        found.push(GradingCheck::new(name, run));
    }
}

/// The checks of these families on an attached card, under the native allocator: the trials of a GPU, and the invariants
/// on a stage of the family's models.
pub fn grading_checks_on(world: &World, families: &[usize], card: &Arc<OpenGpu>) -> Vec<GradingCheck> {
    let mut found = Vec::new();
    for &family in families {
        let value = &world.catalogue.families()[family];
        let place = card.name();
        for area in OF_A_FAMILY {
            for invariant in area.invariants {
                let (name, card) =
                    (format!("{}::{place}::{}/{}", value.name, area.name, invariant.name), Arc::clone(card));
                let run = move |world: &World| {
                    on_the_card(world, family, &card, |subject| invariant.check(subject, world.ground()))
                };
                found.push(GradingCheck::new(name, run).on_a_gpu(false));
            }
        }
        for check in on_a_gpu(value).filter(|check| check.name != COMPUTES) {
            let (name, card) = (format!("{}::{place}::{}", value.name, check.name), Arc::clone(card));
            let run =
                move |world: &World| on_the_card(world, family, &card, |subject| (check.run)(subject, world.ground()));
            found.push(GradingCheck::new(name, run).on_a_gpu(true));
        }
    }
    found
}

/// Runs a check of a family on an attached card under the native allocator.
fn on_the_card(
    world: &World,
    family: usize,
    card: &OpenGpu,
    check: impl FnOnce(&Subject<'_>) -> Result<Evidence, CheckError>,
) -> Result<Evidence, CheckError> {
    let family = &world.catalogue.families()[family];
    check(&Subject::usual(family, card.into(), AllocatorKind::Native))
}

/// Runs a check of a family on its smallest device under the native allocator.
fn on_the_smallest(
    world: &World,
    family: usize,
    check: impl FnOnce(&Subject<'_>) -> Result<Evidence, CheckError>,
) -> Result<Evidence, CheckError> {
    let family = &world.catalogue.families()[family];
    let smallest = family.devices.iter().min_by_key(|device| device.memory_bytes);
    let device = smallest.ok_or_else(|| CheckError::violated("the family has no device"))?;
    check(&Subject::usual(family, device.into(), AllocatorKind::Native))
}
