//! Convolutions that see no later frames, and the frames they keep for the next step.

use super::super::layers::{Convolution, Pieces};
use super::super::recorder::{Recorder, Tensor};

/// Frames that a convolution keeps of its input.
pub(super) const KEPT_FRAMES: u64 = 2;

/// What one convolution keeps between steps.
#[derive(Clone, Debug, Default)]
pub(super) enum Kept {
    /// Nothing yet.
    #[default]
    Nothing,
    /// The first frame was passed on as it was: it counts as repeated.
    Repeated,
    /// Its last frames.
    Frames(Tensor),
}

/// The caches of all convolutions, in the order in which a step meets them.
#[derive(Debug, Default)]
pub(super) struct Caches {
    kept: Vec<Kept>,
    next: usize,
}

impl Caches {
    pub(super) fn rewind(&mut self) {
        self.next = 0;
    }

    pub(super) fn current(&mut self) -> &mut Kept {
        if self.next == self.kept.len() {
            self.kept.push(Kept::Nothing);
        }
        &mut self.kept[self.next]
    }

    /// Lets go of everything, last first as a Python list does.
    pub(super) fn release(mut self) {
        while let Some(kept) = self.kept.pop() {
            drop(kept);
        }
    }

    pub(super) fn advance(&mut self) {
        self.next += 1;
    }
}

/// A convolution that sees no later frames.
#[derive(Clone, Debug)]
pub(super) struct CausalConvolution {
    convolution: Convolution,
    /// Zeros before the first frame.
    before: u64,
    /// Zeros at each side of rows and columns.
    around: u64,
}

impl CausalConvolution {
    pub(super) fn cube(inputs: u64, outputs: u64, side: u64) -> Self {
        Self::new(inputs, outputs, [side; 3], [side / 2 * 2, side / 2], 1)
    }

    pub(super) fn over_time(inputs: u64, outputs: u64, before: u64, stride: u64) -> Self {
        Self::new(inputs, outputs, [3, 1, 1], [before, 0], stride)
    }

    pub(super) fn new(inputs: u64, outputs: u64, kernel: [u64; 3], [before, around]: [u64; 2], stride: u64) -> Self {
        let convolution = Convolution {
            inputs,
            outputs,
            kernel: kernel.to_vec(),
            stride: vec![stride, 1, 1],
            padding: vec![0; 3],
            bias: true,
        };
        Self { convolution, before, around }
    }

    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        self.convolution.parameters(pieces);
    }

    /// Kept frames in front, zeros around (always a copy), then the convolution.
    pub(super) fn forward(&self, recorder: &Recorder, input: &Tensor, kept: Option<&Tensor>) -> Tensor {
        let mut input = input.clone();
        let mut before = self.before;
        if let Some(kept) = kept.filter(|_| self.before > 0) {
            input = recorder.cat(&[kept, &input], 2);
            before = before.saturating_sub(kept.size(2));
        }
        input = recorder.pad(&input, &[[self.around; 2], [self.around; 2], [before, 0]]);
        self.convolution.forward(recorder, &input)
    }

    /// The same with the frames kept from the step before, keeping the last ones of this step.
    pub(super) fn step(&self, recorder: &Recorder, name: &str, input: &mut Tensor, caches: &mut Caches) {
        let _place = recorder.enter(name);
        let mut last = recorder.clone_of(&input.last(2, KEPT_FRAMES));
        let kept = match caches.current() {
            Kept::Frames(frames) => Some(frames.clone()),
            Kept::Nothing | Kept::Repeated => None,
        };
        if let Some(frames) = kept.as_ref().filter(|_| last.size(2) < KEPT_FRAMES) {
            last = recorder.cat(&[&frames.last(2, 1), &last], 2);
        }
        *input = self.forward(recorder, input, kept.as_ref());
        drop(kept);
        *caches.current() = Kept::Frames(last);
        caches.advance();
    }
}
