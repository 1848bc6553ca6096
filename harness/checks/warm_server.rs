//! A decode calibrated on a warm server: other models came and went, and tensors of others lie between its own.

use std::collections::HashSet;

use headroom_base::{
    AllocatorKind, AttemptId, Bytes, MIB, Operation, PlannedRun, Residency, RunKind, Validity, Verdict, Window,
};
use headroom_calibration::{Attempt, Counted, Record, StoreError, Uncounted};
use headroom_device::{Device, Holding};
use headroom_family::{CalibrationLine, Model};
use headroom_reports::{EstimateRecord, WindowRecord};

use super::beside_built_in::ratios;
use super::calibration::{evidence_of, is_fragmented, nothing_fits, price_after, run_alone, summary_of};
use super::{CheckError, Claim, Evidence, ensure, place, verdict};
use crate::bench::{
    BenchError, Calibration, Ground, Journal, MeasuredModel, Setup, Subject, calibrate_into, describe, lines_of,
};
use crate::checks::pipeline::run_unmeasured;

/// Tensors of others that come and go, as many as in the recording of a warm server.
const TENSORS: usize = 120;

/// Chooses which come and which go.
const SEED: u64 = 0x0005_eed0_f0a5_e4e4;

/// Calibrates every decode of the family on a card that has been used: the family's other models were loaded, run and
/// dropped, and between any two runs tensors of others come and go. Windows are valid and whole, and what counts is
/// covered; what the rule about fragmentation says of them is in the notes.
///
/// # Errors
/// The first thing that does not hold.
pub fn warm_server(subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let mut evidence = Evidence::default();
    if subject.allocator == AllocatorKind::CudaMallocAsync {
        let note = "not looked at: the driver's own pool gives everything back, so it is never warm";
        evidence.notes.push(format!("{}: {note}", place(subject)));
        return Ok(evidence);
    }
    for (model, lines) in lines_of(subject) {
        let decodes: Vec<&CalibrationLine> = lines.into_iter().filter(|line| is_decode(line)).collect();
        if !decodes.is_empty() {
            evidence.absorb_all(on_a_warm_card(subject, model, &decodes, ground))?;
        }
    }
    evidence.notes.extend(nothing_fits(subject, &evidence));
    Ok(evidence)
}

/// Whether a line measures a decode.
pub(crate) fn is_decode(line: &CalibrationLine) -> bool {
    line.cases.iter().any(|case| case.operation == Operation::VaeDecode)
}

fn on_a_warm_card(
    subject: &Subject<'_>,
    model: &Model,
    lines: &[&CalibrationLine],
    ground: Ground<'_>,
) -> Result<Evidence, CheckError> {
    let bench = subject.bench(&Setup::default())?;
    let cache = bench.session.cache();
    run_unmeasured(&bench, ground)?;
    let stays: HashSet<String> = subject.locked_beside(model).into_iter().chain([model.key.clone()]).collect();
    for view in cache.models() {
        if !stays.contains(&view.key.to_string()) {
            cache.drop_model(&view.key)?;
        }
    }
    let mut tenants = Tenants::new(cache.device().clone(), subject.place.memory_bytes());
    tenants.come_and_go();
    let begun = cache.device().counters().map_err(BenchError::from)?;
    let (reserved, allocated) = (begun.reserved.current, begun.allocated.current);
    ensure(tenants.failure.is_none() && reserved > allocated, || {
        format!(
            "{}: {} reserved, {} allocated: not warm; {:?}",
            place(subject),
            Bytes(reserved),
            Bytes(allocated),
            tenants.failure
        )
    })?;
    let id =
        AttemptId(format!("{}-{}-{}-{}-warm", subject.family.name, model.key, subject.place.name(), subject.allocator));
    let measured = MeasuredModel { model, lines };
    let calibration = calibrate_into(&bench, measured, (id, Record::empty(subject.class())), ground, &mut tenants)?;
    tenants.leave()?;
    let (hold, mut fresh) = (windows_hold(subject, model, &calibration, tenants.most_bytes, ground), Vec::new());
    drop(bench);
    let outcome = hold.and_then(|mut notes| {
        notes.extend(in_a_fresh_process(subject, measured, &calibration, ground, &mut fresh)?);
        Ok(notes)
    });
    let summary = summary_of(subject, &calibration, ground);
    let mut evidence = evidence_of(subject, calibration, summary);
    for attempt in &mut evidence.attempts {
        attempt.note = Some(format!("warm server: {TENSORS} other tensors came and went between runs"));
    }
    evidence.windows.extend(fresh);
    evidence.notes.push(format!(
        "{} {}: begun with {} reserved and {} of it handed out",
        place(subject),
        model.key,
        Bytes(reserved),
        Bytes(allocated)
    ));
    match outcome {
        Ok(notes) => {
            evidence.notes.extend(notes);
            Ok(evidence)
        }
        Err(error) => Err(error.after(evidence)),
    }
}

