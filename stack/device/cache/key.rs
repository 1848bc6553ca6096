//! A model's name in the cache.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use headroom_base::mutant;

/// `model` or `model:submodel`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelKey {
    model: Arc<str>,
    submodel: Option<Arc<str>>,
}

impl ModelKey {
    /// A whole model.
    pub fn model(model: impl AsRef<str>) -> Self {
        Self { model: Arc::from(model.as_ref()), submodel: None }
    }

    /// A part of a model.
    pub fn submodel(model: impl AsRef<str>, submodel: impl AsRef<str>) -> Self {
        Self { model: Arc::from(model.as_ref()), submodel: Some(Arc::from(submodel.as_ref())) }
    }

    /// The model, without the part.
    pub fn model_name(&self) -> &str {
        &self.model
    }

    /// The part, if it is one.
    pub fn submodel_name(&self) -> Option<&str> {
        self.submodel.as_deref()
    }
}

impl FromStr for ModelKey {
    type Err = Infallible;

    /// The part is what follows the first colon.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.split_once(':') {
            Some((model, submodel)) => Self::submodel(model, submodel),
            None => Self::model(text),
        })
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
        let submodel = mutant!(
            "submodel_dropped_from_a_key",
            "people cannot tell which part of a pipeline holds the memory",
            right: self.submodel.as_ref(),
            wrong: None::<&Arc<str>>,
        );
        match submodel {
            Some(submodel) => f.pad(&format!("{}:{submodel}", self.model)),
            None => f.pad(&self.model),
        }
    }
}
