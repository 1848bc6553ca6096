//! Models: an architecture whose numbers go together, or plain sizes.

use crate::architecture::Architecture;
use crate::check::{Checker, present};
use crate::family::{Model, Weights};
use crate::findings::{Step, at};
use crate::limits::MOST;
use crate::node::{Node, Value};
use crate::parse::Recordings;
use crate::problem::nearest;
use crate::raw::{RawModel, Section};

/// A key of a model: `model` or `model:submodel`.
pub(crate) fn is_key(key: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    let mut parts = key.splitn(2, ':');
    parts.next().is_some_and(plain) && parts.next().is_none_or(plain)
}

pub(super) fn models(checker: &Checker<'_>, raw: Section<RawModel>) -> Vec<Model> {
    let keys = checker.declared("models", "key").names;
    let mut models = Vec::new();
    for (index, raw) in present(raw) {
        let path = |field| at_model(index, field);
        if !is_key(&raw.key) {
            let help = Some("write `model` or `model:submodel`".to_owned());
            checker.wrong(&path("key"), format!("`{}` is no key of a model", raw.key), help);
        }
        let before = models.iter().map(|model: &Model| model.key.as_str()).any(|key| key == raw.key);
        if before {
            checker.wrong(&path("key"), format!("a second model has the key `{}`", raw.key), None);
        }
        if raw.required_percent > 100 {
            checker.wrong(
                &path("required_percent"),
                format!("{} is more than 100 percent", raw.required_percent),
                None,
            );
        }
        if let Some(name) = &raw.recorded_as {
            recorded(checker, &path("recorded_as"), name, &raw);
        }
        let Some(weights) = weights(checker, index, &raw) else { continue };
        models.push(Model {
            weights,
            dtype: raw.dtype,
            safetensors: raw.safetensors.map(Into::into),
            required_percent: raw.required_percent,
            partial_loading: raw.partial_loading,
            recorded_as: raw.recorded_as,
            key: raw.key,
        });
    }
    debug_assert!(models.len() <= keys.len() || !checker.findings.is_empty(), "a model without a key is a mistake");
    models
}

fn at_model<'f>(index: usize, field: &'f str) -> [Step<'f>; 3] {
    [Step::Key("models"), Step::Index(index), Step::Key(field)]
}

/// A name that no recording has, or a recording that nothing could be made of, would go unnoticed: there is no check then.
fn recorded(checker: &Checker<'_>, path: &[Step<'_>], name: &str, raw: &RawModel) {
    if let Recordings::Named(known) = checker.recordings
        && !known.contains(&name)
    {
        let near = nearest(name, known.iter().copied()).map(|near| format!("did you mean `{near}`?"));
        let help = near.unwrap_or_else(|| "leave it out where the model is in no recording".to_owned());
        checker.wrong(path, format!("no recording is named `{name}`; there are {}", known.join(", ")), Some(help));
    } else if raw.architecture.is_none() && raw.weights.is_some() {
        let message =
            format!("what `{}` was recorded to need is held against its architecture, and it has none", raw.key);
        checker.wrong(path, message, Some("leave it out, or give the model an `architecture`".to_owned()));
    }
}

fn weights(checker: &Checker<'_>, index: usize, raw: &RawModel) -> Option<Weights> {
    match (&raw.architecture, &raw.weights) {
        (Some(architecture), None) => {
            let architecture = Architecture::from(architecture.clone());
            for (field, why) in architecture.contradictions() {
                checker.wrong(at!["models", index, "architecture", field], why, None);
            }
            implausible(checker, index);
            Some(Weights::Architecture(architecture))
        }
        (None, Some(weights)) => {
            if weights.pieces == 0 || u64::from(weights.pieces) > weights.bytes.0 {
                let message =
                    format!("{} pieces of {} bytes: every piece has at least one", weights.pieces, weights.bytes.0);
                checker.wrong(at!["models", index, "weights", "pieces"], message, None);
                return None;
            }
            Some(Weights::Bytes { pieces: weights.pieces, bytes: weights.bytes.0 })
        }
        (Some(_), Some(_)) => {
            let message =
                "a model has either an `architecture` or `weights`: its size follows from the one or is the other";
            checker.wrong(&at_model(index, "weights"), message, None);
            None
        }
        (None, None) => {
            let help = Some("or `weights: { pieces: 40, bytes: 12GiB }` where the layers are not described".to_owned());
            checker.wrong(&at_model(index, "key"), "the model has no `architecture`", help);
            None
        }
    }
}

/// Zeros and numbers beyond any model, wherever they stand in an architecture.
fn implausible(checker: &Checker<'_>, index: usize) {
    let Some((_, Node { value: Value::List(items), .. })) = checker.root.entry("models") else { return };
    let Some((_, Node { value: Value::Map(fields), .. })) =
        items.get(index).and_then(|item| item.entry("architecture"))
    else {
        return;
    };
    for (key, node) in fields {
        let numbers = match &node.value {
            Value::List(items) => items.iter().collect(),
            _ => vec![node],
        };
        for number in numbers {
            let Value::Unsigned(value) = number.value else { continue };
            let zero_is_a_mistake =
                key.name != "transformer_layers_per_block" && key.name != "mid_block_transformer_layers";
            if value > MOST || (value == 0 && zero_is_a_mistake) {
                let field = format!("models[{index}].architecture.{}", key.name);
                checker.findings.add(
                    number.place,
                    field,
                    format!("{value} is no number of a model (1 to {MOST})"),
                    None,
                );
            }
        }
    }
}
