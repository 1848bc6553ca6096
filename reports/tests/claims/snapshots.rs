//! PyTorch's snapshots are read exactly, explained plainly, and never executed.

use std::path::Path;

use headroom_reports::snapshot::{
    self, Action, BlockState, Limits, Pickle, PickleError, RequestStep, Snapshot, SnapshotError, Value, ValueId,
    Warning,
};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

crate::claims![
    a_file_beyond_a_limit_is_refused_and_one_at_it_is_read,
    control_characters_of_a_file_reach_no_terminal,
    a_file_that_repeats_one_opcode_without_end_is_refused_long_before_its_end,
    values_are_those_another_reader_of_pickles_gives,
    the_recorded_snapshots_have_the_figures_python_computes_from_them,
    every_request_is_freed_at_most_once_and_after_it_was_made,
    reserved_memory_is_used_or_stranded_or_can_be_given_back,
    a_pin_is_named_by_the_frame_outside_pytorch_and_redaction_drops_its_folders,
    the_recorded_snapshots_say_only_that_they_begin_in_the_middle,
    what_cannot_be_taken_at_its_word_is_said,
    words_of_a_newer_format_are_named_and_what_is_known_is_still_read,
    an_older_block_without_an_address_lies_where_the_one_before_it_ends,
    a_file_cut_off_anywhere_is_an_error_that_says_so,
    a_pickle_that_asks_for_code_is_refused_and_says_which_opcode,
    a_file_of_something_else_is_refused_with_what_it_should_be,
    a_tower_of_shared_lists_and_a_deep_nest_are_read_in_no_time_and_refused,
    bytes_of_any_kind_are_an_error_or_a_snapshot_and_never_a_panic,
    a_snapshot_with_a_byte_changed_is_an_error_or_a_snapshot_and_never_a_panic,
];

const DECODE: &str = "snapshot-native-sdxl-vae_decode-1024.pickle.gz";
const ENCODE: &str = "snapshot-expandable-sdxl-vae_encode-1024.pickle.gz";
const OUT_OF_MEMORY: &str = "snapshot-oom-native.pickle.gz";

fn recording(name: &str) -> Snapshot {
    snapshot::read(&crate::recorded::data("h200").join(name)).expect("a snapshot")
}

fn unpacked(name: &str) -> Vec<u8> {
    let file = std::fs::File::open(crate::recorded::data("h200").join(name)).unwrap();
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(file), &mut bytes).unwrap();
    bytes
}

/// A snapshot from the values Python would pickle.
fn made(value: &Json) -> Result<Snapshot, SnapshotError> {
    let bytes = serde_pickle::to_vec(value, serde_pickle::SerOptions::new()).unwrap();
    snapshot::parse(Path::new("made.pickle"), &bytes, Limits::USUAL)
}

fn block(address: u64, size: u64, state: &str) -> Json {
    json!({"address": address, "size": size, "requested_size": size, "state": state, "frames": []})
}

fn segment(address: u64, blocks: &[Json]) -> Json {
    let total: u64 = blocks.iter().map(|block| block["size"].as_u64().unwrap()).sum();
    json!({"device": 0, "address": address, "total_size": total, "stream": 0, "segment_type": "large",
        "segment_pool_id": [0, 0], "is_expandable": false, "blocks": blocks})
}

fn event(action: &str, address: u64, size: u64) -> Json {
    json!({"action": action, "addr": address, "size": size, "stream": 0})
}

fn values_are_those_another_reader_of_pickles_gives() {
    for name in [DECODE, ENCODE, OUT_OF_MEMORY] {
        let bytes = unpacked(name);
        let expected: Json = serde_pickle::from_slice(&bytes, serde_pickle::DeOptions::new()).unwrap();
        let pickle = Pickle::read(&bytes, Limits::USUAL.values).unwrap();
        assert_eq!(as_json(&pickle, pickle.root()), expected, "{name}");
    }
}

