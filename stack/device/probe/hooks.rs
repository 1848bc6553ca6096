//! Named points of the cache and the probe at which a test can look, hold another party, or fail.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Where a hook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HookPoint {
    /// Before a model is moved off. The cache is held: the hook must not call it.
    Offloading,
    /// Before weights are allocated. The cache is held: the hook must not call it.
    Loading,
    /// After weights were allocated, before their contents go up. The device is held: the hook must not call it.
    Uploading,
    /// Before a window takes its baseline.
    WindowOpening,
    /// When the window is registered, before foreign locks are counted.
    WindowRegistered,
    /// When a stretch has ended. The device is held: the hook must not call it.
    StretchEnded,
    /// When a stretch begins. The device is held: the hook must not call it.
    StretchBegun,
    /// Before a window reads its last figures.
    WindowClosing,
    /// When a window was measured, before it is recorded.
    WindowMeasured,
}

impl HookPoint {
    /// Every point, in the order in which a lock and its unlock pass them.
    pub const ALL: [Self; 9] = [
        Self::Offloading,
        Self::Loading,
        Self::Uploading,
        Self::WindowOpening,
        Self::WindowRegistered,
        Self::StretchEnded,
        Self::StretchBegun,
        Self::WindowClosing,
        Self::WindowMeasured,
    ];
}

/// A hook or an observer failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HookError(pub String);

/// Something that is called at every [`HookPoint`].
///
/// At a point of the probe a failure makes the open window invalid and nothing else; at a point of the cache it makes
/// the lock fail as a driver's failure would.
pub trait Hook: Send + Sync {
    /// Called at `point`.
    ///
    /// # Errors
    /// When the caller is to see a failure there.
    fn at(&self, point: HookPoint) -> Result<(), HookError>;
}

/// Calls the hook, if there is one. A hook that panics has failed.
pub(crate) fn call_hook(hook: Option<&dyn Hook>, point: HookPoint) -> Result<(), HookError> {
    match hook {
        None => Ok(()),
        Some(hook) => guarded(|| hook.at(point)),
    }
}

/// Turns a panic of foreign code into its failure.
pub(crate) fn guarded(call: impl FnOnce() -> Result<(), HookError>) -> Result<(), HookError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| Err(HookError(said(payload.as_ref()))))
}

fn said(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.unwrap_or_else(|| "no message".to_owned()))
}
