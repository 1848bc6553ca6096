//! Models: an architecture whose numbers go together, or plain sizes.

use std::path::{Path, PathBuf};

use crate::architecture::Architecture;
use crate::bounds::range;
use crate::check::{Checker, present, weights_file};
use crate::family::{Model, Weights};
use crate::findings::{Step, at, field_name};
use crate::node::{Node, Value};
use crate::parse::Recordings;
use crate::problem::nearest;
use crate::raw::numbers::Mistakes;
use crate::raw::published;
use crate::raw::{RawArchitecture, RawModel, Section};

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
    let mut indices = Vec::new();
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
        indices.push(index);
        models.push(Model {
            weights,
            dtype: raw.dtype,
            safetensors: raw.safetensors.map(|path| weights_file(checker, &at_model(index, "safetensors"), &path)),
            required_percent: raw.required_percent,
            partial_loading: raw.partial_loading,
            recorded_as: raw.recorded_as,
            key: raw.key,
        });
    }
    latents_fit(checker, &indices, &models);
    debug_assert!(models.len() <= keys.len() || !checker.findings.is_empty(), "a model without a key is a mistake");
    models
}

/// Where a file of weights lies, seen from where the program runs.
fn weights_file(checker: &Checker<'_>, at: &[Step<'_>], path: &str) -> PathBuf {
    let Some(folder) = checker.folder else { return path.into() };
    let found = folder.join(path);
    if let Some(why) = weights_file::mistake(&found) {
        let help = format!("a path in a family file starts from its folder, {}", shown(folder));
        checker.wrong(at, why, Some(help));
    }
    found
}

/// A folder as people name it.
fn shown(folder: &Path) -> std::path::Display<'_> {
    if folder.as_os_str().is_empty() { Path::new(".").display() } else { folder.display() }
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
        (Some(raw), None) => architecture(checker, index, raw).map(Weights::Architecture),
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

/// The architecture, if its numbers are all there, each is one of a model, and they go together: what rests on a wrong
/// one is looked at once that is right.
fn architecture(checker: &Checker<'_>, index: usize, raw: &RawArchitecture) -> Option<Architecture> {
    let at = |field| [Step::Key("models"), Step::Index(index), Step::Key("architecture"), Step::Key(field)];
    let root = at!["models", index, "architecture"];
    let has_unknown_fields = checker.findings.any_within(&field_name(root));
    let mut mistakes = Mistakes::default();
    let architecture = raw.resolve(&mut mistakes);
    let is_whole = mistakes.0.is_empty() && !has_unknown_fields;
    for mistake in mistakes.0 {
        // A field with another's name was noted; that it is missing is no second mistake.
        let was_meant = has_unknown_fields && checker.is_misspelt_in_architecture(index, mistake.field);
        match mistake.is_missing {
            true if was_meant => {}
            true => checker.wrong(root, mistake.message, mistake.help),
            false => checker.wrong(&at(mistake.field), mistake.message, mistake.help),
        }
    }
    if implausible(checker, index) || !is_whole {
        return None;
    }
    let contradictions = architecture.contradictions();
    for (field, why) in &contradictions {
        checker.wrong(&at(field), why, None);
    }
    let too_large = architecture.too_large();
    if let Some(why) = &too_large {
        checker.wrong(root, why, None);
    }
    (contradictions.is_empty() && too_large.is_none()).then_some(architecture)
}

/// Zeros and numbers beyond any model, wherever they stand in an architecture; whether there was one.
fn implausible(checker: &Checker<'_>, index: usize) -> bool {
    let mut found = false;
    for (key, node) in checker.architecture_entries(index) {
        if is_published(checker, index, &key.name) {
            continue;
        }
        let numbers = match &node.value {
            Value::List(items) => items.iter().collect(),
            _ => vec![node],
        };
        let (least, most) = range(&key.name);
        for number in numbers {
            let Value::Unsigned(value) = number.value else { continue };
            if !(least..=most).contains(&value) {
                let field = format!("models[{index}].architecture.{}", key.name);
                let message = format!("{value} is no number of a model ({least} to {most})");
                checker.findings.add(number.place, field, message, None);
                found = true;
            }
        }
    }
    found
}

/// Whether a key is one of a published configuration, which no program takes a number from.
fn is_published(checker: &Checker<'_>, index: usize, key: &str) -> bool {
    let kind = checker.architecture_entries(index).iter().find(|(key, _)| key.name == "kind");
    matches!(kind, Some((_, Node { value: Value::Text(kind), .. })) if published::keys(kind).any(|(name, _)| name == key))
}

/// A denoiser takes the latents of a VAE of the family, in a way that some pipeline has.
fn latents_fit(checker: &Checker<'_>, indices: &[usize], models: &[Model]) {
    let latents: Vec<(&str, u32)> = models
        .iter()
        .filter_map(|model| Some((model.key.as_str(), model.architecture()?.latent_channels()?)))
        .collect();
    for (index, model) in indices.iter().zip(models) {
        let Some(denoiser) = model.architecture() else { continue };
        let Some(taken) = denoiser.taken_channels() else { continue };
        if !latents.is_empty() && latents.iter().all(|(_, channels)| !denoiser.takes_latents(*channels)) {
            let given: Vec<_> =
                latents.iter().map(|(key, channels)| format!("{channels} channels of `{key}`")).collect();
            let message =
                format!("it takes {taken}, and no pipeline makes them of latents of the {}", given.join(", "));
            let help = "a denoiser and its VAE work on the same latents".to_owned();
            checker.wrong(at!["models", *index, "architecture", "in_channels"], message, Some(help));
        }
    }
}