fn as_json(pickle: &Pickle<'_>, id: ValueId) -> Json {
    match pickle.value(id) {
        Value::None => Json::Null,
        Value::Bool(flag) => json!(flag),
        Value::Int(number) => json!(number),
        Value::Float(number) => json!(number),
        Value::Text(_) => json!(pickle.text(id).unwrap()),
        Value::List(items) | Value::Tuple(items) => items.iter().map(|id| as_json(pickle, *id)).collect(),
        Value::Dict(entries) => Json::Object(
            entries.iter().map(|(key, id)| (pickle.text(*key).unwrap().into_owned(), as_json(pickle, *id))).collect(),
        ),
        Value::LargeInt | Value::Bytes(_) => panic!("not in these files"),
    }
}

fn the_recorded_snapshots_have_the_figures_python_computes_from_them() {
    // (file, segments, blocks, events, live before, start / peak requested, peak allocated, peak reserved)
    let cases = [
        (DECODE, 33, 276, 895, 251, 202_041_806, 2_753_489_505, 2_753_502_208, 4_693_426_176_u64),
        (ENCODE, 3, 260, 661, 251, 208_202_190, 1_819_109_985, 1_819_122_688, 1_837_105_152),
        (OUT_OF_MEMORY, 21, 153, 1_007, 2, 34_603_008, 10_026_485_983, 10_026_508_800, 10_586_423_296),
    ];
    for (name, segments, blocks, events, live, start, requested, allocated, reserved) in cases {
        let snapshot = recording(name);
        assert_eq!(snapshot.segments.len(), segments, "{name}");
        assert_eq!(snapshot.segments.iter().map(|s| s.blocks.len()).sum::<usize>(), blocks, "{name}");
        assert_eq!(snapshot.trace(0).len(), events, "{name}");
        let requests = snapshot.requests(0);
        assert_eq!(requests.already_live.len(), live, "{name}");
        assert_eq!(requests.contradictions, 0, "{name}");
        assert_eq!(snapshot.timeline(0)[0].requested_bytes, start, "{name}");
        let peaks = snapshot.peaks(0);
        assert_eq!(
            (peaks.requested_bytes, peaks.allocated_bytes, peaks.reserved_bytes),
            (requested, allocated, reserved)
        );
        let end = *snapshot.timeline(0).last().unwrap();
        assert_eq!(end.reserved_bytes, snapshot.segments.iter().map(|s| s.total_bytes).sum::<u64>(), "{name}");
    }
}

fn every_request_is_freed_at_most_once_and_after_it_was_made() {
    for name in [DECODE, ENCODE, OUT_OF_MEMORY] {
        let requests = recording(name).requests(0);
        let mut live: std::collections::BTreeSet<u32> = requests.already_live.iter().map(|(id, _)| *id).collect();
        for step in &requests.steps {
            match step {
                RequestStep::Alloc { id, .. } => assert!(live.insert(*id), "{name}: {id} twice"),
                RequestStep::Free { id } => assert!(live.remove(id), "{name}: {id} was not live"),
                RequestStep::OutOfMemory { .. } => {}
            }
        }
        let blocks = recording(name).segments.into_iter().flat_map(|segment| segment.blocks);
        assert_eq!(live.len(), blocks.filter(|block| block.state != BlockState::Free).count(), "{name}");
    }
    let failed = recording(OUT_OF_MEMORY).requests(0).steps;
    assert_eq!(failed.iter().filter(|step| matches!(step, RequestStep::OutOfMemory { .. })).count(), 7);
}

fn reserved_memory_is_used_or_stranded_or_can_be_given_back() {
    let cases = [
        (DECODE, 4_479_575_552 - 4_462_739_456, 4_462_739_456_u64, 7),
        (ENCODE, 1_628_235_264 - 1_614_807_040, 1_614_807_040, 3),
        (OUT_OF_MEMORY, 1_898_368_000, 0, 19),
    ];
    for (name, stuck, releasable, segments) in cases {
        let stranded = recording(name).stranded(0);
        assert_eq!((stranded.stranded_bytes, stranded.releasable_bytes), (stuck, releasable), "{name}");
        assert_eq!(stranded.used_bytes + stuck + releasable, stranded.reserved_bytes, "{name}");
        assert_eq!(stranded.segments.len(), segments, "{name}");
        assert!(stranded.segments.is_sorted_by_key(|segment| std::cmp::Reverse(segment.stranded_bytes)), "{name}");
        for segment in &stranded.segments {
            assert!(!segment.pins.is_empty() && segment.largest_free_bytes <= segment.total_bytes, "{name}");
        }
    }
}

