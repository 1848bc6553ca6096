//! Seeded disturbances of a simulated card, so that a simulation cannot merely agree with itself.

use headroom_base::MIB;

/// What a simulated card does besides what it was asked: the same for the same seed and the same calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Perturbation {
    /// Chooses which calls are disturbed, and by how much.
    pub seed: u64,
    /// An allocation may cost one such step of device memory more (half of them do), given back when it is freed.
    pub jitter_step_bytes: u64,
    /// Another process may take one such step at an allocation (one in eight does) …
    pub others_step_bytes: u64,
    /// … as long as it has taken less than this in all.
    pub others_most_bytes: u64,
}

impl Perturbation {
    /// Steps of 32 MiB, as a stream-ordered pool was seen to jitter by, and another process that grows by up to 256 MiB.
    pub fn seeded(seed: u64) -> Self {
        Self { seed, jitter_step_bytes: 32 * MIB, others_step_bytes: 16 * MIB, others_most_bytes: 256 * MIB }
    }
}

/// A perturbation under way.
#[derive(Debug)]
pub(super) struct Disturbance {
    rules: Perturbation,
    state: u64,
    others_taken_bytes: u64,
}

impl Disturbance {
    pub(super) fn new(rules: Perturbation) -> Self {
        Self { rules, state: rules.seed, others_taken_bytes: 0 }
    }

    /// Bytes an allocation costs beyond its own, and bytes another process takes at this moment.
    pub(super) fn at_allocation(&mut self) -> (u64, u64) {
        let draw = self.draw();
        let jitter = if draw & 1 == 1 { self.rules.jitter_step_bytes } else { 0 };
        let others_grow = draw >> 8 & 7 == 0 && self.others_taken_bytes < self.rules.others_most_bytes;
        let taken = if others_grow { self.rules.others_step_bytes } else { 0 };
        self.others_taken_bytes += taken;
        (jitter, taken)
    }

    /// SplitMix64: one addition and a mix, so the sequence is the same on every machine.
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
