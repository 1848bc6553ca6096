//! Pipeline steps and calibration cases: whether their model can run them, at that size, and none stands there twice.

use std::collections::BTreeSet;

use headroom_base::plan::LEAST_SIZES;
use headroom_base::{Case, DType, Extent, Operation, Tiling};

use crate::architecture::Architecture;
use crate::bounds::{MOST_ITEMS, MOST_SIDE};
use crate::check::{Checker, Declared, present};
use crate::family::{CalibrationLine, Model, PipelineStep};
use crate::findings::{Step, at};
use crate::raw::{RawCalibration, RawStep, RawTiling, RawTilingNeeded, Section};
use crate::reader::Tried;
use crate::sizes::{Misfit, misfit};
use crate::words::Size;

/// Checks cases against the models of a family.
pub(crate) struct CaseChecker<'a> {
    checker: Checker<'a>,
    keys: Declared<'a>,
    models: &'a [Model],
}

/// What a case is made from, and the way to where it stands.
struct Draft<'p> {
    path: &'p [Step<'p>],
    operation: Operation,
    dtype: DType,
    size: Size,
    batch: u32,
    tiling: Option<Tiling>,
}

impl<'a> CaseChecker<'a> {
    pub(crate) fn new(checker: Checker<'a>, models: &'a [Model]) -> Self {
        Self { checker, keys: checker.declared("models", "key"), models }
    }

    pub(crate) fn pipeline(&self, raw: Section<RawStep>) -> Vec<PipelineStep> {
        let mut steps = Vec::new();
        for (index, raw) in present(raw) {
            for (position, key) in raw.with.iter().enumerate() {
                let path = at!["pipeline", index, "with", position];
                if self.checker.known(path, "model", key, &self.keys)
                    && (*key == raw.model || raw.with[..position].contains(key))
                {
                    self.checker.wrong(path, format!("`{key}` is locked by this step already"), None);
                }
            }
            let Some(model) =
                self.runs(&[at_step(index, "model"), at_step(index, "operation")], &raw.model, raw.operation)
            else {
                continue;
            };
            let tiling = self.tiling(at!["pipeline", index, "tiling"], model, raw.operation, raw.tiling.as_ref());
            let draft = Draft {
                path: at!["pipeline", index, "size"],
                operation: raw.operation,
                dtype: raw.dtype.unwrap_or(model.dtype),
                size: raw.size,
                batch: 1,
                tiling,
            };
            if let Some(case) = self.case(model, &draft) {
                steps.push(PipelineStep { model: raw.model, with: raw.with, case });
            }
        }
        steps
    }

    pub(crate) fn calibration(&self, raw: Section<RawCalibration>) -> Vec<CalibrationLine> {
        let mut lines = Vec::new();
        let mut seen = BTreeSet::new();
        for (index, raw) in present(raw) {
            self.lists_are_filled(index, &raw);
            for (position, Tried(operation)) in raw.operations.iter().enumerate() {
                let Some(operation) = *operation else { continue };
                let paths = [
                    [Step::Key("calibration"), Step::Index(index), Step::Key("model")].to_vec(),
                    at!["calibration", index, "operations", position].to_vec(),
                ];
                let Some(model) = self.runs(&paths, &raw.model, operation) else { continue };
                self.can_be_measured(index, model);
                lines.extend(self.lines(index, &raw, model, operation, &mut seen));
            }
        }
        lines
    }

    /// A recording is no way out: what it priced on would follow from the architecture as well.
    fn can_be_measured(&self, index: usize, model: &Model) {
        if model.architecture().is_some() {
            return;
        }
        let another = self.models.iter().find(|other| other.architecture().is_some());
        let instead = match another {
            Some(_) => "take it out of `calibration`, or give it an `architecture`",
            None => "give it an `architecture`, or calibrate another model that has one, such as the VAE",
        };
        let message =
            format!("the size alone is known of `{}`, so nothing can be measured without the real model", model.key);
        self.checker.wrong(at!["calibration", index, "model"], message, Some(instead.to_owned()));
    }

    fn lists_are_filled(&self, index: usize, raw: &RawCalibration) {
        let lists = [("operations", raw.operations.is_empty()), ("dtypes", raw.dtypes.is_empty())];
        for (field, _) in lists.into_iter().filter(|(_, is_empty)| *is_empty) {
            self.checker.wrong(at!["calibration", index, field], "the list is empty: nothing would be measured", None);
        }
        if raw.batch == Some(0) {
            self.checker.wrong(at!["calibration", index, "batch"], "a batch has at least one item", None);
        }
    }

