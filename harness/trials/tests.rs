//! What a trial makes of what its check saw under each allocator.

use super::*;

/// Sees something under the native allocator alone.
fn native_alone(subject: &Subject<'_>, _: Ground<'_>) -> Result<Evidence, CheckError> {
    Ok(Evidence { seen: usize::from(subject.allocator == AllocatorKind::Native), ..Evidence::default() })
}

#[test]
fn what_one_allocator_saw_does_not_hide_that_another_saw_nothing() {
    let world = World::load(None).unwrap();
    let family = world.catalogue.family("taesd").unwrap();
    let run = |check| on_every_allocator(family, (&family.devices[0]).into(), check, world.ground());
    let every = OfASubject::of_every_allocator("a check", native_alone);
    let (error, seen) = run(every).unwrap_err().split();
    assert!(error.to_string().contains("saw no window"), "{error}");
    assert_eq!(seen.seen, 1, "what was seen before is kept");
    let native = OfASubject { is_about: |allocator| allocator == AllocatorKind::Native, ..every };
    assert_eq!(run(native).unwrap().seen, 1);
}
