//! The driver's own trials on two cards: what those said that need both.

use std::collections::BTreeSet;

use headroom_base::GIB;

use super::kept;
use super::libtest::Printed;
use super::summary::bytes_of;

/// A gibibyte is held on the first card, and each process's figure is asked of both.
const EACH_ANSWERS: &str = "gpus::each_device_answers_for_itself";

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
    let later = Printed::of(&kept::text(kept::DRIVER_TRIALS_ON_ONE)).closing.unwrap_or_default();
    text.push_str(&format!(
        "\n{}On one card: {} passed, {} failed, {} ignored.\n",
        kept::header_block(kept::DRIVER_TRIALS_ON_ONE),
        later.passed,
        later.failed,
        later.ignored
    ));
    text
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
fn the_same_trials_passed_later_on_one_card() {
    let (both, later) = (printed(), Printed::of(&kept::text(kept::DRIVER_TRIALS_ON_ONE)));
    later.assert_all_passed(kept::DRIVER_TRIALS_ON_ONE);
    let names = cards(&later);
    assert_eq!(names.len(), 1, "{names:?}");
    let of = |printed: &Printed, card: &str| format!("{:?}", printed.checks()[&("gpu", card)]);
    let [card, first] = [names.first(), cards(&both).first()].map(|card| (*card.unwrap()).to_owned());
    assert_eq!(of(&later, &card), of(&both, &first));
}
