//! Grading on an attached card: by the checks of some families there, and what those cannot see.

use std::sync::Arc;

use headroom_base::mutants::points;
use headroom_reports::{MutantGrade, MutantReport};

use super::{
    Grading, GradingError, OnGraded, as_things_are, decisions, grade_all, grading_checks_on, quietly, reasons,
};
use crate::gpu::OpenGpu;
use crate::world::World;

/// Decisions that checks on an attached card may pass and not see, by why. Without a card each of them is seen.
const NOT_SEEN_THERE: &[(&str, &[&str])] = &[
    (
        "the simulated card beside it allocates by the same wrong decision; recordings of other software show it",
        &[
            "allocator_collects_garbage_of_any_age",
            "allocator_freed_block_not_merged_with_the_one_before",
            "allocator_growable_size_ignored",
            "allocator_keeps_free_segments_when_emptied",
            "allocator_keeps_the_last_whole_page",
            "allocator_limit_not_checked",
            "allocator_segments_not_rounded",
            "allocator_small_request_takes_an_oversize_block",
            "allocator_splits_large_blocks_for_any_remainder",
            "allocator_takes_more_than_the_best_fit",
            "idle_segments_not_given_back",
        ],
    ),
    (
        "only a card that holds exactly what a script says shows it",
        &[
            "cap_taken_for_physical_memory",
            "credit_left_out",
            "failed_load_leaves_bytes_behind",
            "floor_ignored",
            "impossible_request_pursued",
            "inactive_splits_credited",
            "plan_below_the_floor",
        ],
    ),
    (
        "the driver lends whole pages of 2 MiB, and says exactly how many",
        &[
            "driver_growth_left_out_of_the_demand",
            "reserved_growth_left_out_of_the_demand",
            "small_shortfall_not_tolerated",
        ],
    ),
    ("an attached card neither spills nor keeps what was freed", &["plan_without_retained_bytes", "spill_ignored"]),
    ("nobody counts what an attached card's driver is asked", &["idle_scope_does_work"]),
    (
        "it is about simulated cards",
        &["simulated_card_ignores_other_processes", "simulated_card_keeps_pages_of_a_failed_map"],
    ),
    (
        "what fills an attached card is this process's own: a lock knows that it could never be had, and moves nobody",
        &["plan_without_floor_for_others"],
    ),
    ("it is about how a family's own limit is held", &["over_reservation_not_limited"]),
    ("another card of the process would have to be there", &["wrong_device_read"]),
];

/// What checks on an attached card say of wrong decisions.
#[derive(Clone, Debug)]
pub struct GradedThere {
    /// The grades, without those that nobody there can see.
    pub report: MutantReport,
    /// Decisions that were passed and not seen there, each with why.
    pub not_seen: Vec<String>,
}

impl Grading {
    /// Runs the checks of these families, by position, on an attached card as things are. Only the decisions that they
    /// pass are graded.
    ///
    /// # Errors
    /// All of [`GradingError`] but [`GradingError::TimedOut`], [`GradingError::UnknownName`] and
    /// [`GradingError::Unreached`].
    pub fn prepare_on(world: &Arc<World>, families: &[usize], card: &Arc<OpenGpu>) -> Result<Self, GradingError> {
        let mut decisions = decisions(points(), reasons::REASONS)?;
        let not_seen = NOT_SEEN_THERE.iter().flat_map(|(_, names)| *names).copied();
        let unused: Vec<&'static str> = not_seen.filter(|name| !decisions.contains_key(name)).collect();
        if !unused.is_empty() {
            return Err(GradingError::Unused { names: unused });
        }
        let (checks, mut passed_by) = as_things_are(world, grading_checks_on(world, families, card))?;
        decisions.retain(|name, _| passed_by.contains_key(name));
        let with_checks = |(name, point)| (name, (point, passed_by.remove(name).unwrap_or_default()));
        let decisions = decisions.into_iter().map(with_checks).collect();
        Ok(Self { world: Arc::clone(world), checks, decisions })
    }
}

/// Whether checks on an attached card may pass a decision and not see it.
pub(super) fn is_not_seen_there(name: &str) -> bool {
    why_not_seen(name).is_some()
}

fn why_not_seen(name: &str) -> Option<&'static str> {
    NOT_SEEN_THERE.iter().find(|(_, names)| names.contains(&name)).map(|(why, _)| *why)
}

