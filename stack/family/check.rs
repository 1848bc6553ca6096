//! From what a file says to a family: every name is looked up, every number tried, every mistake noted.

use headroom_base::{AllocatorKind, GIB};

use crate::check_cases::CaseChecker;
use crate::check_scenario::scenario;
use crate::family::{
    CalibrationSpec, Checks, Family, Model, OverReservation, PartlyResident, SimulatedDevice, TilingNeeded, Weights,
};
use crate::findings::{Findings, Step, at};
use crate::limits::MOST;
use crate::node::{Node, Value};
use crate::problem::suggestion;
use crate::raw::{RawChecks, RawDevice, RawFamily, RawModel, Section};
use crate::reader::Tried;
use crate::words::MEASURED_CONTEXT_BYTES;

/// Reservations over demand that a family allows if it says nothing: the margin of 5 %, a growth step on a
/// small demand, and for the stream-ordered pool its jumps between neighbouring sizes.
const DEFAULT_OVER_RESERVATION: OverReservation =
    OverReservation { native_percent: 40, expandable_segments_percent: 40, cuda_malloc_async_percent: 80 };

/// What is looked up while a file is checked.
#[derive(Clone, Copy)]
pub(crate) struct Checker<'a> {
    pub(crate) root: &'a Node,
    pub(crate) findings: &'a Findings<'a>,
}

