//! What is shipped: figures of real cards, software apart, and nothing lost without somebody's word.

use std::fmt::Display;

use headroom_base::{AllocatorKind, Backend, DeviceClass, GIB, Origin, Reading};
use headroom_reports::ship::{Built, Refusal, Rules, build, refusals};
use headroom_reports::{Provenance, Report};

use crate::checks::{CheckError, Claim};
use crate::world::World;

super::general![
    only_figures_of_real_cards_that_nobody_withdrew_are_shipped,
    different_software_makes_different_lines,
    what_a_line_would_lose_needs_a_word,
    a_machine_far_from_the_others_is_named,
];

pub(super) fn said(error: impl Display) -> CheckError {
    CheckError::violated(error.to_string())
}

/// The windows recorded on a real card.
pub(super) fn recorded(world: &World) -> Result<&Report, CheckError> {
    world.recorded().map_err(CheckError::violated)
}

/// The recorded windows of one family under the native allocator.
fn small(world: &World) -> Result<Report, CheckError> {
    let mut report = recorded(world)?.clone();
    report.windows.retain(|record| {
        record.window.model.starts_with("sdxl:") && record.window.environment.hard.allocator == AllocatorKind::Native
    });
    let used = |id| report.windows.iter().any(|record| record.window.attempt_id.as_ref() == Some(id));
    let attempts = report.attempts.iter().filter(|record| used(&record.attempt.id)).cloned().collect();
    report.attempts = attempts;
    if report.windows.is_empty() {
        return Err(CheckError::violated("no window of sdxl is recorded"));
    }
    Ok(report)
}

/// The report as another machine would have written it: another name, another card, other demands.
pub(super) fn of_machine(report: &Report, id: &str, card: &str, permille: u64) -> Report {
    let mut other = report.clone();
    let device = DeviceClass::new(card, 48 * GIB, Backend::Cuda);
    other.provenance = vec![Provenance { report_id: id.to_owned(), ..report.provenance[0].clone() }];
    other.devices.clear();
    for record in &mut other.attempts {
        record.report_id = id.to_owned();
        record.device_uuid_hash = Some(format!("hash of {id}"));
        record.attempt.device = device.clone();
    }
    for record in &mut other.windows {
        record.window.device = device.clone();
        let measurement = &mut record.window.measurement;
        for bytes in [&mut measurement.deltas.reserved_peak_bytes, &mut measurement.deltas.allocated_peak_bytes] {
            *bytes = *bytes * permille / 1000;
        }
        measurement.deltas.driver_bytes = Reading::Unknown;
        measurement.demand_bytes = measurement.deltas.demand_bytes();
    }
    other
}

fn built(world: &World, reports: &[Report]) -> Result<Built, CheckError> {
    build(reports, &Rules::new(world.ground().versions.clone())).map_err(said)
}

fn only_figures_of_real_cards_that_nobody_withdrew_are_shipped(world: &World) -> Result<(), CheckError> {
    let here = small(world)?;
    let mut simulated = of_machine(&here, "simulated", "a card of software", 3_000);
    simulated.windows.iter_mut().for_each(|record| record.window.origin = Origin::Simulated);
    let mut withdrawn = of_machine(&here, "withdrawn", "a card with a wrong driver", 3_000);
    withdrawn.provenance[0].withdrawn = Some("wrong driver".to_owned());
    let alone = built(world, std::slice::from_ref(&here))?;
    for (other, claim) in [(simulated, Claim::OnlyRealFiguresAreShipped), (withdrawn, Claim::WithdrawnStaysWithdrawn)] {
        let id = other.provenance[0].report_id.clone();
        let both = built(world, &[here.clone(), other])?;
        claim.holds(both.files == alone.files, || format!("windows of the {id} report are behind shipped lines"))?;
    }
    Ok(())
}

fn different_software_makes_different_lines(world: &World) -> Result<(), CheckError> {
    let here = small(world)?;
    let mut other = of_machine(&here, "other software", "another card", 3_000);
    for record in &mut other.windows {
        record.window.environment.hard.convolution_benchmark = !record.window.environment.hard.convolution_benchmark;
    }
    for record in &mut other.attempts {
        let hard = &mut record.attempt.environment.hard;
        hard.convolution_benchmark = !hard.convolution_benchmark;
    }
    let lines = |built: &Built| built.files.iter().map(|file| file.lines.len()).sum::<usize>();
    let alone = lines(&built(world, std::slice::from_ref(&here))?);
    let both = lines(&built(world, &[here, other])?);
    Claim::SoftwareIsShippedApart.equal("lines of two kinds of software", both, 2 * alone)
}

fn what_a_line_would_lose_needs_a_word(world: &World) -> Result<(), CheckError> {
    let here = small(world)?;
    let machine = |permille| of_machine(&here, "machine", "another card", permille);
    let standing = built(world, &[here.clone(), machine(900)])?;
    let refused = |after: &Built, limit| refusals(&standing.files, &after.files, limit);
    let without = refused(&built(world, std::slice::from_ref(&here))?, 1_000);
    let lost = without.iter().any(|refusal| matches!(refusal, Refusal::LosesDevice { .. }));
    Claim::LossNeedsAWord.holds(lost, || "a card is lost and nobody is asked".to_owned())?;
    let fallen = refused(&built(world, &[of_machine(&here, "lower", "another card", 800)])?, 1_000);
    let below = fallen.iter().any(|refusal| matches!(refusal, Refusal::BelowMeasured { .. }));
    Claim::LossNeedsAWord.holds(below, || "a line falls below a measured point and nobody is asked".to_owned())?;
    let risen = refused(&built(world, &[here.clone(), machine(1_500)])?, 10);
    let changed = risen.iter().any(|refusal| matches!(refusal, Refusal::ChangesTooMuch { .. }));
    Claim::LossNeedsAWord.holds(changed, || "a line changes by a half and nobody is asked".to_owned())
}

fn a_machine_far_from_the_others_is_named(world: &World) -> Result<(), CheckError> {
    let here = small(world)?;
    let demands = [1_000, 1_010, 990, 1_005, 1_600].into_iter().enumerate();
    let machines = demands.map(|(number, permille)| of_machine(&here, &format!("m{number}"), "a card", permille));
    let built = built(world, &machines.collect::<Vec<_>>())?;
    let named = built.outliers.iter().any(|outlier| outlier.machine.report_id == "m4");
    Claim::OddMachineIsNamed.holds(named, || "a machine that needs 60 % more than the others is not named".to_owned())
}
