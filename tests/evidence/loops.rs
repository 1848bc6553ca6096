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

/// Which card a file is of. Older files do not say.
#[derive(Debug, Deserialize, PartialEq)]
struct Card {
    uuid_hash: Option<String>,
    driver_version: Option<String>,
}

#[derive(Deserialize)]
struct Pair {
    bytes: u64,
    pair_ns: f64,
}

/// A cached allocate and free beside PyTorch's, one after the other on one host.
pub(crate) fn pairs() -> String {
    let torch: Loop = serde_json::from_str(&kept::text(kept::TORCH_ALLOCATOR)).unwrap();
    let OnDevice { cached_pairs, card, .. } = measurements();
    if torch.card.uuid_hash.is_some() {
        assert_eq!(card, torch.card, "both loops ran beside one card");
    }
    let locked = cached_pairs.iter().all(|own| own.locked_nanoseconds.is_some());
    let (title, line) = if locked { (" headroom with its lock, ns |", "---:|") } else { ("", "") };
    let mut table =
        format!("| block | headroom, ns |{title} {}, ns | ratio |\n|---:|---:|{line}---:|---:|\n", torch.allocator);
    for row in &torch.rows {
        let Some(own) = cached_pairs.iter().find(|own| own.bytes == row.bytes) else { continue };
        // PyTorch's takes its own lock, so what takes ours is what is like it.
        let alike_ns = own.locked_nanoseconds.unwrap_or(own.nanoseconds);
        let more = own.locked_nanoseconds.map_or_else(String::new, |locked_ns| format!(" {locked_ns:.0} |"));
        let ratio = alike_ns / row.pair_ns;
        let (block, own_ns) = (block(row.bytes), own.nanoseconds);
        let _ = writeln!(table, "| {block} | {own_ns:.0} |{more} {:.0} | {ratio:.2} |", row.pair_ns);
    }
    format!(
        "A cached allocate + free on the card's host, called from Rust and from C++ one after the other:\n\n{table}\n"
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
    settings: Option<Settings>,
    /// Missing in older files, in which the usual ones are those without settings.
    usual: Option<bool>,
    gib_per_second: f64,
    share_of_plain: f64,
}

impl Copied {
    /// Whether it was shared out as uploads are, and not otherwise for comparison.
    pub(crate) fn is_usual(&self) -> bool {
        self.usual.unwrap_or(self.settings.is_none())
    }
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
    /// Missing in older files.
    locked_nanoseconds: Option<f64>,
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
    let usual: Vec<_> = measurements().copies.into_iter().filter(Copied::is_usual).collect();
    let uploads = usual.iter().filter(|row| row.manner.starts_with("upload"));
    for row in uploads.clone() {
        let least = if row.source == "pinned" { 0.95 } else { 0.85 };
        assert!(row.share_of_plain >= least, "{} {}: {}", row.source, row.manner, row.share_of_plain);
    }
    let partial = uploads.filter(|row| row.manner == "upload_every_second");
    let sources: Vec<_> = partial.map(|row| row.source.as_str()).collect();
    assert_eq!(sources, ["pinned", "pageable", "mapped_file"]);
}
