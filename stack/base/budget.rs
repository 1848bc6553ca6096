//! How much may be loaded: one pure function over one snapshot of one device's figures.

use serde::{Deserialize, Serialize};

use crate::{GIB, mutant};

/// The working memory kept free when nobody asks for more, unless the cache is told otherwise.
pub const DEFAULT_DEVICE_WORKING_BYTES: u64 = 3 * GIB;

/// What can be said of memory that the allocator holds and does not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reclaim {
    /// Whole free segments go back to the driver; slack in split ones (`inactive_split`) does not.
    WholeSegments,
    /// The stream-ordered pool: whatever is reserved and not allocated is credited. Not all of it goes back when the
    /// pool is trimmed: what lies between live blocks may stay (as it does in the pool's model here; no recording says
    /// how much a real one keeps). It serves requests that fit into it, so the sum is there for a load piece by piece,
    /// and one allocation of the whole budget may still fail.
    Pool,
    /// Expandable segments: holes and returnable pages look the same, so nothing may be credited.
    Indistinguishable,
    /// The backend has no such counters.
    NoCounters,
}

/// One snapshot of one device's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeviceFigures {
    /// The device's memory by the driver.
    pub total_bytes: u64,
    /// Free by the driver.
    pub driver_free_bytes: u64,
    /// Handed out by this process's allocator.
    pub allocated_bytes: u64,
    /// Taken from the driver by this process's allocator.
    pub reserved_bytes: u64,
    /// Free blocks with a neighbour in their segment.
    pub inactive_split_bytes: u64,
    /// What of the reserve can be given back.
    pub reclaim: Reclaim,
}

/// An explicit limit on what the cache may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cap {
    /// None: the device is the limit.
    Unlimited,
    /// At most this many bytes, working memory included.
    Bytes(u64),
}

/// A budget with the terms it came from. All of it is about one device at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Budget {
    /// The working memory that is kept free: what was asked, but never below the floor.
    pub working_bytes: u64,
    /// Reserved memory that counts as free: what goes back to the driver when the allocator's cache is emptied, and all
    /// that lies idle in a stream-ordered pool ([`Reclaim::Pool`]).
    pub credit_bytes: u64,
    /// Driver-free + allocated + credit; on a card that spills, no more than the device has.
    pub available_bytes: u64,
    /// What may still be loaded before working memory is taken off, the cap included.
    pub before_working_bytes: i64,
    /// What may still be loaded; negative where something has to go first.
    pub budget_bytes: i64,
}

/// The reserved bytes that can be counted as free; never more than the device has.
pub fn credit_bytes(figures: &DeviceFigures) -> u64 {
    // A card that spills can have reserved more than it holds, and what lies in host memory is no credit.
    let idle = figures.reserved_bytes.saturating_sub(figures.allocated_bytes).min(figures.total_bytes);
    match figures.reclaim {
        Reclaim::WholeSegments => mutant!(
            "credit_left_out",
            "models are moved off the card while gigabytes that the allocator could give back lie idle",
            right: mutant!(
                "inactive_splits_credited",
                "slack inside segments that live blocks pin is promised and cannot be given",
                right: idle.saturating_sub(figures.inactive_split_bytes),
                wrong: idle,
            ),
            wrong: 0,
        ),
        Reclaim::Pool => idle,
        Reclaim::Indistinguishable => mutant!(
            "credited_under_expandable_segments",
            "holes that live blocks pin are promised, and a load that claims to fit ends out of memory",
            right: 0,
            wrong: idle,
        ),
        Reclaim::NoCounters => 0,
    }
}

/// What may still be loaded on a device while an operation that asks for `asked_bytes` is to run.
///
/// `floor_bytes` is the device's working memory when nobody asks for more. The result never
/// exceeds what the device has: with a cap above it, the device is the limit.
pub fn budget(figures: &DeviceFigures, asked_bytes: Option<u64>, floor_bytes: u64, cap: Cap) -> Budget {
    let working_bytes = mutant!(
        "floor_ignored",
        "a small estimate leaves less free than the device's own working memory",
        right: asked_bytes.unwrap_or(floor_bytes).max(floor_bytes),
        wrong: asked_bytes.unwrap_or(floor_bytes),
    );
    let credit_bytes = credit_bytes(figures);
    let there = figures.driver_free_bytes.saturating_add(figures.allocated_bytes).saturating_add(credit_bytes);
    // On a card that spills, what lies in host memory is no room on the card.
    let available_bytes = there.min(figures.total_bytes);
    let physical = signed(available_bytes) - signed(figures.allocated_bytes);
    let before_working_bytes = match cap {
        Cap::Unlimited => physical,
        Cap::Bytes(cap_bytes) => mutant!(
            "cap_taken_for_physical_memory",
            "a policy limit is taken for memory that the card has",
            right: physical.min(signed(cap_bytes) - signed(figures.allocated_bytes)),
            wrong: signed(cap_bytes) - signed(figures.allocated_bytes),
        ),
    };
    let budget_bytes = before_working_bytes.saturating_sub(signed(working_bytes));
    Budget { working_bytes, credit_bytes, available_bytes, before_working_bytes, budget_bytes }
}

