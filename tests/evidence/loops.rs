//! What `headroom devices --measure --json` and PyTorch's own loop printed one after the other on one host.

use std::fmt::Write as _;

use headroom_base::{Bytes, GIB, KIB, MIB};
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
    format!(
        "A cached allocate + free on a card's host, called from Rust and, before and after, from C++; the ratio is of ours with \
         its lock to the quicker of those two. {}\n\n{}On the host of 16 processors, {}\n\n{}",
        source(kept::MEASURED),
        pairs_on(kept::MEASURED, kept::TORCH_ALLOCATOR),
        source(kept::MEASURED_ON_16[1]),
        pairs_on(kept::MEASURED_ON_16[1], kept::TORCH_ALLOCATOR_ON_16)
    )
}

fn pairs_on(measured: &str, torch: [&str; 2]) -> String {
    let torch = torch.map(|name| serde_json::from_str::<Loop>(&kept::text(name)).unwrap());
    let minutes = (unix_seconds(&torch[1].created) - unix_seconds(&torch[0].created) + 59) / 60;
    let OnDevice { cached_pairs, card, .. } = measurements(measured);
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
    format!("{table}\nPyTorch's two loops began within {minutes} minutes of one another.\n\n")
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
    /// Before the others.
    first_seconds: f64,
    /// Of each of the others.
    seconds: Vec<f64>,
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

fn measurements(name: &str) -> OnDevice {
    let mut measured: Measurements = serde_json::from_str(&kept::text(name)).unwrap();
    assert!(measured.optimised, "figures of a build that is not optimised say little");
    measured.devices.remove(0)
}

/// The usual ones, with what they are.
pub(crate) fn uploads() -> String {
    let size = Bytes(measurements(kept::MEASURED).copies[0].bytes);
    format!(
        "Uploads of {size} beside the plain pinned copy of the same run; a piece is 2 MiB. The rate is the median of those \
         after the first; the first, the second, and the slowest and the quickest of the others stand beside it, as shares of \
         the plain pinned copy too. {}\n\n{}{}",
        source(kept::MEASURED),
        copies(kept::MEASURED, |row| row.usual),
        on_16_processors()
    )
}

/// What a host came to on which the usual threads were as many as its processors, in two runs.
fn on_16_processors() -> String {
    let with_12 = |settings: &Settings| (settings.threads, settings.buffer_bytes) == (12, 4 * MIB);
    let with_less = |settings: &Settings| (settings.threads, settings.buffer_bytes) == (16, 2 * MIB);
    let told = |row: &Copied| row.usual || row.settings.as_ref().is_some_and(|own| with_12(own) || with_less(own));
    let tables = kept::MEASURED_ON_16.map(|name| format!("{}\n\n{}", source(name), copies(name, told)));
    format!(
        "On a host of 16 processors, measured twice; what was not usual was measured of whole models alone:\n\n{}With a thread \
         for each of its processors the shares of mapped files stay below 85 %, and once those of pageable memory. An uploader \
         takes three quarters of the processors since, which there is 12; no card has run a partial load with that.\n\n",
        tables.concat()
    )
}

/// Of what commit and card a measurement is.
fn source(measured: &str) -> String {
    let all: Measurements = serde_json::from_str(&kept::text(measured)).unwrap();
    let (commit, card) = (all.commit.as_deref().unwrap_or("unknown"), &all.devices[0].card.uuid_hash);
    format!("`headroom devices --measure` of `{commit}` on card `{card}`:")
}

/// Which upload a share is of.
struct Shape {
    source: String,
    manner: String,
    settings: Option<(usize, u64)>,
}

impl Shape {
    /// Whether it went through buffers.
    fn is_staged(&self) -> bool {
        self.source != "pinned" && self.manner.starts_with("upload")
    }
}

/// Each upload's share of the plain pinned copy of its run.
fn shares(all: &[Copied]) -> Vec<(Shape, f64)> {
    let plain = all[0].bytes_a_second();
    let share = |row: &Copied| {
        let settings = row.settings.as_ref().map(|settings| (settings.threads, settings.buffer_bytes));
        (Shape { source: row.source.clone(), manner: row.manner.clone(), settings }, row.bytes_a_second() / plain)
    };
    all.iter().map(share).collect()
}

impl Copied {
    /// Of all after the first, by the seconds they took, whatever the file says of them.
    fn bytes_a_second(&self) -> f64 {
        let mut seconds = self.seconds.clone();
        seconds.sort_by(f64::total_cmp);
        self.bytes as f64 / seconds[seconds.len() / 2]
    }

    /// The first, the second, the slowest and the quickest of the others: bytes a second.
    fn one_by_one(&self) -> [f64; 4] {
        let [second, others @ ..] = &self.seconds[..] else { panic!("{} {}: one upload", self.source, self.manner) };
        let slowest = others.iter().copied().fold(0.0, f64::max);
        let quickest = others.iter().copied().fold(f64::INFINITY, f64::min);
        [self.first_seconds, *second, slowest, quickest].map(|seconds| self.bytes as f64 / seconds)
    }
}

/// Uploads beside the plain pinned copy of the same run.
pub(crate) fn copies(measured: &str, wanted: impl Fn(&Copied) -> bool) -> String {
    let mut table = String::from(
        "| from | manner | threads | GiB/s | of the plain pinned copy | first | second | the others |\n\
         |---|---|---:|---:|---:|---:|---:|---:|\n",
    );
    let all = measurements(measured).copies;
    let plain = all[0].bytes_a_second();
    for row in all.iter().filter(|row| wanted(row)) {
        let threads = row.settings.as_ref();
        let threads = threads
            .map_or_else(String::new, |settings| format!("{} × {}", settings.threads, Bytes(settings.buffer_bytes)));
        let (source, manner) = (row.source.replace('_', " "), row.manner.replace('_', " "));
        let rate = row.bytes_a_second();
        let (gib, share) = (rate / GIB as f64, 100.0 * rate / plain);
        let [first, second, slowest, quickest] = row.one_by_one().map(|rate| 100.0 * rate / plain);
        let _ = writeln!(
            table,
            "| {source} | {manner} | {threads} | {gib:.1} | {share:.1} % | {first:.1} % | {second:.1} % | \
             {slowest:.1}–{quickest:.1} % |"
        );
    }
    table + "\n"
}

/// From each kind of memory, this share of the plain pinned copy or more, by the seconds that each took.
#[test]
fn uploads_reach_their_share_of_the_plain_pinned_copy() {
    let all = measurements(kept::MEASURED).copies;
    assert_eq!((&*all[0].source, &*all[0].manner), ("pinned", "plain_pinned"), "beside what the others stand");
    let plain = all[0].bytes_a_second();
    for row in &all {
        let share = row.bytes_a_second() / plain;
        assert!(row.seconds.len() >= 5, "{} {}: {:?}", row.source, row.manner, row.seconds);
        assert!((share / row.share_of_plain - 1.0).abs() < 1e-9, "the file says {} for {share}", row.share_of_plain);
    }
    let usual: Vec<_> = all.iter().filter(|row| row.usual).collect();
    let uploads = usual.iter().filter(|row| row.manner.starts_with("upload"));
    for row in uploads.clone() {
        let least = if row.source == "pinned" { 0.95 } else { 0.85 };
        let share = row.bytes_a_second() / plain;
        assert!(share >= least, "{} {}: {share}", row.source, row.manner);
    }
    let partial = uploads.filter(|row| row.manner == "upload_every_second");
    let sources: Vec<_> = partial.map(|row| row.source.as_str()).collect();
    assert_eq!(sources, ["pinned", "pageable", "mapped_file"]);
    let common = usual.iter().filter(|row| row.manner == "copy_each_piece").map(|row| row.source.as_str());
    assert_eq!(common.collect::<Vec<_>>(), ["pageable", "mapped_file"], "the common manner stands beside them");
}

/// There the usual threads were too many; with fewer, whole models reach it, and of partial loads nothing is known.
#[test]
fn whole_models_on_a_host_of_16_processors_reach_their_share_with_12_threads_and_mapped_ones_not_with_16() {
    for name in kept::MEASURED_ON_16 {
        let with_12 = |shape: &Shape| shape.is_staged() && shape.settings == Some((12, 4 * MIB));
        let shares = shares(&measurements(name).copies);
        for (shape, share) in &shares {
            let least = if shape.source == "pinned" { 0.95 } else { 0.85 };
            let must_reach = with_12(shape) || shape.source == "pinned" && shape.manner.starts_with("upload");
            assert!(!must_reach || *share >= least, "{name}: {} {}: {share}", shape.source, shape.manner);
        }
        let measured: Vec<_> =
            shares.iter().filter(|(shape, _)| with_12(shape)).map(|(shape, _)| &*shape.manner).collect();
        assert_eq!(measured, ["upload_pieces", "upload_pieces"], "{name}: pageable and mapped, whole");
        let usual = Some((16, 4 * MIB));
        let mapped = shares.iter().filter(|(shape, _)| shape.source == "mapped_file" && shape.settings == usual);
        assert!(mapped.clone().count() == 2 && mapped.into_iter().all(|(_, share)| *share < 0.85), "{name}");
    }
}

/// Seconds since 1970 of a time as `2026-11-30T14:22:37Z`.
fn unix_seconds(time: &str) -> i64 {
    let numbers = time.trim_end_matches('Z').split(['-', 'T', ':']).map(|number| number.parse::<i64>().unwrap());
    let [year, month, day, hour, minute, second] = numbers.collect::<Vec<_>>()[..] else { panic!("{time}") };
    // Years that begin in March have their leap day at the end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    ((days * 24 + hour) * 60 + minute) * 60 + second
}

#[test]
fn times_are_seconds_since_1970() {
    for (time, seconds) in
        [("1970-01-01T00:00:00Z", 0), ("2024-02-29T23:59:59Z", 1_709_251_199), ("2026-11-30T14:22:37Z", 1_796_048_557)]
    {
        assert_eq!(unix_seconds(time), seconds, "{time}");
    }
}

#[test]
fn loops_over_four_sizes_ran_before_and_after_one_another_within_an_hour() {
    let on_16 = (kept::MEASURED_ON_16[1], kept::TORCH_ALLOCATOR_ON_16);
    for (measured, torch) in [(kept::MEASURED, kept::TORCH_ALLOCATOR), on_16] {
        let [before, after] = torch.map(|name| serde_json::from_str::<Loop>(&kept::text(name)).unwrap());
        let own: Measurements = serde_json::from_str(&kept::text(measured)).unwrap();
        assert!(own.commit.is_some());
        let [earlier, between, later] = [&before.created, &own.created, &after.created].map(|time| unix_seconds(time));
        assert!(earlier < between && between < later && later - earlier < 3600, "{earlier}, {between}, {later}");
        let sizes = |rows: &[Pair]| rows.iter().map(|row| row.bytes).collect::<Vec<_>>();
        let own_sizes: Vec<u64> = own.devices[0].cached_pairs.iter().map(|row| row.bytes).collect();
        assert_eq!(own_sizes, [512, 4 * KIB, MIB, 32 * MIB]);
        assert_eq!((sizes(&before.rows), sizes(&after.rows)), (own_sizes.clone(), own_sizes));
    }
}
