//! One run on two cards, side by side, and a second process that wanted one of them meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use headroom_reports::{Check, Outcome, Report};

use super::{kept, summary};

/// The trials of each card by its name, which the report gives by the beginning of its UUID.
fn by_card(report: &Report) -> BTreeMap<&str, Vec<&Check>> {
    let mut cards: BTreeMap<&str, Vec<&Check>> = BTreeMap::new();
    for trial in &report.trials {
        cards.entry(&trial.device).or_default().push(trial);
    }
    cards
}

/// What the second process said: its last line but the report's place counts its trials, and each of them names who held
/// the card.
fn second_process() -> String {
    kept::text(kept::SECOND_PROCESS)
}

fn counts(text: &str) -> &str {
    text.lines()
        .find(|line| !line.starts_with("# ") && line.contains(" trials: "))
        .expect("a line that counts the trials")
}

/// How the run on both ended, in one sentence.
pub(crate) fn sentence() -> String {
    let report = kept::report(kept::TWO_CARDS);
    let (passed, trials) = (report.count(Outcome::Passed), report.trials.len());
    let cards = by_card(&report).len();
    format!(
        "One run on {cards} cards at once: {passed} of {trials} trials passed; a second process was kept off a card meanwhile.\n\n"
    )
}

pub(crate) fn block() -> String {
    let report = kept::report(kept::TWO_CARDS);
    let from = &report.provenance[0];
    let commit = from.commit.as_deref().unwrap_or("unknown");
    let mut text = format!("`headroom {}` (`{commit}`):\n\n", from.arguments.join(" "));
    let size = |said: &str| summary::bytes_of(said).expect("a size");
    text.push_str("| card | trials | passed | windows | seconds | the driver's figure, most | residue, most |\n");
    text.push_str("|---|---:|---:|---:|---:|---:|---:|\n");
    for (card, trials) in by_card(&report) {
        let passed = trials.iter().filter(|trial| trial.outcome == Outcome::Passed).count();
        let of_card = |trial: &Option<String>| trial.as_deref().is_some_and(|trial| trial.contains(card));
        let windows = report.windows.iter().filter(|record| of_card(&record.trial)).count();
        let seconds: f64 = trials.iter().map(|trial| trial.seconds).sum();
        let looks: Vec<_> =
            trials.iter().filter(|trial| trial.check == "reconcile").flat_map(|trial| &trial.notes).collect();
        let figures = looks.iter().filter_map(|note| Some(note.split_once(": ")?.1.split_once(" of this process")?.0));
        let most = figures.max_by_key(|figure| size(figure)).unwrap_or("none");
        let residues = looks.iter().filter_map(|note| Some(note.rsplit_once("residue ")?.1));
        let residue = residues.max_by_key(|residue| size(residue)).unwrap_or("none");
        let _ =
            writeln!(text, "| {card} | {} | {passed} | {windows} | {seconds:.0} | {most} | {residue} |", trials.len());
    }
    text.push_str(&together(&report));
    let second = second_process();
    let counted = counts(&second);
    let header = kept::header_block(kept::SECOND_PROCESS);
    let _ = writeln!(
        text,
        "\n{header}Of a second process that wanted one of them meanwhile: {counted}. It said, for one:\n"
    );
    let held = second.lines().find(|line| line.contains(" is leased to ")).expect("who held the card");
    let _ = writeln!(text, "> {held}");
    text + &listed()
}

/// Which cards `headroom devices` listed, in three orders of theirs.
fn listings() -> Vec<Vec<String>> {
    let text = kept::text(kept::LISTED);
    let mut listings: Vec<Vec<String>> = Vec::new();
    let mut in_a_table = true;
    for line in text.lines() {
        let card = line.strip_prefix("NVIDIA H200 (").and_then(|rest| rest.split_once(')'));
        if let Some((card, _)) = card {
            if std::mem::take(&mut in_a_table) {
                listings.push(Vec::new());
            }
            listings.last_mut().expect("begun above").push(card.to_owned());
        } else if !line.starts_with("  ") {
            in_a_table = true;
        }
    }
    listings
}

fn listed() -> String {
    let said = listings().into_iter().map(|cards| cards.join(", ")).collect::<Vec<_>>().join("; then ");
    let header = kept::header_block(kept::LISTED);
    format!(
        "\n{header}`headroom devices`, as the driver orders them, in the other order, and with the second alone: {said}.\n"
    )
}

