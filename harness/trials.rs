//! The trials of a run: which check runs for which family on which device, and what came of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use headroom_base::{AllocatorKind, mutant};
use headroom_device::lease::DeviceLease;
use headroom_family::Family;
use headroom_reports::{Check, Outcome};

use crate::bench::{Ground, Place, Subject};
use crate::checks::invariants::{Area, EVERYWHERE, GeneralArea, OF_A_FAMILY};
use crate::checks::{self, CheckError, Evidence};
use crate::gpu::{AttachedGpu, NoTurn, Turn, words_of};
use crate::variables::{LIMIT, gpu_is_required, patience, time_limit};
use crate::world::World;

/// What is checked.
#[derive(Clone, Copy, Debug)]
enum What {
    /// A check on one simulated device, under each of its allocators.
    Simulated { device: usize, check: OfASubject },
    /// A check on cards of the size it chooses itself, under each allocator of the largest device.
    Fitted(OfASubject),
    /// The windows recorded on a real card.
    Recorded,
    /// Invariants of one part of the program, on a stage of the family's own models.
    Invariants(Area),
    /// Invariants of one part of the program for which no model is needed.
    General(GeneralArea),
    /// A scripted cache scenario.
    Scenario { index: usize },
    /// A check on an attached card, under each allocator; on none where none is attached.
    Gpu { card: Option<usize>, check: OfASubject },
}

/// A check of a family on a card under one allocator.
#[derive(Clone, Copy)]
pub(crate) struct OfASubject {
    pub(crate) name: &'static str,
    pub(crate) run: RunOnASubject,
    /// The allocators under which it must see something.
    is_about: fn(AllocatorKind) -> bool,
}

type RunOnASubject = fn(&Subject<'_>, Ground<'_>) -> Result<Evidence, CheckError>;

impl OfASubject {
    const fn of_every_allocator(name: &'static str, run: RunOnASubject) -> Self {
        Self { name, run, is_about: |_| true }
    }
}

impl std::fmt::Debug for OfASubject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// The checks of every device, simulated or attached.
pub(crate) const ON_EACH_DEVICE: [OfASubject; 4] = [
    OfASubject::of_every_allocator("plan", checks::plan),
    OfASubject::of_every_allocator("pipeline", checks::pipeline),
    OfASubject::of_every_allocator("calibration", checks::calibration),
    OfASubject::of_every_allocator("reconcile", checks::reconcile),
];

/// The checks that choose the size of their cards themselves, or are not about size.
const ON_FITTED_CARDS: [OfASubject; 3] = [
    OfASubject::of_every_allocator("capacity", checks::capacity),
    OfASubject::of_every_allocator("perturbed", checks::perturbed),
    OfASubject::of_every_allocator("scripted", checks::scripted),
];

/// The further checks of an attached card.
const ON_A_GPU: [OfASubject; 4] = [
    OfASubject { name: "computes", run: checks::computes, is_about: |allocator| allocator == AllocatorKind::Native },
    OfASubject::of_every_allocator("capacity", checks::capacity),
    OfASubject::of_every_allocator("out_of_memory", checks::out_of_memory),
    OfASubject::of_every_allocator("same_counters", checks::same_counters),
];

/// The check of a card that has been used, for families that calibrate a decode.
const WARM_SERVER: OfASubject = OfASubject {
    name: "warm_server",
    run: checks::warm_server,
    is_about: |allocator| allocator != AllocatorKind::CudaMallocAsync,
};

/// Every check of a family on an attached card.
pub(crate) fn on_a_gpu(family: &Family) -> impl Iterator<Item = OfASubject> {
    let decodes = family.calibration.lines.iter().any(checks::is_decode);
    ON_EACH_DEVICE.into_iter().chain(ON_A_GPU).chain(decodes.then_some(WARM_SERVER))
}

/// One trial.
#[derive(Clone, Debug)]
pub struct Trial {
    world: Arc<World>,
    family: usize,
    what: What,
}

/// What came of a trial.
#[derive(Clone, Debug)]
pub struct Ended {
    /// For the report.
    pub check: Check,
    /// What it saw.
    pub evidence: Evidence,
}

/// Why a trial did not pass, and what it saw until then.
pub(crate) struct NotPassed {
    pub(crate) outcome: Outcome,
    pub(crate) message: String,
    pub(crate) evidence: Box<Evidence>,
}

impl NotPassed {
    fn new(outcome: Outcome, message: impl Into<String>) -> Self {
        Self { outcome, message: message.into(), evidence: Box::default() }
    }
}

/// Every trial of these families, in a fixed order.
pub fn trials(world: &Arc<World>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (family, value) in world.catalogue.families().iter().enumerate() {
        let mut add = |what| trials.push(Trial { world: Arc::clone(world), family, what });
        for index in 0..value.regressions.len() {
            add(What::Scenario { index });
        }
        if value.models.is_empty() {
            EVERYWHERE.into_iter().for_each(|area| add(What::General(area)));
            continue;
        }
        OF_A_FAMILY.into_iter().for_each(|area| add(What::Invariants(area)));
        for device in 0..value.devices.len() {
            ON_EACH_DEVICE.into_iter().for_each(|check| add(What::Simulated { device, check }));
        }
        ON_FITTED_CARDS.into_iter().for_each(|check| add(What::Fitted(check)));
        if world.is_recorded(&value.name) {
            add(What::Recorded);
        }
        let cards = 0..world.gpus.cards().len();
        for card in cards.map(Some).chain(world.gpus.none_because().map(|_| None)) {
            on_a_gpu(value).for_each(|check| add(What::Gpu { card, check }));
        }
    }
    trials
}

