//! Runs checks under every named wrong decision: each must be seen, as the break of a claim that it is about.
//!
//! The wrong decisions stand in the code beside the right ones and are collected from it at link time. Which checks a
//! wrong decision can change is recorded, not listed: every check runs once as things are, and the decisions that it
//! passes are noted. A wrong decision is killed by a check that passes it and finds broken one of the claims that
//! [`reasons`] names for it. A panic, another failure, or a check that does not end kills nothing.
//!
//! Grading itself fails when a check does not hold as things are, when no check passes a decision, when two decisions
//! share a name, when a name stands in the code and not in the list of reasons or the other way round, and when there
//! is nothing to grade.
//!
//! Not here, since there is nothing yet that decides it: who may start a calibration and where (an inactive owner,
//! two generation devices, a run that is gone, a reserved origin, an idempotency key, an item that stays running, a
//! status that allocates).

mod attached;
mod checks;
mod reasons;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{set_hook, take_hook};
use std::sync::Arc;
use std::time::Instant;

use headroom_base::mutants::{Point, choose, clear, points, reached};
use headroom_reports::{MutantGrade, MutantReport};

use crate::checks::Claim;
use crate::world::World;
pub use attached::{GradedThere, grade_on, graded_there};
pub use checks::{Ended, GradingCheck, grading_checks, grading_checks_on};

/// The chosen decision is the process's: no two tests may choose at once, nor may another test run meanwhile.
#[cfg(test)]
pub(crate) static CHOOSING: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Why nothing could be graded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GradingError {
    /// There is no wrong decision in this program.
    #[error("there is nothing to grade: no wrong decision is compiled in")]
    Nothing,
    /// A name that no code has.
    #[error("no wrong decision is named `{name}`")]
    UnknownName {
        /// The name.
        name: String,
    },
    /// A decision that these checks do not come by.
    #[error(
        "`{name}` is a wrong decision, but no check of these families comes by it there: choose another --family, or leave --device out"
    )]
    NotReachedThere {
        /// Its name.
        name: String,
    },
    /// Two decisions have one name.
    #[error("`{name}` names two decisions, at {first} and {second}: give one of them a name of its own")]
    TwoDecisions {
        /// The name.
        name: &'static str,
        /// Where the first stands.
        first: String,
        /// Where the second stands.
        second: String,
    },
    /// A decision of which nobody says what it breaks.
    #[error("the list of reasons lacks {}: say which claim each of them breaks", names.join(", "))]
    NoReason {
        /// Their names.
        names: Vec<&'static str>,
    },
    /// A reason for a decision that is not in the code.
    #[error("the list of reasons has names that no code has: {}", names.join(", "))]
    Unused {
        /// Their names.
        names: Vec<&'static str>,
    },
    /// Checks fail although nothing is wrong.
    #[error("these checks do not hold as things are:\n{}", checks.join("\n"))]
    NotGreen {
        /// The checks, each with what it said.
        checks: Vec<String>,
    },
    /// Decisions that no check passes.
    #[error("no check passes {}", names.join(", "))]
    Unreached {
        /// Their names.
        names: Vec<&'static str>,
    },
    /// A check did not end. Since it may still be running, nothing after it can be believed.
    #[error("`{check}` did not end under `{name}`: nothing after it was graded")]
    TimedOut {
        /// The wrong decision.
        name: &'static str,
        /// The check.
        check: String,
    },
}

/// What is needed to grade: every wrong decision, and the checks that pass it.
#[derive(Debug)]
pub struct Grading {
    world: Arc<World>,
    checks: Vec<GradingCheck>,
    /// By name, each with the checks, by position, that pass it.
    decisions: BTreeMap<&'static str, (&'static Point, Vec<usize>)>,
}

impl Grading {
    /// Runs every check as things are, and notes which decisions each of them passes.
    ///
    /// The chosen decision is the process's, so nothing else may run in it meanwhile.
    ///
    /// # Errors
    /// All of [`GradingError`] but [`GradingError::TimedOut`] and [`GradingError::UnknownName`].
    pub fn prepare(world: &Arc<World>) -> Result<Self, GradingError> {
        let decisions = decisions(points(), reasons::REASONS)?;
        let (checks, mut passed_by) = as_things_are(world, grading_checks(world))?;
        let unreached: Vec<&'static str> =
            decisions.keys().filter(|name| !passed_by.contains_key(*name)).copied().collect();
        if !unreached.is_empty() {
            return Err(GradingError::Unreached { names: unreached });
        }
        let with_checks = |(name, point)| (name, (point, passed_by.remove(name).unwrap_or_default()));
        let decisions = decisions.into_iter().map(with_checks).collect();
        Ok(Self { world: Arc::clone(world), checks, decisions })
    }

