//! Rotary position embeddings: their table, and their application to queries and keys.

use super::super::program::Role;
use super::super::recorder::{Recorder, Tensor};
use super::super::shape::{Element, Shape};

/// Channels of the first position axis; the two others share the rest of a head.
const FIRST_AXIS: u64 = 16;

/// Cosines and sines of every token, in fp32.
#[derive(Debug)]
pub(super) struct Table {
    cosines: Tensor,
    sines: Tensor,
}

impl Table {
    /// From token ids of three axes, with frequencies in double precision.
    pub(super) fn new(recorder: &Recorder, ids: &Tensor, head: u64) -> Self {
        let _place = recorder.enter("pos_embed");
        let positions = recorder.to(ids, Element::FP32, "positions in fp32");
        let other = head.saturating_sub(FIRST_AXIS) / 2;
        let mut cosines = Vec::new();
        let mut sines = Vec::new();
        for channels in [FIRST_AXIS, other, other] {
            let (cosine, sine) = axis(recorder, ids.size(0), channels);
            cosines.push(cosine);
            sines.push(sine);
        }
        let joined = |parts: &[Tensor]| recorder.cat(&parts.iter().collect::<Vec<_>>(), 1);
        let table = Self { cosines: joined(&cosines), sines: joined(&sines) };
        let last = (cosines.pop(), sines.pop());
        release(cosines);
        release(sines);
        drop(positions);
        drop(last.0);
        drop(last.1);
        table
    }

    /// Lets go of both, sines first.
    pub(super) fn release(self) {
        drop(self.sines);
        drop(self.cosines);
    }

    /// Turned queries or keys of `(batch, tokens, heads, channels)`: half of the channels negated and swapped, both
    /// parts in fp32.
    pub(super) fn apply(&self, recorder: &Recorder, input: Tensor) -> Tensor {
        let (fp32, sizes) = (Element::FP32, input.sizes().to_vec());
        let half = [&sizes[..3], &[sizes[3] / 2]].concat();
        let negated = recorder.empty(&half, input.element, "rotary negate");
        let swapped = recorder.empty(&sizes, input.element, "rotary swap");
        drop(negated);
        let wide = recorder.to(&input, fp32, "rotary in fp32");
        let along = recorder.combine(&wide, &self.along(&self.cosines), "rotary cosines");
        drop(wide);
        let wide = recorder.to(&swapped, fp32, "rotary swap in fp32");
        let across = recorder.combine(&wide, &self.along(&self.sines), "rotary sines");
        drop(wide);
        let sum = recorder.combine(&along, &across, "rotary sum");
        drop(along);
        drop(across);
        let output = recorder.to(&sum, input.element, "rotary in half");
        drop(sum);
        drop(swapped);
        drop(input);
        output
    }

    fn along(&self, table: &Tensor) -> Tensor {
        table.unsqueeze(1).unsqueeze(0)
    }
}

/// Cosines and sines of one axis.
fn axis(recorder: &Recorder, tokens: u64, channels: u64) -> (Tensor, Tensor) {
    let half = channels / 2;
    let exponents = recorder.empty(&[half], Element::Fp64, "exponents");
    let divided = recorder.scale(&exponents, "divide exponents");
    drop(exponents);
    let powers = recorder.map(&divided, "powers");
    drop(recorder.allocate(Shape::contiguous(&[1]), Element::Fp64, "base", Role::Copy));
    drop(divided);
    let inverse = recorder.map(&powers, "inverse powers");
    let scaled = recorder.scale(&inverse, "scale frequencies");
    drop(inverse);
    drop(powers);
    let frequencies = recorder.scale(&scaled, "frequencies");
    drop(scaled);
    let angles = recorder.empty(&[tokens, half], Element::Fp64, "angles");
    drop(frequencies);
    let table = |operator| {
        let narrow = recorder.map(&angles, operator);
        let wide = recorder.empty(&[tokens, channels], Element::Fp64, "repeat");
        drop(narrow);
        recorder.to(&wide, Element::FP32, "table in fp32")
    };
    let cosines = table("cosines");
    let sines = table("sines");
    drop(angles);
    (cosines, sines)
}

/// Lets go of tensors last first, as a Python list does.
fn release(mut tensors: Vec<Tensor>) {
    while let Some(tensor) = tensors.pop() {
        drop(tensor);
    }
}
