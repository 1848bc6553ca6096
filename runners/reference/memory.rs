//! The memory of tensors: what was written there, and which of it a view may look at.

use half::{bf16, f16};
use headroom_base::DType;

use super::dense::{Dense, for_each_index};
use super::error::Problem;
use crate::programs::Element;
use crate::programs::computation::View;

/// A value as memory of this element type holds it: floating numbers to the nearest, ties to even; whole numbers
/// towards zero; booleans are 0 or 1.
pub fn rounded(value: f64, element: Element) -> f64 {
    match element {
        Element::Fp64 => value,
        Element::Float(DType::Fp32) => f64::from(value as f32),
        Element::Float(DType::Fp16) => f16::from_f64(value).to_f64(),
        Element::Float(DType::Bf16) => bf16::from_f64(value).to_f64(),
        Element::Int64 | Element::Int32 => value.trunc(),
        Element::Bool => f64::from(u8::from(value != 0.0)),
    }
}

/// Elements of one type, each written or not yet. What was not written is no number.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    element: Element,
    values: Vec<f64>,
    written: Vec<bool>,
}

impl Memory {
    /// Nothing in it is written.
    pub(super) fn fresh(element: Element, elements: u64) -> Self {
        let elements = elements as usize;
        Self { element, values: vec![f64::NAN; elements], written: vec![false; elements] }
    }

    /// All of it is written.
    pub(super) fn full(element: Element, values: &[f64]) -> Self {
        let values: Vec<f64> = values.iter().map(|value| rounded(*value, element)).collect();
        Self { element, written: vec![true; values.len()], values }
    }

    /// Where the elements of a view lie, in the view's row-major order.
    fn places(&self, view: &View) -> Result<Vec<usize>, Problem> {
        if view.element != self.element {
            return Err(Problem::ElementType { memory: self.element, view: view.element });
        }
        places(view, self.values.len() as u64)
    }

    /// What a view sees.
    pub(super) fn load(&self, view: &View) -> Result<Dense, Problem> {
        let places = self.places(view)?;
        if let Some(element) = places.iter().find(|place| !self.written[**place]) {
            return Err(Problem::Unwritten { of: view.source, element: *element });
        }
        let values = places.iter().map(|place| self.values[*place]).collect();
        Ok(Dense { sizes: sizes(view), values })
    }

    /// Writes values, given in the view's row-major order.
    pub(super) fn store(&mut self, view: &View, values: &[f64]) -> Result<(), Problem> {
        for (place, value) in self.places(view)?.into_iter().zip(values) {
            self.values[place] = rounded(*value, self.element);
            self.written[place] = true;
        }
        Ok(())
    }
}

/// A view's sizes as indices count them.
pub(super) fn sizes(view: &View) -> Vec<usize> {
    view.sizes.iter().map(|size| *size as usize).collect()
}

/// Where the elements of a view lie in memory of this many elements, in the view's row-major order.
pub(super) fn places(view: &View, elements: u64) -> Result<Vec<usize>, Problem> {
    if view.strides.len() != view.sizes.len() {
        return Err(Problem::Strides { sizes: view.sizes.len(), strides: view.strides.len() });
    }
    if view.sizes.contains(&0) {
        return Ok(Vec::new());
    }
    let reach = |(size, stride): (&u64, &u64)| (size - 1).checked_mul(*stride);
    let mut last = view.sizes.iter().zip(&view.strides).map(reach);
    let last = last.try_fold(view.offset, |last, reach| last.checked_add(reach?));
    match last {
        Some(last) if last < elements => {}
        _ => return Err(Problem::OutOfBounds { of: view.source, last, elements }),
    }
    let mut found = Vec::with_capacity(view.elements() as usize);
    for_each_index(&sizes(view), |index| {
        let place: u64 = index.iter().zip(&view.strides).map(|(index, stride)| *index as u64 * stride).sum();
        found.push((view.offset + place) as usize);
    });
    Ok(found)
}
