//! What the calibration claims, one trial a claim; with the feature `mutants`, also that each claim can fail.
//!
//! Under the feature, every named wrong decision of this crate and of the plan and estimate in base gets a
//! trial of its own: with that decision wrong, at least one claim must fail.

mod attempts;
mod counting;
mod estimates;
mod fixture;
mod fragments;
mod plans;
mod resets;
mod shown;
mod stores;
mod values;

use libtest_mimic::{Arguments, Trial};

/// A claim: its name and the function that panics where it does not hold.
type Claim = (&'static str, fn());

fn every_claim() -> impl Iterator<Item = &'static Claim> {
    [
        attempts::ALL,
        counting::ALL,
        estimates::ALL,
        fragments::ALL,
        plans::ALL,
        resets::ALL,
        shown::ALL,
        stores::ALL,
        values::ALL,
    ]
    .into_iter()
    .flatten()
}

fn main() {
    let arguments = Arguments::from_args();
    let trials = every_claim().map(|(name, claim)| {
        Trial::test(*name, || {
            claim();
            Ok(())
        })
    });
    #[cfg(not(feature = "mutants"))]
    libtest_mimic::run(&arguments, trials.collect()).exit();
    #[cfg(feature = "mutants")]
    {
        let mut arguments = arguments;
        // The chosen mutant holds for the whole process.
        arguments.test_threads = Some(1);
        libtest_mimic::run(&arguments, trials.chain(mutants::trials()).collect()).exit();
    }
}

/// Lists a module's claims.
macro_rules! claims {
    ($($name:ident),* $(,)?) => {
        /// This file's claims.
        pub(crate) const ALL: &[crate::Claim] = &[$((stringify!($name), $name)),*];
    };
}
pub(crate) use claims;

#[cfg(feature = "mutants")]
mod mutants {
    //! A trial for each wrong decision: some claim must see it.

    use std::collections::BTreeSet;
    use std::panic::{catch_unwind, set_hook, take_hook};

    use headroom_base::mutants::{choose, clear, points};
    use libtest_mimic::Trial;

    use crate::every_claim;

    const GRADED: [&str; 3] = ["stack/calibration/", "stack/base/plan.rs", "stack/base/estimate.rs"];

    pub(crate) fn trials() -> Vec<Trial> {
        let graded = points().into_iter().filter(|point| GRADED.iter().any(|place| point.file.starts_with(place)));
        let names: BTreeSet<&'static str> = graded.map(|point| point.name).collect();
        let expected = names.len();
        assert_eq!(expected, 51, "a mutant was added or lost: {names:?}");
        names.into_iter().map(|name| Trial::test(format!("mutant::{name}"), move || grade(name))).collect()
    }

    fn grade(name: &str) -> Result<(), libtest_mimic::Failed> {
        assert!(choose(name));
        let hook = take_hook();
        set_hook(Box::new(|_| {}));
        let failed: Vec<&str> =
            every_claim().filter(|(_, claim)| catch_unwind(claim).is_err()).map(|(claim, _)| *claim).collect();
        set_hook(hook);
        clear();
        if failed.is_empty() { Err("no claim fails".into()) } else { Ok(()) }
    }
}
