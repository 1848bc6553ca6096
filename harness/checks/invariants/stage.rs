//! Where invariants are looked at: a line of a family on an ample card that needs exactly what is scripted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use headroom_base::{AllocatorKind, Case, GIB, LineKey, MIB, Window};
use headroom_calibration::{BuiltIns, Coefficients, Shipped, ShippedLine, UnitRange};
use headroom_device::cache::{Cache, ModelKey, ModelSpec, PieceSpec};
use headroom_device::{Device, Holding};
use headroom_family::{CalibrationLine, Model};
use headroom_runners::{Inputs, RunError, Runner, Work};

pub(super) use crate::bench::PAGE_BYTES;
use crate::bench::{Bench, Card, Ground, Setup, Subject, lines_of};
use crate::checks::CheckError;
use crate::pricing::price_without_prediction;

/// More memory than any family asks for: what is to be short is made short by whoever looks at it.
const AMPLE_BYTES: u64 = 1024 * GIB;

/// What the shipped line asks, in hundredths of what is scripted.
const SHIPPED_PERCENT: u64 = 125;

/// One size of the line: what is known of it, and what the card will need for it.
#[derive(Clone, Debug)]
pub(super) struct Size {
    pub(super) case: Case,
    pub(super) units: u64,
    pub(super) analytic_bytes: u64,
    /// The demand that a right measurement comes to.
    pub(super) need_bytes: u64,
}

impl Size {
    /// The part of the need that is fitted.
    pub(super) fn remainder_bytes(&self) -> u64 {
        self.need_bytes - self.analytic_bytes
    }
}

/// One line of a family, with a scripted need for each of its sizes and a shipped line that asks a quarter more.
pub(super) struct Stage<'a> {
    pub(super) subject: Subject<'a>,
    pub(super) model: &'a Model,
    pub(super) line: &'a CalibrationLine,
    pub(super) key: LineKey,
    /// Sizes ascending, of distinct cost units; at least three.
    pub(super) sizes: Vec<Size>,
    /// What every case of the line needs.
    needs: HashMap<Case, u64>,
    built_ins: BuiltIns,
    versions: &'a headroom_calibration::EstimatorVersions,
}

impl<'a> Stage<'a> {
    /// The line of the family whose exact part is the largest, so that nothing is taken for measured that is known.
    ///
    /// # Errors
    /// When the family calibrates no line of three sizes.
    pub(super) fn new(subject: &Subject<'a>, ground: Ground<'a>) -> Result<Self, CheckError> {
        let subject = Subject { allocator: AllocatorKind::Native, ..*subject };
        let lines = lines_of(&subject).into_iter();
        let stages = lines.flat_map(|(model, lines)| lines.into_iter().map(move |line| (model, line)));
        stages
            .filter_map(|(model, line)| Self::of_line(subject, ground, model, line))
            .max_by_key(|stage| (stage.sizes[0].analytic_bytes, std::cmp::Reverse(stage.sizes[0].units)))
            .ok_or_else(|| CheckError::violated("the family calibrates no line of three sizes"))
    }

    fn of_line(subject: Subject<'a>, ground: Ground<'a>, model: &'a Model, line: &'a CalibrationLine) -> Option<Self> {
        let mut priced = Vec::new();
        let mut key = None;
        for case in &line.cases {
            let known = price_without_prediction(model, case)?;
            key.get_or_insert(known.line);
            priced.push((*case, known.costs));
        }
        priced.sort_by_key(|(_, costs)| costs.units);
        let (least_units, most_units) = (priced.first()?.1.units, priced.last()?.1.units);
        let sizes = priced.into_iter().map(|(case, costs)| {
            let slope = u128::from(150 * MIB) * u128::from(costs.units) / u128::from(least_units.max(1));
            // The sizes between the ends lie below the straight line, so that only an envelope covers both ends.
            let is_end = costs.units == least_units || costs.units == most_units;
            let below = if is_end { 0 } else { 20 * MIB };
            let remainder = 150 * MIB + u64::try_from(slope).unwrap_or(u64::MAX / 4) - below;
            let need_bytes = (costs.analytic_bytes + remainder).next_multiple_of(PAGE_BYTES);
            Size { case, units: costs.units, analytic_bytes: costs.analytic_bytes, need_bytes }
        });
        let mut sizes: Vec<Size> = sizes.collect();
        let needs = sizes.iter().map(|size| (size.case, size.need_bytes)).collect();
        sizes.dedup_by_key(|size| size.units);
        let key = key.filter(|_| sizes.len() >= 3)?;
        let shipped = shipped_line(&subject, &key, &sizes)?;
        let environment = subject.environment().hard;
        let built_ins = BuiltIns::new([Shipped::new(environment.backend, environment.allocator, vec![shipped])]);
        Some(Self { subject, model, line, key, sizes, needs, built_ins, versions: ground.versions })
    }

