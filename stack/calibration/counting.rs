//! Which windows count, and for every other one the reason why it does not.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use headroom_base::{
    AllocatorKind, AttemptId, DeviceClass, HardEnvironment, InvalidReason, LineKey, Residency, RunKind, Validity,
    Window, mutant,
};
use serde::{Deserialize, Serialize};

use crate::attempt::{Attempt, AttemptState};
use crate::fragmentation::{self, Surplus};

/// The current version of each estimator: windows of another version do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EstimatorVersions(BTreeMap<String, u32>);

impl EstimatorVersions {
    /// The newest version of each estimator among `lines`.
    pub fn newest_of<'a>(lines: impl IntoIterator<Item = &'a LineKey>) -> Self {
        let mut versions = Self::default();
        for line in lines {
            let newest = versions.0.entry(line.estimator.clone()).or_default();
            *newest = line.estimator_version.max(*newest);
        }
        versions
    }

    /// The current version of an estimator; nothing for one that this program does not have.
    pub fn current(&self, estimator: &str) -> Option<u32> {
        self.0.get(estimator).copied()
    }

    /// Whether windows of this line are of its estimator's current version.
    pub fn is_current(&self, line: &LineKey) -> bool {
        self.current(&line.estimator) == Some(line.estimator_version)
    }
}

impl FromIterator<(String, u32)> for EstimatorVersions {
    fn from_iter<T: IntoIterator<Item = (String, u32)>>(pairs: T) -> Self {
        Self(pairs.into_iter().collect())
    }
}

/// Where the counted windows are to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The kind of card.
    pub device: DeviceClass,
    /// The software, as far as it decides whether a fit is used.
    pub hard: HardEnvironment,
    /// The estimators of this program.
    pub versions: EstimatorVersions,
}

/// Whether a window counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Counted {
    /// It joins the fit of its line.
    Counts,
    /// It does not.
    Excluded(Uncounted),
}

impl Counted {
    /// Whether the window joins the fit of its line.
    pub const fn counts(&self) -> bool {
        matches!(self, Self::Counts)
    }

    /// Why it does not, if it does not.
    pub const fn reason(&self) -> Option<&Uncounted> {
        match self {
            Self::Counts => None,
            Self::Excluded(reason) => Some(reason),
        }
    }
}

/// Why a window does not count.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "because")]
pub enum Uncounted {
    /// It was there to warm up.
    WarmUp,
    /// It cannot be believed.
    Invalid {
        /// Why.
        why: InvalidReason,
    },
    /// Not all of the model was on the device.
    PartlyResident {
        /// What was missing.
        missing_bytes: u64,
    },
    /// It ran in room that was left in segments of before: a card without that room would have reserved it.
    InRoomLeft {
        /// How far what it reserved lies below what it allocated.
        found_bytes: u64,
    },
    /// A later try of the same run took its place.
    SupersededTry {
        /// The try that holds.
        last_try: u32,
    },
    /// It belongs to no attempt.
    NoAttempt,
    /// Its attempt is not known here.
    UnknownAttempt {
        /// Which.
        attempt: AttemptId,
    },
    /// Not every run of its attempt has finished.
    AttemptRunning,
    /// Its attempt was stopped.
    AttemptStopped,
    /// Its attempt failed.
    AttemptFailed {
        /// What it said.
        message: String,
    },
    /// Its attempt broke off in the middle.
    AttemptIncomplete {
        /// Runs that had finished.
        finished_runs: usize,
        /// Runs that were planned.
        planned_runs: u32,
    },
    /// It was measured on another kind of card.
    OtherDevice {
        /// Which.
        device: DeviceClass,
    },
    /// It was measured under software that differs in a part that matters.
    OtherEnvironment {
        /// The parts that differ, for people.
        differs: String,
    },
    /// It was priced by another version of its estimator, or by one that this program does not have.
    OtherEstimatorVersion {
        /// The version it was priced by.
        version: u32,
        /// The version of now.
        current: Option<u32>,
    },
    /// The allocator held more than the operation needed.
    Fragmented(Surplus),
}