    /// The names of all wrong decisions, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.decisions.keys().copied()
    }

    /// Runs the checks that pass a decision with its wrong side chosen.
    ///
    /// # Errors
    /// For a name that no decision has, and for a check that does not end. A survivor is a result, not an error.
    pub fn grade(&self, name: &str) -> Result<MutantGrade, GradingError> {
        let unknown = || GradingError::UnknownName { name: name.to_owned() };
        let (point, passing) = self.decisions.get(name).ok_or_else(unknown)?;
        let started = Instant::now();
        choose(point.name);
        let claims = reasons::claims_of(point.name);
        // A check that executes operations takes long on a card. It is left out where it has nothing to add.
        let mut seen = attached::is_not_seen_there(point.name);
        let endings = passing.iter().filter_map(|index| {
            let check = &self.checks[*index];
            if seen && check.executes {
                return None;
            }
            let ended = check.run(&self.world);
            seen |= matches!(&ended, Ended::Broken(claim, _) if claims.contains(claim));
            Some((check.name.as_str(), ended))
        });
        let grade = judge(point, &claims, endings);
        clear();
        let milliseconds = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(MutantGrade { milliseconds, ..grade? })
    }
}

/// Told about each wrong decision as it is graded, with how many there are.
pub type OnGraded<'a> = &'a mut dyn FnMut(&MutantGrade, usize);

/// Grades every wrong decision, or those of these names.
///
/// # Errors
/// As [`GradingError`] says. A survivor is a result, not an error.
pub fn grade(world: &Arc<World>, only: &[String], on_graded: OnGraded<'_>) -> Result<MutantReport, GradingError> {
    quietly(|| grade_all(&Grading::prepare(world)?, only, on_graded))
}

/// Whether each of these is the name of a wrong decision, which can be told before anything is graded.
///
/// # Errors
/// For the first that is none.
pub fn are_names(names: &[String]) -> Result<(), GradingError> {
    let known = points();
    match names.iter().find(|name| !known.iter().any(|point| point.name == name.as_str())) {
        Some(name) => Err(GradingError::UnknownName { name: name.clone() }),
        None => Ok(()),
    }
}

fn quietly<T>(grade: impl FnOnce() -> T) -> T {
    // What panics under a wrong decision has nothing to say to whoever reads the matrix.
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let outcome = grade();
    set_hook(hook);
    outcome
}

fn grade_all(grading: &Grading, only: &[String], on_graded: OnGraded<'_>) -> Result<MutantReport, GradingError> {
    are_names(only)?;
    if let Some(name) = only.iter().find(|name| !grading.decisions.contains_key(name.as_str())) {
        return Err(GradingError::NotReachedThere { name: name.clone() });
    }
    let wanted = |name: &&str| only.is_empty() || only.iter().any(|wanted| wanted == name);
    let names: Vec<&str> = grading.names().filter(wanted).collect();
    let mut grades = Vec::with_capacity(names.len());
    for name in &names {
        let grade = grading.grade(name)?;
        on_graded(&grade, names.len());
        grades.push(grade);
    }
    Ok(MutantReport { grades })
}

