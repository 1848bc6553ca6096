//! Trials on cards that pose as attached ones.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use headroom_base::{AllocatorKind, GIB, InvalidReason, Origin, Validity};
use headroom_device::driver::{DriverCall, Fault};
use headroom_device::lease::DeviceLease;
use headroom_reports::{Outcome, Report};
use headroom_runners::{SimulatedRunner, WorkspaceSteps};

use super::posing::Posing;
use super::{Attached as _, CardFacts, Gpus, NoTurn, Opener};
use crate::run::{provenance, run_trials};
use crate::trials::{Ended, Trial, trials};
use crate::world::World;

mod limits;
mod opening;
mod seen;

const NO_PATIENCE: Duration = Duration::ZERO;

fn world(cards: &[(&Arc<Posing>, &str)]) -> Arc<World> {
    let cards = cards.iter().map(|(card, uuid)| card.listed(uuid)).collect();
    Arc::new(World::with_gpus(None, Gpus::of(cards)).unwrap())
}

/// A world of TAESD alone, in whose file some words are others, and of one card.
fn world_of_another_taesd(folder: &Path, (was, is): (&str, &str), card: (CardFacts, Opener)) -> Arc<World> {
    let family = include_str!("../../families/taesd.yaml");
    let other = family.replace(was, is);
    assert_ne!(other, family, "`{was}` is written otherwise there");
    std::fs::write(folder.join("taesd.yaml"), other).unwrap();
    Arc::new(World::with_gpus(Some(folder), Gpus::of(vec![card])).unwrap())
}

fn on_cards(world: &Arc<World>, family: &str) -> Vec<Trial> {
    trials(world).into_iter().filter(|trial| trial.family().name == family && trial.card().is_some()).collect()
}

fn ended(world: &Arc<World>, family: &str, check: &str) -> Ended {
    on_cards(world, family).into_iter().find(|trial| trial.check() == check).unwrap().run()
}

#[test]
fn every_check_of_a_small_family_holds_on_an_attached_card_and_says_so() {
    let card = Posing::with_gib(24);
    let uuid = "GPU-11111111-aaaa-bbbb-cccc-000000000001";
    let world = world(&[(&card, uuid)]);
    let chosen = on_cards(&world, "taesd");
    let names: Vec<_> = chosen.iter().map(Trial::check).collect();
    let expected = [
        "plan",
        "pipeline",
        "calibration",
        "reconcile",
        "computes",
        "capacity",
        "out_of_memory",
        "same_counters",
        "warm_server",
    ];
    assert_eq!(names, expected);
    let report = run_trials(&chosen, provenance(Vec::new()), &|_, _| {});
    for trial in &report.trials {
        assert_eq!(trial.outcome, Outcome::Passed, "{}: {:?}", trial.name(), trial.message);
        assert_eq!(trial.device, "gpu");
    }
    assert!(!report.windows.is_empty());
    for record in &report.windows {
        assert_eq!(record.window.origin, Origin::Measured);
        assert_eq!(record.window.device.name, "Posing Card");
        assert_eq!(record.window.environment.hard.framework, "posing 0.1");
    }
    let [device] = &*report.devices else { panic!("{:?}", report.devices) };
    assert!(!device.simulated && device.driver == "1.2.3");
    assert!(device.uuid_hash.as_ref().is_some_and(|hash| hash.len() == 16));
    assert!(report.attempts.iter().all(|record| record.device_uuid_hash == device.uuid_hash));
    assert!(!serde_json::to_string(&report).unwrap().contains("11111111"), "the identity is in the report");
    // Nothing stays behind but what libraries took.
    assert_eq!(card.card().held_bytes(), 136 << 20);
    notes_say(&report);
    windows_of_no_calibration_are_there(&report);
}

/// Each check that measures beside a calibration has left what it measured, for no fit.
fn windows_of_no_calibration_are_there(report: &Report) {
    for check in ["pipeline", "calibration", "capacity", "out_of_memory", "warm_server"] {
        let of_the_check = report.windows.iter().filter(|record| record.trial == Some(format!("taesd::gpu::{check}")));
        let apart: Vec<_> = of_the_check.filter(|record| record.window.attempt_id.is_none()).collect();
        assert!(!apart.is_empty(), "{check} left no window of its own");
        assert!(apart.iter().all(|record| record.excluded_reason.is_some() && !record.counting.counts()), "{check}");
        let out_of_memory = Validity::Invalid(InvalidReason::OutOfMemory);
        let ran_out = apart.iter().any(|record| record.window.measurement.validity == out_of_memory);
        assert_eq!(ran_out, ["capacity", "out_of_memory"].contains(&check), "{check}");
    }
}

