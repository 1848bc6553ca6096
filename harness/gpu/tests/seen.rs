//! What checks say where there is nothing for them to see, and of what they leave out.

use super::*;

#[test]
fn a_warm_server_does_not_say_of_the_pool_that_it_is_not_about_that_there_is_nothing_to_see() {
    let card = Posing::with_gib(24);
    let Ended { check, evidence } = ended(&world(&[(&card, "GPU-seen-warm")]), "taesd", "warm_server");
    assert_eq!(check.outcome, Outcome::Passed, "{:?}", check.message);
    assert!(evidence.seen > 0 && !evidence.notes.iter().any(|note| note.starts_with("nothing to see")));
    let pool = evidence.notes.iter().filter(|note| note.contains("cuda_malloc_async: not looked at"));
    assert_eq!(pool.count(), 1, "{:?}", evidence.notes);
}

#[test]
fn a_card_too_small_for_every_size_says_so_under_each_allocator() {
    let card = Posing::with_gib(3);
    let world = world(&[(&card, "GPU-seen-small")]);
    for (check, allocators) in [("pipeline", 3), ("calibration", 3), ("capacity", 3)] {
        let Ended { check, evidence } = ended(&world, "taesd", check);
        assert_eq!(check.outcome, Outcome::Passed, "{}: {:?}", check.name(), check.message);
        let notes = evidence.notes.iter().filter(|note| note.starts_with("nothing to see"));
        assert_eq!((notes.count(), evidence.windows.len()), (allocators, 0), "{:?}", evidence.notes);
    }
    let Ended { check, evidence } = ended(&world, "taesd", "computes");
    assert_eq!(check.outcome, Outcome::Passed, "{:?}", check.message);
    let left_out = evidence.notes.iter().filter(|note| note.contains("none was computed at its own size"));
    assert!(left_out.count() > 0, "{:?}", evidence.notes);
    assert!(!evidence.notes.iter().any(|note| note.contains("every result is a finite number")));
}

#[test]
fn the_least_capacity_says_how_many_of_its_familys_lines_it_tried() {
    let card = Posing::with_gib(24);
    let Ended { check, evidence } = ended(&world(&[(&card, "GPU-seen-lines")]), "taesd", "capacity");
    assert_eq!(check.outcome, Outcome::Passed, "{:?}", check.message);
    let said = evidence.notes.iter().filter(|note| note.contains("lines, whose largest case takes least"));
    assert_eq!(said.count(), AllocatorKind::ALL.len(), "{:?}", evidence.notes);
}

#[test]
fn a_calibrated_size_of_a_line_without_a_fit_of_its_own_is_held_to_its_reservation() {
    let folder = tempfile::tempdir().unwrap();
    // Two sizes that the card holds are too few for a fit.
    let (was, few) = ("[512x512, 768x768, 1024x1024]", "[512x512, 768x768, 16384x16384]");
    // It needs more than the program by which the line is priced says.
    let card = Posing::computing(24, SimulatedRunner::with_workspace_steps(WorkspaceSteps { seed: 11, percent: 400 }));
    let world = world_of_another_taesd(folder.path(), (was, few), card.listed("GPU-seen-few"));
    let Ended { check, evidence } = ended(&world, "taesd", "calibration");
    let text = check.message.unwrap_or_default();
    assert!(check.outcome == Outcome::Failed && text.contains("is under-reserved by"), "{text}; {:?}", evidence.notes);
}
