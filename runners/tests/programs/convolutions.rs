//! The workspace rules against single convolution calls that were recorded on an H200, one by one.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use headroom_base::Bytes;
use headroom_runners::programs::{ConvolutionCall, WorkspaceModel};

use crate::convolution_calls::{RecordedCall, recorded_calls};

/// A recorded call beside the rules.
struct Call(RecordedCall);

impl Call {
    fn predicted_bytes(&self) -> u64 {
        let Self(recorded) = self;
        let call = ConvolutionCall {
            dtype: recorded.dtype(),
            layout: recorded.layout(),
            batch: recorded.batch,
            input_channels: recorded.channels[0],
            output_channels: recorded.channels[1],
            input: recorded.size.clone(),
            output: recorded.output(),
            kernel: recorded.kernel.clone(),
        };
        WorkspaceModel::Hopper.convolution(&call).total()
    }

    /// Input, output and workspace: what a peak at this call holds at least.
    fn held_bytes(&self) -> u64 {
        let Self(recorded) = self;
        let elements = recorded.channels[0] * recorded.size.iter().product::<u64>()
            + recorded.channels[1] * recorded.output().iter().product::<u64>();
        recorded.batch * elements * recorded.dtype().element_bytes() + recorded.workspace_bytes()
    }

    fn miss_bytes(&self) -> u64 {
        self.predicted_bytes().abs_diff(self.0.workspace_bytes())
    }

    /// Element type, layout and kernel: what the rules are about.
    fn kind(&self) -> String {
        let kernel: Vec<String> = self.0.kernel.iter().map(u64::to_string).collect();
        format!("{} {} {}", self.0.dtype, self.0.layout, kernel.join("×"))
    }
}

/// How well the rules give the calls of one kind.
#[derive(Clone, Copy, Default)]
struct Score {
    calls: usize,
    equal: usize,
    close: usize,
    /// Off by at most 2 % of what the call holds.
    harmless: usize,
    recorded_bytes: u64,
    missed_bytes: u64,
    worst_bytes: u64,
}

impl Score {
    fn add(&mut self, call: &Call) {
        let miss = call.miss_bytes();
        self.calls += 1;
        self.equal += usize::from(miss == 0);
        self.close += usize::from(50 * miss <= call.0.workspace_bytes());
        self.harmless += usize::from(50 * miss <= call.held_bytes());
        self.recorded_bytes += call.0.workspace_bytes();
        self.missed_bytes += miss;
        self.worst_bytes = self.worst_bytes.max(miss);
    }

    fn percent(self, part: usize) -> f64 {
        100.0 * part as f64 / self.calls as f64
    }

    /// What the rules are off by in all, in percent of what was recorded.
    fn missed_percent(self) -> f64 {
        100.0 * self.missed_bytes as f64 / self.recorded_bytes.max(1) as f64
    }
}

fn calls() -> Vec<Call> {
    recorded_calls().into_iter().map(Call).collect()
}

fn scores(calls: &[Call]) -> BTreeMap<String, Score> {
    let mut scores: BTreeMap<String, Score> = BTreeMap::new();
    for call in calls {
        scores.entry(call.kind()).or_default().add(call);
    }
    scores
}