fn a_pin_is_named_by_the_frame_outside_pytorch_and_redaction_drops_its_folders() {
    let frames = json!([
        {"name": "conv2d", "filename": "/venv/lib/python3.12/site-packages/torch/nn/functional.py", "line": 9},
        {"name": "decode", "filename": "/home/lovelace/app/vae.py", "line": 12},
    ]);
    let pin = json!({"address": 10_u64 << 20, "size": 512, "requested_size": 4, "state": "active_allocated", "frames": frames});
    let blocks = [block(0, 10 << 20, "inactive"), pin, block((10 << 20) + 512, (30 << 20) - 512, "inactive")];
    let mut snapshot = made(&json!({"segments": [segment(0, &blocks)], "device_traces": [[]]})).unwrap();
    let frame = |snapshot: &Snapshot| snapshot.stranded(0).segments[0].pins[0].frame.clone().unwrap();
    assert_eq!((frame(&snapshot).function.as_str(), frame(&snapshot).line), ("decode", 12));
    assert_eq!(snapshot.stranded(0).stranded_bytes, (40 << 20) - 512);
    assert_eq!(snapshot.stranded(0).segments[0].largest_free_bytes, (30 << 20) - 512);
    snapshot.redact();
    assert_eq!(frame(&snapshot).file, "vae.py");
    let files: Vec<_> = snapshot.stacks[0].iter().map(|frame| frame.file.as_str()).collect();
    assert_eq!(files, ["torch/nn/functional.py", "vae.py"]);
}

fn the_recorded_snapshots_say_only_that_they_begin_in_the_middle() {
    for (name, blocks) in [(DECODE, 251), (ENCODE, 251), (OUT_OF_MEMORY, 2)] {
        let warnings = recording(name).warnings();
        assert!(
            matches!(warnings[..], [Warning::BeginsInTheMiddle { blocks: found, .. }] if found == blocks),
            "{warnings:?}"
        );
    }
}

fn what_cannot_be_taken_at_its_word_is_said() {
    let live = block(0, 2 << 20, "active_allocated");
    let with = |segments: Json, traces: Json| made(&json!({"segments": segments, "device_traces": traces})).unwrap();
    let alloc = event("alloc", 0, 2 << 20);
    let clean =
        with(json!([segment(0, std::slice::from_ref(&live))]), json!([[event("segment_alloc", 0, 2 << 20), alloc]]));
    assert_eq!(clean.warnings(), []);

    let mut stacked = live.clone();
    stacked["frames"] = json!([{"name": "f", "filename": "a.py", "line": 1}]);
    let lost = with(json!([segment(0, &[stacked])]), json!([[event("alloc", 9, 4), event("free_completed", 9, 4)]]));
    assert!(lost.warnings().contains(&Warning::EventsLost { device: 0, blocks: 1 }), "{:?}", lost.warnings());

    let twice = with(json!([segment(0, std::slice::from_ref(&live))]), json!([[alloc, alloc]]));
    assert!(twice.warnings().contains(&Warning::EventsMissing { device: 0, contradictions: 1 }));

    let mut other = segment(4 << 20, &[block(4 << 20, 2 << 20, "inactive")]);
    other["stream"] = json!(7);
    other["segment_pool_id"] = json!([1, 0]);
    let mixed = with(json!([segment(0, std::slice::from_ref(&live)), other]), json!([[alloc]]));
    let pools = Warning::PrivatePools { device: 0, pools: 1, reserved_bytes: 2 << 20 };
    assert_eq!(mixed.warnings(), [Warning::SeveralStreams { device: 0, streams: 2 }, pools]);

    let mut second = segment(0, std::slice::from_ref(&live));
    second["device"] = json!(1);
    let devices = with(json!([segment(0, &[live]), second]), json!([[alloc], []]));
    assert!(devices.warnings().contains(&Warning::SeveralDevices { devices: vec![0, 1] }));
    assert!(devices.warnings().contains(&Warning::NoEvents { device: 1 }));
}

