//! Convolutions of which the library wanted another workspace on the card than the table says: beside what PyTorch was
//! recorded to take for the same call, where it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use headroom_base::grouped;

use super::convolution_calls::{RecordedCall, recorded_calls};
use super::kept::Runs;
use super::summary::notes;

/// The call as notes write it.
fn shape(call: &RecordedCall) -> String {
    let (dtype, layout, output) = (call.dtype(), call.layout(), call.output());
    let RecordedCall { batch, channels: [input_channels, output_channels], size, kernel, .. } = call;
    format!("{dtype:?} {layout:?} {batch} x {input_channels} {size:?} to {output_channels} {output:?} by {kernel:?}")
}

/// What PyTorch took, by the call: several where a shape does not tell the calls apart.
fn by_torch() -> BTreeMap<String, BTreeSet<u64>> {
    let mut all: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for call in recorded_calls() {
        all.entry(shape(&call)).or_default().insert(call.workspace_bytes());
    }
    all
}

/// A call of ours with another workspace than the table's.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Differing<'a> {
    shape: &'a str,
    bytes: u64,
    algorithm: &'a str,
    table_bytes: u64,
}

impl<'a> Differing<'a> {
    /// From a note: `PLACE convolution: SHAPE: N bytes by ALGORITHM, the table says M`.
    fn of(call: &'a str) -> Option<Self> {
        let (shape, rest) = call.split_once(": ")?;
        let (bytes, rest) = rest.split_once(" bytes by ")?;
        let (algorithm, table) = rest.split_once(", the table says ")?;
        let number = |text: &str| text.replace(',', "").parse().ok();
        Some(Self { shape, bytes: number(bytes)?, algorithm, table_bytes: number(table)? })
    }
}

/// Calls once each, without the places where they stand.
fn differing(runs: &Runs) -> BTreeSet<Differing<'_>> {
    let calls = notes(runs, "same_counters").filter_map(|(_, note)| Some(note.split_once(" convolution: ")?.1));
    calls
        .map(|call| Differing::of(call).unwrap_or_else(|| panic!("a call reads otherwise than here: {call}")))
        .collect()
}

/// Two lists: calls that PyTorch was recorded at, and others.
pub(crate) fn lists(runs: &Runs) -> String {
    let torch = by_torch();
    let (mut both, mut ours_alone) = (Vec::new(), Vec::new());
    for call in differing(runs) {
        match torch.get(call.shape) {
            Some(theirs) => both.push((call, theirs)),
            None => ours_alone.push(call),
        }
    }
    let same = both.iter().filter(|(call, theirs)| theirs.contains(&call.bytes)).count();
    let is_far = |call: &Differing<'_>, theirs: &BTreeSet<u64>| {
        theirs.iter().all(|bytes| call.bytes.abs_diff(*bytes) * 50 > *bytes)
    };
    let far = both.iter().filter(|(call, theirs)| is_far(call, theirs)).count();
    let mut text = format!(
        "Our calls of which the library wanted another workspace than the table's rules say, each once, in bytes. The rules \
         are fitted to single calls of PyTorch's (`../h200/conv-workspaces.jsonl`).\n\n{} of them are among those recorded \
         calls. In {same} PyTorch took what ours did, and the rule misses both; in {} our kernels take another workspace \
         than PyTorch's, in {far} of those by more than 2 % of it:\n\n| call | ours | by | PyTorch's | the rule's |\n|---|---:|---|---:|---:|\n",
        both.len(),
        both.len() - same
    );
    for (Differing { shape, bytes, algorithm, table_bytes }, theirs) in &both {
        let theirs = theirs.iter().copied().map(grouped).collect::<Vec<_>>().join(" or ");
        let (bytes, table) = (grouped(*bytes), grouped(*table_bytes));
        let _ = writeln!(text, "| {shape} | {bytes} | {algorithm} | {theirs} | {table} |");
    }
    let _ = writeln!(
        text,
        "\nOf {} nobody recorded PyTorch's; whose workspace the rule misses there cannot be said:\n\n\
         | call | ours | by | the rule's |\n|---|---:|---|---:|",
        ours_alone.len()
    );
    for Differing { shape, bytes, algorithm, table_bytes } in ours_alone {
        let _ = writeln!(text, "| {shape} | {} | {algorithm} | {} |", grouped(bytes), grouped(table_bytes));
    }
    text
}

/// A shape that is written otherwise in notes than here would put every call among those nobody recorded.
#[test]
fn calls_of_the_card_and_of_pytorch_are_told_by_the_same_words() {
    let torch = by_torch();
    let line = r#"{"dtype":"bf16","layout":"nchw","batch":1,"channels":[512,512],"size":[257,257],"kernel":[3,3],
        "stride":[2,2],"pad":[0,0],"freed":[7,8]}"#;
    let call: RecordedCall = serde_json::from_str(line).unwrap();
    assert_eq!(shape(&call), "Bf16 Contiguous 1 x 512 [257, 257] to 512 [128, 128] by [3, 3]");
    assert_eq!(call.workspace_bytes(), 15);
    let runs = super::kept::runs(&headroom::catalogue::Catalogue::load(None).unwrap());
    let differing = differing(&runs);
    assert!(differing.iter().any(|call| torch.contains_key(call.shape)), "none of {} calls", differing.len());
    assert!(differing.iter().all(|call| call.bytes != call.table_bytes));
    for call in &differing {
        let kind = call.shape.split(' ').take(2).collect::<Vec<_>>().join(" ");
        assert!(torch.keys().any(|shape| shape.starts_with(&kind)), "PyTorch was recorded at no call of {kind}");
    }
}
