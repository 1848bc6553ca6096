//! What `headroom devices --measure --json` and PyTorch's own loop printed one after the other on one host.

use std::fmt::Write as _;

use headroom_base::{Bytes, KIB, MIB};
use serde::Deserialize;

use super::kept;

#[derive(Deserialize)]
struct Loop {
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

/// Uploads beside the plain pinned copy of the same run.
pub(crate) fn copies(wanted: impl Fn(&Copied) -> bool) -> String {
    let mut table =
        String::from("| from | manner | threads | GiB/s | of the plain pinned copy |\n|---|---|---:|---:|---:|\n");
    for row in measurements().copies.into_iter().filter(wanted) {
        let threads = row
            .settings
            .map_or_else(String::new, |settings| format!("{} × {}", settings.threads, Bytes(settings.buffer_bytes)));
        let (source, manner) = (row.source.replace('_', " "), row.manner.replace('_', " "));
        let share = 100.0 * row.share_of_plain;
        let _ = writeln!(table, "| {source} | {manner} | {threads} | {:.1} | {share:.1} % |", row.gib_per_second);
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
}
