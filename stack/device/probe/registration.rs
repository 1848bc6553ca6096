//! A window as a lock holds it: registered before foreign locks are counted, closed exactly once.

use headroom_base::{InvalidReason, Measurement, Residency, Validity, mutant};

use super::hooks::{HookError, HookPoint};
use super::scope::{Recorded, Scope};
use super::windows::{Closed, WindowId};
use crate::cache::ModelKey;
use crate::device::Device;
use crate::weights::HostPin;

/// An open window and what its measurement will say besides figures.
#[derive(Debug)]
pub(crate) struct Registration {
    device: Device,
    scope: Scope,
    window: WindowId,
    /// Foreign locks ever taken when the window was registered.
    foreign_mark: u64,
    model: ModelKey,
    estimate_bytes: u64,
    residency: Residency,
}

impl Registration {
    /// Opens a window on `device` for a lock of `scope` that states `estimate_bytes` and lacks `missing_bytes`.
    pub(crate) fn open(
        device: &Device,
        scope: &Scope,
        model: &ModelKey,
        estimate_bytes: u64,
        missing_bytes: u64,
        pins: Vec<HostPin>,
    ) -> Self {
        let opening = device.hook(HookPoint::WindowOpening);
        let (window, foreign_mark, foreign_held, registered) = mutant!(
            "foreign_lock_counted_before_registering",
            "a lock that slips in between the count and the registration is seen by neither",
            right: {
                let (window, mark, held) = Self::register(device, scope, pins);
                let registered = device.hook(HookPoint::WindowRegistered);
                (window, mark, held + device.ledger().foreign_held(scope.id()), registered)
            },
            wrong: {
                let held = device.ledger().foreign_held(scope.id());
                let registered = device.hook(HookPoint::WindowRegistered);
                let (window, mark, _) = Self::register(device, scope, pins);
                (window, mark, held, registered)
            },
        );
        let residency = mutant!(
            "partial_residency_not_marked",
            "a run that streamed part of its weights is taken for one that had them all",
            right: if missing_bytes == 0 { Residency::Full } else { Residency::Partial { missing_bytes } },
            wrong: Residency::Full,
        );
        let model = model.clone();
        let registration = Self {
            device: device.clone(),
            scope: scope.clone(),
            window,
            foreign_mark,
            model,
            estimate_bytes,
            residency,
        };
        for outcome in [opening, registered] {
            if let Err(error) = outcome {
                registration.fail(InvalidReason::ProbeFailed { message: error.0 });
            }
        }
        if foreign_held > 0 {
            registration.fail(InvalidReason::ForeignLockAtOpen);
        }
        registration
    }

    /// The mark is read first, so that a lock taken while the baseline is being made counts as one during the window;
    /// and who held one at that moment is asked as well, since it may use memory after the baseline and be gone when
    /// the locks are counted.
    fn register(device: &Device, scope: &Scope, pins: Vec<HostPin>) -> (WindowId, u64, u64) {
        let mark = device.ledger().foreign_taken(scope.id());
        let held = device.ledger().foreign_held(scope.id());
        (device.core().open_window(scope.id(), pins), mark, held)
    }

    /// Says why the window is worthless; the first reason stays.
    pub(crate) fn fail(&self, reason: InvalidReason) {
        self.device.core().windows.fail(self.window, reason);
    }

    /// Closes the window. What remains is to record it.
    pub(crate) fn measure(self) -> Closing {
        let closing = self.device.hook(HookPoint::WindowClosing);
        let closed = self.device.core().close_window(self.window);
        // After the figures were read: whatever moved them was counted before it did.
        let foreign_taken = self.device.ledger().foreign_taken(self.scope.id());
        let measured = self.device.hook(HookPoint::WindowMeasured);
        let mut closed = closed.unwrap_or_else(lost);
        let foreign = mutant!(
            "foreign_lock_during_not_seen",
            "another job's memory is billed to the operation",
            right: foreign_taken != self.foreign_mark,
            wrong: false,
        );
        if foreign {
            closed.invalid.get_or_insert(InvalidReason::ForeignLockDuring);
        }
        for outcome in [closing, measured] {
            note(&mut closed, outcome);
        }
        Closing { registration: self, closed }
    }
}

/// A window that has closed and is not recorded yet.
#[derive(Debug)]
pub(crate) struct Closing {
    registration: Registration,
    closed: Closed,
}

impl Closing {
    /// Takes the pins of the models that had to stay in host memory until now.
    pub(crate) fn take_pins(&mut self) -> Vec<HostPin> {
        std::mem::take(&mut self.closed.pins)
    }

    /// Records what was measured in the scope and returns it. `told` is what the observers of the unlock said.
    pub(crate) fn record(mut self, told: Result<(), HookError>) -> Measurement {
        note(&mut self.closed, told);
        let Registration { device, scope, model, estimate_bytes, residency, .. } = self.registration;
        let closed = self.closed;
        let measurement = Measurement {
            estimate_bytes,
            demand_bytes: closed.deltas.demand_bytes(),
            deltas: closed.deltas,
            stretches: closed.stretches,
            retries: closed.retries,
            residency,
            validity: closed.invalid.map_or(Validity::Valid, Validity::Invalid),
        };
        scope.record(Recorded {
            model,
            device: device.id().clone(),
            reader_verified: device.reader_verified(),
            measurement: measurement.clone(),
        });
        measurement
    }
}

/// A failure of the probe or an observer, unless something graver was seen before.
fn note(closed: &mut Closed, outcome: Result<(), HookError>) {
    if let Err(error) = outcome {
        closed.invalid.get_or_insert(InvalidReason::ProbeFailed { message: error.0 });
    }
}

/// A window that is gone although nobody closed it: nothing is known of it.
fn lost() -> Closed {
    let deltas = headroom_base::Deltas {
        allocated_peak_bytes: 0,
        reserved_peak_bytes: 0,
        driver_bytes: headroom_base::Reading::Unknown,
    };
    let message = "the window was closed before its lock ended".to_owned();
    Closed { pins: Vec::new(), deltas, stretches: 0, retries: 0, invalid: Some(InvalidReason::ProbeFailed { message }) }
}
