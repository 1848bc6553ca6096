//! Rotary position embeddings: their table, and their application to queries and keys.

use super::super::computation::Pointwise;
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
        for (index, channels) in (0..).zip([FIRST_AXIS, other, other]) {
            let (cosine, sine) = axis(recorder, &positions.select(1, index), channels);
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
        let [even, odd] = [0, 1].map(|index| input.pairs().select(4, index));
        let minus = Pointwise::Affine { factor: -1.0, summand: 0.0 };
        let negated = recorder.computed(&half, input.element, minus, &[&odd], "rotary negate");
        let swapped = recorder.empty(&sizes, input.element, "rotary swap");
        recorder.join_into(&swapped.pairs(), &[&negated.unsqueeze(4), &even.unsqueeze(4)], 4);
        drop((even, odd));
        drop(negated);
        let wide = recorder.to(&input, fp32, "rotary in fp32");
        let along = recorder.combine(&wide, &self.along(&self.cosines), Pointwise::Multiply, "rotary cosines");
        drop(wide);
        let wide = recorder.to(&swapped, fp32, "rotary swap in fp32");
        let across = recorder.combine(&wide, &self.along(&self.sines), Pointwise::Multiply, "rotary sines");
        drop(wide);
        let sum = recorder.combine(&along, &across, Pointwise::Add, "rotary sum");
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

/// The base of the frequencies.
const BASE: f64 = 10_000.0;

/// Cosines and sines of one axis, two channels for each frequency.
fn axis(recorder: &Recorder, positions: &Tensor, channels: u64) -> (Tensor, Tensor) {
    let (tokens, half, fp64) = (positions.size(0), channels / 2, Element::Fp64);
    let same = Pointwise::Affine { factor: 1.0, summand: 0.0 };
    let exponents = recorder.range(half, 2.0, fp64, "exponents");
    let divided = recorder.scale(&exponents, Pointwise::Over(channels as f64), "divide exponents");
    drop(exponents);
    let powers = recorder.map(&divided, Pointwise::PowerOf(BASE), "powers");
    drop(recorder.allocate(Shape::contiguous(&[1]), fp64, "base", Role::Copy));
    drop(divided);
    let inverse = recorder.map(&powers, Pointwise::ConstantOver(1.0), "inverse powers");
    let scaled = recorder.scale(&inverse, same, "scale frequencies");
    drop(inverse);
    drop(powers);
    let frequencies = recorder.scale(&scaled, same, "frequencies");
    drop(scaled);
    let angles = recorder.outer(positions, &frequencies, fp64, "angles");
    drop(frequencies);
    let table = |function, operator| {
        let narrow = recorder.map(&angles, function, operator);
        let wide = recorder.empty(&[tokens, channels], fp64, "repeat");
        recorder.pointwise(Pointwise::Copy, &[&narrow.unsqueeze(2)], &wide.pairs());
        drop(narrow);
        recorder.to(&wide, Element::FP32, "table in fp32")
    };
    let cosines = table(Pointwise::Cosine, "cosines");
    let sines = table(Pointwise::Sine, "sines");
    drop(angles);
    (cosines, sines)
}

/// Lets go of tensors last first, as a Python list does.
fn release(mut tensors: Vec<Tensor>) {
    while let Some(tensor) = tensors.pop() {
        drop(tensor);
    }
}
