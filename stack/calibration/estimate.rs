//! What is reserved for a case: its own fit, the shipped one, the program's prediction or the floor.

use headroom_base::{Estimate, Source, mutant};

use crate::built_in::BuiltIn;
use crate::fit::Fit;

/// What is known of a case before anything is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Costs {
    /// Its cost units.
    pub units: u64,
    /// The part that is known exactly, the sum of its analytic terms.
    pub analytic_bytes: u64,
    /// What its program is predicted to need, the analytic part included; none where no program is known.
    pub predicted_bytes: Option<u64>,
}

/// Resolves a case to a reservation.
///
/// Inside the measured sizes the user's fit holds. Above and below, the larger of it and the built-in, whole
/// reservations compared; where nothing is shipped the prediction stands in for the built-in, and where there
/// is no program either, the user's fit stands alone. Without a fit it is the built-in, without that the
/// prediction with the margin, without that `floor_bytes`. The cache's own floor applies afterwards.
pub fn resolve(costs: &Costs, user: Option<&Fit>, built_in: Option<&BuiltIn<'_>>, floor_bytes: u64) -> Estimate {
    let predicted = || {
        let empirical = |bytes: u64| {
            mutant!(
                "exact_part_predicted_twice",
                "a card nobody measured reserves the copy of the weights twice",
                right: bytes.saturating_sub(costs.analytic_bytes),
                wrong: bytes,
            )
        };
        costs.predicted_bytes.map(|bytes| Estimate::new(costs.analytic_bytes, empirical(bytes), Source::Predicted))
    };
    let shipped = built_in.map(|built_in| built_in.estimate(costs.units, costs.analytic_bytes));
    let Some(fit) = user else {
        return shipped.or_else(predicted).unwrap_or(Estimate::floor(floor_bytes));
    };
    let own = of_fit(fit, costs);
    if is_inside(fit, costs.units) {
        return own;
    }
    match shipped.or_else(predicted) {
        Some(other) if is_larger(&other, &own) => Estimate { source: Source::LargerOfBoth, ..other },
        Some(_) => Estimate { source: Source::LargerOfBoth, ..own },
        None => own,
    }
}

/// Whole reservations are compared: what is known exactly may differ between two lines.
fn is_larger(other: &Estimate, own: &Estimate) -> bool {
    mutant!(
        "smaller_of_both_outside_the_range",
        "a size nobody measured gets the more hopeful of two guesses and runs out of memory",
        right: other.reservation_bytes > own.reservation_bytes,
        wrong: other.reservation_bytes < own.reservation_bytes,
    )
}

fn of_fit(fit: &Fit, costs: &Costs) -> Estimate {
    let numerator = fit.coefficients.numerator_at(costs.units);
    Estimate::of_fraction(costs.analytic_bytes, numerator, fit.coefficients.denominator(), Source::User)
}

/// Whether the size was measured or lies between measured ones.
fn is_inside(fit: &Fit, units: u64) -> bool {
    let not_below = mutant!(
        "user_fit_used_below_its_range",
        "a small size gets less than the shipped line knows it needs",
        right: units >= fit.range.least_units,
        wrong: true,
    );
    let not_above = mutant!(
        "user_fit_used_above_its_range",
        "a size larger than any measured one gets less than the shipped line knows it needs",
        right: units <= fit.range.largest_units,
        wrong: true,
    );
    not_below && not_above
}