fn notes_say(report: &Report) {
    let notes = |check: &str| -> Vec<&String> {
        report.trials.iter().filter(|trial| trial.check == check).flat_map(|trial| &trial.notes).collect()
    };
    let some = |check: &str, words: &str| {
        let notes = notes(check);
        assert!(notes.iter().any(|note| note.contains(words)), "{check} lacks `{words}`: {notes:?}");
    };
    some("reconcile", "posing library");
    some("reconcile", "residue 0 KiB");
    some("capacity", "least capacity that completes");
    some("out_of_memory", "in a page less than the peak it runs out of memory");
    some("same_counters", "0 convolutions with another workspace");
    some("warm_server", "windows are fragmented by the rule");
    some("calibration", "needed");
}

#[test]
fn a_calibration_on_an_attached_card_is_compared_with_what_is_shipped_whatever_framework_computes() {
    let card = Posing::with_gib(48);
    let world = world(&[(&card, "GPU-33333333-shipped")]);
    let Ended { check, evidence } = ended(&world, "sdxl", "calibration");
    assert_eq!(check.outcome, Outcome::Passed, "{:?}", check.message);
    let held_out = evidence.notes.iter().filter(|note| note.contains("native: vae_decode fp16 640x640"));
    let held_out: Vec<_> = held_out.collect();
    assert!(
        held_out.iter().any(|note| note.contains("(user)") && note.contains("calibrated ÷ built-in")),
        "{held_out:?}"
    );
}

#[test]
fn several_cards_are_named_by_their_identities_and_one_is_not() {
    let (first, second) = (Posing::with_gib(24), Posing::with_gib(48));
    let gpus = Gpus::of(vec![first.listed("GPU-0a1b2c3d-0"), second.listed("GPU-ffffffff-1")]);
    let names: Vec<_> = gpus.cards().iter().map(|card| card.name()).collect();
    assert_eq!(names, ["gpu-0a1b2c3d", "gpu-ffffffff"]);
    let meant = |name: &str| gpus.named(name).map(|card| card.facts().total_bytes);
    assert_eq!(meant("gpu"), Ok(48 * GIB), "the largest is meant");
    for name in ["GPU-0A1B2C3D", "gpu-0a1b2c3d", "GPU-0a1b2c3d-0", "gpu-0a1b2c3d-"] {
        assert_eq!(meant(name), Ok(24 * GIB), "{name}");
    }
    for name in ["gpu-1", "gpu-0a1b2c3", "gpu-0a1b2c3d-1", "gpu-"] {
        let said = meant(name).unwrap_err().to_string();
        assert!(said.contains(name) && said.contains("gpu-0a1b2c3d, gpu-ffffffff"), "{said}");
    }
    let world = world(&[(&first, "GPU-0a1b2c3d-0")]);
    assert!(on_cards(&world, "sdxl").iter().all(|trial| trial.device() == "gpu"));
    let alone = world.gpus.named("gpu-0a1b2c3d").map(|card| card.name());
    assert_eq!(alone, Ok("gpu"), "a recorded name means it on a day when it is alone");
}

#[test]
fn a_beginning_that_two_identities_share_is_refused_with_both() {
    let (first, second) = (Posing::with_gib(24), Posing::with_gib(48));
    let gpus = Gpus::of(vec![first.listed("GPU-0a1b2c3d-10"), second.listed("GPU-0a1b2c3d-20")]);
    let said = gpus.named("gpu-0a1b2c3d").unwrap_err().to_string();
    assert!(said.contains("gpu-0a1b2c3d-10, gpu-0a1b2c3d-20"), "{said}");
    assert_eq!(gpus.named("gpu-0a1b2c3d-2").map(|card| card.facts().total_bytes), Ok(48 * GIB));
}

#[test]
fn with_no_card_trials_are_ignored_for_the_reason_given() {
    let world = Arc::new(World::with_gpus(None, Gpus::none("no driver library")).unwrap());
    let ignored: Vec<_> = trials(&world).into_iter().filter(|trial| trial.device() == "gpu").collect();
    assert!(ignored.len() > 60);
    for trial in ignored {
        assert_eq!(trial.ignored_because(), Some("no driver library"));
    }
}

