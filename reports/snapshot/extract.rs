//! From a pickle's plain values to a typed snapshot; every mistake names the place in the file.

use std::collections::HashMap;

use headroom_base::mutant;

use super::model::{Action, Block, BlockState, Event, Frame, Segment, Settings, Snapshot, StackId};
use super::pickle::{Pickle, Value, ValueId};

/// No device has more, and 2^23 records of it still sum up within 64 bits.
const LARGEST_BYTES: u64 = 1 << 40;

/// Why plain values are not a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// The outermost value is something else.
    #[error("it is a pickle of something else: a memory snapshot is a dictionary with `segments` and `device_traces`")]
    NotASnapshot,
    /// A field is missing.
    #[error("{place} has no `{field}`")]
    Missing {
        /// Where.
        place: String,
        /// What.
        field: &'static str,
    },
    /// A field is of the wrong kind.
    #[error("`{field}` of {place} is no {expected}")]
    WrongKind {
        /// Where.
        place: String,
        /// What.
        field: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// More records than this program is willing to hold.
    #[error("it lists more than {most_records} blocks, events and frames")]
    TooLarge {
        /// How many it may list.
        most_records: u32,
    },
}

/// A dictionary of the file, with its place for errors.
#[derive(Clone, Copy)]
struct Fields<'a, 'p> {
    pickle: &'a Pickle<'p>,
    dict: ValueId,
    place: Place,
}

/// Where in the file: cheap to carry, put into words only in errors.
#[derive(Clone, Copy)]
enum Place {
    Top,
    Settings,
    Segment(usize),
    Block(usize, usize),
    Event(usize, usize),
    Frame,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Top => f.write_str("the snapshot"),
            Self::Settings => f.write_str("allocator_settings"),
            Self::Segment(segment) => write!(f, "segments[{segment}]"),
            Self::Block(segment, block) => write!(f, "segments[{segment}].blocks[{block}]"),
            Self::Event(device, event) => write!(f, "device_traces[{device}][{event}]"),
            Self::Frame => f.write_str("a frame"),
        }
    }
}

impl Fields<'_, '_> {
    fn optional(&self, field: &str) -> Option<ValueId> {
        self.pickle.get(self.dict, field).filter(|id| *self.pickle.value(*id) != Value::None)
    }

    fn required(&self, field: &'static str) -> Result<ValueId, ShapeError> {
        self.optional(field).ok_or_else(|| ShapeError::Missing { place: self.place.to_string(), field })
    }

    fn wrong(&self, field: &'static str, expected: &'static str) -> ShapeError {
        ShapeError::WrongKind { place: self.place.to_string(), field, expected }
    }

    fn number(&self, field: &'static str) -> Result<i64, ShapeError> {
        match self.pickle.value(self.required(field)?) {
            Value::Int(number) => Ok(*number),
            _ => Err(self.wrong(field, "64-bit integer")),
        }
    }

    fn number_or(&self, field: &'static str, otherwise: i64) -> Result<i64, ShapeError> {
        if self.optional(field).is_none() { Ok(otherwise) } else { self.number(field) }
    }

    fn address(&self, field: &'static str) -> Result<u64, ShapeError> {
        u64::try_from(self.number(field)?).map_err(|_| self.wrong(field, "address: it is negative"))
    }

    fn size(&self, field: &'static str) -> Result<u64, ShapeError> {
        let size = u64::try_from(self.number(field)?).ok().filter(|bytes| *bytes <= LARGEST_BYTES);
        size.ok_or_else(|| self.wrong(field, "size that a device could have"))
    }

    fn optional_size(&self, field: &'static str) -> Result<Option<u64>, ShapeError> {
        self.optional(field).map(|_| self.size(field)).transpose()
    }

    fn optional_address(&self, field: &'static str) -> Result<Option<u64>, ShapeError> {
        self.optional(field).map(|_| self.address(field)).transpose()
    }

    fn text(&self, field: &'static str) -> Result<String, ShapeError> {
        let text = self.pickle.text(self.required(field)?).ok_or_else(|| self.wrong(field, "text"))?;
        // Texts are printed on terminals, where control characters of a stranger's file would act.
        Ok(text.replace(char::is_control, "\u{fffd}"))
    }

    fn flag(&self, field: &'static str) -> Result<bool, ShapeError> {
        match self.optional(field).map(|id| self.pickle.value(id)) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.wrong(field, "True or False")),
        }
    }

    fn list(&self, field: &'static str) -> Result<&[ValueId], ShapeError> {
        match self.pickle.value(self.required(field)?) {
            Value::List(items) | Value::Tuple(items) => Ok(items),
            _ => Err(self.wrong(field, "list")),
        }
    }
}

