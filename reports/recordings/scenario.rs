//! Scripts of random allocations and frees, with all counters after every step.

use serde::Deserialize;
use serde_json::Value;

/// One thing a script does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScenarioAction {
    /// An allocation by number.
    Alloc {
        /// The script's number for it.
        id: u64,
        /// What was asked for.
        bytes: u64,
        /// Whether it succeeded.
        succeeded: bool,
        /// Where it was placed, in the scripts that say so.
        address: Option<u64>,
    },
    /// A free by number.
    Free {
        /// The number.
        id: u64,
    },
    /// The allocator's cache emptied.
    EmptyCache,
    /// Everything live freed, by ascending number.
    FreeAll,
}

/// A step and the counters after it, by the names of [`Scenario::fields`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioStep {
    /// What was done.
    pub action: ScenarioAction,
    /// What was counted, in the order of the fields.
    pub counters: Vec<u64>,
}

/// One recorded script.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The device it ran on.
    pub device: String,
    /// The setting, in the environment variable's syntax.
    pub allocator_conf: String,
    /// The script's seed.
    pub seed: u64,
    /// The limit on what the process could reserve, in bytes.
    pub limit_bytes: Option<u64>,
    /// The names of the counters.
    pub fields: Vec<String>,
    /// Where the driver placed each new segment and how large it is, in order.
    pub new_segments: Vec<(u64, u64)>,
    /// The steps.
    pub steps: Vec<ScenarioStep>,
}

impl Scenario {
    /// The value of the counter called `name` after `step`.
    pub fn counter(&self, step: &ScenarioStep, name: &str) -> Option<u64> {
        let index = self.fields.iter().position(|field| field == name)?;
        step.counters.get(index).copied()
    }
}

#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    device: String,
    #[serde(default)]
    allocator_conf: String,
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    limit: Option<u64>,
    fields: Vec<String>,
    #[serde(default)]
    segment_events: Vec<(String, u64, u64)>,
    steps: Vec<(Vec<Value>, Vec<u64>)>,
}

pub(super) fn from_json(value: Value) -> Result<Scenario, String> {
    let line: Line = serde_json::from_value(value).map_err(|error| error.to_string())?;
    let mut steps = Vec::with_capacity(line.steps.len());
    for (index, (action, counters)) in line.steps.into_iter().enumerate() {
        let action = parse_action(&action).ok_or_else(|| format!("step {index} is not one this program knows"))?;
        if counters.len() != line.fields.len() {
            return Err(format!("step {index} has {} counters for {} fields", counters.len(), line.fields.len()));
        }
        steps.push(ScenarioStep { action, counters });
    }
    let is_new = |(action, ..): &(String, u64, u64)| action == "segment_alloc";
    Ok(Scenario {
        device: line.device,
        allocator_conf: line.allocator_conf,
        seed: line.seed,
        limit_bytes: line.limit,
        fields: line.fields,
        new_segments: line
            .segment_events
            .iter()
            .filter(|event| is_new(event))
            .map(|&(_, at, size)| (at, size))
            .collect(),
        steps,
    })
}

fn parse_action(values: &[Value]) -> Option<ScenarioAction> {
    match (values.first()?.as_str()?, &values[1..]) {
        ("alloc", [id, bytes, succeeded, rest @ ..]) => Some(ScenarioAction::Alloc {
            id: id.as_u64()?,
            bytes: bytes.as_u64()?,
            succeeded: succeeded.as_bool()?,
            address: rest.first().and_then(Value::as_u64),
        }),
        ("free", [id]) => Some(ScenarioAction::Free { id: id.as_u64()? }),
        ("empty_cache", []) => Some(ScenarioAction::EmptyCache),
        ("free_all", []) => Some(ScenarioAction::FreeAll),
        _ => None,
    }
}
