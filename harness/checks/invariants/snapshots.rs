//! Recorded snapshots of a real allocator: read within limits, and explained without promising what is not there.

use std::path::Path;

use headroom_reports::snapshot::{Limits, PickleError, Snapshot, SnapshotError, parse};

use super::shipping::said;
use crate::checks::{CheckError, Claim};
use crate::world::World;

super::general![
    a_file_beyond_a_limit_is_refused,
    what_lies_beside_a_live_block_is_stranded,
    what_was_live_before_the_recording_is_part_of_it,
];

/// An SDXL decode at 1024x1024 under the native allocator, of which 7 segments are pinned by live blocks.
const DECODE: &[u8] = include_bytes!("../../../tests/data/h200/snapshot-native-sdxl-vae_decode-1024.pickle.gz");

fn read(limits: Limits) -> Result<Snapshot, SnapshotError> {
    parse(Path::new("decode.pickle.gz"), DECODE, limits)
}

fn a_file_beyond_a_limit_is_refused(_: &World) -> Result<(), CheckError> {
    read(Limits::USUAL).map_err(said)?;
    let limits = [
        ("unpacked bytes", Limits { bytes: 1_000, ..Limits::USUAL }),
        ("blocks and events", Limits { records: 1_000, ..Limits::USUAL }),
    ];
    for (what, limits) in limits {
        let refused = read(limits).is_err();
        Claim::SnapshotHasLimits.holds(refused, || format!("a snapshot with too many {what} was read"))?;
    }
    // A list of ones, with nothing in it that is counted but values.
    let list = [b"\x80\x02](".as_slice(), &b"K\x01".repeat(2_000), b"e."].concat();
    let outcome = parse(Path::new("list.pickle"), &list, Limits { values: 1_000, ..Limits::USUAL });
    let refused = matches!(outcome, Err(SnapshotError::Pickle { source: PickleError::TooLarge { .. }, .. }));
    Claim::SnapshotHasLimits.holds(refused, || "a pickle with too many values was read".to_owned())
}

fn what_lies_beside_a_live_block_is_stranded(_: &World) -> Result<(), CheckError> {
    let stranded = read(Limits::USUAL).map_err(said)?.stranded(0);
    let free: u64 = stranded.segments.iter().map(|segment| segment.largest_free_bytes).sum();
    Claim::StrandedMemoryIsNotFree.holds(stranded.stranded_bytes >= free, || {
        format!("{free} bytes lie beside live blocks, and {} are said to be stranded", stranded.stranded_bytes)
    })?;
    Claim::StrandedMemoryIsNotFree.equal("segments that live blocks pin", stranded.segments.len(), 7)
}

fn what_was_live_before_the_recording_is_part_of_it(_: &World) -> Result<(), CheckError> {
    let live = read(Limits::USUAL).map_err(said)?.requests(0).already_live.len();
    Claim::SnapshotBeginsInTheMiddle.equal("blocks that were live when the recording began", live, 251)
}
