//! Every family on every device, as trials of a test harness: `cargo test --test family_e2e -- sdxl::12gib`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use headroom::gpu::Gpus;
use headroom::shard::Shard;
use headroom::trials::{self, Trial};
use headroom::variables;
use headroom::world::World;
use headroom_family::Family;
use headroom_reports::Outcome;
use libtest_mimic::{Arguments, Failed};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let world = match World::load(None) {
        Ok(world) => Arc::new(world),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = variables::check() {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let shard = match Shard::from_environment() {
        Ok(shard) => shard,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let about_all = libtest_mimic::Trial::test("all::families::have_their_trials", {
        let world = Arc::clone(&world);
        move || every_family_has_its_trials(&world).map_err(Failed::from)
    });
    let own = trials::trials(&world).into_iter().map(Some);
    let of_this_shard = shard.share(own.chain([None]).collect());
    if of_this_shard.is_empty() {
        eprintln!("shard {shard} holds no trial");
    }
    if !arguments.list && !arguments.ignored && !arguments.include_ignored && !variables::gpu_is_required() {
        say_what_is_ignored(of_this_shard.iter().flatten().filter(|trial| is_chosen(&arguments, &trial.name())));
    }
    let mut about_all = Some(about_all);
    let mimic = of_this_shard.into_iter().filter_map(|own| own.map(to_mimic).or_else(|| about_all.take()));
    libtest_mimic::run(&arguments, mimic.collect()).exit_code()
}

/// Whether the arguments choose a trial of this name.
fn is_chosen(arguments: &Arguments, name: &str) -> bool {
    let matches = |filter: &String| if arguments.exact { name == filter } else { name.contains(filter.as_str()) };
    arguments.filter.as_ref().is_none_or(matches) && !arguments.skip.iter().any(matches)
}

/// The harness marks an ignored trial and has no room for the reason.
fn say_what_is_ignored<'a>(trials: impl Iterator<Item = &'a Trial>) {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in trials.filter_map(Trial::ignored_because) {
        *reasons.entry(reason).or_default() += 1;
    }
    for (reason, count) in reasons {
        eprintln!("{count} trials on an attached card are ignored: {reason}");
    }
}

fn to_mimic(trial: Trial) -> libtest_mimic::Trial {
    let ignored = trial.ignored_because().is_some() && !variables::gpu_is_required();
    let name = trial.name();
    let test = libtest_mimic::Trial::test(name, move || {
        let ended = trial.run();
        match (ended.check.outcome, ended.check.message) {
            (Outcome::Passed, _) => Ok(()),
            (outcome, message) => Err(Failed::from(format!("{}: {}", outcome.name(), message.unwrap_or_default()))),
        }
    });
    test.with_ignored_flag(ignored)
}

/// What is checked, written down apart from the code that makes the trials: a check that is lost there is missed here.
const ON_EACH_DEVICE: [&str; 4] = ["plan", "pipeline", "calibration", "reconcile"];
const ON_FITTED_CARDS: [&str; 3] = ["capacity", "perturbed", "scripted"];
const ON_A_GPU: [&str; 8] =
    ["plan", "pipeline", "calibration", "reconcile", "computes", "capacity", "out_of_memory", "same_counters"];

/// The families that calibrate a decode, which an attached card also does after it has been used.
const WITH_A_DECODE: [&str; 11] =
    ["cogview4", "flux", "flux2", "qwen-image", "sd15", "sd3", "sdxl", "sdxl-img2img", "taesd", "wan", "z-image"];
const INVARIANTS: [&str; 11] = [
    "attempts",
    "display",
    "foreign",
    "fragments",
    "offload",
    "outcomes",
    "plans",
    "pricing",
    "resets",
    "store",
    "windows",
];
const INVARIANTS_WITHOUT_A_MODEL: [&str; 5] = ["allocator", "reports", "shipping", "snapshots", "trials"];

/// The families that must be there; a new file adds to them.
const FAMILIES: [&str; 13] = [
    "cogview4",
    "flux",
    "flux2",
    "qwen-image",
    "regressions",
    "sd15",
    "sd3",
    "sdxl",
    "sdxl-img2img",
    "taesd",
    "text-encoders",
    "wan",
    "z-image",
];

/// The families that a real card was recorded with: `tests/data/h200/windows.jsonl`.
const RECORDED: [&str; 6] = ["flux", "qwen-image", "sdxl", "taesd", "text-encoders", "wan"];

/// Every trial of every family, by name, is one that its file asks for, and none is missing.
fn every_family_has_its_trials(world: &Arc<World>) -> Result<(), String> {
    let trials = trials::trials(world);
    for name in FAMILIES {
        if !world.catalogue.families().iter().any(|family| family.name == name) {
            return Err(format!("family `{name}` is gone"));
        }
    }
    for family in world.catalogue.families() {
        let found = trials.iter().filter(|trial| trial.family().name == family.name);
        let mut found: Vec<String> = found.map(Trial::name).collect();
        let mut expected = trials_of(family, &world.gpus);
        found.sort();
        expected.sort();
        if found != expected || found.is_empty() {
            let missing: Vec<_> = expected.iter().filter(|name| !found.contains(name)).collect();
            let (has, name) = (found.len(), &family.name);
            let asked = expected.len();
            return Err(format!("family `{name}` has {has} trials, its file asks for {asked}; missing: {missing:?}"));
        }
    }
    Ok(())
}

/// The names of the trials that a family's file asks for.
fn trials_of(family: &Family, gpus: &Gpus) -> Vec<String> {
    let name = |device: &str, check: &str| format!("{}::{device}::{check}", family.name);
    let mut names: Vec<String> = family.regressions.iter().map(|scenario| name("scripted", &scenario.name)).collect();
    if family.models.is_empty() {
        names.extend(INVARIANTS_WITHOUT_A_MODEL.map(|area| name("invariants", area)));
        return names;
    }
    names.extend(INVARIANTS.map(|area| name("invariants", area)));
    for device in &family.devices {
        names.extend(ON_EACH_DEVICE.map(|check| name(&device.name, check)));
    }
    names.extend(ON_FITTED_CARDS.map(|check| name("fitted", check)));
    // One card, or none, is called `gpu`; several are told apart.
    let cards: Vec<&str> = gpus.cards().iter().map(|card| card.name()).collect();
    for card in if cards.is_empty() { vec!["gpu"] } else { cards } {
        names.extend(ON_A_GPU.map(|check| name(card, check)));
        names.extend(WITH_A_DECODE.contains(&&*family.name).then(|| name(card, "warm_server")));
    }
    if RECORDED.contains(&family.name.as_str()) {
        names.push(name("h200", "recorded"));
    }
    names
}
