//! A scripted cache scenario as it is written in a family file.

use std::collections::BTreeMap;
use std::fmt;

use headroom_base::AllocatorKind;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize as DeriveDeserialize;
use serde::de::{self, Deserialize, Deserializer, Visitor};

use crate::reader::Tried;
use crate::scenario::{ExpectedWindow, Resident, ScenarioError};
use crate::words::{AllocatorName, ByteText, SignedByteText};

/// A script of what happens on one simulated device, with the bytes that must come out.
#[derive(Debug, DeriveDeserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Scenario")]
pub(crate) struct RawScenario {
    /// Its name in trials.
    pub(crate) name: String,
    /// What it shows, and what went wrong in the world.
    pub(crate) about: String,
    /// Where it was reported.
    pub(crate) source: Option<String>,
    /// The device.
    pub(crate) device: RawScenarioDevice,
    /// The models that its cache knows.
    #[serde(default)]
    pub(crate) models: Vec<Tried<RawScenarioModel>>,
    /// What happens, in order.
    pub(crate) steps: Vec<Tried<RawScenarioStep>>,
}

/// The device of a scenario.
#[derive(Debug, DeriveDeserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ScenarioDevice")]
pub(crate) struct RawScenarioDevice {
    /// Its memory.
    pub(crate) total: ByteText,
    /// What other processes hold at the start.
    pub(crate) outside: Option<ByteText>,
    /// What this process's context costs.
    pub(crate) context: Option<ByteText>,
    /// The allocator; native if left out.
    #[schemars(with = "Option<AllocatorName>")]
    pub(crate) allocator: Option<AllocatorKind>,
    /// The working memory that is kept free when nobody asks for more; 3 GiB if left out.
    pub(crate) floor: Option<ByteText>,
    /// An explicit limit on what the cache may use.
    pub(crate) cap: Option<ByteText>,
    /// Whether the driver moves memory to the host when the device is full.
    #[serde(default)]
    pub(crate) spill: bool,
    /// The largest single allocation, where the driver has such a limit.
    pub(crate) largest_allocation: Option<ByteText>,
    /// A second, idle device of this size in the same process, of which nothing may be read.
    pub(crate) idle_neighbour: Option<ByteText>,
}

/// A model of a scenario: equal pieces.
#[derive(Debug, DeriveDeserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ScenarioModel")]
pub(crate) struct RawScenarioModel {
    /// Its key: `model`, or `model:submodel`.
    pub(crate) key: String,
    /// How many pieces it has.
    #[schemars(range(min = 1))]
    pub(crate) pieces: u32,
    /// The size of each.
    pub(crate) piece: ByteText,
    /// How many of them, from the first, must be on the device to run.
    #[serde(default)]
    pub(crate) required_pieces: u32,
    /// Whether it may run with a part of its pieces on the device.
    #[serde(default = "yes")]
    pub(crate) partial_loading: bool,
}

const fn yes() -> bool {
    true
}

/// One thing that happens, and what must come out of it.
#[derive(Debug, DeriveDeserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ScenarioStep")]
pub(crate) struct RawScenarioStep {
    /// Blocks are allocated beside the cache.
    pub(crate) allocate: Option<RawAllocate>,
    /// Such blocks are freed, by name.
    pub(crate) free: Option<Vec<String>>,
    /// The allocator gives back what it can.
    pub(crate) empty_cache: Option<Nothing>,
    /// An operation takes blocks, all at once, and frees them.
    pub(crate) run: Option<RawRun>,
    /// A model is locked.
    pub(crate) lock: Option<RawLock>,
    /// A model is unlocked.
    pub(crate) unlock: Option<String>,
    /// A model leaves the cache.
    pub(crate) drop: Option<String>,
    /// From now on other processes hold this much.
    pub(crate) set_outside: Option<ByteText>,
    /// What must come out.
    pub(crate) expect: Option<RawExpectation>,
}

/// `{}`: a step without arguments.
#[derive(Debug, DeriveDeserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// Blocks that a program beside the cache allocates.
#[derive(Debug, DeriveDeserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Allocate")]
pub(crate) struct RawAllocate {
    /// Their names, in the order in which they are allocated.
    pub(crate) blocks: Vec<String>,
    /// The size of each.
    pub(crate) bytes: ByteText,
}

/// An operation's tensors.
#[derive(Debug, DeriveDeserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Run")]
pub(crate) struct RawRun {
    /// How many.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    pub(crate) blocks: u32,
    /// The size of each.
    pub(crate) bytes: ByteText,
}

const fn one() -> u32 {
    1
}

/// A lock.
#[derive(Debug, DeriveDeserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Lock")]
pub(crate) struct RawLock {
    /// Of which model.
    pub(crate) model: String,
    /// The working memory it states; none if left out.
    pub(crate) working: Option<ByteText>,
    /// Whether it is made inside the calibration scope: with a working memory it opens a window.
    #[serde(default)]
    pub(crate) measured: bool,
}

/// What must come out of a step. What is left out is not looked at.
#[derive(Debug, Default, DeriveDeserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Expectation")]
pub(crate) struct RawExpectation {
    /// The step fails, and this is why. A step with no such line must succeed.
    pub(crate) error: Option<ScenarioError>,
    /// Exactly these models were moved off the device, each by so much; `{}` for none.
    pub(crate) offloaded: Option<BTreeMap<String, ByteText>>,
    /// What of a model is on the device afterwards: bytes, or a share such as `77.1%`.
    pub(crate) resident: BTreeMap<String, Resident>,
    /// The budget for the lock's working memory (the floor for other steps) before the step.
    pub(crate) budget_before: Option<SignedByteText>,
    /// The same after it.
    pub(crate) budget_after: Option<SignedByteText>,
    /// What of the reserve counts as free afterwards.
    pub(crate) credit: Option<ByteText>,
    /// What the allocator has handed out afterwards.
    pub(crate) allocated: Option<ByteText>,
    /// What the allocator has taken from the driver afterwards.
    pub(crate) reserved: Option<ByteText>,
    /// What the driver says is free afterwards.
    pub(crate) driver_free: Option<ByteText>,
    /// Allocator retries in this step.
    pub(crate) retries: Option<u64>,
    /// The warnings of the step; `[]` for none.
    pub(crate) warnings: Option<Vec<RawWarning>>,
    /// Whether the request was reported as more than the device could ever give.
    pub(crate) beyond_device: Option<bool>,
    /// What the window that closes with this unlock came to.
    pub(crate) window: Option<ExpectedWindow>,
    /// What that window measured.
    pub(crate) demand: Option<ByteText>,
}

/// A warning.
#[derive(Debug, DeriveDeserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Warning")]
pub(crate) struct RawWarning {
    /// Every model it names, with its full key.
    pub(crate) names: Vec<String>,
    /// The working memory it names.
    pub(crate) working: ByteText,
}

struct ResidentVisitor;

impl Visitor<'_> for ResidentVisitor {
    type Value = Resident;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of bytes such as `12GiB`, or a share such as `77.1%`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Resident, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Resident, E> {
        Ok(Resident::Bytes(bytes))
    }
}

impl<'de> Deserialize<'de> for Resident {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ResidentVisitor)
    }
}

impl JsonSchema for Resident {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Resident".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "What of a model is on the device: `12GiB`, or a share such as `77.1%`.",
            "anyOf": [generator.subschema_for::<ByteText>(), { "type": "string", "pattern": r"^[0-9]+(\.[0-9])?%$" }],
        })
    }
}
