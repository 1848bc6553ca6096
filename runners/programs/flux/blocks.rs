//! The transformer's blocks: joint ones over two streams, image and text, and single ones over their union.

use headroom_base::DType;

use super::super::attention::Seen;
use super::super::computation::{Kernel, Pointwise};
use super::super::layers::{Linear, Pieces};
use super::super::program::Role;
use super::super::recorder::{Recorder, Tensor};
use super::super::shape::{Element, Shape};
use super::super::transformer_block::LayerNorm;
use super::rotary::Table;

/// Widths of the transformer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Widths {
    pub(super) channels: u64,
    pub(super) heads: u64,
    pub(super) head: u64,
}

/// What normalisations add to a variance or a mean square.
const EPSILON: f64 = 1e-6;
/// The largest number in half precision.
const LARGEST_HALF: f64 = 65_504.0;

/// The inner width of a feed-forward layer, as a multiple of the outer.
const FEED_FORWARD: u64 = 4;

impl Widths {
    fn square(self) -> Linear {
        Linear::new(self.channels, self.channels)
    }

    fn norm(self) -> LayerNorm {
        LayerNorm { channels: self.channels, affine: false, epsilon: EPSILON }
    }
}

/// A layer normalisation that a condition scales and shifts; gates for later come with it.
#[derive(Clone, Debug)]
pub(super) struct Modulated {
    norm: LayerNorm,
    pub(super) linear: Linear,
    parts: u64,
    /// Which of the vectors shifts and which scales.
    shift_and_scale: [u64; 2],
}

impl Modulated {
    /// With `parts` vectors taken from the condition, two of which shift and scale.
    pub(super) fn new(widths: Widths, parts: u64, shift_and_scale: [u64; 2]) -> Self {
        let linear = Linear::new(widths.channels, parts * widths.channels);
        Self { norm: widths.norm(), linear, parts, shift_and_scale }
    }

    /// The normalised input, and the vectors.
    pub(super) fn forward(
        &self,
        recorder: &Recorder,
        name: &str,
        input: &Tensor,
        condition: &Tensor,
    ) -> (Tensor, Tensor) {
        let _place = recorder.enter(name);
        let activated = recorder.map(condition, Pointwise::Silu, "silu");
        let vectors = recorder.linear("linear", &self.linear, &activated);
        drop(activated);
        let normed = recorder.layer_norm("norm", &self.norm, input);
        let [shift, scale] = self.shift_and_scale.map(|index| vectors.part(1, index, self.parts).unsqueeze(1));
        (modulate(recorder, normed, &shift, &scale), vectors)
    }
}

/// Scales by one more than a vector, then shifts by another.
fn modulate(recorder: &Recorder, input: Tensor, shift: &Tensor, scale: &Tensor) -> Tensor {
    let factor = recorder.scale(scale, ONE_MORE, "one more");
    let scaled = recorder.combine(&input, &factor, Pointwise::Multiply, "modulate scale");
    drop(input);
    drop(factor);
    recorder.combine(&scaled, shift, Pointwise::Add, "modulate shift")
}

const ONE_MORE: Pointwise = Pointwise::Affine { factor: 1.0, summand: 1.0 };
/// Vectors that a block over both streams takes from the condition: shift, scale and gate of attention, then those of
/// the feed-forward layer.
const JOINT_PARTS: u64 = 6;
/// Shift, scale and gate.
const SINGLE_PARTS: u64 = 3;

/// Queries, keys and values, the first two normalised per head.
#[derive(Debug)]
struct Projected {
    query: Tensor,
    key: Tensor,
    value: Tensor,
}

/// Attention over one or two streams.
#[derive(Clone, Debug)]
struct Attention {
    widths: Widths,
}

impl Attention {
    fn norms(&self, pieces: &mut Pieces, names: [&str; 2]) {
        for name in names {
            pieces.parameter(&format!("{name}.weight"), &[self.widths.head]);
        }
    }

    fn linears(&self, pieces: &mut Pieces, names: &[&str]) {
        for name in names {
            pieces.within(*name, |p| self.widths.square().parameters(p));
        }
    }

    fn project(&self, recorder: &Recorder, names: [&str; 3], input: &Tensor) -> [Tensor; 3] {
        names.map(|name| {
            let flat = recorder.linear(name, &self.widths.square(), input);
            recorder.reshape(&flat, &[input.size(0), input.size(1), self.widths.heads, self.widths.head])
        })
    }

    /// Root-mean-square normalisation per head: the output and a statistic for each.
    fn normed(&self, recorder: &Recorder, name: &str, input: Tensor) -> Tensor {
        let _place = recorder.enter(name);
        let output = recorder.allocate(input.shape.preserved(), input.element, "rms_norm", Role::Output);
        let heads = input.shape.elements() / self.widths.head;
        let deviation = recorder.empty(&[heads], Element::FP32, "rms_norm deviation");
        let weight = recorder.parameter("weight", Shape::contiguous(&[self.widths.head]));
        recorder.launch(Kernel::RmsNorm { epsilon: EPSILON }, &[&input, &weight], &[&output, &deviation]);
        drop(deviation);
        drop(input);
        output
    }

