//! Simulated devices, and what must hold on them.

use headroom_base::{AllocatorKind, Bytes, GIB, MIB};

use crate::check::cases::CaseChecker;
use crate::check::{Checker, is_name, present};
use crate::family::{Checks, OverReservation, PartlyResident, SimulatedDevice, TilingNeeded};
use crate::findings::{Step, at};
use crate::raw::{RawChecks, RawDevice, Section};
use crate::reader::Tried;
use crate::words::MEASURED_CONTEXT_BYTES;

/// Reservations over demand that a family allows if it says nothing: the margin of 5 %, a growth step on a
/// small demand, and for the stream-ordered pool its jumps between neighbouring sizes.
const DEFAULT_OVER_RESERVATION: OverReservation =
    OverReservation { native_percent: 40, expandable_segments_percent: 40, cuda_malloc_async_percent: 80 };

pub(super) fn devices(checker: &Checker<'_>, raw: Section<RawDevice>) -> Vec<SimulatedDevice> {
    let mut devices: Vec<SimulatedDevice> = Vec::new();
    for (index, raw) in present(raw) {
        let name = raw.name.clone().unwrap_or_else(|| memory_name(raw.memory.0));
        let path = at!["devices", index, "name"];
        if !is_name(&name) {
            let help = Some("write lower case letters, digits and dashes".to_owned());
            checker.wrong(path, format!("`{name}` is no name of a device"), help);
        }
        if devices.iter().any(|device| device.name == name) {
            checker.wrong(path, format!("a second device is named `{name}`"), None);
        }
        let context_bytes = raw.context.map_or(MEASURED_CONTEXT_BYTES, |context| context.0);
        let outside_bytes = raw.outside.map_or(0, |outside| outside.0);
        if context_bytes.saturating_add(outside_bytes) >= raw.memory.0 {
            let taken = Bytes(context_bytes.saturating_add(outside_bytes));
            let message = format!("nothing is left: context and other processes take {taken}");
            checker.wrong(at!["devices", index, "memory"], message, None);
        }
        let allocators = allocators(checker, at!["devices", index, "allocators"], raw.allocators);
        devices.push(SimulatedDevice { name, memory_bytes: raw.memory.0, context_bytes, outside_bytes, allocators });
    }
    devices
}

/// `12gib`, or `1536mib` for what is no whole number of GiB.
fn memory_name(memory_bytes: u64) -> String {
    if memory_bytes.is_multiple_of(GIB) {
        format!("{}gib", memory_bytes / GIB)
    } else {
        format!("{}mib", memory_bytes / MIB)
    }
}

fn allocators(checker: &Checker<'_>, path: &[Step<'_>], raw: Option<Vec<Tried<AllocatorKind>>>) -> Vec<AllocatorKind> {
    let Some(listed) = raw else { return AllocatorKind::ALL.to_vec() };
    let mut kinds: Vec<AllocatorKind> = Vec::new();
    if listed.is_empty() {
        checker.wrong(path, "the list is empty", Some("leave it out for all".to_owned()));
    }
    for kind in listed.into_iter().filter_map(|Tried(kind)| kind) {
        if kinds.contains(&kind) {
            checker.wrong(path, format!("`{kind}` stands there twice"), None);
        } else {
            kinds.push(kind);
        }
    }
    kinds
}

pub(super) fn checks(
    checker: &Checker<'_>,
    cases: &CaseChecker<'_>,
    raw: RawChecks,
    devices: &[SimulatedDevice],
) -> Checks {
    for (field, percent) in [("residency_percent", raw.residency_percent), ("coverage_percent", raw.coverage_percent)] {
        if percent.is_some_and(|percent| percent > 100) {
            checker.wrong(at!["checks", field], "more than 100 percent", None);
        }
    }
    let names = devices.iter().map(|device| device.name.as_str()).collect();
    let names = checker.declared_as("devices", names);
    let keys = checker.declared("models", "key");
    let named = |path: [Step<'_>; 3], listed: &[String]| {
        for (position, name) in listed.iter().enumerate() {
            let [first, second, third] = path;
            checker.known(&[first, second, third, Step::Key("devices"), Step::Index(position)], "device", name, &names);
        }
    };
    let mut partly_resident = Vec::new();
    for (index, Tried(raw)) in raw.partly_resident.into_iter().enumerate() {
        let Some(raw) = raw else { continue };
        checker.known(at!["checks", "partly_resident", index, "model"], "model", &raw.model, &keys);
        named([Step::Key("checks"), Step::Key("partly_resident"), Step::Index(index)], &raw.devices);
        partly_resident.push(PartlyResident { model: raw.model, devices: raw.devices });
    }
    let mut tiling_needed = Vec::new();
    for (index, Tried(raw)) in raw.tiling_needed.into_iter().enumerate() {
        let Some(raw) = raw else { continue };
        named([Step::Key("checks"), Step::Key("tiling_needed"), Step::Index(index)], &raw.devices);
        if let Some((case, tiling)) = cases.tiling_needed(index, &raw) {
            let allocators = allocators(checker, at!["checks", "tiling_needed", index, "allocators"], raw.allocators);
            tiling_needed.push(TilingNeeded { model: raw.model, case, tiling, devices: raw.devices, allocators });
        }
    }
    let limits = raw.over_reservation_percent.map_or(DEFAULT_OVER_RESERVATION, |limits| OverReservation {
        native_percent: limits.native,
        expandable_segments_percent: limits.expandable_segments,
        cuda_malloc_async_percent: limits.cuda_malloc_async,
    });
    Checks {
        residency_percent: raw.residency_percent.unwrap_or(100),
        coverage_percent: raw.coverage_percent.unwrap_or(100),
        over_reservation: limits,
        partly_resident,
        tiling_needed,
    }
}
