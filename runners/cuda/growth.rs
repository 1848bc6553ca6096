//! What libraries and kernels make the process grow by on the device: how its memory changes around their first calls.

use std::collections::{BTreeMap, HashSet};

use super::error::CudaError;

/// Bytes that calls took of the device, by whose calls they were.
#[derive(Debug, Default)]
pub(super) struct Growth {
    grown: BTreeMap<&'static str, u64>,
    /// What was called before with success, so that only first calls are measured.
    known: HashSet<String>,
}

impl Growth {
    /// What each made the process grow by, in bytes.
    pub(super) fn by_name(&self) -> Vec<(&'static str, u64)> {
        self.grown.iter().map(|(name, bytes)| (*name, *bytes)).collect()
    }

    /// Does something, and adds what the device's free memory shrank by meanwhile to a name, also where it failed: what a
    /// library took before that stays taken. Nothing else of this process allocates then; what other processes do
    /// meanwhile is counted too.
    pub(super) fn measured<T>(
        &mut self,
        free_bytes: impl Fn() -> Result<u64, CudaError>,
        name: &'static str,
        act: impl FnOnce() -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        let before = free_bytes()?;
        let outcome = act();
        let after = match free_bytes() {
            Ok(after) => after,
            // Of two failures the first is told.
            Err(error) => return outcome.and(Err(error)),
        };
        *self.grown.entry(name).or_default() += before.saturating_sub(after);
        outcome
    }

    /// The same where nothing of this kind succeeded before; otherwise it is only done.
    pub(super) fn measured_first<T>(
        &mut self,
        free_bytes: impl Fn() -> Result<u64, CudaError>,
        name: &'static str,
        kind: String,
        act: impl FnOnce() -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        if self.known.contains(&kind) {
            return act();
        }
        let value = self.measured(free_bytes, name, act)?;
        self.known.insert(kind);
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn failure() -> CudaError {
        CudaError::NoKernel { what: "what was planted".to_owned() }
    }

    #[test]
    fn what_a_failed_call_took_is_counted_and_its_repetition_is_measured_until_it_succeeds() {
        let (free, mut growth) = (Cell::new(100), Growth::default());
        let mut call = |taken: u64, succeeds: bool| {
            growth
                .measured_first(
                    || Ok(free.get()),
                    "kernels",
                    "kernel k".to_owned(),
                    || {
                        free.set(free.get() - taken);
                        if succeeds { Ok(()) } else { Err(failure()) }
                    },
                )
                .is_ok()
        };
        // The last is no first call any more.
        let outcomes = [(8, false), (4, false), (2, true), (1, true)].map(|(taken, succeeds)| call(taken, succeeds));
        assert_eq!(outcomes, [false, false, true, true]);
        assert_eq!(growth.by_name(), [("kernels", 14)]);
    }

    #[test]
    fn a_call_that_fails_and_leaves_a_device_that_cannot_be_asked_is_told_as_what_it_failed_with() {
        let asked = Cell::new(0);
        let lost = || {
            asked.set(asked.get() + 1);
            if asked.get() % 2 == 1 { Ok(100) } else { Err(CudaError::TooOld { major: 1, minor: 0 }) }
        };
        let mut growth = Growth::default();
        assert_eq!(growth.measured(lost, "cuDNN", || Err::<(), _>(failure())), Err(failure()));
        assert_eq!(growth.measured(lost, "cuDNN", || Ok(())), Err(CudaError::TooOld { major: 1, minor: 0 }));
        assert_eq!(growth.by_name(), []);
    }
}