impl fmt::Display for Uncounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WarmUp => f.write_str("warm-up run"),
            Self::Invalid { why } => write!(f, "{why}"),
            Self::PartlyResident { missing_bytes } => {
                write!(f, "{} of the model were not on the device", headroom_base::Bytes(*missing_bytes))
            }
            Self::InRoomLeft { found_bytes } => {
                let found = headroom_base::Bytes(*found_bytes);
                write!(f, "it ran in {found} of room left by others, which a fresh process would have to reserve")
            }
            Self::SupersededTry { last_try } => write!(f, "the run was tried again (try {})", last_try + 1),
            Self::NoAttempt => f.write_str("it belongs to no calibration"),
            Self::UnknownAttempt { attempt } => write!(f, "its calibration {attempt} is not known here"),
            Self::AttemptRunning => f.write_str("its calibration has not finished"),
            Self::AttemptStopped => f.write_str("its calibration was stopped"),
            Self::AttemptFailed { message } => write!(f, "its calibration failed: {message}"),
            Self::AttemptIncomplete { finished_runs, planned_runs } => {
                write!(f, "its calibration broke off after {finished_runs} of {planned_runs} runs")
            }
            Self::OtherDevice { device } => write!(f, "measured on {device}"),
            Self::OtherEnvironment { differs } => write!(f, "measured with other software: {differs}"),
            Self::OtherEstimatorVersion { version, current: Some(current) } => {
                write!(f, "priced by version {version} of its estimator, now {current}")
            }
            Self::OtherEstimatorVersion { version, current: None } => {
                write!(f, "priced by version {version} of an estimator that this program does not have")
            }
            Self::Fragmented(surplus) => write!(f, "{surplus}"),
        }
    }
}

/// Judges each window, in the order given: the one place where it is decided what joins a fit.
///
/// What is wrong with a window itself is said before what is wrong with its attempt, and that before what is
/// different here, because only the last of these can change.
pub fn count(windows: &[Window], attempts: &[Attempt], context: &Context) -> Vec<Counted> {
    let tries = LastTries::of(windows, attempts);
    let by_id: HashMap<&AttemptId, &Attempt> = attempts.iter().map(|attempt| (&attempt.id, attempt)).collect();
    let mut verdicts: Vec<Counted> = windows
        .iter()
        .map(|window| {
            let reason = of_itself(window, &tries)
                .or_else(|| of_its_attempt(window, &by_id))
                .or_else(|| of_this_place(window, context));
            reason.map_or(Counted::Counts, Counted::Excluded)
        })
        .collect();
    let candidates: Vec<&Window> =
        windows.iter().zip(&verdicts).filter(|(_, verdict)| verdict.counts()).map(|(window, _)| window).collect();
    let mut surpluses = fragmentation::judge(&candidates).into_iter();
    for verdict in verdicts.iter_mut().filter(|verdict| verdict.counts()) {
        if let Some(surplus) = surpluses.next().flatten() {
            *verdict = Counted::Excluded(Uncounted::Fragmented(surplus));
        }
    }
    verdicts
}

/// The last try of every run that has a window.
struct LastTries<'a>(HashMap<(&'a AttemptId, u32), u32>);

impl<'a> LastTries<'a> {
    /// From the windows, and from what the attempts say: a last try may have left no window at all.
    fn of(windows: &'a [Window], attempts: &'a [Attempt]) -> Self {
        let mut last = HashMap::new();
        let said = attempts.iter().flat_map(|a| a.last_tries.iter().map(|(run, number)| ((&a.id, *run), *number)));
        let seen = windows.iter().filter_map(|w| Some(((w.attempt_id.as_ref()?, w.run), w.retry)));
        for (run, number) in said.chain(seen) {
            let entry = last.entry(run).or_insert(number);
            *entry = number.max(*entry);
        }
        Self(last)
    }

    fn superseding(&self, window: &Window) -> Option<u32> {
        let last_try = *self.0.get(&(window.attempt_id.as_ref()?, window.run))?;
        (last_try > window.retry).then_some(last_try)
    }
}

fn of_itself(window: &Window, tries: &LastTries<'_>) -> Option<Uncounted> {
    let warm_up = mutant!(
        "warm_up_counts",
        "the first run's searches are reserved for in every later one",
        right: window.kind == RunKind::Warmup,
        wrong: false,
    );
    if warm_up {
        return Some(Uncounted::WarmUp);
    }
    if let Validity::Invalid(why) = &window.measurement.validity {
        let joins = mutant!(
            "invalid_window_counts",
            "a run that another one disturbed sets what is reserved for ever after",
            right: false,
            wrong: true,
        );
        if !joins {
            return Some(Uncounted::Invalid { why: why.clone() });
        }
    }
    if let Residency::Partial { missing_bytes } = window.measurement.residency {
        let joins = mutant!(
            "partly_resident_window_counts",
            "a run that had pieces of its model on the host sets the line too low or too high",
            right: false,
            wrong: true,
        );
        if !joins {
            return Some(Uncounted::PartlyResident { missing_bytes });
        }
    }
    let found_bytes = mutant!(
        "window_in_room_left_counts",
        "a server that ran other models first reserves half of what the same decode needs after a restart",
        right: room_found(window),
        wrong: None,
    );
    if let Some(found_bytes) = found_bytes {
        return Some(Uncounted::InRoomLeft { found_bytes });
    }
    mutant!(
        "first_try_counts",
        "what a run measured before it failed joins the fit beside its second try",
        right: tries.superseding(window).map(|last_try| Uncounted::SupersededTry { last_try }),
        wrong: None,
    )
}

