//! The driver's own trials on two cards: what those said that need both.

use std::collections::BTreeSet;

use headroom_base::GIB;

use super::kept;
use super::libtest::Printed;
use super::summary::bytes_of;

/// A gibibyte is held on the first card, and each process's figure is asked of both.
const EACH_ANSWERS: &str = "gpus::each_device_answers_for_itself";
/// A cache on each card, of which the first has room for a part of the models.
const OWN_BUDGETS: &str = "gpus::a_cache_on_each_keeps_to_its_own_devices_budget";

fn printed() -> Printed {
    Printed::of(&kept::text(kept::DRIVER_TRIALS))
}

fn cards(printed: &Printed) -> BTreeSet<&str> {
    printed.checks().into_keys().filter(|(first, _)| *first == "gpu").map(|(_, card)| card).collect()
}

/// What they printed.
pub(crate) fn block() -> String {
    let printed = printed();
    let closing = printed.closing.unwrap_or_default();
    let each = printed.trial(EACH_ANSWERS).expect("the trial of both").said.join("; ");
    let mut text = format!(
        "{}`cuda_gpu` on {} cards: {} passed, {} failed, {} ignored.\n\nEach device answers for itself: {each}, a gibibyte being \
         held on the first.\n",
        kept::header_block(kept::DRIVER_TRIALS),
        cards(&printed).len(),
        closing.passed,
        closing.failed,
        closing.ignored
    );
    if let Some(budgets) = printed.trial(OWN_BUDGETS) {
        text.push_str(&format!("\nA cache on each keeps to its own device's budget: {}.\n", budgets.said.join("; ")));
    }
    text
}

/// What one cache came to.
#[derive(Debug, PartialEq)]
struct Cached {
    resident_bytes: u64,
    all_bytes: u64,
    moved_bytes: u64,
    taken_bytes: u64,
}

impl Cached {
    /// From `the first: R of A resident after M were moved off, T taken`.
    fn of(said: &str, which: &str) -> Option<Self> {
        let (resident, rest) = said.split_once(which)?.1.split_once(" of ")?;
        let (all, rest) = rest.split_once(" resident after ")?;
        let (moved, rest) = rest.split_once(" were moved off, ")?;
        let (taken, _) = rest.split_once(" taken")?;
        Some(Self {
            resident_bytes: bytes_of(resident)?,
            all_bytes: bytes_of(all)?,
            moved_bytes: bytes_of(moved)?,
            taken_bytes: bytes_of(taken)?,
        })
    }
}

#[test]
fn every_trial_of_the_driver_passed_on_each_of_two_cards() {
    let printed = printed();
    printed.assert_all_passed("the driver's trials");
    let checks = printed.checks();
    let names: Vec<&str> = cards(&printed).into_iter().collect();
    let [first, second] = names[..] else { panic!("{names:?}") };
    assert_eq!(checks[&("gpu", first)], checks[&("gpu", second)], "the same trials on each");
    assert!(checks[&("gpu", first)].len() > 10, "{checks:?}");
}

#[test]
fn a_gibibyte_that_is_held_on_one_card_is_seen_there_and_not_on_the_other() {
    let printed = printed();
    let said = printed.trial(EACH_ANSWERS).unwrap().said.join("; ");
    let figures = said.split_once("own process: ").unwrap().1.split_once(" on the first, ").unwrap();
    let (first, second) = (bytes_of(figures.0), bytes_of(figures.1.split_once(" on the second").unwrap().0));
    assert_eq!(first.unwrap() - second.unwrap(), GIB, "{said}");
}

#[test]
fn each_cache_keeps_to_the_budget_of_its_own_card() {
    let printed = printed();
    // To be deleted when the file that is kept has the trial: `let budgets = printed.trial(OWN_BUDGETS).unwrap();`.
    let Some(budgets) = printed.trial(OWN_BUDGETS) else { return };
    let said = budgets.said.join("; ");
    let [first, second] = ["the first: ", "the second: "].map(|which| Cached::of(&said, which).expect(&said));
    for cache in [&first, &second] {
        assert_eq!(cache.resident_bytes + cache.moved_bytes, cache.all_bytes, "{said}");
        assert_eq!(cache.taken_bytes, cache.resident_bytes, "{said}");
    }
    assert_eq!(first.all_bytes, second.all_bytes, "the same models on each: {said}");
    assert!(first.moved_bytes > 0 && second.moved_bytes == 0, "only the first had too little room: {said}");
}

#[test]
fn what_a_cache_came_to_is_read() {
    let said = "the first: 1,280 MiB of 2,048 MiB resident after 768 MiB were moved off, 1,280 MiB taken; the second: 2,048 \
                MiB of 2,048 MiB resident after 0 MiB were moved off, 2,048 MiB taken";
    let mib = |mib: u64| mib << 20;
    let first =
        Cached { resident_bytes: mib(1280), all_bytes: mib(2048), moved_bytes: mib(768), taken_bytes: mib(1280) };
    assert_eq!(Cached::of(said, "the first: "), Some(first));
    assert_eq!(Cached::of(said, "the second: ").unwrap().moved_bytes, 0);
    assert_eq!(Cached::of("the first: nothing", "the first: "), None);
}