impl<'a> Checker<'a> {
    pub(crate) fn wrong(&self, path: &[Step<'_>], message: impl Into<String>, help: Option<String>) {
        self.findings.add_at(self.root, path, message, help);
    }

    /// The line that a way ends on.
    pub(crate) fn line_of(&self, path: &[Step<'_>]) -> usize {
        crate::findings::place_of(self.root, path).line
    }

    /// The texts under `field` in every item of a section, those of items with mistakes too: what may be named.
    pub(crate) fn declared(&self, section: &str, field: &str) -> Vec<&'a str> {
        let Some((_, Node { value: Value::List(items), .. })) = self.root.entry(section) else { return Vec::new() };
        let texts = items.iter().filter_map(|item| match item.entry(field) {
            Some((_, Node { value: Value::Text(text), .. })) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Notes a name that nothing has.
    pub(crate) fn known(&self, path: &[Step<'_>], kind: &str, name: &str, known: &[&str]) -> bool {
        let is_known = known.contains(&name);
        if !is_known {
            self.wrong(path, format!("there is no {kind} `{name}` in this family"), suggestion(name, known));
        }
        is_known
    }

    /// Notes a name that something earlier has.
    fn unique(&self, path: &[Step<'_>], kind: &str, name: &str, earlier: impl IntoIterator<Item = &'a str>) {
        if earlier.into_iter().any(|other| other == name) {
            self.wrong(path, format!("a second {kind} is named `{name}`"), None);
        }
    }
}

/// Checks everything; the result is a family if nothing was noted.
pub(crate) fn family(raw: RawFamily, root: &Node, findings: &Findings<'_>) -> Family {
    let checker = Checker { root, findings };
    if !is_name(&raw.name) {
        let help = Some("write lower case letters, digits and dashes".to_owned());
        checker.wrong(at!["name"], format!("`{}` is no name of a family", raw.name), help);
    }
    if raw.description.trim().is_empty() {
        checker.wrong(at!["description"], "the description is empty", None);
    }
    not_empty(&checker, &raw);
    let models = models(&checker, raw.models);
    let cases = CaseChecker::new(checker, &models);
    let pipeline = cases.pipeline(raw.pipeline);
    let calibration = CalibrationSpec { lines: cases.calibration(raw.calibration) };
    let devices = devices(&checker, raw.devices);
    let checks = checks(&checker, &cases, raw.checks.unwrap_or_default(), &devices);
    let regressions =
        present(raw.regressions).filter_map(|(index, raw)| scenario(&checker, index, raw)).collect::<Vec<_>>();
    for (index, name) in checker.declared("regressions", "name").iter().enumerate() {
        let earlier = checker.declared("regressions", "name").into_iter().take(index);
        checker.unique(at!["regressions", index, "name"], "scenario", name, earlier);
    }
    let (name, description) = (raw.name, raw.description);
    Family { name, description, models, pipeline, calibration, devices, checks, regressions }
}

/// The items of a section that could be read, with their numbers.
pub(crate) fn present<T>(section: Section<T>) -> impl Iterator<Item = (usize, T)> {
    let items = section.0.unwrap_or_default();
    items.into_iter().enumerate().filter_map(|(index, Tried(item))| Some((index, item?)))
}

/// Whether a name can stand in a trial's name, in a file name and on a command line.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !name.is_empty() && name.bytes().all(|byte| plain(byte) || byte == b'-') && name.bytes().next().is_some_and(plain)
}

/// A key of a model: `model` or `model:submodel`.
pub(crate) fn is_key(key: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    let mut parts = key.splitn(2, ':');
    parts.next().is_some_and(plain) && parts.next().is_none_or(plain)
}

fn not_empty(checker: &Checker<'_>, raw: &RawFamily) {
    let is_empty = |section: &str| match checker.root.entry(section) {
        Some((_, Node { value: Value::List(items), .. })) => items.is_empty(),
        Some(_) => false,
        None => true,
    };
    let needed = ["pipeline", "calibration", "devices"];
    if is_empty("models") {
        if is_empty("regressions") {
            checker.wrong(
                &[],
                format!("`{}` has neither models nor regressions: nothing could be checked", raw.name),
                None,
            );
        }
        for section in needed.into_iter().filter(|section| !is_empty(section)) {
            checker.wrong(at![section], format!("a family without models has no {section}"), None);
        }
        return;
    }
    for section in needed.into_iter().filter(|section| is_empty(section)) {
        checker.wrong(at![section], format!("`{section}` is missing: a family with models needs it"), None);
    }
}

fn models(checker: &Checker<'_>, raw: Section<RawModel>) -> Vec<Model> {
    let keys = checker.declared("models", "key");
    let mut models = Vec::new();
    for (index, raw) in present(raw) {
        let path = |field| at_model(index, field);
        if !is_key(&raw.key) {
            let help = Some("write `model` or `model:submodel`".to_owned());
            checker.wrong(&path("key"), format!("`{}` is no key of a model", raw.key), help);
        }
        let before = models.iter().map(|model: &Model| model.key.as_str()).any(|key| key == raw.key);
        if before {
            checker.wrong(&path("key"), format!("a second model has the key `{}`", raw.key), None);
        }
        if raw.required_percent > 100 {
            checker.wrong(
                &path("required_percent"),
                format!("{} is more than 100 percent", raw.required_percent),
                None,
            );
        }
        let Some(weights) = weights(checker, index, &raw) else { continue };
        models.push(Model {
            weights,
            dtype: raw.dtype,
            safetensors: raw.safetensors.map(Into::into),
            required_percent: raw.required_percent,
            partial_loading: raw.partial_loading,
            recorded_as: raw.recorded_as,
            key: raw.key,
        });
    }
    debug_assert!(models.len() <= keys.len() || !checker.findings.is_empty(), "a model without a key is a mistake");
    models
}

fn at_model<'f>(index: usize, field: &'f str) -> [Step<'f>; 3] {
    [Step::Key("models"), Step::Index(index), Step::Key(field)]
}

fn weights(checker: &Checker<'_>, index: usize, raw: &RawModel) -> Option<Weights> {
    match (&raw.architecture, &raw.weights) {
        (Some(architecture), None) => {
            let architecture = crate::architecture::Architecture::from(architecture.clone());
            for (field, why) in architecture.contradictions() {
                checker.wrong(at!["models", index, "architecture", field], why, None);
            }
            implausible(checker, index);
            Some(Weights::Architecture(architecture))
        }
        (None, Some(weights)) => {
            if weights.pieces == 0 || u64::from(weights.pieces) > weights.bytes.0 {
                let message =
                    format!("{} pieces of {} bytes: every piece has at least one", weights.pieces, weights.bytes.0);
                checker.wrong(at!["models", index, "weights", "pieces"], message, None);
                return None;
            }
            Some(Weights::Bytes { pieces: weights.pieces, bytes: weights.bytes.0 })
        }
        (Some(_), Some(_)) => {
            let message =
                "a model has either an `architecture` or `weights`: its size follows from the one or is the other";
            checker.wrong(&at_model(index, "weights"), message, None);
            None
        }
        (None, None) => {
            let help = Some("or `weights: { pieces: 40, bytes: 12GiB }` where the layers are not described".to_owned());
            checker.wrong(&at_model(index, "key"), "the model has no `architecture`", help);
            None
        }
    }
}

/// Zeros and numbers beyond any model, wherever they stand in an architecture.
fn implausible(checker: &Checker<'_>, index: usize) {
    let Some((_, Node { value: Value::List(items), .. })) = checker.root.entry("models") else { return };
    let Some((_, Node { value: Value::Map(fields), .. })) =
        items.get(index).and_then(|item| item.entry("architecture"))
    else {
        return;
    };
    for (key, node) in fields {
        let numbers = match &node.value {
            Value::List(items) => items.iter().collect(),
            _ => vec![node],
        };
        for number in numbers {
            let Value::Unsigned(value) = number.value else { continue };
            let zero_is_a_mistake =
                key.name != "transformer_layers_per_block" && key.name != "mid_block_transformer_layers";
            if value > MOST || (value == 0 && zero_is_a_mistake) {
                let field = format!("models[{index}].architecture.{}", key.name);
                checker.findings.add(
                    number.place,
                    field,
                    format!("{value} is no number of a model (1 to {MOST})"),
                    None,
                );
            }
        }
    }
}

fn devices(checker: &Checker<'_>, raw: Section<RawDevice>) -> Vec<SimulatedDevice> {
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
            let taken = headroom_base::Bytes(context_bytes.saturating_add(outside_bytes));
            let message = format!("nothing is left: context and other processes take {taken}");
            checker.wrong(at!["devices", index, "memory"], message, None);
        }
        let allocators = allocators(checker, index, raw.allocators);
        devices.push(SimulatedDevice { name, memory_bytes: raw.memory.0, context_bytes, outside_bytes, allocators });
    }
    devices
}

/// `12gib`, or `1536mib` for what is no whole number of GiB.
fn memory_name(memory_bytes: u64) -> String {
    if memory_bytes.is_multiple_of(GIB) {
        format!("{}gib", memory_bytes / GIB)
    } else {
        format!("{}mib", memory_bytes / headroom_base::MIB)
    }
}

fn allocators(checker: &Checker<'_>, index: usize, raw: Option<Vec<Tried<AllocatorKind>>>) -> Vec<AllocatorKind> {
    let Some(listed) = raw else { return AllocatorKind::ALL.to_vec() };
    let mut kinds: Vec<AllocatorKind> = Vec::new();
    if listed.is_empty() {
        checker.wrong(
            at!["devices", index, "allocators"],
            "the list is empty",
            Some("leave it out for all".to_owned()),
        );
    }
    for (position, Tried(kind)) in listed.into_iter().enumerate() {
        match kind {
            Some(kind) if kinds.contains(&kind) => {
                checker.wrong(
                    at!["devices", index, "allocators", position],
                    format!("`{kind}` stands there twice"),
                    None,
                );
            }
            Some(kind) => kinds.push(kind),
            None => {}
        }
    }
    kinds
}

fn checks(checker: &Checker<'_>, cases: &CaseChecker<'_>, raw: RawChecks, devices: &[SimulatedDevice]) -> Checks {
    for (field, percent) in [("residency_percent", raw.residency_percent), ("coverage_percent", raw.coverage_percent)] {
        if percent.is_some_and(|percent| percent > 100) {
            checker.wrong(at!["checks", field], "more than 100 percent", None);
        }
    }
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
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
            tiling_needed.push(TilingNeeded { model: raw.model, case, tiling, devices: raw.devices });
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
