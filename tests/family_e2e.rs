//! Every family on every device, as trials of a test harness: `cargo test --test family_e2e -- sdxl::12gib`.

use std::process::ExitCode;
use std::sync::Arc;

use headroom::shard::Shard;
use headroom::trials::{self, Trial};
use headroom::world::World;
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
    let shard = match Shard::from_environment() {
        Ok(shard) => shard,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut all: Vec<libtest_mimic::Trial> = trials::trials(&world).into_iter().map(to_mimic).collect();
    all.push(libtest_mimic::Trial::test("all::families::have_their_trials", move || {
        every_family_has_its_trials(&world).map_err(Failed::from)
    }));
    let of_this_shard = shard.share(all);
    if of_this_shard.is_empty() {
        eprintln!("shard {shard} holds no trial");
    }
    libtest_mimic::run(&arguments, of_this_shard).exit_code()
}

fn to_mimic(trial: Trial) -> libtest_mimic::Trial {
    let ignored = trial.ignored_because().is_some() && !trials::gpu_is_required();
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

/// The families that a real card was recorded with: `tests/data/h200/windows.jsonl`.
const RECORDED: [&str; 6] = ["flux", "qwen-image", "sdxl", "taesd", "text-encoders", "wan"];

/// The number of trials of each family is what its file asks for, and no family is empty.
fn every_family_has_its_trials(world: &Arc<World>) -> Result<(), String> {
    let trials = trials::trials(world);
    for family in world.catalogue.families() {
        let found = trials.iter().filter(|trial| trial.family().name == family.name).count();
        let expected = trials::expected_trials(family, RECORDED.contains(&family.name.as_str()));
        if found != expected || found == 0 {
            return Err(format!("family `{}` has {found} trials, its file asks for {expected}", family.name));
        }
    }
    Ok(())
}