    fn attend(&self, recorder: &Recorder, projected: &Projected) -> Tensor {
        let heads = |tensor: &Tensor| tensor.transpose(1, 2);
        let Projected { query, key, value } = projected;
        let hidden = recorder.attention(&heads(query), &heads(key), &heads(value), Seen::All).transpose(1, 2);
        recorder.reshape(&hidden, &[query.size(0), query.size(1), self.widths.channels])
    }

    /// Over one stream.
    fn single(&self, recorder: &Recorder, input: &Tensor, table: &Table) -> Tensor {
        let _place = recorder.enter("attn");
        let [query, key, value] = self.project(recorder, ["to_q", "to_k", "to_v"], input);
        let query = self.normed(recorder, "norm_q", query);
        let key = self.normed(recorder, "norm_k", key);
        let query = table.apply(recorder, query);
        let key = table.apply(recorder, key);
        let projected = Projected { query, key, value };
        let hidden = self.attend(recorder, &projected);
        drop(projected);
        hidden
    }

    /// Over the text and the image together; what each stream gets back.
    fn joint(&self, recorder: &Recorder, image: &Tensor, text: &Tensor, table: &Table) -> (Tensor, Tensor) {
        let _place = recorder.enter("attn");
        let [query, key, value] = self.project(recorder, ["to_q", "to_k", "to_v"], image);
        let [text_query, text_key, text_value] =
            self.project(recorder, ["add_q_proj", "add_k_proj", "add_v_proj"], text);
        let query = self.normed(recorder, "norm_q", query);
        let key = self.normed(recorder, "norm_k", key);
        let text_query = self.normed(recorder, "norm_added_q", text_query);
        let text_key = self.normed(recorder, "norm_added_k", text_key);
        let join = |first: &Tensor, second: Tensor| recorder.cat(&[first, &second], 1);
        let query = join(&text_query, query);
        let key = join(&text_key, key);
        let value = join(&text_value, value);
        let query = table.apply(recorder, query);
        let key = table.apply(recorder, key);
        let projected = Projected { query, key, value };
        let hidden = self.attend(recorder, &projected);
        let part = |start: u64, length: u64, name: &str| {
            let dense = recorder.contiguous(&hidden.narrow(1, start, length));
            recorder.linear(name, &self.widths.square(), &dense)
        };
        let for_image = part(text.size(1), image.size(1), "to_out.0");
        let for_text = part(0, text.size(1), "to_add_out");
        drop(hidden);
        drop(projected);
        drop((text_query, text_key, text_value));
        (for_image, for_text)
    }
}

/// A block over both streams.
#[derive(Clone, Debug)]
pub(super) struct JointBlock {
    widths: Widths,
    norm: Modulated,
    attention: Attention,
    widen: Linear,
    narrow: Linear,
}

