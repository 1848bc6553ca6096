//! The same requests under another setting: what it would have reserved, the least memory, and whether it would do.

use headroom_base::{GIB, MIB};
use headroom_device::replay::{Requests, Run, least_capacity_bytes, run_requests};
use rayon::prelude::*;
use serde::Serialize;

use super::choice::Candidate;
use super::settings::NamedSetting;

/// A device on which nothing real runs out.
const AMPLE_BYTES: u64 = 4096 * GIB;

/// The unit in which memory is tried: a driver's page.
const STEP_BYTES: u64 = 2 * MIB;

/// What would have come of requests under one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIf {
    /// The setting's name.
    pub setting: String,
    /// The kind of allocator.
    pub allocator: headroom_base::AllocatorKind,
    /// The line that sets it.
    pub environment: String,
    /// The most handed out at once.
    pub allocated_peak_bytes: u64,
    /// The most taken from the driver.
    pub reserved_peak_bytes: u64,
    /// The least memory on which all requests are served, retries allowed; none where they are not on any device.
    pub least_capacity_bytes: Option<u64>,
    /// Whether the memory that was asked about is too little; none where none was.
    pub runs_out: Option<bool>,
    /// Retries on that memory: what was cached had to be given back to go on.
    pub retries: Option<u64>,
    /// Whether `reserved_peak_bytes` and `least_capacity_bytes` are upper bounds: the driver's pool has no public policy.
    pub is_bound: bool,
    /// The limit under which the reserved peak holds, where the setting acts under one alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
}

impl WhatIf {
    /// What is weighed against other settings; none where the requests are not served on any device.
    pub fn candidate(&self) -> Option<Candidate<'_>> {
        Some(Candidate {
            name: &self.setting,
            environment: &self.environment,
            least_capacity_bytes: self.least_capacity_bytes?,
            reserved_peak_bytes: self.reserved_peak_bytes,
            runs_out: self.runs_out == Some(true),
            retries: self.retries.is_some_and(|retries| retries > 0),
            is_bound: self.is_bound,
        })
    }
}

/// What decides beside the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The memory that is asked about.
    pub memory_bytes: Option<u64>,
    /// The limit for settings that act only under one, where no memory is asked about.
    pub usual_limit_bytes: u64,
}

/// The requests under every setting, in their order.
pub fn what_if_all(requests: &Requests, settings: &[NamedSetting], terms: Terms) -> Vec<WhatIf> {
    settings.par_iter().map(|setting| what_if(requests, setting, terms)).collect()
}

/// The requests under one setting.
pub fn what_if(requests: &Requests, setting: &NamedSetting, terms: Terms) -> WhatIf {
    let Terms { memory_bytes, usual_limit_bytes } = terms;
    let free = Outcome::of(requests, setting, AMPLE_BYTES);
    let limit_bytes = setting.needs_a_limit().then_some(memory_bytes.unwrap_or(usual_limit_bytes));
    let limited = limit_bytes.map(|limit| Outcome::of(requests, setting, limit)).filter(|outcome| outcome.completes);
    let peaks = limited.unwrap_or(free);
    let asked = memory_bytes.map(|memory| Outcome::of(requests, setting, memory));
    let least_capacity_bytes = free.completes.then(|| least(requests, setting, free.reserved_peak_bytes)).flatten();
    let runs_out = asked.zip(memory_bytes).map(|(outcome, memory)| {
        // A bound promises nothing below itself, though the bound's own rules would get by with less.
        let below_bound = setting.is_bound() && least_capacity_bytes.is_none_or(|least| least > memory);
        !outcome.completes || below_bound
    });
    WhatIf {
        setting: setting.name.clone(),
        allocator: setting.settings.kind,
        environment: setting.environment(),
        allocated_peak_bytes: peaks.allocated_peak_bytes,
        reserved_peak_bytes: peaks.reserved_peak_bytes,
        least_capacity_bytes,
        runs_out,
        retries: asked.map(|outcome| outcome.retries),
        is_bound: setting.is_bound(),
        limit_bytes: limited.and(limit_bytes),
    }
}

/// The least memory that does. A device of what is reserved with room to spare always does, so the search ends there.
fn least(requests: &Requests, setting: &NamedSetting, reserved_bytes: u64) -> Option<u64> {
    let most_bytes = reserved_bytes.next_multiple_of(STEP_BYTES).max(STEP_BYTES);
    if setting.is_bound() {
        return Some(most_bytes);
    }
    let least = |most| least_capacity_bytes(requests, &setting.settings, most, STEP_BYTES);
    // A setting that acts under a limit may give back too early on just that much: then a larger device is tried.
    least(most_bytes).or_else(|| least(most_bytes.saturating_mul(2)))
}

/// What came of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome {
    completes: bool,
    allocated_peak_bytes: u64,
    reserved_peak_bytes: u64,
    retries: u64,
}

impl Outcome {
    fn of(requests: &Requests, setting: &NamedSetting, total_bytes: u64) -> Self {
        match run_requests(requests, &setting.settings, total_bytes) {
            Ok(Run { after, failure, .. }) => Self {
                completes: failure.is_none(),
                allocated_peak_bytes: after.allocated.peak,
                reserved_peak_bytes: after.reserved.peak,
                retries: after.num_alloc_retries,
            },
            // Not even what lives before the first request fits.
            Err(_) => Self { completes: false, allocated_peak_bytes: 0, reserved_peak_bytes: 0, retries: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headroom_device::replay::Request;

    /// 12 MiB and 4 small things at a time, the large freed while the small stay: each large one leaves a hole.
    fn holes() -> Requests {
        let mut operation = Vec::new();
        for round in 0..8_u64 {
            let large = 12 * MIB + round * 2 * MIB;
            operation.push(Request::Allocate { id: 2 * round, bytes: large });
            operation.push(Request::Free { id: 2 * round });
            operation.push(Request::Allocate { id: 2 * round + 1, bytes: 2 * MIB });
        }
        Requests { live: vec![(1000, 64 * MIB)], operation }
    }

    #[test]
    fn the_least_memory_lies_between_what_is_allocated_and_what_is_reserved_and_decides() {
        let requests = holes();
        for setting in NamedSetting::tried() {
            let terms = Terms { memory_bytes: None, usual_limit_bytes: GIB };
            let free = what_if(&requests, &setting, terms);
            let least = free.least_capacity_bytes.unwrap();
            assert!(free.allocated_peak_bytes <= least, "{free:?}");
            assert!(least <= free.reserved_peak_bytes.next_multiple_of(STEP_BYTES), "{free:?}");
            let at = |memory| what_if(&requests, &setting, Terms { memory_bytes: Some(memory), ..terms }).runs_out;
            assert_eq!(at(least), Some(false), "{free:?}");
            assert_eq!(at(free.allocated_peak_bytes - STEP_BYTES), Some(true), "{free:?}");
            assert_eq!(at(least - STEP_BYTES), Some(true), "{free:?}");
            assert_eq!(free.runs_out, None);
        }
    }

    #[test]
    fn what_no_device_can_serve_has_no_least_memory() {
        let requests = Requests { live: vec![], operation: vec![Request::Allocate { id: 0, bytes: 1 << 60 }] };
        let native = &NamedSetting::tried()[0];
        let terms = Terms { memory_bytes: Some(GIB), usual_limit_bytes: GIB };
        let answer = what_if(&requests, native, terms);
        assert_eq!((answer.least_capacity_bytes, answer.runs_out), (None, Some(true)));
    }
}
