//! `plan`: what a calibration would run on a device, what does not fit, and the terms of the capacity.

use std::path::Path;

use headroom_base::{
    AllocatorKind, Bytes, Capacity, DeviceClass, Plan, PlanNote, PlannedCase, Reading, SignedBytes, Verdict,
};
use headroom_calibration::{BuiltIns, Knowledge, PlanTerms, Record, Store};
use headroom_family::{Family, SimulatedDevice};
use serde::Serialize;

use super::args::PlanArgs;
use super::error::CliError;
use super::exit::Exit;
use super::place::OnCard;
use super::stored::Stored;
use super::terminal::Terminal;
use crate::bench::{Ground, MEASURING_ALLOWANCE_BYTES, MeasuredModel, Subject, cases_to_plan, lines_of};
use crate::catalogue::{Catalogue, device_of};
use crate::pricing::estimator_versions;

/// A device smaller than this is no device: a bare number is bytes, and nobody means twelve of them.
const LEAST_DEVICE_BYTES: u64 = 1 << 28;

/// One model's plan, split by whether the device can hold a case.
#[derive(Serialize)]
struct ModelPlan<'a> {
    model: &'a str,
    capacity: &'a Capacity,
    planned: Vec<&'a PlannedCase>,
    not_fitting: Vec<&'a PlannedCase>,
    runs: usize,
    notes: Vec<PlanNote>,
}

/// A case with the model it belongs to.
#[derive(Serialize)]
struct CaseOf<'a> {
    model: &'a str,
    #[serde(flatten)]
    case: &'a PlannedCase,
    capacity: &'a Capacity,
}

#[derive(Serialize)]
struct Answer<'a> {
    family: &'a str,
    device: String,
    allocator: AllocatorKind,
    measuring_allowance_bytes: u64,
    floor_bytes: u64,
    /// The terms for the measured model with the most weights: the tightest.
    capacity: Option<&'a Capacity>,
    planned: Vec<CaseOf<'a>>,
    not_fitting: Vec<CaseOf<'a>>,
    models: Vec<ModelPlan<'a>>,
    /// What a store that was named does not price.
    notes: Vec<String>,
}

/// Shows the plans of a family's measured models.
///
/// # Errors
/// For names that are not known, a case that cannot be priced, or when nothing can be printed.
pub(super) fn plan(args: &PlanArgs, catalogue: &Catalogue, terminal: &mut Terminal<'_>) -> Result<Exit, CliError> {
    let family = catalogue.family(&args.family)?;
    let card = OnCard::named(family, &args.device, "a plan")?;
    let subject = Subject { layout: args.layout, ..Subject::usual(family, card.place(), args.allocator) };
    let versions = estimator_versions(catalogue.families());
    let ground = Ground { built_ins: BuiltIns::compiled_in(), versions: &versions };
    let read = |folder| Stored::read(folder, subject.context(&versions), subject.environment().soft);
    let stored = args.store.as_deref().map(read).transpose()?;
    let mut plans = Vec::new();
    for (model, lines) in lines_of(&subject) {
        let measured = MeasuredModel { model, lines: &lines };
        let kept = stored.as_ref().map(|stored| stored.knowledge.record().clone());
        let record = kept.unwrap_or_else(|| Record::empty(subject.class()));
        plans.push((model.key.as_str(), plan_of(&subject, measured, record, ground)?));
    }
    let lines = plans.iter().flat_map(|(model, plan)| plan.cases.iter().map(|case| (*model, &case.priced.line)));
    let notes = stored.map_or_else(|| Ok(Vec::new()), |stored| stored.notes(lines))?;
    let answer = answer(&subject, &plans, notes);
    if args.json {
        terminal.json(&answer)?
    } else {
        print(&answer, terminal)?
    }
    Ok(Exit::Success)
}

/// The family's device of a name, or one of a size that it does not list (`10GiB`), like its others.
///
/// # Errors
/// When the name is neither.
pub(super) fn device_named(family: &Family, name: &str) -> Result<SimulatedDevice, CliError> {
    let unknown = match device_of(family, name) {
        Ok(device) => return Ok(device.clone()),
        Err(unknown) => unknown,
    };
    let size = name.parse::<Bytes>().ok().filter(|bytes| bytes.0 >= LEAST_DEVICE_BYTES);
    match (size, family.devices.first()) {
        (Some(Bytes(memory_bytes)), Some(like)) => {
            let mut device = like.clone();
            device.memory_bytes = memory_bytes;
            device.name = name.to_ascii_lowercase();
            Ok(device)
        }
        (None, Some(_)) => Err(CliError::Unavailable(format!("{unknown}, or on any size, for example 13GiB"))),
        (_, None) => Err(unknown.into()),
    }
}

/// What a store keeps of a device; the empty record without a store.
///
/// # Errors
/// When the store's file cannot be used. It stays as it is.
pub(super) fn record_of(store: Option<&Path>, class: &DeviceClass) -> Result<Record, CliError> {
    match store {
        Some(folder) => Ok(Store::open(folder).read(class)?),
        None => Ok(Record::empty(class.clone())),
    }
}

