//! Layers that halve or double the size of frames, and with some their number.

use headroom_base::DType;

use super::super::layers::{Convolution, Pieces};
use super::super::recorder::{Recorder, Tensor};
use super::super::shape::Element;
use super::blocks::five;
use super::convolution::{Caches, CausalConvolution, KEPT_FRAMES, Kept};

/// How a resampling layer changes sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resampling {
    Down,
    DownInTimeToo,
    Up,
    UpInTimeToo,
}

/// Halves or doubles the size, and where the model says so the number of frames.
#[derive(Clone, Debug)]
pub(super) struct Resample {
    resampling: Resampling,
    convolution: Convolution,
    time: Option<CausalConvolution>,
}

impl Resample {
    pub(super) fn new(channels: u64, resampling: Resampling) -> Self {
        let (convolution, time) = match resampling {
            Resampling::Down => (Convolution::flat(channels, channels, 3).strided(2, 0), None),
            Resampling::DownInTimeToo => (
                Convolution::flat(channels, channels, 3).strided(2, 0),
                Some(CausalConvolution::over_time(channels, channels, 0, 2)),
            ),
            Resampling::Up => (Convolution::flat(channels, channels / 2, 3), None),
            Resampling::UpInTimeToo => (
                Convolution::flat(channels, channels / 2, 3),
                Some(CausalConvolution::over_time(channels, 2 * channels, 2, 1)),
            ),
        };
        Self { resampling, convolution, time }
    }

    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("resample.1", |p| self.convolution.parameters(p));
        if let Some(time) = &self.time {
            pieces.within("time_conv", |p| time.parameters(p));
        }
    }

    pub(super) fn forward(&self, recorder: &Recorder, input: &Tensor, caches: &mut Caches) -> Tensor {
        let mut hidden = input.clone();
        if let (Some(time), Resampling::UpInTimeToo) = (&self.time, self.resampling) {
            hidden = double_frames(recorder, time, hidden, caches);
        }
        let [batch, channels, time, rows, columns] = five(&hidden);
        let images = [batch * time, channels, rows, columns];
        hidden = recorder.reshape(&hidden.permute(&[0, 2, 1, 3, 4]), &images);
        hidden = match self.resampling {
            Resampling::Up | Resampling::UpInTimeToo => upsample_in_fp32(recorder, &hidden),
            Resampling::Down | Resampling::DownInTimeToo => recorder.pad(&hidden, &[[0, 1], [0, 1]]),
        };
        hidden = recorder.convolution("resample.1", &self.convolution, &hidden);
        let sizes = [batch, time, hidden.size(1), hidden.size(2), hidden.size(3)];
        hidden = hidden.viewed(&sizes).unwrap_or(hidden.clone()).permute(&[0, 2, 1, 3, 4]);
        if let (Some(time), Resampling::DownInTimeToo) = (&self.time, self.resampling) {
            hidden = halve_frames(recorder, time, hidden, caches);
        }
        hidden
    }
}

/// Twice the frames out of a convolution over time; the first frame of a clip stays one.
pub(super) fn double_frames(
    recorder: &Recorder,
    layer: &CausalConvolution,
    input: Tensor,
    caches: &mut Caches,
) -> Tensor {
    let _place = recorder.enter("time_conv");
    if let Kept::Nothing = caches.current() {
        *caches.current() = Kept::Repeated;
        caches.advance();
        return input;
    }
    let [batch, channels, time, rows, columns] = five(&input);
    let mut last = recorder.clone_of(&input.last(2, KEPT_FRAMES));
    let kept = match caches.current() {
        Kept::Frames(frames) => Some(frames.clone()),
        Kept::Nothing | Kept::Repeated => None,
    };
    if last.size(2) < KEPT_FRAMES {
        last = match &kept {
            Some(frames) => recorder.cat(&[&frames.last(2, 1), &last], 2),
            None => {
                let zeros = recorder.filled_like(&last, 0.0, "zeros");
                recorder.cat(&[&zeros, &last], 2)
            }
        };
    }
    let mut hidden = layer.forward(recorder, &input, kept.as_ref());
    drop(input);
    drop(kept);
    *caches.current() = Kept::Frames(last);
    caches.advance();
    hidden = recorder.reshape(&hidden, &[batch, 2, channels, time, rows, columns]);
    let [first, second] = [0, 1].map(|index| hidden.select(1, index).unsqueeze(3));
    hidden = recorder.cat(&[&first, &second], 3);
    drop((first, second));
    recorder.reshape(&hidden, &[batch, channels, 2 * time, rows, columns])
}

/// Half the frames by a convolution over time; the first frame of a clip stays one.
pub(super) fn halve_frames(
    recorder: &Recorder,
    layer: &CausalConvolution,
    input: Tensor,
    caches: &mut Caches,
) -> Tensor {
    let _place = recorder.enter("time_conv");
    let kept = match caches.current() {
        Kept::Frames(frames) => Some(frames.clone()),
        Kept::Nothing | Kept::Repeated => None,
    };
    let Some(kept) = kept else {
        *caches.current() = Kept::Frames(recorder.clone_of(&input));
        caches.advance();
        return input;
    };
    let last = recorder.clone_of(&input.last(2, 1));
    let joined = recorder.cat(&[&kept.last(2, 1), &input], 2);
    let hidden = layer.forward(recorder, &joined, None);
    drop(joined);
    drop(input);
    drop(kept);
    *caches.current() = Kept::Frames(last);
    caches.advance();
    hidden
}

/// The reference upsamples in fp32 and converts back.
pub(super) fn upsample_in_fp32(recorder: &Recorder, input: &Tensor) -> Tensor {
    let _place = recorder.enter("resample.0");
    let wide = recorder.to(input, Element::Float(DType::Fp32), "upsample in fp32");
    let larger = recorder.upsample_nearest(&wide, [2 * wide.size(2), 2 * wide.size(3)]);
    drop(wide);
    recorder.to(&larger, input.element, "upsample in half")
}
