//! What the reports claim, one trial a claim; with the feature `mutants`, also that each claim can fail.
//!
//! Under the feature, every named wrong decision of this crate gets a trial of its own: with that decision
//! wrong, at least one claim must fail.

mod held_out;
mod html;
mod import_public;
mod import_windows;
mod merging;
#[cfg(unix)]
mod output_targets;
mod recorded;
mod redaction;
mod report_files;
mod ship;
mod snapshots;

use libtest_mimic::{Arguments, Trial};

/// A claim: its name and the function that panics where it does not hold.
type Claim = (&'static str, fn());

fn every_claim() -> impl Iterator<Item = &'static Claim> {
    [
        held_out::ALL,
        html::ALL,
        import_public::ALL,
        import_windows::ALL,
        merging::ALL,
        #[cfg(unix)]
        output_targets::ALL,
        redaction::ALL,
        report_files::ALL,
        ship::ALL,
        snapshots::ALL,
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

    pub(crate) fn trials() -> Vec<Trial> {
        let names: BTreeSet<&'static str> =
            points().into_iter().filter(|point| point.file.starts_with("reports/")).map(|point| point.name).collect();
        assert_eq!(names.len(), 17, "a mutant was added or lost: {names:?}");
        names.into_iter().map(|name| Trial::test(format!("mutant::{name}"), move || grade(name))).collect()
    }

    fn grade(name: &str) -> Result<(), libtest_mimic::Failed> {
        assert!(choose(name));
        let hook = take_hook();
        set_hook(Box::new(|_| {}));
        let seen = every_claim().find(|(_, claim)| catch_unwind(claim).is_err());
        set_hook(hook);
        clear();
        seen.map(|_| ()).ok_or_else(|| format!("no claim sees {name}").into())
    }
}
