//! Every wrong decision in the code is seen by a check, for its own reason: a trial each, and one for their number.
//!
//! `cargo test --features mutants --test mutants -- margin` grades some of them.

use std::process::ExitCode;
use std::sync::Arc;

use headroom::mutants::{Grading, GradingError};
use headroom::world::World;
use libtest_mimic::{Arguments, Failed, Trial};

/// How many there are. A decision that loses its wrong twin is not graded any more, and nobody would miss it.
const GRADED: usize = 130;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The chosen decision is the process's.
    arguments.test_threads = Some(1);
    let world = match World::load(None) {
        Ok(world) => Arc::new(world),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let grading = match Grading::prepare(&world) {
        Ok(grading) => Arc::new(grading),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let names: Vec<&'static str> = grading.names().collect();
    let found = names.len();
    let mut trials: Vec<Trial> = names
        .into_iter()
        .map(|name| {
            let grading = Arc::clone(&grading);
            Trial::test(format!("mutant::{name}"), move || is_seen(&grading, name))
        })
        .collect();
    trials.push(Trial::test("grading::the_number_of_wrong_decisions_is_known", move || {
        if found == GRADED { Ok(()) } else { Err(format!("{found} are graded, {GRADED} are known").into()) }
    }));
    trials.push(Trial::test("grading::a_name_that_no_decision_has_is_refused", move || {
        match grading.grade("no_such_name") {
            Err(GradingError::UnknownName { .. }) => Ok(()),
            other => Err(format!("{other:?}").into()),
        }
    }));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn is_seen(grading: &Grading, name: &str) -> Result<(), Failed> {
    let grade = grading.grade(name)?;
    if grade.killed_by.is_empty() {
        let text = format!(
            "{name} survived ({}): {}. It breaks {:?}; should have been seen by {:?}; failed otherwise: {:?}",
            grade.place, grade.harm, grade.claims, grade.reached_by, grade.failed_otherwise
        );
        return Err(text.into());
    }
    Ok(())
}