/// Every wrong decision by name, each with a claim to break.
fn decisions(
    points: Vec<&'static Point>,
    reasons: &[(Claim, &[&'static str])],
) -> Result<BTreeMap<&'static str, &'static Point>, GradingError> {
    let mut decisions: BTreeMap<&'static str, &'static Point> = BTreeMap::new();
    for point in points {
        let known = *decisions.entry(point.name).or_insert(point);
        if known.harm != point.harm {
            let (first, second) = (place(known), place(point));
            return Err(GradingError::TwoDecisions { name: point.name, first, second });
        }
    }
    if decisions.is_empty() {
        return Err(GradingError::Nothing);
    }
    let reasoned: BTreeSet<&'static str> = reasons.iter().flat_map(|(_, names)| *names).copied().collect();
    let lacking: Vec<_> = decisions.keys().filter(|name| !reasoned.contains(*name)).copied().collect();
    if !lacking.is_empty() {
        return Err(GradingError::NoReason { names: lacking });
    }
    let unused: Vec<_> = reasoned.into_iter().filter(|name| !decisions.contains_key(name)).collect();
    if unused.is_empty() { Ok(decisions) } else { Err(GradingError::Unused { names: unused }) }
}

fn place(point: &Point) -> String {
    format!("{}:{}", point.file, point.line)
}

/// Checks, and by decision which of them, by position, pass it.
type Passed = (Vec<GradingCheck>, BTreeMap<&'static str, Vec<usize>>);

/// Runs every check as things are: those that can be looked at here, and which of them pass each decision.
fn as_things_are(world: &Arc<World>, checks: Vec<GradingCheck>) -> Result<Passed, GradingError> {
    clear();
    let mut here = Vec::with_capacity(checks.len());
    let mut passed_by: BTreeMap<&'static str, Vec<usize>> = BTreeMap::new();
    let mut not_green = Vec::new();
    for check in checks {
        let (ended, passed) = reached(|| check.run(world));
        let name = &check.name;
        match ended {
            Ended::Green => {}
            Ended::NotHere => continue,
            Ended::Broken(claim, text) => not_green.push(format!("{name}: {claim}: {text}")),
            Ended::Otherwise(text) => not_green.push(format!("{name}: {text}")),
            Ended::TimedOut => not_green.push(format!("{name}: it did not end")),
        }
        for name in passed {
            passed_by.entry(name).or_default().push(here.len());
        }
        here.push(check);
    }
    if not_green.is_empty() { Ok((here, passed_by)) } else { Err(GradingError::NotGreen { checks: not_green }) }
}

/// Who saw a wrong decision: the checks that found one of its claims broken, and nobody else.
fn judge<'a>(
    point: &'static Point,
    claims: &[Claim],
    endings: impl Iterator<Item = (&'a str, Ended)>,
) -> Result<MutantGrade, GradingError> {
    let mut grade = MutantGrade {
        name: point.name.to_owned(),
        harm: point.harm.to_owned(),
        place: place(point),
        claims: claims.iter().map(Claim::to_string).collect(),
        ..MutantGrade::default()
    };
    for (check, ended) in endings {
        grade.reached_by.push(check.to_owned());
        match ended {
            Ended::Green => {}
            Ended::Broken(claim, _) if claims.contains(&claim) => grade.killed_by.push(check.to_owned()),
            Ended::Broken(claim, text) => grade.failed_otherwise.push(format!("{check}: {claim}: {text}")),
            Ended::NotHere => grade.failed_otherwise.push(format!("{check}: it cannot be looked at here any more")),
            Ended::Otherwise(text) => grade.failed_otherwise.push(format!("{check}: {text}")),
            Ended::TimedOut => return Err(GradingError::TimedOut { name: point.name, check: check.to_owned() }),
        }
    }
    Ok(grade)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINT: Point = Point { name: "a", harm: "the world ends", file: "a.rs", line: 1 };
    static A: Point = POINT;
    static A_ELSEWHERE: Point = Point { line: 9, ..POINT };
    static OTHER_A: Point = Point { harm: "nothing much", file: "b.rs", ..POINT };
    static B: Point = Point { name: "b", ..POINT };

    const REASONS: &[(Claim, &[&str])] = &[(Claim::DemandIsCovered, &["a", "b"])];

    #[test]
    fn names_in_the_code_and_in_the_list_of_reasons_are_the_same_and_name_one_decision_each() {
        let found = |points: &[&'static Point]| decisions(points.to_vec(), REASONS).map(|found| found.len());
        assert_eq!(found(&[&A, &B]), Ok(2));
        assert_eq!(found(&[&A, &A_ELSEWHERE, &B]), Ok(2), "one decision may stand at several places");
        assert!(matches!(found(&[&A, &OTHER_A, &B]), Err(GradingError::TwoDecisions { name: "a", .. })));
        assert_eq!(found(&[&A]), Err(GradingError::Unused { names: vec!["b"] }));
        assert_eq!(decisions(vec![&A, &B], &[]), Err(GradingError::NoReason { names: vec!["a", "b"] }));
        assert_eq!(found(&[]), Err(GradingError::Nothing));
    }

    #[test]
    fn only_a_check_that_finds_the_stated_claim_broken_has_seen_it() {
        let broken = |claim| Ended::Broken(claim, "text".to_owned());
        let endings = [
            ("green", Ended::Green),
            ("for its reason", broken(Claim::DemandIsCovered)),
            ("for another reason", broken(Claim::BooksAgree)),
            ("panicked", Ended::Otherwise("it panicked".to_owned())),
        ];
        let grade = judge(&A, &[Claim::DemandIsCovered], endings.into_iter()).unwrap();
        assert_eq!(grade.killed_by, ["for its reason"]);
        assert_eq!((grade.failed_otherwise.len(), grade.reached_by.len()), (2, 4));
        let survived = judge(&A, &[Claim::DemandIsCovered], [("green", Ended::Green)].into_iter()).unwrap();
        let report = MutantReport { grades: vec![grade, survived] };
        assert_eq!(report.verdict(), "2 graded, 1 killed, 1 survived");
    }

    #[test]
    fn a_check_that_does_not_end_kills_nothing_and_ends_the_grading() {
        let endings = [("endless", Ended::TimedOut)].into_iter();
        let error = judge(&A, &[Claim::DemandIsCovered], endings).unwrap_err();
        assert_eq!(error, GradingError::TimedOut { name: "a", check: "endless".to_owned() });
    }
}