fn words_of_a_newer_format_are_named_and_what_is_known_is_still_read() {
    let snapshot = made(&json!({
        "segments": [segment(0, &[block(0, 512, "active_frozen")])],
        "device_traces": [[event("teleport", 0, 1), event("alloc", 0, 512)]],
        "quantum_state": 1,
    }))
    .unwrap();
    assert_eq!(
        snapshot.trace(0).iter().map(|event| event.action).collect::<Vec<_>>(),
        [Action::Unknown, Action::Alloc]
    );
    let [Warning::NewerFormat { words }] = &snapshot.warnings()[..] else { panic!("{:?}", snapshot.warnings()) };
    for word in ["active_frozen", "teleport", "quantum_state"] {
        assert!(words.iter().any(|found| found.contains(word)), "{word} in {words:?}");
    }
}

fn an_older_block_without_an_address_lies_where_the_one_before_it_ends() {
    let old = |size: u64| json!({"size": size, "state": "active_allocated"});
    let snapshot = made(&json!({"segments": [segment(4_096, &[old(512), old(1_024)])]})).unwrap();
    let addresses: Vec<_> = snapshot.segments[0].blocks.iter().map(|block| block.address).collect();
    assert_eq!(addresses, [4_096, 4_608]);
    assert_eq!(snapshot.segments[0].blocks[0].requested_bytes, None);
}

fn a_file_cut_off_anywhere_is_an_error_that_says_so() {
    let whole = unpacked(DECODE);
    for length in (0..whole.len()).step_by(997).chain([1, 2, whole.len() - 1]) {
        let error = snapshot::parse(Path::new("cut.pickle"), &whole[..length], Limits::USUAL).unwrap_err().to_string();
        assert!(error.contains("cut.pickle") && error.contains("cut off"), "{length}: {error}");
    }
    let packed = std::fs::read(crate::recorded::data("h200").join(DECODE)).unwrap();
    let error = snapshot::parse(Path::new("cut.gz"), &packed[..packed.len() / 2], Limits::USUAL).unwrap_err();
    assert!(matches!(error, SnapshotError::Gzip { .. }) && error.to_string().contains("cut.gz"));
}

fn a_pickle_that_asks_for_code_is_refused_and_says_which_opcode() {
    let cases: [(&[u8], &str); 5] = [
        (b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00idtR.", "GLOBAL"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL"),
        (b"\x80\x04)R.", "REDUCE"),
        (b"\x80\x04)\x82\x01.", "EXT1"),
        (b"\x80\x02Q.", "BINPERSID"),
    ];
    for (bytes, opcode) in cases {
        let error = snapshot::parse(Path::new("evil.pickle"), bytes, Limits::USUAL).unwrap_err().to_string();
        assert!(error.contains(&format!("({opcode})")) && error.contains("nothing was executed"), "{error}");
    }
}

fn a_file_of_something_else_is_refused_with_what_it_should_be() {
    let list = serde_pickle::to_vec(&json!([1, 2]), serde_pickle::SerOptions::new()).unwrap();
    let model = serde_pickle::to_vec(&json!({"state_dict": {}}), serde_pickle::SerOptions::new()).unwrap();
    for bytes in [&list[..], &model[..]] {
        let error = snapshot::parse(Path::new("x.pickle"), bytes, Limits::USUAL).unwrap_err().to_string();
        assert!(error.contains("segments"), "{error}");
    }
    let huge = block(0, 1 << 50, "active_allocated");
    assert!(made(&json!({"segments": [segment(0, &[huge])]})).unwrap_err().to_string().contains("size that a device"));
    let broken = json!({"segments": [{"address": "here"}]});
    assert!(made(&broken).unwrap_err().to_string().contains("`address` of segments[0]"));
    let error = snapshot::parse(Path::new("x.zip"), b"PK\x03\x04", Limits::USUAL).unwrap_err().to_string();
    assert!(error.contains("not a pickle"), "{error}");
}

/// A list that holds itself many times over, in a tower: a few hundred bytes that would be 10^60 values if copied.
fn a_tower_of_shared_lists_and_a_deep_nest_are_read_in_no_time_and_refused() {
    let mut tower = b"\x80\x04]\x94".to_vec();
    for level in 0..60_u8 {
        tower.extend(b"(");
        for _ in 0..10 {
            tower.extend([b'h', level]);
        }
        tower.extend(b"l\x94");
    }
    tower.push(b'.');
    let error = snapshot::parse(Path::new("tower.pickle"), &tower, Limits::USUAL).unwrap_err().to_string();
    assert!(error.contains("something else"), "{error}");
    let deep = [b"\x80\x04".to_vec(), vec![b']'; 1_000_000], vec![b'a'; 999_999], b".".to_vec()].concat();
    assert!(snapshot::parse(Path::new("deep.pickle"), &deep, Limits::USUAL).is_err());
}

