//! Windows that ran in the driver's own pool of a real GPU, one by one beside the simulator's bound on it.

use std::collections::BTreeMap;

use headroom::catalogue::Catalogue;
use headroom_base::{AllocatorKind, Bytes, Residency, RunKind, Window};
use headroom_runners::programs::{self, Execution};

use super::kept::all_reports;

/// One window that is compared.
struct Held {
    /// Its report, trial, case and kind.
    what: String,
    reserved_bytes: u64,
    bound_bytes: u64,
}

impl Held {
    fn above_bytes(&self) -> u64 {
        self.reserved_bytes.saturating_sub(self.bound_bytes)
    }
}

/// All windows of the pool in all kept reports.
#[derive(Default)]
struct Pooled {
    held: Vec<Held>,
    /// How many are not compared, by the reason.
    left_out: BTreeMap<&'static str, usize>,
    /// How many of each trial's check are compared.
    of_check: BTreeMap<String, usize>,
}

impl Pooled {
    fn of(catalogue: &Catalogue) -> Self {
        let mut all = Self::default();
        let mut bounds = BTreeMap::new();
        for (name, report) in all_reports() {
            for record in report.windows.iter().filter(|record| is_pooled(&record.window)) {
                let (window, trial) = (&record.window, record.trial.as_deref().unwrap_or_default());
                let family = trial.split("::").next().unwrap_or_default();
                match bound_bytes(catalogue, family, window, &mut bounds) {
                    Err(reason) => *all.left_out.entry(reason).or_default() += 1,
                    Ok(bound_bytes) => {
                        let check = trial.rsplit("::").next().unwrap_or(trial);
                        *all.of_check.entry(check.to_owned()).or_default() += 1;
                        all.held.push(Held {
                            what: format!("{name}: {trial} {} {:?}", window.case, window.kind),
                            reserved_bytes: window.measurement.deltas.reserved_peak_bytes,
                            bound_bytes,
                        });
                    }
                }
            }
        }
        all
    }
}

fn is_pooled(window: &Window) -> bool {
    window.environment.hard.allocator == AllocatorKind::CudaMallocAsync
}

/// What decides a bound.
type Bounds = BTreeMap<String, Option<[u64; 2]>>;

/// The bound on what the window may reserve, or why there is none to hold it against.
fn bound_bytes(catalogue: &Catalogue, family: &str, window: &Window, bounds: &mut Bounds) -> Result<u64, &'static str> {
    if !window.measurement.validity.is_valid() {
        return Err("of runs that are invalid (out of memory, or by a retry)");
    }
    if window.measurement.residency != Residency::Full {
        return Err("of a model that lay on the card in part");
    }
    let hard = &window.environment.hard;
    if window.kind == RunKind::Warmup && hard.convolution_benchmark {
        return Err("of a search for convolutions, which takes what the card has");
    }
    let model = catalogue.family(family).ok().and_then(|family| family.model(&window.model));
    let Some((model, architecture)) = model.and_then(|model| Some((model, model.architecture()?))) else {
        return Err("of a model with no program");
    };
    let execution = Execution {
        attention: hard.attention,
        memory_layout: hard.memory_layout,
        convolution_benchmark: hard.convolution_benchmark,
        stored: (model.dtype != window.case.dtype).then_some(model.dtype),
        ..Execution::default()
    };
    let key = format!("{family} {} {:?} {execution:?}", window.model, window.case);
    let predicted = bounds.entry(key).or_insert_with(|| {
        let predicted = programs::predict(architecture, &window.case, &execution, hard.allocator).ok()?;
        Some([predicted.first, predicted.later].map(|peaks| peaks.reserved_peak_bytes))
    });
    let [first, later] = predicted.ok_or("of a case with no program")?;
    Ok(if window.kind == RunKind::Warmup { first } else { later })
}

/// What became of them, in one sentence.
pub(crate) fn sentence(catalogue: &Catalogue) -> String {
    let Pooled { held, left_out, .. } = Pooled::of(catalogue);
    let above: Vec<_> = held.iter().filter(|held| held.above_bytes() > 0).collect();
    let which = match above.iter().max_by_key(|held| held.above_bytes()) {
        None => "none reserves more than it".to_owned(),
        Some(worst) => format!(
            "{} reserve more than it, the worst by {} ({})",
            above.len(),
            Bytes(worst.above_bytes()),
            worst.what
        ),
    };
    let not_compared = left_out.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect::<Vec<_>>();
    let not_compared = if not_compared.is_empty() { "none".to_owned() } else { not_compared.join(", ") };
    format!(
        "Of the kept windows that ran in the driver's own pool, {} are held against the bound one by one, warm-ups too: \
         {which}. Not compared: {not_compared}.\n\n",
        held.len()
    )
}

/// Each by itself: that another run of its case stayed below the bound excuses none.
#[test]
fn no_window_of_a_real_pool_exceeds_its_bound() {
    let catalogue = Catalogue::load(None).unwrap();
    let all = Pooled::of(&catalogue);
    let above: Vec<_> = all.held.iter().filter(|held| held.above_bytes() > 0).collect();
    let said = above.iter().map(|held| format!("{} by {}", held.what, Bytes(held.above_bytes())));
    assert!(above.is_empty(), "{:?}", said.collect::<Vec<_>>());
    // Every pooled window of every report is either held or counted as left out, and no family is without any.
    let kept: usize =
        all_reports().map(|(_, report)| report.windows.iter().filter(|record| is_pooled(&record.window)).count()).sum();
    assert_eq!(all.held.len() + all.left_out.values().sum::<usize>(), kept);
    assert!(all.of_check.contains_key("calibration"), "{:?}", all.of_check);
    for (name, _) in super::kept::runs(&catalogue) {
        let begins = format!("{name}::");
        assert!(all.held.iter().any(|held| held.what.contains(&begins)), "no window of {name}");
    }
}

#[test]
fn a_window_above_its_bound_is_seen_beside_others_of_its_case_that_lie_far_below() {
    let held = |reserved_bytes| Held { what: String::new(), reserved_bytes, bound_bytes: 100 };
    let above: Vec<u64> = [10, 100, 101].map(|bytes| held(bytes).above_bytes()).to_vec();
    assert_eq!(above, [0, 0, 1]);
}
