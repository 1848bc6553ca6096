//! Which of several settings to take: the one that needs least; of those as good as equal, the one that holds less.

use headroom_base::Bytes;

/// Settings within this of the least memory are as good as equal: so near the allocated peaks of programs come to
/// recorded ones, so a smaller lead is none.
const TIE_PERCENT: u64 = 2;

/// What decides between settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The setting's name.
    pub name: &'a str,
    /// The line that sets it.
    pub environment: &'a str,
    /// The least memory on which the requests are served, retries allowed.
    pub least_capacity_bytes: u64,
    /// The most taken from the driver where there is room for it.
    pub reserved_peak_bytes: u64,
    /// Whether the memory that was asked about is too little.
    pub runs_out: bool,
    /// Whether on that memory something had to be given back to go on.
    pub retries: bool,
    /// Whether its figures are upper bounds.
    pub is_bound: bool,
}

/// The setting to take, and those that are as good as equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<'a> {
    /// The one to take.
    pub best: Candidate<'a>,
    /// Others within 2 % of the least memory, as they were given.
    pub ties: Vec<Candidate<'a>>,
}

impl<'a> Choice<'a> {
    /// Chooses: of all within 2 % of the least memory one that does not run out before one that does, one without
    /// retries before one with them, then the lower reserved peak; of equal ones the first. None of none.
    pub fn of(candidates: &[Candidate<'a>]) -> Option<Self> {
        let least = candidates.iter().map(|candidate| candidate.least_capacity_bytes).min()?;
        let is_tie = |candidate: &&Candidate<'a>| {
            u128::from(candidate.least_capacity_bytes) * 100 <= u128::from(least) * u128::from(100 + TIE_PERCENT)
        };
        let mut ties: Vec<_> = candidates.iter().filter(is_tie).copied().collect();
        let (index, _) = ties.iter().enumerate().min_by_key(|(_, candidate)| {
            let Candidate { runs_out, retries, reserved_peak_bytes, least_capacity_bytes, .. } = **candidate;
            (runs_out, retries, reserved_peak_bytes, least_capacity_bytes)
        })?;
        let best = ties.remove(index);
        Some(Self { best, ties })
    }

    /// The choice in sentences; `needed` is what the least memory is called, such as `the least card`.
    pub fn lines(&self, needed: &str) -> Vec<String> {
        let Candidate { name, environment, reserved_peak_bytes, .. } = self.best;
        let least = bounded(self.best.is_bound, self.best.least_capacity_bytes);
        if self.ties.is_empty() {
            return vec![format!("{name} needs least: {least}. Set {environment}")];
        }
        let reserved = bounded(self.best.is_bound, reserved_peak_bytes);
        let ties: Vec<_> = self.ties.iter().map(tie).collect();
        vec![
            format!("Take {name}: {needed} {least}, reserved peak {reserved}. Set {environment}"),
            format!("Within {TIE_PERCENT} % it is a tie with {}: {}.", ties.join(" and "), self.reason(needed)),
        ]
    }

    /// Why it goes to this one and not to the others of the tie.
    fn reason(&self, needed: &str) -> String {
        let Candidate { runs_out, retries, reserved_peak_bytes, .. } = self.best;
        let is_any = |loses: &dyn Fn(&Candidate<'_>) -> bool| self.ties.iter().any(loses);
        if is_any(&|other| other.runs_out && !runs_out) {
            "this one does not run out".to_owned()
        } else if is_any(&|other| other.retries && !retries) {
            "this one runs without retries".to_owned()
        } else if is_any(&|other| other.reserved_peak_bytes > reserved_peak_bytes) {
            "this one reserves less at the peak".to_owned()
        } else {
            format!("all else being equal, the smaller {needed} decides")
        }
    }
}

fn tie(candidate: &Candidate<'_>) -> String {
    let Candidate { name, least_capacity_bytes, reserved_peak_bytes, is_bound, .. } = *candidate;
    format!("{name} ({}, reserved peak {})", bounded(is_bound, least_capacity_bytes), Bytes(reserved_peak_bytes))
}

fn bounded(is_bound: bool, bytes: u64) -> String {
    format!("{}{}", if is_bound { "at most " } else { "" }, Bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headroom_base::MIB;

    fn candidate(name: &'static str, least_mib: u64, reserved_mib: u64) -> Candidate<'static> {
        Candidate {
            name,
            environment: name,
            least_capacity_bytes: least_mib * MIB,
            reserved_peak_bytes: reserved_mib * MIB,
            runs_out: false,
            retries: false,
            is_bound: false,
        }
    }

    #[test]
    fn a_lead_of_two_percent_or_less_is_a_tie_that_the_lower_reserved_peak_wins() {
        // Least and reserved of two settings; the name of the winner; whether it was a tie.
        let cases = [
            ((2_644, 6_218), (2_652, 3_012), "second", true),
            ((1_000, 6_000), (1_020, 1_100), "second", true),
            ((1_000, 6_000), (1_021, 1_100), "first", false),
            ((1_020, 6_000), (1_000, 6_000), "second", true),
            ((1_000, 1_500), (1_000, 1_500), "first", true),
        ];
        for (first, second, winner, is_tie) in cases {
            let candidates = [candidate("first", first.0, first.1), candidate("second", second.0, second.1)];
            let choice = Choice::of(&candidates).unwrap();
            assert_eq!((choice.best.name, !choice.ties.is_empty()), (winner, is_tie), "{first:?} {second:?}");
            let said = choice.lines("least memory").join("\n");
            assert_eq!(said.contains("tie with"), is_tie, "{said}");
            assert!(said.contains(&format!("Set {winner}")), "{said}");
        }
        assert_eq!(Choice::of(&[]), None);
    }

    #[test]
    fn of_a_tie_what_fits_goes_before_what_retries_and_that_before_what_reserves_less() {
        let retrying = Candidate { retries: true, ..candidate("retrying", 1_000, 1_000) };
        let too_large = Candidate { runs_out: true, ..candidate("too large", 1_000, 900) };
        let steady = candidate("steady", 1_010, 1_900);
        let best = |candidates: &[Candidate<'static>]| Choice::of(candidates).unwrap().best.name;
        assert_eq!(best(&[retrying, too_large, steady]), "steady");
        assert_eq!(best(&[too_large, retrying]), "retrying");
        let reason = |candidates: &[Candidate<'static>]| Choice::of(candidates).unwrap().lines("least card").remove(1);
        let heavy = candidate("heavy", 1_000, 6_000);
        for (candidates, says) in [
            ([steady, too_large], "does not run out"),
            ([steady, retrying], "without retries"),
            ([steady, heavy], "reserves less"),
            ([steady, Candidate { least_capacity_bytes: 1_011 * MIB, ..steady }], "smaller least card"),
        ] {
            let said = reason(&candidates);
            assert!(said.contains(says), "{said}");
        }
    }
}