    /// What checks know here: the line's shipped coefficients are the stage's own.
    pub(super) fn ground(&self) -> Ground<'_> {
        Ground { built_ins: &self.built_ins, versions: self.versions }
    }

    /// A card on which every operation takes what the stage says and nothing else.
    pub(super) fn bench(&self) -> Result<Bench<'a>, CheckError> {
        self.bench_with(Setup::default(), |scene| scene.take(scene.need_bytes))
    }

    /// A card on which `play` is every operation.
    pub(super) fn bench_with(
        &self,
        setup: Setup,
        play: impl Fn(&Scene<'_>) -> Result<(), RunError> + Send + Sync + 'static,
    ) -> Result<Bench<'a>, CheckError> {
        let needs = self.needs.clone();
        let player = Arc::new(Player { needs, play: Box::new(play), runs: AtomicUsize::new(0), on: OnceLock::new() });
        let memory_bytes = Some(setup.memory_bytes.unwrap_or(AMPLE_BYTES));
        let runner = Some(Arc::clone(&player) as Arc<dyn Runner>);
        let bench = self.subject.bench(&Setup { memory_bytes, runner, ..setup })?;
        // Set once, by whoever made the player.
        let _ = player.on.set((bench.session.cache().clone(), bench.card.clone()));
        Ok(bench)
    }

    /// The smallest size.
    pub(super) fn smallest(&self) -> &Size {
        &self.sizes[0]
    }

    /// The largest size.
    pub(super) fn largest(&self) -> &Size {
        &self.sizes[self.sizes.len() - 1]
    }

    /// The size of a window.
    pub(super) fn size_of(&self, window: &Window) -> Option<&Size> {
        self.sizes.iter().find(|size| size.case == window.case)
    }
}

/// The line that is shipped: straight through a quarter more than the needs of the smallest and the largest size.
fn shipped_line(subject: &Subject<'_>, key: &LineKey, sizes: &[Size]) -> Option<ShippedLine> {
    let (first, last) = (sizes.first()?, sizes.last()?);
    let of = |size: &Size| size.remainder_bytes() / 100 * SHIPPED_PERCENT;
    let (run, rise) = (last.units - first.units, of(last).checked_sub(of(first))?);
    let at_zero = (u128::from(of(first)) * u128::from(run)).checked_sub(u128::from(rise) * u128::from(first.units))?;
    Some(ShippedLine {
        line: key.clone(),
        environment: subject.environment().hard,
        coefficients: Coefficients::new(at_zero, u128::from(rise), run)?,
        range: UnitRange { least_units: first.units, largest_units: last.units },
        windows: 0,
        sizes: Vec::new(),
        left_out_above: Vec::new(),
        sources: Vec::new(),
    })
}

/// An operation while it runs.
pub(super) struct Scene<'s> {
    pub(super) device: &'s Device,
    pub(super) cache: &'s Cache,
    pub(super) card: &'s Card,
    /// What the stage says that this case needs.
    pub(super) need_bytes: u64,
    /// Operations that ran before this one on the same card.
    pub(super) runs_before: usize,
}

impl Scene<'_> {
    /// Takes memory and gives it back to the allocator.
    pub(super) fn take(&self, bytes: u64) -> Result<(), RunError> {
        let held = self.hold(bytes)?;
        self.give_back(held)
    }

    /// Takes memory.
    pub(super) fn hold(&self, bytes: u64) -> Result<Holding, RunError> {
        Ok(self.device.allocate(bytes)?)
    }

    /// Gives memory back to the allocator.
    pub(super) fn give_back(&self, held: Holding) -> Result<(), RunError> {
        self.device.free(held).map_err(|error| RunError::Inconsistent { message: error.to_string() })
    }

    /// Leaves the driver this much beside what is held, as a process that grows would.
    pub(super) fn leave_free(&self, bytes: u64) -> Result<(), RunError> {
        self.card.leave_free(bytes).map_err(super::failed)
    }

    /// Locks a model in another thread, which works for no scope, and unlocks it again.
    pub(super) fn foreign_lock(&self, key: &str) -> Result<(), RunError> {
        foreign_lock(self.cache, key).map_err(|error| RunError::Failed { message: error.to_string() })
    }
}

/// Locks a model in another thread, which works for no scope, and unlocks it again.
pub(super) fn foreign_lock(cache: &Cache, key: &str) -> Result<(), CheckError> {
    let (cache, key) = (cache.clone(), ModelKey::from(key));
    let locked = std::thread::spawn(move || cache.lock(&key, None).map(drop)).join();
    locked.map_err(|_| CheckError::violated("the other thread panicked"))?.map_err(CheckError::from)
}

/// A model that is no family's: pieces of 20 MiB.
pub(super) fn neighbour(key: &str, mib: u64) -> ModelSpec {
    let pieces = (0..mib / 20).map(|index| PieceSpec::new(format!("piece.{index}"), 20 * MIB));
    ModelSpec::synthetic(key, pieces)
}

/// What an operation does.
type Play = dyn Fn(&Scene<'_>) -> Result<(), RunError> + Send + Sync;

/// Executes operations as a stage's play says.
struct Player {
    needs: HashMap<Case, u64>,
    play: Box<Play>,
    runs: AtomicUsize,
    on: OnceLock<(Cache, Card)>,
}

impl Runner for Player {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn persistent_bytes(&self, _: &Device) -> u64 {
        0
    }

    fn prepare(&self, _: &Device, _: &Work<'_>) -> Result<Inputs, RunError> {
        Ok(Inputs::default())
    }

    fn run(&self, device: &Device, work: &Work<'_>) -> Result<(), RunError> {
        let unset = || RunError::Failed { message: "the stage is not set".to_owned() };
        let (cache, card) = self.on.get().ok_or_else(unset)?;
        let runs_before = self.runs.fetch_add(1, Ordering::SeqCst);
        let need_bytes = self.needs.get(&work.case).copied().unwrap_or(0);
        (self.play)(&Scene { device, cache, card, need_bytes, runs_before })
    }
}
