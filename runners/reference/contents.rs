//! What stands in inputs and parameters: the filling that each names, or values that the caller has.

use std::collections::BTreeMap;

use super::error::ReferenceError;
use super::memory::{Memory, rounded};
use crate::programs::computation::{Computation, Filling, Given, seed_of, uniform};

/// Values for inputs and parameters, in the order of their memory; whatever is not named holds its filling.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    named: BTreeMap<String, Vec<f64>>,
}

impl Contents {
    /// These values in the input or parameter of that name.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, values: Vec<f64>) -> Self {
        self.named.insert(name.into(), values);
        self
    }

    /// Refuses names that the computation does not have.
    pub(super) fn check(&self, computation: &Computation) -> Result<(), ReferenceError> {
        let known =
            |name: &str| computation.inputs.iter().chain(&computation.parameters).any(|given| given.name == name);
        match self.named.keys().find(|name| !known(name)) {
            Some(name) => Err(ReferenceError::UnknownContents { name: name.clone() }),
            None => Ok(()),
        }
    }

    /// The memory of one of them.
    pub(super) fn of(&self, given: &Given) -> Result<Memory, ReferenceError> {
        match self.named.get(&given.name) {
            None => Ok(Memory::full(given.element, &filled(given))),
            Some(values) if values.len() as u64 == given.elements => Ok(Memory::full(given.element, values)),
            Some(values) => Err(ReferenceError::Contents {
                name: given.name.clone(),
                elements: given.elements,
                found: values.len(),
            }),
        }
    }
}

/// What [`Filling`] puts into a tensor's memory, from its beginning, rounded to its element type.
pub fn filled(given: &Given) -> Vec<f64> {
    let seed = seed_of(&given.name);
    let value = |index: u64| match given.filling {
        Filling::Around { centre, amplitude } => f64::from(amplitude * (2.0 * uniform(seed, index) - 1.0) + centre),
        // In fp64, where the product of a 24-bit number is exact: in fp32 the largest could round up to the bound.
        Filling::Below(below) => (f64::from(uniform(seed, index)) * below as f64).floor(),
        Filling::Counting => index as f64,
    };
    (0..given.elements).map(|index| rounded(value(index), given.element)).collect()
}