#[test]
fn both_cards_passed_every_trial_with_books_and_windows_of_their_own() {
    let report = kept::report(kept::TWO_CARDS);
    let hashes: BTreeSet<_> = report.devices.iter().filter_map(|device| device.uuid_hash.as_deref()).collect();
    assert_eq!((report.devices.len(), hashes.len()), (2, 2));
    let cards = by_card(&report);
    let names: Vec<&str> = cards.keys().copied().collect();
    let [first, second] = names[..] else { panic!("{names:?}") };
    let checks = |card: &str| cards[card].iter().map(|trial| (&*trial.family, &*trial.check)).collect::<BTreeSet<_>>();
    assert_eq!(checks(first), checks(second), "the same trials on each");
    for (card, other) in [(first, second), (second, first)] {
        for trial in &cards[card] {
            assert_eq!(trial.outcome, Outcome::Passed, "{}: {:?}", trial.name(), trial.message);
            for note in &trial.notes {
                assert!(!note.contains(other), "{} speaks of the other card: {note}", trial.name());
            }
            if trial.check == "reconcile" {
                // Cards that hold the same at the same moment show nothing by this; the driver's own trial below does.
                assert!(
                    trial.notes.iter().all(|note| note.ends_with("residue 0 KiB")),
                    "{}: {:?}",
                    trial.name(),
                    trial.notes
                );
            }
        }
        let of_card = |text: &str| text.contains(card) && !text.contains(other);
        let windows = report.windows.iter().filter(|record| record.trial.as_deref().is_some_and(of_card));
        let attempts: Vec<String> =
            windows.filter_map(|record| Some(record.window.attempt_id.as_ref()?.to_string())).collect();
        assert!(attempts.len() > 100 && attempts.iter().all(|attempt| of_card(attempt)), "{card}");
    }
    let of_nobody = report.windows.iter().filter(|record| record.trial.is_none()).count();
    assert_eq!(of_nobody, 0);
}

/// Seconds of each card's attempts: the first's begin and the last's end.
fn spans(report: &Report) -> BTreeMap<&str, (u64, u64)> {
    let mut spans: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (card, begun, ended) in timed(report) {
        let span = spans.entry(card).or_insert((begun, ended));
        *span = (span.0.min(begun), span.1.max(ended));
    }
    spans
}

/// Attempts by the hash of their card, with the seconds in which they began and ended.
fn timed(report: &Report) -> Vec<(&str, u64, u64)> {
    let attempts = report.attempts.iter().filter_map(|record| {
        let attempt = &record.attempt;
        Some((record.device_uuid_hash.as_deref()?, attempt.started_unix_seconds?, attempt.ended_unix_seconds?))
    });
    attempts.collect()
}

/// For how long attempts of both cards were under way, in one sentence.
fn together(report: &Report) -> String {
    let spans = spans(report);
    let begun = spans.values().map(|(begun, _)| *begun).max().unwrap_or(0);
    let ended = spans.values().map(|(_, ended)| *ended).min().unwrap_or(0);
    let longest = spans.values().map(|(begun, ended)| ended - begun).max().unwrap_or(0);
    format!(
        "\nFrom its first attempt to its last a card took up to {longest} s; for {} s both were under way.\n",
        ended.saturating_sub(begun)
    )
}

#[test]
fn the_two_cards_worked_side_by_side() {
    let report = kept::report(kept::TWO_CARDS);
    let timed = timed(&report);
    assert_eq!(timed.len(), report.attempts.len(), "every attempt has its card and its times");
    let spans: Vec<_> = spans(&report).into_values().collect();
    let [(begun, ended), (other_begun, other_ended)] = spans[..] else { panic!("{spans:?}") };
    assert!(begun < other_ended && other_begun < ended, "one after the other: {spans:?}");
    // Times are whole seconds: only attempts that begin in one and end in a later one can be told to overlap.
    let overlap =
        |one: &(&str, u64, u64), other: &(&str, u64, u64)| one.0 != other.0 && one.1 < other.2 && other.1 < one.2;
    assert!(timed.iter().any(|one| timed.iter().any(|other| overlap(one, other))), "no two attempts overlap");
}

#[test]
fn a_second_process_ran_nothing_on_a_card_that_was_leased_and_named_the_holder() {
    let text = second_process();
    let report = kept::report(kept::TWO_CARDS);
    let busy: BTreeSet<&str> =
        text.lines().filter_map(|line| Some(line.strip_prefix("busy ")?.split_once(": ")?.0)).collect();
    let on_its_card = |first: &str| first.rsplit_once("::").map(|(place, _)| place.to_owned());
    let place = busy.first().and_then(|first| on_its_card(first)).expect("a trial that was busy");
    let of_place = report.trials.iter().map(Check::name).filter(|name| on_its_card(name).as_ref() == Some(&place));
    let all: BTreeSet<String> = of_place.collect();
    assert_eq!(busy, all.iter().map(String::as_str).collect(), "each of a family's checks on the card, and no other");
    let counted = format!(" 0 passed, 0 ignored, {} busy, 0 failed", all.len());
    assert!(counts(&text).contains(&counted), "{}", counts(&text));
    let holders: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once(" is leased to ")?.1)).collect();
    assert_eq!(holders.len(), all.len());
    for holder in holders {
        let trial = holder.split('`').nth(1).expect("the holder's trial");
        assert!(report.trials.iter().any(|check| check.name() == trial), "{trial} is none of the run's");
    }
}

#[test]
fn each_of_two_cards_is_known_by_its_uuid_whatever_its_number() {
    let listings = listings();
    let [usual, swapped, second] = &listings[..] else { panic!("{listings:?}") };
    let [one, other] = &usual[..] else { panic!("{usual:?}") };
    assert!(one != other && *swapped == [other.clone(), one.clone()] && *second == [other.clone()], "{listings:?}");
}

#[test]
fn a_name_of_a_card_is_taken_off_a_note_and_nothing_else() {
    for (note, rest) in
        [("gpu native", "native"), ("gpu-1a2b3c4d native", "native"), ("gpus of a kind", "gpus of a kind"), ("", "")]
    {
        assert_eq!(summary::without_card(note), rest);
    }
}