/// Windows are valid and whole, those that count are covered, and what became of each size is told.
fn windows_hold(
    subject: &Subject<'_>,
    model: &Model,
    calibration: &Calibration,
    tenants_bytes: u64,
    ground: Ground<'_>,
) -> Result<Vec<String>, CheckError> {
    let mut notes = Vec::new();
    let fragmented = calibration.verdicts.iter().filter(|counted| is_fragmented(counted)).count();
    notes.push(format!(
        "{} {}: {fragmented} of {} windows are fragmented by the rule",
        place(subject),
        model.key,
        calibration.windows.len()
    ));
    let in_room = |counted: &&Counted| matches!(counted.reason(), Some(Uncounted::InRoomLeft { .. }));
    let in_room = calibration.verdicts.iter().filter(in_room).count();
    notes.push(format!("{} {}: {in_room} windows ran in room left by others", place(subject), model.key));
    for (window, counted) in calibration.windows.iter().zip(&calibration.verdicts) {
        let what = || format!("{} warm: {}", place(subject), describe(window));
        Claim::UndisturbedWindowIsValid.holds(window.measurement.validity == Validity::Valid, what)?;
        // The plan knows nothing of the tensors: where they may have taken the room, a model may be partly away.
        let whole = window.measurement.residency == Residency::Full;
        let holds = whole || !fits_beside(calibration, window, tenants_bytes);
        Claim::MeasuredModelIsResident.holds(holds, || format!("{}: partly resident", what()))?;
        if window.kind != RunKind::Measured {
            continue;
        }
        notes.push(ratio_of(window, counted.reason().map(ToString::to_string)));
        if counted.counts() && calibration.knowledge.fits().get(&window.line).is_some() {
            let (estimate, _) = price_after(subject, model, &window.case, calibration, ground)?;
            let demand = window.measurement.demand_bytes;
            Claim::DemandIsCovered.holds(demand <= estimate.reservation_bytes, || {
                format!("{} is under-reserved ({})", what(), Bytes(estimate.reservation_bytes))
            })?;
        }
    }
    Ok(notes)
}

/// What a fresh process needs for each size, calibrated or left out, beside what is reserved after the warm calibration.
/// What lies below is told and no failure: an allocator cannot tell room that it will always have from room that was left.
fn in_a_fresh_process(
    subject: &Subject<'_>,
    measured: MeasuredModel<'_>,
    calibration: &Calibration,
    ground: Ground<'_>,
    kept: &mut Vec<WindowRecord>,
) -> Result<Vec<String>, CheckError> {
    let fresh = subject.bench(&Setup::default())?;
    let (mut summary, mut partly) = (summary_of(subject, calibration, ground), 0);
    for case in measured.lines.iter().flat_map(|line| line.cases.iter().chain(&line.held_out)) {
        let (estimate, mut record) = price_after(subject, measured.model, case, calibration, ground)?;
        if verdict(&fresh, measured.model, case, estimate, ground) != Verdict::Fits {
            continue;
        }
        let measurement = run_alone(&fresh, measured.model, case, estimate, ground, kept)?;
        if measurement.residency == Residency::Full {
            record.demand_bytes = Some(measurement.demand_bytes);
            summary.estimates.push(record);
        } else {
            // Libraries took room meanwhile, and a size that only just fits lacks it: such a run is no measure of its need.
            partly += 1;
        }
    }
    let step = subject.allocator.growth_step_bytes();
    let short = |record: &&EstimateRecord| {
        record.demand_bytes.is_some_and(|demand| demand > record.estimate.reservation_bytes + step)
    };
    let under = summary.estimates.iter().filter(short).count();
    let what = format!("{} {}", place(subject), measured.model.key);
    let all = summary.estimates.len();
    let mut notes = vec![format!(
        "{what}: {under} of {all} sizes are reserved below what a fresh process needs, by more than a step"
    )];
    if partly > 0 {
        let text = "more ran with a part of the model elsewhere, so what they need is not known";
        notes.push(format!("{what}: {partly} {text}"));
    }
    notes.extend(
        ratios(subject, &summary, ground).into_iter().map(|note| format!("after the warm calibration, {note}")),
    );
    Ok(notes)
}