/// Sizes beyond 2^63 do not exist on any device; a nonsense figure saturates.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MIB;

    fn figures(reclaim: Reclaim) -> DeviceFigures {
        DeviceFigures {
            total_bytes: 24 * GIB,
            driver_free_bytes: 128 * MIB,
            allocated_bytes: 20 * GIB,
            reserved_bytes: 21 * GIB + 300 * MIB,
            inactive_split_bytes: 300 * MIB,
            reclaim,
        }
    }

    #[test]
    fn freed_and_unreleased_memory_is_credited_where_it_can_be_given_back() {
        let cases = [
            (Reclaim::WholeSegments, 1_152),
            (Reclaim::Pool, 1_452),
            (Reclaim::Indistinguishable, 128),
            (Reclaim::NoCounters, 128),
        ];
        for (reclaim, before_working_mib) in cases {
            let budget = budget(&figures(reclaim), None, 3 * GIB, Cap::Unlimited);
            assert_eq!(budget.before_working_bytes, before_working_mib * MIB as i64, "{reclaim:?}");
            assert_eq!(budget.budget_bytes, budget.before_working_bytes - 3 * GIB as i64, "{reclaim:?}");
        }
    }

    #[test]
    fn the_working_memory_is_what_was_asked_but_never_below_the_floor() {
        for (asked, working) in [(None, 3 * GIB), (Some(GIB), 3 * GIB), (Some(5 * GIB), 5 * GIB)] {
            let budget = budget(&figures(Reclaim::WholeSegments), asked, 3 * GIB, Cap::Unlimited);
            assert_eq!(budget.working_bytes, working);
        }
    }

    #[test]
    fn a_cap_lowers_the_budget_and_never_raises_it() {
        let free = figures(Reclaim::WholeSegments);
        let uncapped = budget(&free, None, 3 * GIB, Cap::Unlimited);
        let cases = [(21 * GIB, GIB as i64 - 3 * GIB as i64), (4_096 * GIB, uncapped.budget_bytes)];
        for (cap_bytes, expected) in cases {
            assert_eq!(budget(&free, None, 3 * GIB, Cap::Bytes(cap_bytes)).budget_bytes, expected);
        }
    }

    #[test]
    fn counters_that_contradict_each_other_never_make_a_credit() {
        let odd = DeviceFigures { reserved_bytes: GIB, ..figures(Reclaim::WholeSegments) };
        assert_eq!(credit_bytes(&odd), 0);
    }

    #[test]
    fn no_figure_shown_exceeds_the_device() {
        let spilled = DeviceFigures {
            driver_free_bytes: 0,
            allocated_bytes: 30 * GIB,
            reserved_bytes: 70 * GIB,
            ..figures(Reclaim::WholeSegments)
        };
        let unheard_of =
            DeviceFigures { driver_free_bytes: u64::MAX, reserved_bytes: u64::MAX, ..figures(Reclaim::Pool) };
        for figures in [spilled, unheard_of, DeviceFigures { allocated_bytes: u64::MAX, ..unheard_of }] {
            for cap in [Cap::Unlimited, Cap::Bytes(u64::MAX)] {
                let budget = budget(&figures, None, 3 * GIB, cap);
                assert!(budget.available_bytes <= figures.total_bytes, "{budget:?}");
                assert!(budget.credit_bytes <= figures.total_bytes, "{budget:?}");
                assert!(budget.before_working_bytes <= figures.total_bytes as i64, "{budget:?}");
            }
        }
        // What lies in host memory has to go before anything fits on the device.
        assert_eq!(budget(&spilled, None, 0, Cap::Unlimited).before_working_bytes, -6 * GIB as i64);
    }
}
