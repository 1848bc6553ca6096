//! The user's own fits of one device class in one environment, ready for lookup.

use std::collections::{BTreeMap, HashMap};

use headroom_base::{AttemptId, LineKey, SoftEnvironment, Window, mutant};
use rustc_hash::FxHashMap;

use crate::attempt::Attempt;
use crate::counting::{Context, count};
use crate::fit::{Fit, FitError, Point, fit};

/// A line's own fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserFit {
    /// The line.
    pub fit: Fit,
    /// Measured under another soft environment (driver) than the one of now: it is used, and marked. A newer
    /// attempt in the environment of now clears the mark, though older windows stay in the fit.
    pub may_be_outdated: bool,
}

/// Every line's own fit, or why it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserFits {
    by_line: FxHashMap<LineKey, Result<UserFit, FitError>>,
}

impl UserFits {
    /// Fits every line that has counted windows. `soft` is the soft environment of now.
    pub fn of(windows: &[Window], attempts: &[Attempt], context: &Context, soft: &SoftEnvironment) -> Self {
        let verdicts = count(windows, attempts, context);
        let mut counted: BTreeMap<&LineKey, Vec<&Window>> = BTreeMap::new();
        for (window, _) in windows.iter().zip(&verdicts).filter(|(_, verdict)| verdict.counts()) {
            counted.entry(&window.line).or_default().push(window);
        }
        let by_line = counted
            .into_iter()
            .map(|(line, windows)| {
                let points: Vec<Point> = windows.iter().map(|window| Point::from(*window)).collect();
                let may_be_outdated = may_be_outdated(&windows, attempts, soft);
                (line.clone(), fit(&points).map(|fit| UserFit { fit, may_be_outdated }))
            })
            .collect();
        Self { by_line }
    }

    /// The fit of a line, if it has one.
    pub fn get(&self, line: &LineKey) -> Option<&UserFit> {
        self.by_line.get(line)?.as_ref().ok()
    }

    /// Why a line with counted windows has no fit; nothing where it has one or was never measured.
    pub fn why_not(&self, line: &LineKey) -> Option<FitError> {
        self.by_line.get(line)?.as_ref().err().copied()
    }

    /// The lines that have a fit, in no particular order.
    pub fn lines(&self) -> impl Iterator<Item = (&LineKey, &UserFit)> {
        self.by_line.iter().filter_map(|(line, fit)| Some((line, fit.as_ref().ok()?)))
    }
}

/// Whether the newest attempt that counts on this line ran under another soft environment.
fn may_be_outdated(counted: &[&Window], attempts: &[Attempt], soft: &SoftEnvironment) -> bool {
    let ages: HashMap<&AttemptId, usize> =
        attempts.iter().enumerate().map(|(age, attempt)| (&attempt.id, age)).collect();
    let aged = counted.iter().filter_map(|window| Some((*ages.get(window.attempt_id.as_ref()?)?, *window)));
    mutant!(
        "outdated_mark_never_clears",
        "a person measures again after a driver update and is told for ever that it may be outdated",
        right: aged.max_by_key(|(age, _)| *age).is_some_and(|(_, window)| window.environment.soft != *soft),
        wrong: counted.iter().any(|window| window.environment.soft != *soft),
    )
}
