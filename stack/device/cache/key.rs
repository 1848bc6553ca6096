//! A model's name in the cache.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use headroom_base::mutant;

/// `model` or `model:submodel`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelKey {
    /// Both parts with a colon between them.
    text: Arc<str>,
    /// Where the colon is; at the end where there is no submodel.
    colon: usize,
}

impl ModelKey {
    /// A whole model.
    pub fn model(model: impl AsRef<str>) -> Self {
        let model = model.as_ref();
        Self { text: Arc::from(model), colon: model.len() }
    }

    /// A part of a model.
    pub fn submodel(model: impl AsRef<str>, submodel: impl AsRef<str>) -> Self {
        let (model, submodel) = (model.as_ref(), submodel.as_ref());
        Self { text: Arc::from(format!("{model}:{submodel}")), colon: model.len() }
    }

    /// The model, without the part.
    pub fn model_name(&self) -> &str {
        &self.text[..self.colon]
    }

    /// The part, if it is one.
    pub fn submodel_name(&self) -> Option<&str> {
        self.text.get(self.colon + 1..)
    }
}

impl FromStr for ModelKey {
    type Err = Infallible;

    /// The part is what follows the first colon.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self { text: Arc::from(text), colon: text.find(':').unwrap_or(text.len()) })
    }
}

impl From<&str> for ModelKey {
    fn from(text: &str) -> Self {
        let Ok(key) = text.parse();
        key
    }
}

impl fmt::Display for ModelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(mutant!(
            "submodel_dropped_from_a_key",
            "people cannot tell which part of a pipeline holds the memory",
            right: &self.text,
            wrong: self.model_name(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_however_it_was_made_and_prints_whole() {
        for (key, model, submodel) in [
            (ModelKey::from("flux:vae"), "flux", Some("vae")),
            (ModelKey::submodel("flux", "vae"), "flux", Some("vae")),
            (ModelKey::from("flux"), "flux", None),
            (ModelKey::model("flux"), "flux", None),
            (ModelKey::from("a:b:c"), "a", Some("b:c")),
        ] {
            assert_eq!((key.model_name(), key.submodel_name()), (model, submodel));
            assert_eq!(ModelKey::from(key.to_string().as_str()), key);
        }
        assert_ne!(ModelKey::from("flux"), ModelKey::submodel("flux", ""));
    }
}
