//! An attempt while it runs: it prices by the fits of the moment it began, whatever is measured meanwhile.

use std::sync::Arc;

use headroom_base::{Estimate, LineKey, Window, mutant};

use crate::attempt::{Attempt, AttemptError};
use crate::built_in::BuiltIn;
use crate::estimate::{Costs, resolve};
use crate::user_fits::UserFits;

/// Fits as they were at one moment. There is no way to refresh them: a later case of an attempt cannot be
/// priced from its earlier ones, nor from an attempt that another model finished meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenFits(Arc<UserFits>);

impl FrozenFits {
    /// Freezes the fits of now.
    pub fn new(fits: &UserFits) -> Self {
        Self(Arc::new(fits.clone()))
    }

    /// The reservation for a case; see [`resolve`].
    pub fn price(&self, line: &LineKey, costs: &Costs, built_in: Option<&BuiltIn<'_>>, floor_bytes: u64) -> Estimate {
        resolve(costs, self.0.get(line).map(|user| &user.fit), built_in, floor_bytes)
    }
}

/// An attempt that is running, with its frozen fits and the windows it has measured so far.
#[derive(Clone, Debug)]
pub struct RunningAttempt {
    attempt: Attempt,
    windows: Vec<Window>,
    frozen: FrozenFits,
}

impl RunningAttempt {
    /// Begins: `fits` are those of which the attempt's plan was made.
    ///
    /// # Errors
    /// For an attempt that has ended.
    pub fn begin(attempt: Attempt, fits: &UserFits) -> Result<Self, AttemptError> {
        attempt.check_running()?;
        Ok(Self { attempt, windows: Vec::new(), frozen: FrozenFits::new(fits) })
    }

    /// The attempt as it stands.
    pub const fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// The windows measured so far, those of earlier tries too.
    pub fn windows(&self) -> &[Window] {
        &self.windows
    }

    /// What a lock of this attempt reserves for a case.
    pub fn price(&self, line: &LineKey, costs: &Costs, built_in: Option<&BuiltIn<'_>>, floor_bytes: u64) -> Estimate {
        let frozen = mutant!(
            "priced_from_the_same_attempt",
            "an attempt corrects its own estimates as it goes, and a plan that fitted no longer does",
            right: self.frozen.clone(),
            wrong: self.fits_with_own_windows(),
        );
        frozen.price(line, costs, built_in, floor_bytes)
    }

    /// Keeps the windows of a run that has finished.
    ///
    /// # Errors
    /// For an attempt that has ended, and for a run that was not planned.
    pub fn run_finished(&mut self, run: u32, windows: Vec<Window>) -> Result<(), AttemptError> {
        self.attempt.run_finished(run)?;
        self.windows.extend(windows);
        Ok(())
    }

    /// Begins a run once more; see [`Attempt::retry`].
    ///
    /// # Errors
    /// For an attempt that has ended, and for a run that was not planned.
    pub fn retry(&mut self, run: u32) -> Result<u32, AttemptError> {
        self.attempt.retry(run)
    }

    /// Ends as finished, if every run has; else the attempt is handed back as it is.
    ///
    /// # Errors
    /// While runs are missing.
    pub fn finish(mut self, unix_seconds: u64) -> Result<(Attempt, Vec<Window>), (Box<Self>, AttemptError)> {
        match self.attempt.finish(unix_seconds) {
            Ok(()) => Ok((self.attempt, self.windows)),
            Err(error) => Err((Box::new(self), error)),
        }
    }

    /// Ends on somebody's wish. The windows are kept and do not count.
    pub fn stop(mut self, unix_seconds: u64) -> (Attempt, Vec<Window>) {
        // A running attempt can always be stopped, and nothing else is inside.
        let stopped = self.attempt.stop(unix_seconds);
        debug_assert!(stopped.is_ok(), "{stopped:?}");
        (self.attempt, self.windows)
    }

    /// Ends because a run failed. The windows are kept and do not count.
    pub fn fail(mut self, message: impl Into<String>, unix_seconds: u64) -> (Attempt, Vec<Window>) {
        let failed = self.attempt.fail(message, unix_seconds);
        debug_assert!(failed.is_ok(), "{failed:?}");
        (self.attempt, self.windows)
    }

    /// The wrong twin of the frozen fits.
    #[cfg(feature = "mutants")]
    fn fits_with_own_windows(&self) -> FrozenFits {
        let Some(window) = self.windows.first() else { return self.frozen.clone() };
        let context = crate::counting::Context {
            device: window.device.clone(),
            hard: window.environment.hard.clone(),
            versions: crate::counting::EstimatorVersions::newest_of(self.windows.iter().map(|window| &window.line)),
        };
        let mut finished = self.attempt.clone();
        finished.state = crate::attempt::AttemptState::Finished;
        let own = UserFits::of(&self.windows, &[finished], &context, &window.environment.soft);
        FrozenFits::new(&own)
    }
}
