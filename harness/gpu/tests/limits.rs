//! Cards of which the driver tells less, or can do less, and cards that several processes take in turn.

use super::*;

#[test]
fn several_processes_that_wait_their_turn_keep_nobody_off_and_one_that_computes_among_them_does() {
    const IDLE: u64 = 600 << 20;
    let folder = tempfile::tempdir().unwrap();
    for (each, held, is_busy) in [
        (Some(vec![IDLE, IDLE, IDLE]), 3 * IDLE, false),
        (Some(vec![IDLE; 6]), 6 * IDLE, true),
        (Some(vec![IDLE, 2 * GIB]), IDLE + 2 * GIB, true),
        (Some(vec![IDLE, IDLE]), 2 * IDLE + 2 * GIB, true),
        (None, 2 * IDLE, true),
    ] {
        let card = Posing::with_gib(24);
        card.card().set_others_bytes(held);
        card.others.lock().unwrap().clone_from(&each);
        let world = world(&[(&card, "GPU-in-turn")]);
        let turn = world.gpus.cards()[0].turn_with("a trial", folder.path(), NO_PATIENCE, NO_PATIENCE);
        assert_eq!(matches!(turn, Err(NoTurn::Busy(_))), is_busy, "{each:?} of {held}: {turn:?}");
        assert_eq!(turn.is_ok(), !is_busy);
    }
}

#[test]
fn a_card_is_tried_under_no_allocator_that_its_driver_cannot_serve() {
    let card = Posing::with_gib(24);
    *card.allocators.lock().unwrap() = vec![AllocatorKind::Native];
    let world = world(&[(&card, "GPU-native")]);
    for check in ["pipeline", "same_counters", "out_of_memory"] {
        let Ended { check, evidence } = ended(&world, "taesd", check);
        assert_eq!(check.outcome, Outcome::Passed, "{:?}", check.message);
        let says = |words: &str| evidence.notes.iter().any(|note| note.contains(words));
        assert!(!says("expandable_segments") && !says("cuda_malloc_async"), "{:?}", evidence.notes);
        let hard = evidence.windows.iter().map(|window| window.window.environment.hard.allocator);
        assert!(hard.into_iter().all(|allocator| allocator == AllocatorKind::Native));
    }
}

#[test]
fn books_of_a_card_whose_context_nobody_could_measure_are_said_to_be_uncompared() {
    let card = Posing::with_gib(24);
    card.context_unknown.store(true, Ordering::SeqCst);
    let Ended { check, evidence } = ended(&world(&[(&card, "GPU-unmeasured")]), "taesd", "reconcile");
    assert_eq!(check.outcome, Outcome::Passed, "{:?}", check.message);
    let uncompared = |note: &&String| note.starts_with("nothing to see: ") && note.contains("when the card was opened");
    assert_eq!(evidence.notes.iter().filter(uncompared).count(), 2 * AllocatorKind::ALL.len(), "{:?}", evidence.notes);
    assert!(!evidence.notes.iter().any(|note| note.contains("residue")), "{:?}", evidence.notes);
}
