//! `cargo test --test family_e2e` on a GPU: which families ran which checks there, and that all passed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use headroom::catalogue::Catalogue;

use super::kept;
use super::libtest::Printed;

/// What the runs printed.
fn printed() -> Printed {
    Printed::of(&kept::text(kept::FAMILY_E2E))
}

/// The checks that ran on a card, by family and card.
fn on_cards(printed: &Printed) -> BTreeMap<(&str, &str), BTreeSet<&str>> {
    let mut checks = printed.checks();
    checks.retain(|(_, device), _| *device == "gpu" || device.starts_with("gpu-"));
    checks
}

/// How they ended, in one sentence.
pub(crate) fn sentence() -> String {
    let printed = printed();
    let closing = printed.closing.unwrap_or_default();
    let checks = on_cards(&printed);
    let families: BTreeSet<&str> = checks.keys().map(|(family, _)| *family).collect();
    format!(
        "`cargo test --test family_e2e` with `HEADROOM_REQUIRE_GPU=1` ran {} trials of {} on a card: {} passed, {} failed, {} \
         ignored.\n\n",
        checks.values().map(BTreeSet::len).sum::<usize>(),
        families.into_iter().collect::<Vec<_>>().join(", "),
        closing.passed,
        closing.failed,
        closing.ignored
    )
}

/// The same, with the checks.
pub(crate) fn block() -> String {
    let printed = printed();
    let mut text =
        format!("## The families' trials as `cargo test`\n\n{}{}", kept::header_block(kept::FAMILY_E2E), sentence());
    text.push_str("| family | card | checks |\n|---|---|---|\n");
    for ((family, card), checks) in on_cards(&printed) {
        let checks = checks.into_iter().collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "| {family} | {card} | {checks} |");
    }
    text + "\n"
}

#[test]
fn the_families_that_ran_as_cargo_test_on_a_gpu_passed_each_of_their_checks() {
    let printed = printed();
    printed.assert_all_passed(kept::FAMILY_E2E);
    assert!(!kept::header(kept::FAMILY_E2E).is_empty(), "of which commit and card");
    let catalogue = Catalogue::load(None).unwrap();
    let checks = on_cards(&printed);
    assert!(!checks.is_empty(), "nothing ran on a card");
    for ((family, card), checks) in checks {
        assert_eq!(checks, kept::checks_on_a_card(&catalogue, family), "{family} on {card}");
    }
}
