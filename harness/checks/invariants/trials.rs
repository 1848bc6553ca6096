//! The harness itself: every trial in one shard, nothing passed that did not run, nothing passed that saw nothing.

use headroom_base::AllocatorKind;
use headroom_reports::Outcome;

use crate::bench::Subject;
use crate::checks::{CheckError, Claim, Evidence, ensure};
use crate::shard::Shard;
use crate::trials::verdict_of;
use crate::world::World;

super::general![
    the_shards_together_hold_every_trial_once,
    a_trial_that_cannot_run_here_is_not_passed,
    a_check_that_saw_nothing_has_failed,
    a_reservation_far_over_its_demand_is_found,
];

fn the_shards_together_hold_every_trial_once(_: &World) -> Result<(), CheckError> {
    let trials: Vec<usize> = (0..601).collect();
    for count in [1, 2, 5] {
        let parts = (1..=count).map(|index| format!("{index}/{count}").parse::<Shard>());
        let mut shared = Vec::new();
        for part in parts {
            let part = part.map_err(|error| CheckError::violated(error.to_string()))?;
            shared.extend(part.share(trials.clone()));
        }
        shared.sort_unstable();
        Claim::ShardsHoldEveryTrialOnce
            .holds(shared == trials, || format!("{} of {} trials in {count} shards", shared.len(), trials.len()))?;
    }
    Ok(())
}

fn a_trial_that_cannot_run_here_is_not_passed(_: &World) -> Result<(), CheckError> {
    let seen = || Ok(Evidence { seen: 1, ..Evidence::default() });
    for (required, expected) in [(false, Outcome::Ignored), (true, Outcome::Failed)] {
        let outcome =
            verdict_of(Some("no GPU"), required, seen).map_or_else(|failed| failed.outcome, |_| Outcome::Passed);
        Claim::IgnoredIsNotPassed.equal(&format!("without a GPU, required {required}"), outcome, expected)?;
    }
    Ok(())
}

fn a_check_that_saw_nothing_has_failed(_: &World) -> Result<(), CheckError> {
    let outcome = verdict_of(None, false, || Ok(Evidence::default()));
    Claim::NothingSeenIsAFailure.holds(outcome.is_err(), || "a check that saw nothing has passed".to_owned())
}

/// A family of which nobody accepts a byte more than is needed.
fn a_reservation_far_over_its_demand_is_found(world: &World) -> Result<(), CheckError> {
    let families = world.catalogue.families().iter();
    let smallest = families
        .filter(|family| !family.models.is_empty())
        .min_by_key(|family| family.models.iter().map(crate::bench::weights_bytes).sum::<u64>());
    let mut family = smallest.cloned().ok_or_else(|| CheckError::violated("no family has a model"))?;
    family.checks.over_reservation.native_percent = 0;
    let device = family.devices.last().ok_or_else(|| CheckError::violated("the family has no device"))?;
    let subject = Subject::usual(&family, device.into(), AllocatorKind::Native);
    let failed = crate::checks::calibration(&subject, world.ground()).err().map(CheckError::split);
    let (found, windows) = match failed {
        Some((CheckError::Broken { claim: Claim::OverReservationIsLimited, .. }, seen)) => (true, seen.windows.len()),
        _ => (false, 0),
    };
    ensure(!found || windows > 0, || "what a failed calibration measured is lost".to_owned())?;
    Claim::OverReservationIsLimited.holds(found, || "a margin passes where nothing over the demand may".to_owned())
}