impl JointBlock {
    pub(super) fn new(widths: Widths) -> Self {
        let inner = FEED_FORWARD * widths.channels;
        Self {
            widths,
            norm: Modulated::new(widths, JOINT_PARTS, [0, 1]),
            attention: Attention { widths },
            widen: Linear::new(widths.channels, inner),
            narrow: Linear::new(inner, widths.channels),
        }
    }

    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("norm1.linear", |p| self.norm.linear.parameters(p));
        pieces.within("norm1_context.linear", |p| self.norm.linear.parameters(p));
        pieces.within("attn", |p| {
            self.attention.norms(p, ["norm_q", "norm_k"]);
            self.attention.linears(p, &["to_q", "to_k", "to_v", "to_out.0"]);
            self.attention.norms(p, ["norm_added_q", "norm_added_k"]);
            self.attention.linears(p, &["add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"]);
        });
        for name in ["ff", "ff_context"] {
            pieces.within(format!("{name}.net.0.proj"), |p| self.widen.parameters(p));
            pieces.within(format!("{name}.net.2"), |p| self.narrow.parameters(p));
        }
    }

    /// The image's and the text's new tokens; `image` and `text` are what came in.
    pub(super) fn forward(
        &self,
        recorder: &Recorder,
        [image, text]: [&Tensor; 2],
        condition: &Tensor,
        table: &Table,
    ) -> (Tensor, Tensor) {
        let (normed, vectors) = self.norm.forward(recorder, "norm1", image, condition);
        let (text_normed, text_vectors) = self.norm.forward(recorder, "norm1_context", text, condition);
        let (attended, text_attended) = self.attention.joint(recorder, &normed, &text_normed, table);
        let gate = |vectors: &Tensor, index: u64, input: &Tensor| {
            let vector = vectors.part(1, index, JOINT_PARTS).unsqueeze(1);
            recorder.combine(&vector, input, Pointwise::Multiply, "gate")
        };
        let gated = gate(&vectors, 2, &attended);
        let mut new_image = recorder.combine(image, &gated, Pointwise::Add, "add attention");
        let normed = self.renorm(recorder, "norm2", &new_image, &vectors, normed);
        let fed = self.feed_forward(recorder, "ff", &normed);
        let fed = {
            let ungated = fed;
            gate(&vectors, 5, &ungated)
        };
        new_image = recorder.combine(&new_image, &fed, Pointwise::Add, "add feed-forward");
        let text_gated = gate(&text_vectors, 2, &text_attended);
        let mut new_text = recorder.combine(text, &text_gated, Pointwise::Add, "add attention");
        let text_normed = self.renorm(recorder, "norm2_context", &new_text, &text_vectors, text_normed);
        let text_fed = self.feed_forward(recorder, "ff_context", &text_normed);
        let text_fed_gated = gate(&text_vectors, 5, &text_fed);
        let sum = recorder.combine(&new_text, &text_fed_gated, Pointwise::Add, "add feed-forward");
        drop(text_fed_gated);
        new_text = finite(recorder, sum);
        drop(normed);
        drop(vectors);
        drop(text_normed);
        drop(text_vectors);
        drop(text_attended);
        drop(attended);
        drop(gated);
        drop(text_gated);
        drop(fed);
        drop(text_fed);
        (new_image, new_text)
    }

    /// The second normalisation of a stream; what the first gave goes once the new one is there.
    fn renorm(&self, recorder: &Recorder, name: &str, input: &Tensor, vectors: &Tensor, before: Tensor) -> Tensor {
        let plain = recorder.layer_norm(name, &self.widths.norm(), input);
        drop(before);
        let [shift, scale] = [3, 4].map(|index| vectors.part(1, index, JOINT_PARTS).unsqueeze(1));
        let factor = recorder.scale(&scale, ONE_MORE, "one more");
        let scaled = recorder.combine(&plain, &factor, Pointwise::Multiply, "modulate scale");
        drop(factor);
        let shifted = recorder.combine(&scaled, &shift, Pointwise::Add, "modulate shift");
        drop(scaled);
        drop(plain);
        shifted
    }

    fn feed_forward(&self, recorder: &Recorder, name: &str, input: &Tensor) -> Tensor {
        let _place = recorder.enter(name);
        let mut hidden = recorder.linear("net.0.proj", &self.widen, input);
        hidden = recorder.map(&hidden, Pointwise::Gelu { tanh: true }, "gelu");
        recorder.linear("net.2", &self.narrow, &hidden)
    }
}

/// In fp16 a sum is clipped to finite numbers, in a copy.
fn finite(recorder: &Recorder, sum: Tensor) -> Tensor {
    let range = Pointwise::Clamp { low: -LARGEST_HALF, high: LARGEST_HALF };
    if sum.element == Element::Float(DType::Fp16) { recorder.map(&sum, range, "clip") } else { sum }
}

/// A block over text and image in one stream.
#[derive(Clone, Debug)]
pub(super) struct SingleBlock {
    norm: Modulated,
    attention: Attention,
    widen: Linear,
    narrow: Linear,
}

impl SingleBlock {
    pub(super) fn new(widths: Widths) -> Self {
        let inner = FEED_FORWARD * widths.channels;
        Self {
            norm: Modulated::new(widths, SINGLE_PARTS, [0, 1]),
            attention: Attention { widths },
            widen: Linear::new(widths.channels, inner),
            narrow: Linear::new(widths.channels + inner, widths.channels),
        }
    }

    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("norm.linear", |p| self.norm.linear.parameters(p));
        pieces.within("proj_mlp", |p| self.widen.parameters(p));
        pieces.within("proj_out", |p| self.narrow.parameters(p));
        pieces.within("attn", |p| {
            self.attention.norms(p, ["norm_q", "norm_k"]);
            self.attention.linears(p, &["to_q", "to_k", "to_v"]);
        });
    }

    /// The image's and the text's new tokens, which are two parts of one tensor.
    pub(super) fn forward(
        &self,
        recorder: &Recorder,
        [image, text]: [&Tensor; 2],
        condition: &Tensor,
        table: &Table,
    ) -> (Tensor, Tensor) {
        let residual = recorder.cat(&[text, image], 1);
        let (normed, vectors) = self.norm.forward(recorder, "norm", &residual, condition);
        let mut fed = recorder.linear("proj_mlp", &self.widen, &normed);
        fed = recorder.map(&fed, Pointwise::Gelu { tanh: true }, "gelu");
        let attended = self.attention.single(recorder, &normed, table);
        let mut hidden = recorder.cat(&[&attended, &fed], 2);
        let vector = vectors.part(1, 2, SINGLE_PARTS).unsqueeze(1);
        hidden = {
            let projected = recorder.linear("proj_out", &self.narrow, &hidden);
            let gated = recorder.combine(&vector, &projected, Pointwise::Multiply, "gate");
            drop(projected);
            gated
        };
        hidden = recorder.combine(&residual, &hidden, Pointwise::Add, "add residual");
        hidden = finite(recorder, hidden);
        drop(residual);
        drop(normed);
        drop(vector);
        drop(vectors);
        drop(fed);
        drop(attended);
        (hidden.narrow(1, text.size(1), image.size(1)), hidden.narrow(1, 0, text.size(1)))
    }
}