/// The plan of one model, priced by what the record knows.
///
/// # Errors
/// For a case that cannot be priced.
pub(super) fn plan_of(
    subject: &Subject<'_>,
    measured: MeasuredModel<'_>,
    record: Record,
    ground: Ground<'_>,
) -> Result<Plan, CliError> {
    let cases = cases_to_plan(subject, measured, ground)?;
    let terms = PlanTerms {
        capacity: subject.capacity_terms(subject.place.memory_bytes(), subject.locked_weights_bytes(measured.model)),
        measuring_allowance_bytes: MEASURING_ALLOWANCE_BYTES,
        floor_bytes: headroom_base::DEFAULT_DEVICE_WORKING_BYTES,
    };
    let mut knowledge = Knowledge::new(record.clone(), subject.context(ground.versions), subject.environment().soft);
    Ok(knowledge.plan(record, cases, ground.built_ins, terms))
}

fn answer<'a>(subject: &Subject<'a>, plans: &'a [(&'a str, Plan)], notes: Vec<String>) -> Answer<'a> {
    let fits = |case: &&PlannedCase| case.verdict == Verdict::Fits;
    let of = |wanted: bool| {
        let cases = plans.iter().flat_map(|(model, plan)| plan.cases.iter().map(move |case| (*model, plan, case)));
        let wanted = cases.filter(move |(.., case)| fits(case) == wanted);
        wanted.map(|(model, plan, case)| CaseOf { model, case, capacity: &plan.capacity }).collect()
    };
    let models = plans.iter().map(|(model, plan)| ModelPlan {
        model,
        capacity: &plan.capacity,
        planned: plan.cases.iter().filter(fits).collect(),
        not_fitting: plan.cases.iter().filter(|case| !fits(case)).collect(),
        runs: plan.runs().len(),
        notes: plan.notes(),
    });
    Answer {
        family: &subject.family.name,
        device: subject.place.name().to_owned(),
        allocator: subject.allocator,
        measuring_allowance_bytes: MEASURING_ALLOWANCE_BYTES,
        floor_bytes: headroom_base::DEFAULT_DEVICE_WORKING_BYTES,
        capacity: plans.iter().map(|(_, plan)| &plan.capacity).min_by_key(|capacity| capacity.capacity_bytes),
        planned: of(true),
        not_fitting: of(false),
        models: models.collect(),
        notes,
    }
}

fn print(answer: &Answer<'_>, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    if answer.models.is_empty() {
        terminal.line(format!("`{}` calibrates nothing.", answer.family))?;
    }
    for model in &answer.models {
        let terms = model.capacity.terms;
        let retained = match terms.retained_bytes {
            Reading::Bytes(bytes) => Bytes(bytes).to_string(),
            Reading::Unknown => "an unknown amount".to_owned(),
        };
        terminal.line(format!(
            "{} of {} on {} ({}): {} for a window = {} total − {} of others − {} context − {retained} retained − {} weights",
            model.model,
            answer.family,
            answer.device,
            answer.allocator,
            SignedBytes(model.capacity.capacity_bytes),
            Bytes(terms.total_bytes),
            Bytes(terms.outside_now_bytes.max(terms.outside_floor_bytes)),
            Bytes(terms.context_bytes),
            Bytes(terms.locked_weights_bytes),
        ))?;
        let cases = model.planned.iter().chain(&model.not_fitting);
        terminal.table(
            &["case", ">reserve", "priced by", "on this device"],
            &cases.map(|case| row(case)).collect::<Vec<_>>(),
        )?;
        terminal.line(format!(
            "{} runs; each asks {} beyond its estimate, {} at least",
            model.runs,
            Bytes(answer.measuring_allowance_bytes),
            Bytes(answer.floor_bytes)
        ))?;
        for note in &model.notes {
            terminal.line(note_text(note))?;
        }
    }
    for note in &answer.notes {
        terminal.line(note)?;
    }
    Ok(())
}

fn row(planned: &PlannedCase) -> Vec<String> {
    let estimate = planned.priced.estimate;
    let verdict = match planned.verdict {
        Verdict::Fits => "planned".to_owned(),
        Verdict::DoesNotFit { needed_bytes, short_bytes } => {
            format!("does not fit: asks {}, {} short", Bytes(needed_bytes), Bytes(short_bytes))
        }
    };
    let reserve = Bytes(estimate.reservation_bytes).to_string();
    vec![planned.priced.case.to_string(), reserve, estimate.source.name().to_owned(), verdict]
}

/// A note of a plan, for people.
pub(super) fn note_text(note: &PlanNote) -> String {
    match note {
        PlanNote::TooFewSizes { line, fitting } => {
            format!("{line}: {fitting} sizes fit and three are needed, so it gets no fit here")
        }
        PlanNote::OneExclusionVoids { line } => {
            format!("{line}: three sizes fit; if one of them does not count, there is no fit")
        }
        PlanNote::RetainedUnknown => {
            "what the driver keeps after frees is unknown: a first calibration may lose its largest size".to_owned()
        }
    }
}
