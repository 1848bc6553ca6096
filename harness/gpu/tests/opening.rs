//! Cards that cannot be opened: for now, or for good.

use super::*;

#[test]
fn a_card_that_is_full_or_held_exclusively_when_it_is_opened_is_busy_until_it_is_not() {
    let folder = tempfile::tempdir().unwrap();
    for code in [2, 46] {
        let card = Posing::with_gib(24);
        let world = world(&[(&card, "GPU-full")]);
        let gpu = &world.gpus.cards()[0];
        let fails = |count| *card.openings_fail.lock().unwrap() = Some((code, count));
        fails(u64::MAX);
        for _ in 0..2 {
            let busy = gpu.turn_with("a trial", folder.path(), NO_PATIENCE, NO_PATIENCE).unwrap_err();
            assert!(matches!(&busy, NoTurn::Busy(text) if text.contains(&format!("code {code}"))), "{busy}");
            assert_eq!(gpu.given_up_because(), None);
        }
        // What holds it goes while a trial waits.
        fails(2);
        assert_eq!(ended(&world, "taesd", "plan").check.outcome, Outcome::Passed);
    }
}

#[test]
fn a_card_too_full_to_see_what_its_driver_keeps_is_busy_and_seen_once_it_has_room() {
    let (card, folder) = (Posing::with_gib(24), tempfile::tempdir().unwrap());
    let world = world(&[(&card, "GPU-crowded")]);
    let gpu = &world.gpus.cards()[0];
    card.card().set_others_bytes(24 * GIB - (700 << 20));
    let busy = gpu.turn_with("a trial", folder.path(), NO_PATIENCE, NO_PATIENCE).unwrap_err();
    assert!(matches!(&busy, NoTurn::Busy(text) if text.contains("out of memory")), "{busy}");
    card.card().set_others_bytes(0);
    let turn = gpu.turn("a trial", folder.path(), NO_PATIENCE).unwrap();
    assert_eq!(turn.open().unwrap().retained(), headroom_base::Reading::Bytes(0));
}

#[test]
fn a_card_whose_opening_fails_for_another_reason_is_given_up() {
    let (card, folder) = (Posing::with_gib(24), tempfile::tempdir().unwrap());
    let world = world(&[(&card, "GPU-mismatch")]);
    let gpu = &world.gpus.cards()[0];
    *card.openings_fail.lock().unwrap() = Some((803, 1));
    for _ in 0..2 {
        let refused = gpu.turn("a trial", folder.path(), NO_PATIENCE).unwrap_err();
        assert!(matches!(&refused, NoTurn::Unusable(text) if text.contains("code 803")), "{refused}");
    }
}
