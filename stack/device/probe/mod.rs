//! Measures what operations need: scopes that threads enter, windows between a lock and its unlock.
//!
//! A thread enters a [`Scope`] for the calibration step that it works for. Every lock it takes there with a stated
//! working memory opens a window on the device, which closes at unlock and leaves a
//! [`Measurement`](headroom_base::Measurement) in the scope. Outside a scope a lock costs one thread-local read.

mod hooks;
mod registration;
mod sample;
mod scope;
mod windows;

pub use hooks::{Hook, HookError, HookPoint};
pub(crate) use hooks::{call_hook, guarded};
pub(crate) use registration::{Closing, Registration};
pub use scope::{Entered, Recorded, Scope, ScopeId};
pub(crate) use scope::{current, thread_number};
pub(crate) use windows::WindowStack;