impl Trial {
    /// The family.
    pub fn family(&self) -> &Family {
        &self.world.catalogue.families()[self.family]
    }

    /// The device's name in the trial's.
    pub fn device(&self) -> &str {
        match self.what {
            What::Simulated { device, .. } => &self.family().devices[device].name,
            What::Fitted(_) => "fitted",
            What::Recorded => checks::RECORDED_DEVICE,
            What::Invariants(_) | What::General(_) => "invariants",
            What::Scenario { .. } => "scripted",
            What::Gpu { .. } => self.card().map_or("gpu", |card| card.name()),
        }
    }

    /// What is checked.
    pub fn check(&self) -> &str {
        match self.what {
            What::Simulated { check, .. } | What::Fitted(check) | What::Gpu { check, .. } => check.name,
            What::Scenario { index } => &self.family().regressions[index].name,
            What::Recorded => "recorded",
            What::Invariants(area) => area.name,
            What::General(area) => area.name,
        }
    }

    /// `family::device::check`.
    pub fn name(&self) -> String {
        format!("{}::{}::{}", self.family().name, self.device(), self.check())
    }

    /// Why this trial cannot run here; none where it can.
    pub fn ignored_because(&self) -> Option<&str> {
        match self.what {
            What::Gpu { card: None, .. } => self.world.gpus.none_because(),
            _ => None,
        }
    }

    /// The attached card it runs on, one trial at a time.
    pub fn card(&self) -> Option<&Arc<AttachedGpu>> {
        match self.what {
            What::Gpu { card, .. } => self.world.gpus.cards().get(card?),
            _ => None,
        }
    }

    /// Runs the trial in a thread of its own, within its time limit.
    pub fn run(&self) -> Ended {
        let started = Instant::now();
        let limit = time_limit().map_err(|message| NotPassed::new(Outcome::Failed, message));
        let (outcome, message, evidence) = match limit.and_then(|limit| self.within(limit)) {
            Ok(evidence) => (Outcome::Passed, None, evidence),
            Err(NotPassed { outcome, message, evidence }) => (outcome, Some(message), *evidence),
        };
        Ended { check: Check { seconds: started.elapsed().as_secs_f64(), ..self.told(outcome, message) }, evidence }
    }

    /// What is said of it where the run ended before it had.
    pub(crate) fn not_run(&self, why: &str) -> Ended {
        Ended { check: self.told(Outcome::NotRun, Some(why.to_owned())), evidence: Evidence::default() }
    }

    fn told(&self, outcome: Outcome, message: Option<String>) -> Check {
        Check {
            family: self.family().name.clone(),
            device: self.device().to_owned(),
            check: self.check().to_owned(),
            outcome,
            message,
            notes: Vec::new(),
            seconds: 0.0,
            report_id: None,
        }
    }

    fn within(&self, limit: Duration) -> Result<Evidence, NotPassed> {
        // Waiting for a card is no part of the trial's own time.
        let turn = catch_unwind(AssertUnwindSafe(|| self.card().map(|card| self.turn_on(card)).transpose()));
        let turn = turn.unwrap_or_else(|panic| Err(panicked(&*panic)))?;
        let (sender, receiver) = channel();
        let trial = self.clone();
        std::thread::spawn(move || {
            let verdict = catch_unwind(AssertUnwindSafe(|| trial.verdict(turn.as_ref())));
            let verdict = verdict.unwrap_or_else(|panic| Err(panicked(&*panic)));
            let verdict = match turn {
                Some(turn) => of_the_card(verdict, &turn),
                None => verdict,
            };
            // The receiver is gone after the time limit; then nobody wants the answer.
            let _ = sender.send(verdict);
        });
        let failed = |message| Err(NotPassed::new(Outcome::Failed, message));
        match receiver.recv_timeout(limit) {
            Ok(verdict) => verdict,
            Err(RecvTimeoutError::Timeout) => {
                if let Some(card) = self.card() {
                    Turn::never_ends(card, &self.name());
                }
                failed(format!("not done after {} seconds ({LIMIT})", limit.as_secs()))
            }
            Err(RecvTimeoutError::Disconnected) => failed("its thread ended without a verdict".to_owned()),
        }
    }

    fn turn_on(&self, card: &Arc<AttachedGpu>) -> Result<Turn, NotPassed> {
        let failed = |message| NotPassed::new(Outcome::Failed, message);
        let patience = patience().map_err(failed)?;
        let folder = DeviceLease::default_folder().map_err(|error| failed(error.to_string()))?;
        card.turn(&self.name(), &folder, patience).map_err(|error| match error {
            NoTurn::Busy(message) => NotPassed::new(Outcome::Busy, message),
            NoTurn::Unusable(message) => failed(message),
        })
    }

