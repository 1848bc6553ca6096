//! The CUDA driver on the GPUs attached: counters beside recordings and beside what the management library says.
//!
//! With no GPU every trial is ignored, with the reason. With `HEADROOM_REQUIRE_GPU=1`, or where ignored trials are run
//! all the same, each fails with it: what had no device to look at never passes. `--nocapture` is not needed: what was
//! seen is printed.

#![allow(clippy::print_stdout, reason = "the figures that were seen are the result")]

mod counters;
mod limits;
#[path = "../recorded/mod.rs"]
mod recorded;
#[path = "../two_caches/mod.rs"]
mod two_caches;
mod uploads;

use std::env::VarError;
use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use headroom_device::cuda::{CudaContext, Gpu, gpus};
use headroom_device::lease::DeviceLease;
use libtest_mimic::{Arguments, Failed, Trial};

/// What is checked on one GPU.
type Check = fn(&CudaContext) -> Result<(), Failed>;

const CHECKS: [(&str, Check); 12] = [
    ("expandable_scripts_equal_the_recordings_in_every_counter", counters::expandable_scripts_equal),
    ("native_scripts_equal_the_simulated_card_in_every_counter", counters::native_scripts_equal),
    ("what_is_reserved_is_what_the_process_grew_by", counters::reserve_is_growth),
    ("the_pool_counts_what_was_asked_and_goes_back_whole", counters::pool_counts),
    ("too_little_memory_fails_with_figures_and_the_next_run_works", limits::out_of_memory),
    ("ballast_is_seen_as_free_memory_that_is_gone", limits::ballast),
    ("a_map_that_does_not_fit_leaves_nothing_mapped", limits::partial_map),
    ("a_large_part_arrives_byte_for_byte", uploads::one_large_part),
    ("many_pieces_of_odd_sizes_arrive_byte_for_byte", uploads::many_odd_pieces),
    ("every_second_piece_arrives_and_the_others_memory_is_left_alone", uploads::every_second_piece),
    ("buffers_used_again_and_again_mix_nothing_up", uploads::buffers_used_again),
    ("a_model_of_a_file_arrives_whole_and_in_part", uploads::models_from_a_file),
];

/// Whether a GPU must be there.
const REQUIRED: &str = "HEADROOM_REQUIRE_GPU";

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let required = match required() {
        Ok(required) => required,
        // A value that is not understood must not pass for one that asks for nothing.
        Err(reason) => {
            println!("{reason}");
            return ExitCode::FAILURE;
        }
    };
    let trials = match gpus() {
        Ok(gpus) => gpus.iter().flat_map(trials).chain(together(&gpus)).collect(),
        Err(error) => {
            if !arguments.list && !required {
                println!("ignored, with no GPU to run on: {error}");
            }
            without_gpu(&error.to_string(), required)
        }
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn required() -> Result<bool, String> {
    match std::env::var(REQUIRED).as_deref() {
        Ok("1") => Ok(true),
        Ok("" | "0") | Err(VarError::NotPresent) => Ok(false),
        other => Err(format!("{REQUIRED} is {other:?}: write 1 where a GPU must be there, 0 where it need not")),
    }
}

/// Trials that can only fail: ignored unless a GPU is required.
fn without_gpu(reason: &str, required: bool) -> Vec<Trial> {
    let trial = |(name, _): (&str, Check)| {
        let failure = format!("no GPU to run on: {reason}");
        Trial::test(format!("gpu::{name}"), move || Err(failure.into())).with_ignored_flag(!required)
    };
    CHECKS.into_iter().map(trial).collect()
}

fn trials(gpu: &Gpu) -> Vec<Trial> {
    let trial = |(name, check): (&str, Check)| {
        let gpu = gpu.clone();
        Trial::test(format!("gpu::{}::{name}", gpu.uuid), move || on(&gpu, check))
    };
    CHECKS.into_iter().map(trial).collect()
}

/// What is checked on two GPUs.
type CheckOfTwo = fn(&CudaContext, &CudaContext) -> Result<(), Failed>;

const CHECKS_OF_TWO: [(&str, CheckOfTwo); 2] = [
    ("each_device_answers_for_itself", limits::side_by_side),
    ("a_cache_on_each_keeps_to_its_own_devices_budget", limits::budgets),
];

/// What takes two GPUs; with fewer there are no such trials, and the list says so by lacking them.
fn together(gpus: &[Gpu]) -> Vec<Trial> {
    let [first, second, ..] = gpus else { return Vec::new() };
    let trial = |(name, check): (&str, CheckOfTwo)| {
        let (first, second) = (first.clone(), second.clone());
        let check = move || on(&first, |one| on(&second, |other| check(one, other)));
        Trial::test(format!("gpus::{name}"), check)
    };
    CHECKS_OF_TWO.into_iter().map(trial).collect()
}

/// Runs a check on a GPU that is leased for it.
fn on(gpu: &Gpu, check: impl FnOnce(&CudaContext) -> Result<(), Failed>) -> Result<(), Failed> {
    let folder = DeviceLease::default_folder()?;
    let patience = Duration::from_secs(300);
    let _lease = DeviceLease::acquire(&folder, &gpu.uuid, "the CUDA driver's tests", patience, |_| ())?;
    check(&CudaContext::open(gpu)?)
}

/// Fails with both values where they differ.
fn equal<T: PartialEq + std::fmt::Debug>(what: impl Display, left: T, right: T) -> Result<(), Failed> {
    if left == right { Ok(()) } else { Err(format!("{what}: {left:?} is not {right:?}").into()) }
}

/// Fails with the claim where it does not hold.
fn holds(what: impl Display, is_so: bool) -> Result<(), Failed> {
    if is_so { Ok(()) } else { Err(format!("{what}: it is not so").into()) }
}