#[test]
fn a_card_that_another_process_leases_is_busy_and_its_holder_is_named() {
    let (card, folder) = (Posing::with_gib(24), tempfile::tempdir().unwrap());
    let world = world(&[(&card, "GPU-lease")]);
    let gpu = &world.gpus.cards()[0];
    let held = DeviceLease::acquire(folder.path(), "GPU-lease", "a training run", NO_PATIENCE, |_| {}).unwrap();
    let refused = gpu.turn("a trial", folder.path(), NO_PATIENCE).unwrap_err();
    assert!(matches!(&refused, NoTurn::Busy(text) if text.contains("a training run")), "{refused}");
    drop(held);
    let turn = gpu.turn("a trial", folder.path(), NO_PATIENCE).unwrap();
    assert!(DeviceLease::acquire(folder.path(), "GPU-lease", "another", NO_PATIENCE, |_| {}).is_err());
    drop(turn);
    assert!(DeviceLease::acquire(folder.path(), "GPU-lease", "another", NO_PATIENCE, |_| {}).is_ok());
}

#[test]
fn turns_in_one_process_come_one_after_the_other_with_no_limit_of_patience() {
    let (card, folder) = (Posing::with_gib(24), tempfile::tempdir().unwrap());
    let world = world(&[(&card, "GPU-turns")]);
    let gpu = &world.gpus.cards()[0];
    let first = gpu.turn("first", folder.path(), NO_PATIENCE).unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| gpu.turn("second", folder.path(), NO_PATIENCE).map(drop));
        drop(first);
        assert_eq!(second.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_card_on_which_others_compute_is_busy_and_an_idle_context_is_not() {
    let card = Posing::with_gib(24);
    card.card().set_others_bytes(600 << 20);
    let (world, folder) = (world(&[(&card, "GPU-others")]), tempfile::tempdir().unwrap());
    let gpu = &world.gpus.cards()[0];
    let turn = gpu.turn("a trial", folder.path(), NO_PATIENCE).unwrap();
    assert_eq!(turn.open().unwrap().others_bytes(), 600 << 20);
    assert_eq!(turn.look_after_a_failure(), Ok(()));
    card.card().set_others_bytes(8 * GIB);
    let busy = turn.look_after_a_failure().unwrap_err();
    assert!(matches!(&busy, NoTurn::Busy(text) if text.contains("others hold 8,192 MiB")), "{busy}");
}

#[test]
fn a_lost_card_fails_its_remaining_trials_at_once_and_no_other_cards() {
    let (lost, sound) = (Posing::with_gib(24), Posing::with_gib(24));
    let world = world(&[(&lost, "GPU-10000000-lost"), (&sound, "GPU-20000000-sound")]);
    let run = |device: &str| {
        let trials = on_cards(&world, "taesd");
        let trial = trials.iter().find(|trial| trial.device() == device && trial.check() == "pipeline").unwrap();
        let check = trial.run().check;
        (check.outcome, check.message.unwrap_or_default())
    };
    assert_eq!(run("gpu-10000000").0, Outcome::Passed);
    lost.card().plant_fault(Fault { call: Some(DriverCall::Allocate), at: 1, persistent: true });
    let (outcome, text) = run("gpu-10000000");
    assert!(outcome == Outcome::Failed && !text.contains("earlier trial"), "a failure alone loses no card: {text}");
    lost.lost.store(true, Ordering::SeqCst);
    assert_eq!(run("gpu-10000000").0, Outcome::Failed);
    lost.card().clear_faults();
    let (outcome, text) = run("gpu-10000000");
    assert!(outcome == Outcome::Failed && text.contains("lost to an earlier trial"), "{text}");
    assert!(text.contains("illegal memory access"), "{text}");
    assert_eq!(run("gpu-20000000").0, Outcome::Passed);
}

#[test]
fn an_attached_card_has_every_allocator_and_is_no_simulation() {
    let card = Posing::with_gib(24);
    let (world, folder) = (world(&[(&card, "GPU-place")]), tempfile::tempdir().unwrap());
    let turn = world.gpus.cards()[0].turn("a look", folder.path(), NO_PATIENCE).unwrap();
    let place = crate::bench::Place::from(&**turn.open().unwrap());
    assert_eq!(place.allocators(), AllocatorKind::ALL);
    assert!(!place.is_simulated());
    assert_eq!(place.retained(), headroom_base::Reading::Bytes(0));
    assert_eq!(place.environment(AllocatorKind::Native).soft.driver, "1.2.3");
}

#[test]
fn a_card_that_computes_something_else_or_no_numbers_is_told() {
    let card = Posing::with_gib(24);
    let world = world(&[(&card, "GPU-wrong")]);
    let says = |expected: &str| {
        let check = ended(&world, "taesd", "computes").check;
        assert_eq!(check.outcome, Outcome::Failed);
        assert!(check.message.as_ref().is_some_and(|text| text.contains(expected)), "{:?}", check.message);
    };
    card.computes_wrong.store(true, Ordering::SeqCst);
    says("in the root mean square");
    card.computes_wrong.store(false, Ordering::SeqCst);
    card.not_finite.store(7, Ordering::SeqCst);
    says("7 results are infinite or no numbers");
    card.not_finite.store(0, Ordering::SeqCst);
    card.computes_nothing.store(true, Ordering::SeqCst);
    says("is the same number throughout, which it is not at a small size");
    card.computes_nothing.store(false, Ordering::SeqCst);
    card.convolutions_refused.store(true, Ordering::SeqCst);
    says("0 convolutions by cuDNN");
    card.convolutions_refused.store(false, Ordering::SeqCst);
    card.innermost_refused.store(true, Ordering::SeqCst);
    says("small models, channels last: 0 convolutions by cuDNN");
    card.innermost_refused.store(false, Ordering::SeqCst);
    assert_eq!(ended(&world, "taesd", "computes").check.outcome, Outcome::Passed);
}

#[test]
fn books_that_the_driver_does_not_open_are_said_to_be_uncompared() {
    let card = Posing::with_gib(24);
    card.process_denied.store(true, Ordering::SeqCst);
    let world = world(&[(&card, "GPU-denied")]);
    let Ended { check, evidence } = ended(&world, "taesd", "reconcile");
    assert_eq!(check.outcome, Outcome::Passed, "{:?}", check.message);
    let uncompared = |note: &&String| note.starts_with("nothing to see: ") && note.contains("books were not compared");
    assert_eq!(evidence.notes.iter().filter(uncompared).count(), 2 * AllocatorKind::ALL.len(), "{:?}", evidence.notes);
    assert!(!evidence.notes.iter().any(|note| note.contains("residue")), "{:?}", evidence.notes);
}

#[test]
fn a_card_whose_opening_panics_fails_its_own_trials_with_the_words_and_no_others() {
    let sound = Posing::with_gib(24);
    let (facts, _) = sound.listed("GPU-30000000-panics");
    let panics: super::Opener = Box::new(|| panic!("Missing symbol planted"));
    let gpus = Gpus::of(vec![(facts, panics), sound.listed("GPU-40000000-sound")]);
    let world = Arc::new(World::with_gpus(None, gpus).unwrap());
    for _ in 0..2 {
        let trials = on_cards(&world, "taesd");
        let run = |device: &str| {
            trials.iter().find(|trial| trial.device() == device && trial.check() == "plan").unwrap().run().check
        };
        let failed = run("gpu-30000000");
        let text = failed.message.unwrap_or_default();
        assert!(failed.outcome == Outcome::Failed && text.contains("panicked: Missing symbol planted"), "{text}");
        assert_eq!(run("gpu-40000000").outcome, Outcome::Passed);
    }
}

#[test]
fn every_familys_checks_end_well_on_a_card_with_room_and_on_one_without() {
    let (ample, small) = (Posing::with_gib(24), Posing::with_gib(8));
    let world = world(&[(&ample, "GPU-24242424-ample"), (&small, "GPU-08080808-small")]);
    let every = trials(&world).into_iter().filter(|trial| trial.card().is_some());
    // What a card computes is looked at with a family of its own: the reference is slow.
    let chosen: Vec<Trial> = every.filter(|trial| trial.check() != "computes").collect();
    let report = run_trials(&chosen, provenance(Vec::new()), &|_, _| {});
    for trial in &report.trials {
        assert_eq!(trial.outcome, Outcome::Passed, "{}: {:?}", trial.name(), trial.message);
        let nothing = trial.notes.iter().any(|note| note.starts_with("nothing to see") && note.contains("fits"));
        assert!(!nothing || trial.device == "gpu-08080808", "{}: {:?}", trial.name(), trial.notes);
    }
    assert_eq!((ample.card().held_bytes(), small.card().held_bytes()), (136 << 20, 136 << 20));
}

#[test]
fn a_program_that_is_not_executed_as_it_is_told_is_found() {
    let steps = WorkspaceSteps { seed: 11, percent: 12 };
    let card = Posing::computing(24, SimulatedRunner::with_workspace_steps(steps));
    let world = world(&[(&card, "GPU-55555555-other")]);
    let Ended { check, .. } = ended(&world, "sdxl", "same_counters");
    let text = check.message.unwrap_or_default();
    assert!(check.outcome == Outcome::Failed && text.contains("not executed as its program says"), "{text}");
}

#[test]
fn memory_that_no_book_names_is_found_in_the_reconciliation() {
    let card = Posing::with_gib(24);
    let world = world(&[(&card, "GPU-66666666-leak")]);
    assert_eq!(ended(&world, "taesd", "reconcile").check.outcome, Outcome::Passed);
    let leaked = card.ballast(20 << 20).unwrap();
    let Ended { check, .. } = ended(&world, "taesd", "reconcile");
    let text = check.message.unwrap_or_default();
    assert!(check.outcome == Outcome::Failed && text.contains("residue 20480 KiB"), "{text}");
    drop(leaked);
    assert_eq!(ended(&world, "taesd", "reconcile").check.outcome, Outcome::Passed);
}

#[test]
fn a_calibration_that_fails_leaves_its_windows_and_those_before_it_in_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let (was, strict) = ("expandable_segments: 15", "expandable_segments: 0");
    let card = Posing::with_gib(24);
    let world = world_of_another_taesd(folder.path(), (was, strict), card.listed("GPU-77777777-strict"));
    let chosen: Vec<_> = on_cards(&world, "taesd").into_iter().filter(|trial| trial.check() == "calibration").collect();
    let report = run_trials(&chosen, provenance(Vec::new()), &|_, _| {});
    let [trial] = &*report.trials else { panic!("{} trials", report.trials.len()) };
    let text = trial.message.as_deref().unwrap_or_default();
    assert!(trial.outcome == Outcome::Failed && text.contains("over the family's limit of 0 %"), "{text}");
    let mut allocators: Vec<_> = report.windows.iter().map(|record| record.window.environment.hard.allocator).collect();
    allocators.dedup();
    assert_eq!(allocators, [AllocatorKind::Native, AllocatorKind::ExpandableSegments]);
    assert!(report.windows.iter().all(|record| record.trial.as_deref() == Some("taesd::gpu::calibration")));
    assert!(!report.families.is_empty() && !report.attempts.is_empty());
}