    fn verdict(&self, turn: Option<&Turn>) -> Result<Evidence, NotPassed> {
        verdict_of(self.ignored_because(), gpu_is_required(), || self.evidence(turn))
    }

    fn evidence(&self, turn: Option<&Turn>) -> Result<Evidence, CheckError> {
        let family = self.family();
        let ground = self.world.ground();
        match self.what {
            What::Scenario { index } => checks::scenario(&family.regressions[index]),
            What::General(area) => area.check(&self.world),
            What::Invariants(area) => {
                let device = family.devices.first().ok_or_else(|| CheckError::violated("the family has no device"))?;
                area.check(&Subject::usual(family, device.into(), AllocatorKind::Native), ground)
            }
            What::Recorded => {
                let report = self.world.recorded().map_err(CheckError::violated)?;
                checks::recorded(report, family, ground.built_ins, ground.versions)
            }
            What::Simulated { device, check } => {
                on_every_allocator(family, (&family.devices[device]).into(), check, ground)
            }
            What::Fitted(check) => {
                let largest = family.devices.iter().max_by_key(|device| device.memory_bytes);
                let largest = largest.ok_or_else(|| CheckError::violated("the family has no device"))?;
                on_every_allocator(family, largest.into(), check, ground)
            }
            What::Gpu { check, .. } => {
                let card = turn.and_then(Turn::open).ok_or_else(|| CheckError::violated("there is no GPU"))?;
                on_every_allocator(family, (&**card).into(), check, ground)
            }
        }
    }
}

/// The verdict of a trial: what `look` sees, unless it cannot run here for the reason `ignored`.
pub(crate) fn verdict_of(
    ignored: Option<&str>,
    gpu_is_required: bool,
    look: impl FnOnce() -> Result<Evidence, CheckError>,
) -> Result<Evidence, NotPassed> {
    if let Some(reason) = ignored {
        let may_be_ignored = mutant!(
            "required_gpu_not_missed",
            "a runner whose driver is broken reports green for years",
            right: !gpu_is_required,
            wrong: true,
        );
        let outcome = if may_be_ignored { Outcome::Ignored } else { Outcome::Failed };
        return mutant!(
            "ignored_trial_passes",
            "a report says that a GPU was tried where there was none",
            right: Err(NotPassed::new(outcome, reason)),
            wrong: if gpu_is_required { Err(NotPassed::new(outcome, reason)) } else { Ok(Evidence::default()) },
        );
    }
    let evidence = look().map_err(|error| {
        let (error, evidence) = error.split();
        NotPassed { evidence: Box::new(evidence), ..NotPassed::new(Outcome::Failed, error.to_string()) }
    })?;
    if saw_something(&evidence) {
        return Ok(evidence);
    }
    Err(NotPassed::new(Outcome::Failed, NOTHING_SEEN))
}

/// Whether a check looked at something, or says why there is nothing to look at.
fn saw_something(evidence: &Evidence) -> bool {
    mutant!(
        "nothing_seen_passes",
        "a family that lost its cases goes on passing",
        right: evidence.seen > 0 || evidence.notes.iter().any(|note| note.starts_with(NOTHING_TO_SEE)),
        wrong: true,
    )
}

/// What is said of a check that looked at nothing, and of no reason for that.
const NOTHING_SEEN: &str = "the check saw no window, run or figure";

/// How the note of a check begins that rightly has nothing to look at on a device.
pub(crate) const NOTHING_TO_SEE: &str = "nothing to see";

/// Under each allocator that the check is about it must see something: what one saw says nothing of another.
fn on_every_allocator(
    family: &Family,
    place: Place<'_>,
    check: OfASubject,
    ground: Ground<'_>,
) -> Result<Evidence, CheckError> {
    let mut evidence = Evidence::default();
    for allocator in place.allocators().iter().copied() {
        let seen = match (check.run)(&Subject::usual(family, place, allocator), ground) {
            Ok(seen) if (check.is_about)(allocator) && !saw_something(&seen) => {
                let text = format!("{} {allocator}: {NOTHING_SEEN}", place.name());
                Err(CheckError::violated(text).after(seen))
            }
            seen => seen,
        };
        evidence.absorb_all(seen)?;
    }
    Ok(evidence)
}

/// The verdict of a trial on a card: a failure of a card that others have begun to use says nothing.
fn of_the_card(verdict: Result<Evidence, NotPassed>, turn: &Turn) -> Result<Evidence, NotPassed> {
    verdict.map_err(|failed| match turn.look_after_a_failure() {
        Err(NoTurn::Busy(busy)) if failed.outcome == Outcome::Failed => {
            let message = format!("{busy}; meanwhile: {}", failed.message);
            NotPassed { outcome: Outcome::Busy, message, ..failed }
        }
        _ => failed,
    })
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> NotPassed {
    NotPassed::new(Outcome::Failed, format!("panicked: {}", words_of(panic)))
}

#[cfg(test)]
mod tests;