/// Reads a snapshot of at most `most_records` segments, blocks, events and frames out of plain values.
///
/// The limit is there because a small file can name one list many times over.
///
/// # Errors
/// When they are something else, or a field is missing or of the wrong kind.
pub fn extract(pickle: &Pickle<'_>, most_records: u32) -> Result<Snapshot, ShapeError> {
    let top = Fields { pickle, dict: pickle.root(), place: Place::Top };
    if top.optional("segments").is_none() {
        return Err(ShapeError::NotASnapshot);
    }
    let (snapshot, stacks) = (Snapshot::default(), HashMap::new());
    let mut reader = Reader { pickle, snapshot, stacks, records: 0, most_records };
    reader.note_unknown_keys(&top);
    for (index, dict) in top.list("segments")?.iter().enumerate() {
        let segment = reader.segment(*dict, index)?;
        reader.snapshot.segments.push(segment);
    }
    if top.optional("device_traces").is_some() {
        for (device, trace) in top.list("device_traces")?.iter().enumerate() {
            let events = reader.trace(&top, *trace, device)?;
            reader.snapshot.traces.push(events);
        }
    }
    if let Some(dict) = top.optional("allocator_settings") {
        reader.snapshot.settings = Some(settings(&Fields { pickle, dict, place: Place::Settings })?);
    }
    Ok(reader.snapshot)
}

struct Reader<'a, 'p> {
    pickle: &'a Pickle<'p>,
    snapshot: Snapshot,
    stacks: HashMap<ValueId, StackId>,
    records: u32,
    most_records: u32,
}

impl Reader<'_, '_> {
    fn note_unknown_keys(&mut self, top: &Fields<'_, '_>) {
        const KNOWN: [&str; 4] = ["segments", "device_traces", "allocator_settings", "external_annotations"];
        let Value::Dict(entries) = self.pickle.value(top.dict) else { return };
        for (key, _) in entries {
            if let Some(key) = self.pickle.text(*key).filter(|key| !KNOWN.contains(&key.as_ref())) {
                self.unknown(format!("key `{}`", key.replace(char::is_control, "\u{fffd}")));
            }
        }
    }

    fn unknown(&mut self, what: String) {
        *self.snapshot.unknown.entry(what).or_default() += 1;
    }

    fn count_record(&mut self) -> Result<(), ShapeError> {
        self.records += 1;
        let full = mutant!(
            "snapshot_without_limit",
            "a small file that names one list a million times takes all the memory of the machine that opens it",
            right: self.records > self.most_records,
            wrong: false,
        );
        if full { Err(self.too_large()) } else { Ok(()) }
    }

    fn too_large(&self) -> ShapeError {
        ShapeError::TooLarge { most_records: self.most_records }
    }

    fn segment(&mut self, dict: ValueId, index: usize) -> Result<Segment, ShapeError> {
        self.count_record()?;
        let fields = Fields { pickle: self.pickle, dict, place: Place::Segment(index) };
        let (address, kind) = (fields.address("address")?, fields.text("segment_type")?);
        if !matches!(kind.as_str(), "small" | "large") {
            self.unknown(format!("segment type `{kind}`"));
        }
        let mut next_address = address;
        let mut blocks = Vec::new();
        for (number, dict) in fields.list("blocks")?.iter().enumerate() {
            let place = Place::Block(index, number);
            let block = self.block(&Fields { pickle: self.pickle, dict: *dict, place }, next_address)?;
            next_address = block.address.saturating_add(block.size_bytes);
            blocks.push(block);
        }
        Ok(Segment {
            device: fields.number_or("device", 0)?,
            address,
            total_bytes: fields.size("total_size")?,
            stream: fields.number_or("stream", 0)?,
            small: kind == "small",
            private_pool: private_pool(&fields)?,
            expandable: fields.flag("is_expandable")?,
            blocks,
        })
    }

    /// `address` is where the block must begin: older versions do not write it.
    fn block(&mut self, fields: &Fields<'_, '_>, address: u64) -> Result<Block, ShapeError> {
        self.count_record()?;
        let state = match fields.text("state")?.as_str() {
            "active_allocated" => BlockState::Active,
            "active_pending_free" | "active_awaiting_free" => BlockState::AwaitingFree,
            "inactive" => BlockState::Free,
            other => {
                self.unknown(format!("block state `{other}`"));
                BlockState::Active
            }
        };
        Ok(Block {
            address: fields.optional_address("address")?.unwrap_or(address),
            size_bytes: fields.size("size")?,
            requested_bytes: fields.optional_size("requested_size")?,
            state,
            stack: self.stack(fields)?,
        })
    }