#[test]
fn a_run_that_is_stopped_has_told_what_ended_and_what_did_not() {
    let card = Posing::with_gib(24);
    let world = world(&[(&card, "GPU-88888888-stopped")]);
    let chosen = on_cards(&world, "taesd");
    let told = std::sync::Mutex::new(Vec::new());
    let whole = run_trials(&chosen, provenance(Vec::new()), &|_, so_far| {
        told.lock().unwrap().push(so_far.report());
    });
    let told = told.into_inner().unwrap();
    assert_eq!(told.len(), chosen.len());
    for (index, report) in told.iter().enumerate() {
        assert!(report.is_stopped() && report.trials.len() == chosen.len());
        assert_eq!((report.count(Outcome::Passed), report.count(Outcome::Failed)), (index + 1, 0));
        let rest = report.trials.iter().filter(|trial| trial.outcome == Outcome::NotRun);
        assert!(rest.clone().all(|trial| trial.message.as_deref() == Some("the run was stopped before its end")));
        assert_eq!(rest.count(), chosen.len() - index - 1);
    }
    assert_eq!(told.last().map(|last| last.windows.len()), Some(whole.windows.len()));
    assert!(!whole.is_stopped());
    // Merged, in whatever order, the whole report takes the place of those before it.
    let merge = headroom_reports::merge::merge;
    let alone = merge(std::slice::from_ref(&whole)).unwrap();
    assert!(merge(&[told, vec![whole]].concat()).unwrap() == alone);
}