/// Grades the wrong decisions that the checks of these families, by position, pass on an attached card, or those of
/// these names. A check that executes operations is left out where a quicker one has seen the decision, and where it
/// cannot be seen there.
///
/// # Errors
/// As [`GradingError`] says. A survivor is a result, not an error.
pub fn grade_on(
    world: &Arc<World>,
    (families, card): (&[usize], &Arc<OpenGpu>),
    only: &[String],
    on_graded: OnGraded<'_>,
) -> Result<GradedThere, GradingError> {
    let report = quietly(|| grade_all(&Grading::prepare_on(world, families, card)?, only, on_graded))?;
    Ok(graded_there(report.grades))
}

/// Grades from an attached card: those that cannot be seen there apart.
pub fn graded_there(grades: Vec<MutantGrade>) -> GradedThere {
    let (mut seen, mut not_seen) = (Vec::with_capacity(grades.len()), Vec::new());
    for grade in grades {
        match why_not_seen(&grade.name) {
            Some(why) if grade.killed_by.is_empty() => not_seen.push(format!("{}: {why}", grade.name)),
            _ => seen.push(grade),
        }
    }
    GradedThere { report: MutantReport { grades: seen }, not_seen }
}

#[cfg(test)]
mod tests {
    use std::sync::PoisonError;
    use std::time::Duration;

    use super::*;
    use crate::gpu::{Gpus, posing::Posing};
    use crate::mutants::CHOOSING;

    fn graded(card: &Arc<Posing>, name: &str, decisions: &[String]) -> GradedThere {
        let _choosing = CHOOSING.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let gpus = Gpus::of(vec![card.listed("GPU-mutants")]);
        let world = Arc::new(World::with_gpus(None, gpus).unwrap());
        let family = world.catalogue.families().iter().position(|family| family.name == name).unwrap();
        let turn = world.gpus.cards()[0].turn("a test", folder.path(), Duration::ZERO).unwrap();
        grade_on(&world, (&[family], turn.open().unwrap()), decisions, &mut |_, _| {}).unwrap()
    }

    fn grades_on_a_card_that_poses(name: &str) {
        let there = graded(&Posing::with_gib(24), name, &[]);
        let survivors: Vec<_> = there.report.survivors().map(|grade| grade.name.as_str()).collect();
        assert!(survivors.is_empty(), "{survivors:?}");
        assert!(there.report.grades.len() > 70, "{} graded", there.report.grades.len());
    }

    #[test]
    fn checks_on_a_card_that_poses_hold_as_things_are_and_see_every_decision_that_can_be_seen_there() {
        grades_on_a_card_that_poses("taesd");
    }

    /// A card that lacks a little for its largest size must lack it wherever what is free ends between two pages.
    #[test]
    fn a_plan_of_what_has_no_room_is_seen_whatever_part_of_a_page_is_free() {
        let names = ["plan_with_partly_resident_sizes", "plan_without_the_measuring_allowance"].map(str::to_owned);
        for part in 0..4 {
            // An H200's memory ends 0.1 MiB before a page's end, too.
            let (total_bytes, context_bytes) = ((24 << 30) - (100 << 10), (516 << 20) + part * (512 << 10));
            let there = graded(&Posing::of_bytes(total_bytes, context_bytes), "taesd", &names);
            let survivors: Vec<_> = there.report.survivors().map(|grade| grade.name.as_str()).collect();
            assert!(survivors.is_empty(), "{survivors:?} with a context of {context_bytes}");
        }
    }

    #[test]
    fn a_decision_that_no_check_comes_by_there_is_told_apart_from_a_name_that_nothing_has() {
        let _choosing = CHOOSING.lock().unwrap_or_else(PoisonError::into_inner);
        let world = Arc::new(World::load(None).unwrap());
        let name = points()[0].name.to_owned();
        let none_here = Grading { world, checks: Vec::new(), decisions: std::collections::BTreeMap::new() };
        let graded = |name: &str| grade_all(&none_here, &[name.to_owned()], &mut |_, _| {}).unwrap_err();
        assert_eq!(graded(&name), GradingError::NotReachedThere { name });
        assert_eq!(graded("no_such_name"), GradingError::UnknownName { name: "no_such_name".to_owned() });
    }

    #[test]
    fn a_family_of_large_pieces_sees_them_there_too() {
        grades_on_a_card_that_poses("text-encoders");
    }
}