/// Room that a window found in segments which were there before it: beyond two growth steps and beyond what the margin is
/// for. So much is left in the segments of the measured model's own weights and between what libraries keep.
///
/// In fresh processes on an H200 no window of PyTorch's own pools found more than one step, and under simulated
/// disturbances a small UNet's found 28 MiB; on a card that had run other models a third of 160 found more than two, and
/// needed as little as 54 % of what a fresh process needs. The driver's own pool gives back everything that other models
/// left, and spreads what is free beside weights over several steps (34 MiB were once found in a fresh process): it is
/// not asked.
fn room_found(window: &Window) -> Option<u64> {
    let allocator = window.environment.hard.allocator;
    if allocator == AllocatorKind::CudaMallocAsync {
        return None;
    }
    let deltas = &window.measurement.deltas;
    let allocated_bytes = deltas.allocated_peak_bytes;
    let found_bytes = allocated_bytes.checked_sub(deltas.reserved_peak_bytes)?;
    let usual_bytes = (2 * allocator.growth_step_bytes()).max(allocated_bytes / 20);
    (found_bytes > usual_bytes).then_some(found_bytes)
}

fn of_its_attempt(window: &Window, attempts: &HashMap<&AttemptId, &Attempt>) -> Option<Uncounted> {
    let Some(id) = &window.attempt_id else {
        return Some(Uncounted::NoAttempt);
    };
    let Some(attempt) = attempts.get(id) else {
        return Some(Uncounted::UnknownAttempt { attempt: id.clone() });
    };
    match &attempt.state {
        AttemptState::Finished => None,
        AttemptState::Running => mutant!(
            "live_windows_join",
            "estimates move under a calibration while it measures by them",
            right: Some(Uncounted::AttemptRunning),
            wrong: None,
        ),
        AttemptState::Stopped => mutant!(
            "stopped_attempt_joins",
            "the small sizes of a calibration somebody stopped set the line for the large ones",
            right: Some(Uncounted::AttemptStopped),
            wrong: None,
        ),
        AttemptState::Failed { message } => mutant!(
            "failed_attempt_joins",
            "the sizes measured before a failure set the line for those that failed",
            right: Some(Uncounted::AttemptFailed { message: message.clone() }),
            wrong: None,
        ),
        AttemptState::Incomplete => mutant!(
            "incomplete_attempt_joins",
            "the sizes measured before a crash set the line for the rest",
            right: Some(Uncounted::AttemptIncomplete {
                finished_runs: attempt.finished_runs.len(),
                planned_runs: attempt.planned_runs,
            }),
            wrong: None,
        ),
    }
}

fn of_this_place(window: &Window, context: &Context) -> Option<Uncounted> {
    let here = mutant!(
        "other_card_counts",
        "what a card of another size or maker needed sets what is reserved on this one",
        right: window.device == context.device,
        wrong: true,
    );
    if !here {
        return Some(Uncounted::OtherDevice { device: window.device.clone() });
    }
    let same = mutant!(
        "hard_environment_not_compared",
        "a fit measured with another allocator or attention kernel is used as if nothing had changed",
        right: window.environment.hard == context.hard,
        wrong: true,
    );
    if !same {
        return Some(Uncounted::OtherEnvironment { differs: differences(&window.environment.hard, &context.hard) });
    }
    let current = mutant!(
        "superseded_estimator_counts",
        "windows priced in other units than today's are put on one line with today's",
        right: context.versions.is_current(&window.line),
        wrong: true,
    );
    (!current).then(|| Uncounted::OtherEstimatorVersion {
        version: window.line.estimator_version,
        current: context.versions.current(&window.line.estimator),
    })
}

/// What differs between two environments, each as `part: then, now`.
fn differences(then: &HardEnvironment, now: &HardEnvironment) -> String {
    let settings = |text: &str| if text.is_empty() { "default".to_owned() } else { text.to_owned() };
    let on = |flag: bool| if flag { "on" } else { "off" }.to_owned();
    let parts = [
        ("backend", then.backend.to_string(), now.backend.to_string()),
        ("allocator", then.allocator.to_string(), now.allocator.to_string()),
        ("allocator settings", settings(&then.allocator_settings), settings(&now.allocator_settings)),
        ("framework", then.framework.clone(), now.framework.clone()),
        ("attention", then.attention.to_string(), now.attention.to_string()),
        ("convolution benchmark", on(then.convolution_benchmark), on(now.convolution_benchmark)),
        ("memory layout", then.memory_layout.to_string(), now.memory_layout.to_string()),
    ];
    let differing: Vec<String> = parts
        .into_iter()
        .filter(|(_, then, now)| then != now)
        .map(|(part, then, now)| format!("{part} {then}, now {now}"))
        .collect();
    differing.join("; ")
}