    fn lines(
        &self,
        index: usize,
        raw: &RawCalibration,
        model: &Model,
        operation: Operation,
        seen: &mut BTreeSet<(String, Case)>,
    ) -> Vec<CalibrationLine> {
        let tiling = self.tiling(at!["calibration", index, "tiling"], model, operation, raw.tiling.as_ref());
        let mut lines = Vec::new();
        for Tried(dtype) in &raw.dtypes {
            let Some(dtype) = *dtype else { continue };
            let mut listed = |field: &'static str, sizes: &[Tried<Size>]| {
                let mut cases = Vec::new();
                for (position, Tried(size)) in sizes.iter().enumerate() {
                    let Some(size) = *size else { continue };
                    let path = at!["calibration", index, field, position];
                    let draft = Draft { path, operation, dtype, size, batch: raw.batch.unwrap_or(1), tiling };
                    let Some(case) = self.case(model, &draft) else { continue };
                    if !seen.insert((raw.model.clone(), case)) {
                        self.checker.wrong(path, format!("`{case}` of `{}` stands there twice", raw.model), None);
                    }
                    cases.push(case);
                }
                cases
            };
            let cases = listed("sizes", &raw.sizes);
            let held_out = listed("held_out", &raw.held_out);
            self.enough_sizes(index, raw, &cases);
            lines.push(CalibrationLine { model: raw.model.clone(), operation, dtype, tiling, cases, held_out });
        }
        lines
    }

    /// A line needs three sizes that differ in what the operation grows with.
    fn enough_sizes(&self, index: usize, raw: &RawCalibration, cases: &[Case]) {
        if cases.len() < raw.sizes.len() {
            return; // A size with a mistake of its own was meant to be one.
        }
        let different: BTreeSet<u128> = cases.iter().map(items).collect();
        if different.len() < LEAST_SIZES {
            let message = format!("{} different sizes: a line is fitted to {LEAST_SIZES} or more", different.len());
            self.checker.wrong(at!["calibration", index, "sizes"], message, None);
        }
    }

    pub(crate) fn tiling_needed(&self, index: usize, raw: &RawTilingNeeded) -> Option<(Case, Tiling)> {
        let at = |field| [Step::Key("checks"), Step::Key("tiling_needed"), Step::Index(index), Step::Key(field)];
        let model = self.runs(&[at("model"), at("operation")], &raw.model, raw.operation)?;
        let tiling = self.tiling(&at("tiling"), model, raw.operation, Some(&raw.tiling))?;
        let dtype = raw.dtype.unwrap_or(model.dtype);
        let path = &at("size");
        let draft = Draft { path, operation: raw.operation, dtype, size: raw.size, batch: 1, tiling: None };
        Some((self.case(model, &draft)?, tiling))
    }

    /// The model, if there is one of that key and it runs the operation. `paths` lead to the two names.
    fn runs<P: AsRef<[Step<'a>]>>(&self, paths: &[P; 2], key: &str, operation: Operation) -> Option<&'a Model> {
        if !self.checker.known(paths[0].as_ref(), "model", key, &self.keys) {
            return None;
        }
        let model = self.models.iter().find(|model| model.key == key)?;
        if let Some(architecture) = model.architecture().filter(|known| !known.runs(operation)) {
            let can =
                Operation::ALL.into_iter().filter(|other| architecture.runs(*other)).map(|other| format!("`{other}`"));
            let help = Some(format!("it runs {}", can.collect::<Vec<_>>().join(" and ")));
            let message = format!("`{key}`, of architecture {}, does not run `{operation}`", architecture.kind());
            self.checker.wrong(paths[1].as_ref(), message, help);
            return None;
        }
        Some(model)
    }

    fn tiling(
        &self,
        path: &[Step<'_>],
        model: &Model,
        operation: Operation,
        raw: Option<&RawTiling>,
    ) -> Option<Tiling> {
        let raw = raw?;
        let factor = model.architecture().and_then(Architecture::vae_factor).unwrap_or(8);
        if !matches!(operation, Operation::VaeDecode | Operation::VaeEncode) {
            self.checker.wrong(path, format!("`{operation}` does not run tile by tile"), None);
        } else if raw.tile == 0 || !raw.tile.is_multiple_of(factor) || u64::from(raw.tile) > MOST_SIDE {
            let message = format!("a tile of {} pixels is no multiple of the VAE's factor {factor}", raw.tile);
            self.checker.wrong(path, message, None);
        } else if raw.overlap >= 100 {
            self.checker.wrong(path, format!("tiles that overlap by {} percent never end", raw.overlap), None);
        } else {
            return Some(Tiling { tile_pixels: raw.tile, overlap_percent: raw.overlap });
        }
        None
    }

    fn case(&self, model: &Model, draft: &Draft<'_>) -> Option<Case> {
        let Draft { path, operation, dtype, size, tiling, .. } = *draft;
        let batch = size.batch.unwrap_or(draft.batch).max(1);
        let wrong = |message: String, help: Option<String>| {
            self.checker.wrong(path, message, help);
            None
        };
        match (operation, size.extent) {
            (Operation::TextEncode, Extent::Pixels { .. }) => {
                return wrong(
                    "a text is measured in tokens".to_owned(),
                    Some("write for example `77 tokens`".to_owned()),
                );
            }
            (Operation::TextEncode, Extent::Text { tokens }) => {
                let longest = match model.architecture() {
                    Some(Architecture::ClipTextEncoder(text)) => u64::from(text.max_position_embeddings),
                    _ => MOST_SIDE,
                };
                if u64::from(tokens) > longest {
                    return wrong(
                        format!("{tokens} tokens are more than the {longest} that `{}` takes", model.key),
                        None,
                    );
                }
            }
            (_, Extent::Text { .. }) => {
                return wrong(
                    format!("`{operation}` is measured in pixels"),
                    Some("write for example `1024x1024`".to_owned()),
                );
            }
            (_, Extent::Pixels { width, height, frames }) => {
                if let Some(Misfit { message, help }) = misfit(self.models, model, [width, height, frames]) {
                    return wrong(message, help);
                }
            }
        }
        let case = Case { operation, dtype, extent: size.extent, batch, tiling };
        let items = items(&case);
        if items > MOST_ITEMS {
            let what = if operation == Operation::TextEncode { "tokens" } else { "pixels" };
            return wrong(format!("{items} {what} at once are more than {MOST_ITEMS}"), None);
        }
        Some(case)
    }
}

fn at_step<'f>(index: usize, field: &'f str) -> [Step<'f>; 3] {
    [Step::Key("pipeline"), Step::Index(index), Step::Key(field)]
}

/// What tells sizes apart: everything of a case that a cost unit can grow with.
fn items(case: &Case) -> u128 {
    let units = match case.extent {
        Extent::Pixels { width, height, frames } => [width, height, frames].map(u128::from).iter().product(),
        Extent::Text { tokens } => u128::from(tokens),
    };
    units * u128::from(case.batch)
}
