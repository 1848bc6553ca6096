//! What a family's case costs: its line, its cost units, what is known exactly and what its program predicts.

use headroom_base::{Case, HardEnvironment, LineKey, Operation};
use headroom_calibration::{BuiltIns, Costs, EstimatorVersions};
use headroom_family::{Family, Model};
use headroom_runners::programs::{self, Execution};
use headroom_runners::stored_otherwise;

/// A case of a model with its line and costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Priced {
    /// What it prices on.
    pub line: LineKey,
    /// What is known of it.
    pub costs: Costs,
}

/// The line and costs of a case; none where the model is known by its size alone or does not run the operation.
///
/// The program is only run where nothing is shipped for the line, because its prediction is only used there.
pub fn price_case(model: &Model, case: &Case, hard: &HardEnvironment, built_ins: &BuiltIns) -> Option<Priced> {
    let mut priced = price_without_prediction(model, case)?;
    if built_ins.find(hard, &priced.line).is_none() {
        priced.costs.predicted_bytes = predicted_bytes(model, case, hard);
    }
    Some(priced)
}

/// The line and costs of a case, with no program run.
pub fn price_without_prediction(model: &Model, case: &Case) -> Option<Priced> {
    let architecture = model.architecture().filter(|known| known.runs(case.operation))?;
    let terms = programs::analytic_terms(architecture, case, model.dtype);
    let costs = Costs {
        units: programs::cost_units(architecture, case),
        analytic_bytes: terms.iter().map(|term| term.bytes).sum(),
        predicted_bytes: None,
    };
    Some(Priced { line: programs::line(architecture, case), costs })
}

/// What the case's program needs on an allocator of this environment; none where there is no program for it.
pub fn predicted_bytes(model: &Model, case: &Case, hard: &HardEnvironment) -> Option<u64> {
    let architecture = model.architecture()?;
    let execution = execution_of(model, case, hard);
    programs::predicted_demand_bytes(architecture, case, &execution, hard.allocator).ok()
}

/// How a model's case is executed in an environment.
pub fn execution_of(model: &Model, case: &Case, hard: &HardEnvironment) -> Execution {
    Execution {
        attention: hard.attention,
        memory_layout: hard.memory_layout,
        convolution_benchmark: hard.convolution_benchmark,
        stored: stored_otherwise(model, case.dtype),
        ..Execution::default()
    }
}

/// The versions of every estimator that the families' models use.
pub fn estimator_versions<'a>(families: impl IntoIterator<Item = &'a Family>) -> EstimatorVersions {
    let models = families.into_iter().flat_map(|family| &family.models);
    let architectures = models.filter_map(Model::architecture);
    architectures
        .flat_map(|architecture| {
            let operations = Operation::ALL.into_iter().filter(|operation| architecture.runs(*operation));
            operations.map(|operation| programs::estimator(architecture, operation))
        })
        .map(|estimator| (estimator.id, estimator.version))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::simulated_environment;
    use crate::catalogue::Catalogue;
    use headroom_base::{AllocatorKind, Source};
    use headroom_calibration::resolve;

    /// Without such a line, a margin on the whole reservation would look like one on its empirical part.
    #[test]
    fn a_family_calibrates_a_line_of_which_a_third_or_more_is_known_exactly_and_carries_no_margin() {
        let catalogue = Catalogue::load(None).unwrap();
        let hard = simulated_environment(AllocatorKind::Native).hard;
        let mut mostly_exact = 0;
        for family in catalogue.families() {
            for line in &family.calibration.lines {
                let Some(model) = family.model(&line.model) else { continue };
                for case in &line.cases {
                    let Some(priced) = price_case(model, case, &hard, BuiltIns::compiled_in()) else { continue };
                    let found = BuiltIns::compiled_in().find(&hard, &priced.line);
                    let estimate = resolve(&priced.costs, None, found.as_ref(), 0);
                    let whole = estimate.reservation_bytes;
                    if estimate.source == Source::Floor || estimate.analytic_bytes < whole.div_ceil(3) {
                        continue;
                    }
                    mostly_exact += 1;
                    let margin = headroom_base::margin_bytes(estimate.empirical_bytes);
                    let spread = estimate.margin_bytes.abs_diff(margin);
                    assert!(spread <= 1, "{}: {case}: margin {} of {whole}", family.name, estimate.margin_bytes);
                }
            }
        }
        assert!(mostly_exact > 0);
    }
}