/// What came out when the rules were first held against single calls, rounded against them: the least share of equal
/// workspaces, and of those within 2 % of all that the call holds. A rule that gets worse fails; a better one raises
/// them. They are low where little is asked for: 1×1 kernels and channels innermost, and in single precision, whose
/// partial sums are not modelled.
const FLOORS: [(&str, f64, f64); 21] = [
    ("bf16 channels_last 1×1", 72.0, 90.0),
    ("bf16 channels_last 3×3", 73.0, 83.0),
    ("bf16 nchw 1×1", 76.0, 98.0),
    ("bf16 nchw 1×1×1", 100.0, 100.0),
    ("bf16 nchw 3×1×1", 89.0, 100.0),
    ("bf16 nchw 3×3", 83.0, 92.0),
    ("bf16 nchw 3×3×3", 73.0, 97.0),
    ("fp16 channels_last 1×1", 77.0, 96.0),
    ("fp16 channels_last 3×3", 83.0, 89.0),
    ("fp16 nchw 1×1", 80.0, 99.0),
    ("fp16 nchw 1×1×1", 100.0, 100.0),
    ("fp16 nchw 3×1×1", 89.0, 100.0),
    ("fp16 nchw 3×3", 81.0, 89.0),
    ("fp16 nchw 3×3×3", 70.0, 97.0),
    ("fp32 channels_last 1×1", 50.0, 93.0),
    ("fp32 channels_last 3×3", 56.0, 79.0),
    ("fp32 nchw 1×1", 62.0, 93.0),
    ("fp32 nchw 1×1×1", 19.0, 100.0),
    ("fp32 nchw 3×1×1", 50.0, 86.0),
    ("fp32 nchw 3×3", 52.0, 71.0),
    ("fp32 nchw 3×3×3", 46.0, 73.0),
];
/// The same of all calls.
const ALL_FLOOR: (f64, f64) = (70.0, 89.0);
/// The most that all workspaces together may be off by, in percent of what was recorded; 2.91 came out.
const MOST_MISSED_PERCENT: f64 = 3.0;

/// The shares as a Markdown table.
fn table(scores: &BTreeMap<String, Score>) -> String {
    let mut text = String::from(
        "| kind | calls | equal | within 2 % | within 2 % of all that the call holds | bytes off | worst |\n|---|---:|---:|---:|---:|---:|---:|\n",
    );
    for (kind, score) in scores {
        let _ = writeln!(
            text,
            "| {kind} | {} | {:.1} % | {:.1} % | {:.1} % | {:.1} % of {} | {} |",
            score.calls,
            score.percent(score.equal),
            score.percent(score.close),
            score.percent(score.harmless),
            score.missed_percent(),
            Bytes(score.recorded_bytes),
            Bytes(score.worst_bytes),
        );
    }
    text
}
/// The shares of the recorded calls that the rules give, for the README.
pub(super) fn report() -> String {
    table(&scores(&calls()))
}

#[test]
fn rules_for_workspaces_give_the_recorded_calls_as_often_as_is_said() {
    let mut calls = calls();
    assert!(calls.len() > 9000, "{} calls", calls.len());
    let scores = scores(&calls);
    println!("{}", table(&scores));
    calls.sort_by_key(|call| std::cmp::Reverse(call.miss_bytes()));
    for call in calls.iter().take(24) {
        println!(
            "- {} batch {} {:?} {:?} stride {:?}: {} predicted, {} recorded",
            call.kind(),
            call.0.batch,
            call.0.channels,
            call.0.size,
            call.0.stride,
            Bytes(call.predicted_bytes()),
            Bytes(call.0.workspace_bytes())
        );
    }
    let mut total = Score::default();
    calls.iter().for_each(|call| total.add(call));
    println!(
        "all: {} of {} equal, {} within 2 %, {} within 2 % of all that the call holds, {:.2} % of bytes off",
        total.equal,
        total.calls,
        total.close,
        total.harmless,
        total.missed_percent()
    );
    assert_eq!(scores.keys().map(String::as_str).collect::<Vec<_>>(), FLOORS.map(|(kind, ..)| kind));
    for (kind, equal, harmless) in FLOORS {
        let score = scores[kind];
        let shares = [score.percent(score.equal), score.percent(score.harmless)];
        assert!(
            shares[0] >= equal && shares[1] >= harmless,
            "{kind}: {shares:.1?} %, where {equal} and {harmless} held"
        );
    }
    let shares = [total.percent(total.equal), total.percent(total.harmless)];
    assert!(shares[0] >= ALL_FLOOR.0 && shares[1] >= ALL_FLOOR.1, "{shares:.1?} % of all");
    assert!(total.missed_percent() <= MOST_MISSED_PERCENT, "{:.2} % of bytes off", total.missed_percent());
}