fn control_characters_of_a_file_reach_no_terminal() {
    let mut live = block(0, 512, "active_allocated");
    live["frames"] = json!([{"name": "load\u{1b}[2J", "filename": "a\u{7}.py", "line": 1}]);
    let snapshot = made(&json!({"segments": [segment(0, &[live])], "\u{1b}]0;": 1})).unwrap();
    let shown = format!("{:?}{:?}", snapshot.stacks, snapshot.warnings().iter().map(ToString::to_string));
    assert!(shown.contains("load\u{fffd}[2J") && shown.contains("a\u{fffd}.py"), "{shown}");
    assert!(!snapshot.unknown.keys().any(|word| word.contains(char::is_control)), "{:?}", snapshot.unknown);
}

/// What a few megabytes of gzip unpack to: a gigabyte of marks, of notes to remember one value, of references to it.
fn a_file_that_repeats_one_opcode_without_end_is_refused_long_before_its_end() {
    let repeated = |start: &[u8], opcode: &[u8]| {
        let bytes = [start, &opcode.repeat(400_000)].concat();
        match Pickle::read(&bytes, 50_000).unwrap_err() {
            PickleError::Inconsistent { position, .. } => assert!(position < 100_000, "{opcode:?}: {position}"),
            error => assert_eq!(error, PickleError::TooLarge { most_values: 50_000 }, "{opcode:?}"),
        }
    };
    repeated(b"\x80\x04", b"(");
    repeated(b"\x80\x04N", b"\x94");
    repeated(b"\x80\x04N\x94", b"h\x00");
    repeated(b"\x80\x04]\x94", b"h\x00a");
}

fn a_file_beyond_a_limit_is_refused_and_one_at_it_is_read() {
    let packed = std::fs::read(crate::recorded::data("h200").join(DECODE)).unwrap();
    let read = |limits| snapshot::parse(Path::new("large.pickle"), &packed, limits);
    let bytes = unpacked(DECODE).len() as u64;
    assert!(read(Limits { bytes, ..Limits::USUAL }).is_ok());
    let error = read(Limits { bytes: bytes - 1, ..Limits::USUAL }).unwrap_err();
    assert!(matches!(error, SnapshotError::TooLarge { .. }) && error.to_string().contains("max_entries"), "{error}");
    let records = 33 + 276 + 895;
    assert!(read(Limits { records, ..Limits::USUAL }).is_ok());
    let error = read(Limits { records: records - 1, ..Limits::USUAL }).unwrap_err().to_string();
    assert!(error.contains("large.pickle") && error.contains("more than 1203 blocks"), "{error}");
    let error = read(Limits { values: 1_000, ..Limits::USUAL }).unwrap_err().to_string();
    assert!(error.contains("more than 1000 values"), "{error}");
    // Values alone, with nothing else that is bounded.
    let nulls = [b"\x80\x04(".as_slice(), &[b'N'; 2_000], b"t."].concat();
    let few = Limits { values: 1_000, ..Limits::USUAL };
    let error = snapshot::parse(Path::new("nulls.pickle"), &nulls, few).unwrap_err().to_string();
    assert!(error.contains("more than 1000 values"), "{error}");
}

proptest! {
        fn bytes_of_any_kind_are_an_error_or_a_snapshot_and_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = snapshot::parse(Path::new("x"), &[b"\x80\x04", &bytes[..]].concat(), Limits::USUAL);
        let _ = snapshot::parse(Path::new("x"), &bytes, Limits::USUAL);
    }

        fn a_snapshot_with_a_byte_changed_is_an_error_or_a_snapshot_and_never_a_panic(at in any::<prop::sample::Index>(), byte: u8) {
        let mut bytes = unpacked(ENCODE);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(snapshot) = snapshot::parse(Path::new("x"), &bytes, Limits::USUAL) {
            for device in snapshot.devices() {
                let _ = (snapshot.peaks(device), snapshot.stranded(device), snapshot.requests(device));
            }
            let _ = snapshot.warnings();
        }
    }
}
