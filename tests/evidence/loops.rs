//! What `headroom devices --measure --json` and PyTorch's own loop printed one after the other on one host.

use std::fmt::Write as _;

use headroom_base::{Bytes, KIB, MIB};
use serde::Deserialize;

use super::kept;

#[derive(Deserialize)]
struct Loop {
    created: String,
    allocator: String,
    rows: Vec<Pair>,
    #[serde(flatten)]
    card: Card,
}

/// Which card a file is of.
#[derive(Debug, Deserialize, PartialEq)]
struct Card {
    uuid_hash: String,
    driver_version: String,
}

#[derive(Deserialize)]
struct Pair {
    bytes: u64,
    pair_ns: f64,
}

/// A cached allocate and free beside PyTorch's, one after the other on one host. PyTorch's loop differs from run to run:
/// the ratio is to its quickest.
pub(crate) fn pairs() -> String {
    let torch = kept::TORCH_ALLOCATOR.map(|name| serde_json::from_str::<Loop>(&kept::text(name)).unwrap());
    let OnDevice { cached_pairs, card, .. } = measurements();
    assert!(torch.iter().all(|torch| torch.card == card), "all loops ran beside one card");
    let mut table = format!(
        "| block | headroom, ns | headroom with its lock, ns | {}, ns | ratio |\n|---:|---:|---:|---:|---:|\n",
        torch[0].allocator
    );
    for OwnPair { bytes, nanoseconds, locked_nanoseconds } in cached_pairs {
        let of_block = |torch: &Loop| torch.rows.iter().find(|row| row.bytes == bytes).map(|row| row.pair_ns);
        let mut theirs: Vec<f64> = torch.iter().filter_map(of_block).collect();
        theirs.sort_by(f64::total_cmp);
        let [quickest, slowest] = theirs[..] else { continue };
        // PyTorch's takes its own lock, so what takes ours is what is like it.
        let ratio = locked_nanoseconds / quickest;
        let block = block(bytes);
        let _ = writeln!(
            table,
            "| {block} | {nanoseconds:.0} | {locked_nanoseconds:.0} | {quickest:.0}–{slowest:.0} | {ratio:.2} |"
        );
    }
    format!(
        "A cached allocate + free on the card's host, called from Rust and, before and after, from C++; the ratio is to the \
         quicker of those two:\n\n{table}\n"
    )
}

fn block(bytes: u64) -> String {
    match bytes {
        ..KIB => format!("{bytes} bytes"),
        KIB..MIB => format!("{} KiB", bytes / KIB),
        _ => Bytes(bytes).to_string(),
    }
}

/// What `headroom devices --measure --json` printed.
#[derive(Deserialize)]
struct Measurements {
    created: String,
    commit: Option<String>,
    optimised: bool,
    devices: Vec<OnDevice>,
}

#[derive(Deserialize)]
struct OnDevice {
    copies: Vec<Copied>,
    cached_pairs: Vec<OwnPair>,
    #[serde(flatten)]
    card: Card,
}

#[derive(Deserialize)]
pub(crate) struct Copied {
    source: String,
    manner: String,
    /// None of plain copies.
    settings: Option<Settings>,
    /// Whether it was shared out as uploads are, and not otherwise for comparison.
    pub(crate) usual: bool,
    bytes: u64,
    /// Before the others, of which the rate is the median.
    first_seconds: f64,
    gib_per_second: f64,
    share_of_plain: f64,
}

#[derive(Deserialize)]
struct Settings {
    threads: usize,
    buffer_bytes: u64,
}

#[derive(Deserialize)]
struct OwnPair {
    bytes: u64,
    nanoseconds: f64,
    locked_nanoseconds: f64,
}

fn measurements() -> OnDevice {
    let mut measured: Measurements = serde_json::from_str(&kept::text(kept::MEASURED)).unwrap();
    assert!(measured.optimised, "figures of a build that is not optimised say little");
    measured.devices.remove(0)
}

/// The usual ones, with what they are.
pub(crate) fn uploads() -> String {
    let size = Bytes(measurements().copies[0].bytes);
    format!(
        "Uploads of {size} beside the plain pinned copy of the same run, the median of five; a piece is 2 MiB. The first \
         upload of an uploader also pins its buffers (128 MiB by 16 threads) and is that much slower:\n\n{}",
        copies(|row| row.usual)
    )
}

/// Uploads beside the plain pinned copy of the same run.
pub(crate) fn copies(wanted: impl Fn(&Copied) -> bool) -> String {
    let mut table = String::from(
        "| from | manner | threads | GiB/s | of the plain pinned copy | the first upload |\n|---|---|---:|---:|---:|---:|\n",
    );
    let all = measurements().copies;
    let plain_bytes_a_second = all[0].gib_per_second * f64::from(1 << 30);
    for row in all.into_iter().filter(wanted) {
        let threads = row
            .settings
            .map_or_else(String::new, |settings| format!("{} × {}", settings.threads, Bytes(settings.buffer_bytes)));
        let (source, manner) = (row.source.replace('_', " "), row.manner.replace('_', " "));
        let share = 100.0 * row.share_of_plain;
        let first = 100.0 * row.bytes as f64 / row.first_seconds / plain_bytes_a_second;
        let _ = writeln!(
            table,
            "| {source} | {manner} | {threads} | {:.1} | {share:.1} % | {first:.1} % |",
            row.gib_per_second
        );
    }
    table + "\n"
}

/// From each kind of memory, this share of the plain pinned copy or more.
#[test]
fn uploads_reach_their_share_of_the_plain_pinned_copy() {
    let usual: Vec<_> = measurements().copies.into_iter().filter(|row| row.usual).collect();
    let uploads = usual.iter().filter(|row| row.manner.starts_with("upload"));
    for row in uploads.clone() {
        let least = if row.source == "pinned" { 0.95 } else { 0.85 };
        assert!(row.share_of_plain >= least, "{} {}: {}", row.source, row.manner, row.share_of_plain);
    }
    let partial = uploads.filter(|row| row.manner == "upload_every_second");
    let sources: Vec<_> = partial.map(|row| row.source.as_str()).collect();
    assert_eq!(sources, ["pinned", "pageable", "mapped_file"]);
    let common = usual.iter().filter(|row| row.manner == "copy_each_piece").map(|row| row.source.as_str());
    assert_eq!(common.collect::<Vec<_>>(), ["pageable", "mapped_file"], "the common manner stands beside them");
}

#[test]
fn loops_over_four_sizes_ran_before_and_after_one_another_within_minutes() {
    let [before, after] = kept::TORCH_ALLOCATOR.map(|name| serde_json::from_str::<Loop>(&kept::text(name)).unwrap());
    let own: Measurements = serde_json::from_str(&kept::text(kept::MEASURED)).unwrap();
    assert!(own.commit.is_some());
    assert!(before.created < own.created && own.created < after.created);
    assert_eq!(before.created[..14], after.created[..14], "within an hour");
    let sizes = |rows: &[Pair]| rows.iter().map(|row| row.bytes).collect::<Vec<_>>();
    let own_sizes: Vec<u64> = own.devices[0].cached_pairs.iter().map(|row| row.bytes).collect();
    assert_eq!(own_sizes, [512, 4 * KIB, MIB, 32 * MIB]);
    assert_eq!((sizes(&before.rows), sizes(&after.rows)), (own_sizes.clone(), own_sizes));
}