/// Whether the plan's card holds a window's case beside tensors of others and the gaps that they leave.
fn fits_beside(calibration: &Calibration, window: &Window, tenants_bytes: u64) -> bool {
    let plan = &calibration.plan;
    let Some(planned) = plan.cases.iter().find(|planned| planned.priced.case == window.case) else { return false };
    let asked = planned.priced.estimate.reservation_bytes + plan.measuring_allowance_bytes;
    let needed = i128::from(asked.max(plan.floor_bytes)) + i128::from(tenants_bytes) * 2;
    needed <= i128::from(plan.capacity.capacity_bytes)
}

fn ratio_of(window: &Window, reason: Option<String>) -> String {
    let deltas = &window.measurement.deltas;
    let (reserved, allocated) = (deltas.reserved_peak_bytes, deltas.allocated_peak_bytes);
    let permille = u128::from(reserved) * 1000 / u128::from(allocated.max(1));
    let verdict = reason.unwrap_or_else(|| "counts".to_owned());
    format!(
        "{} run {} warm: {} reserved = {}.{:03} × {} allocated; {verdict}",
        window.case,
        window.run,
        Bytes(reserved),
        permille / 1000,
        permille % 1000,
        Bytes(allocated)
    )
}

/// Tensors of nobody in particular.
struct Tenants {
    device: Device,
    mean_bytes: u64,
    held: Vec<Holding>,
    /// The most that was held at once.
    most_bytes: u64,
    random: u64,
    failure: Option<String>,
}

impl Tenants {
    /// Tensors of up to an eighth of a card together.
    fn new(device: Device, memory_bytes: u64) -> Self {
        let mean_bytes = (memory_bytes / 8 / TENSORS as u64 / 2).clamp(2 * MIB, 64 * MIB);
        Self { device, mean_bytes, held: Vec::new(), most_bytes: 0, random: SEED, failure: None }
    }

    /// A number below `below`, by a fixed sequence.
    fn next(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below.max(1)
    }

    /// Fills up to the full number, and then every other one goes, wherever it lies.
    fn come_and_go(&mut self) {
        while self.held.len() < TENSORS {
            let bytes = self.mean_bytes / 4 + self.next(self.mean_bytes * 3 / 2);
            match self.device.allocate(bytes) {
                Ok(holding) => self.held.push(holding),
                Err(error) => {
                    self.failure = Some(error.to_string());
                    break;
                }
            }
        }
        self.most_bytes = self.most_bytes.max(self.held.iter().map(Holding::bytes).sum());
        for _ in 0..TENSORS / 2 {
            let at = self.next(self.held.len() as u64);
            if !self.held.is_empty() {
                let gone = self.held.swap_remove(at as usize);
                self.give_back(gone);
            }
        }
    }

    fn give_back(&mut self, holding: Holding) {
        if let Err(error) = self.device.free(holding) {
            self.failure.get_or_insert(error.to_string());
        }
    }

    fn leave(&mut self) -> Result<(), CheckError> {
        while let Some(holding) = self.held.pop() {
            self.give_back(holding);
        }
        match self.failure.take() {
            Some(failure) => Err(CheckError::violated(format!("tensors of others: {failure}"))),
            None => Ok(()),
        }
    }
}

impl Journal for Tenants {
    fn begins(&mut self, _: &PlannedRun, _: usize) {
        self.come_and_go();
    }

    fn stands(&mut self, _: &Attempt, _: &[Window]) -> Result<(), StoreError> {
        Ok(())
    }
}