    fn trace(&mut self, top: &Fields<'_, '_>, trace: ValueId, device: usize) -> Result<Vec<Event>, ShapeError> {
        let (Value::List(events) | Value::Tuple(events)) = self.pickle.value(trace) else {
            return Err(top.wrong("device_traces", "list of lists"));
        };
        let place = |index| Place::Event(device, index);
        let fields =
            |(index, dict): (usize, &ValueId)| Fields { pickle: self.pickle, dict: *dict, place: place(index) };
        let all: Vec<Fields<'_, '_>> = events.iter().enumerate().map(fields).collect();
        all.iter().map(|fields| self.event(fields)).collect()
    }

    fn event(&mut self, fields: &Fields<'_, '_>) -> Result<Event, ShapeError> {
        self.count_record()?;
        let action = match fields.text("action")?.as_str() {
            "alloc" => Action::Alloc,
            "free_requested" => Action::FreeRequested,
            "free_completed" | "free" => Action::FreeCompleted,
            "segment_alloc" => Action::SegmentAlloc,
            "segment_free" => Action::SegmentFree,
            "segment_map" => Action::SegmentMap,
            "segment_unmap" => Action::SegmentUnmap,
            "snapshot" => Action::Snapshot,
            "oom" => Action::OutOfMemory,
            "user_defined" => Action::UserDefined,
            other => {
                self.unknown(format!("action `{other}`"));
                Action::Unknown
            }
        };
        Ok(Event {
            action,
            address: fields.optional_address("addr")?.unwrap_or(0),
            bytes: fields.size("size")?,
            device_free_bytes: fields.optional_size("device_free")?,
            stream: fields.number_or("stream", 0)?,
            stack: self.stack(fields)?,
        })
    }

    /// The stack under `frames`; read once for every list of the file, however many share it.
    fn stack(&mut self, fields: &Fields<'_, '_>) -> Result<Option<StackId>, ShapeError> {
        let Some(list) = fields.optional("frames") else { return Ok(None) };
        if let Some(known) = self.stacks.get(&list) {
            return Ok(Some(*known));
        }
        let items = fields.list("frames")?;
        if items.is_empty() {
            return Ok(None);
        }
        let mut frames = Vec::with_capacity(items.len());
        for dict in items {
            self.count_record()?;
            let frame = Fields { pickle: self.pickle, dict: *dict, place: Place::Frame };
            let (function, file) = (frame.text("name")?, frame.text("filename")?);
            frames.push(Frame { function, file, line: frame.number_or("line", 0)? });
        }
        let id = StackId(u32::try_from(self.snapshot.stacks.len()).map_err(|_| self.too_large())?);
        self.snapshot.stacks.push(frames);
        self.stacks.insert(list, id);
        Ok(Some(id))
    }
}

fn private_pool(fields: &Fields<'_, '_>) -> Result<Option<(i64, i64)>, ShapeError> {
    if fields.optional("segment_pool_id").is_none() {
        return Ok(None);
    }
    let numbers: Vec<i64> = fields
        .list("segment_pool_id")?
        .iter()
        .filter_map(|id| if let Value::Int(number) = fields.pickle.value(*id) { Some(*number) } else { None })
        .collect();
    match numbers[..] {
        [0, 0] => Ok(None),
        [first, second] => Ok(Some((first, second))),
        _ => Err(fields.wrong("segment_pool_id", "pair of integers")),
    }
}

fn settings(fields: &Fields<'_, '_>) -> Result<Settings, ShapeError> {
    let names = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"];
    let configuration = names.into_iter().find(|name| fields.optional(name).is_some());
    let threshold = match fields.optional("garbage_collection_threshold").map(|id| fields.pickle.value(id)) {
        Some(Value::Float(share)) => *share,
        _ => 0.0,
    };
    Ok(Settings {
        configuration: configuration.map(|name| fields.text(name)).transpose()?.unwrap_or_default(),
        expandable_segments: fields.flag("expandable_segments")?,
        max_split_bytes: u64::try_from(fields.number_or("max_split_size", -1)?).ok(),
        garbage_collection_threshold: threshold,
    })
}
