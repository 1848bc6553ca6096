//! The transformer's blocks: joint ones over two streams, image and text, and single ones over their union.

use headroom_base::DType;

use super::super::layers::{Linear, Pieces};
use super::super::recorder::{Recorder, Tensor};
use super::super::shape::Element;
use super::super::transformer_block::LayerNorm;
use super::rotary::Table;

/// Widths of the transformer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Widths {
    pub(super) channels: u64,
    pub(super) heads: u64,
    pub(super) head: u64,
}

/// The inner width of a feed-forward layer, as a multiple of the outer.
const FEED_FORWARD: u64 = 4;

impl Widths {
    fn square(self) -> Linear {
        Linear::new(self.channels, self.channels)
    }

    fn norm(self) -> LayerNorm {
        LayerNorm { channels: self.channels, affine: false }
    }
}

/// A layer normalisation that a condition scales and shifts; gates for later come with it.
#[derive(Clone, Debug)]
pub(super) struct Modulated {
    norm: LayerNorm,
    pub(super) linear: Linear,
}

impl Modulated {
    /// With `parts` vectors taken from the condition.
    pub(super) fn new(widths: Widths, parts: u64) -> Self {
        Self { norm: widths.norm(), linear: Linear::new(widths.channels, parts * widths.channels) }
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
        let activated = recorder.map(condition, "silu");
        let vectors = recorder.linear("linear", &self.linear, &activated);
        drop(activated);
        let normed = recorder.layer_norm("norm", &self.norm, input);
        (modulate(recorder, normed, &vectors), vectors)
    }
}

/// Scales by one more than a vector, then shifts by another.
fn modulate(recorder: &Recorder, input: Tensor, vectors: &Tensor) -> Tensor {
    let vector = vectors.narrow(1, input.size(2)).unsqueeze(1);
    let factor = recorder.scale(&vector, "one more");
    let scaled = recorder.combine(&input, &factor, "modulate scale");
    drop(input);
    drop(factor);
    recorder.combine(&scaled, &vector, "modulate shift")
}

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
        let output = recorder.map(&input, "rms_norm");
        let heads = input.shape.elements() / self.widths.head;
        drop(recorder.empty(&[heads], Element::FP32, "rms_norm deviation"));
        drop(input);
        output
    }

    fn attend(&self, recorder: &Recorder, projected: &Projected) -> Tensor {
        let heads = |tensor: &Tensor| tensor.transpose(1, 2);
        let Projected { query, key, value } = projected;
        let hidden = recorder.attention(&heads(query), &heads(key), &heads(value)).transpose(1, 2);
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
        let part = |length: u64, name: &str| {
            let dense = recorder.contiguous(&hidden.narrow(1, length));
            recorder.linear(name, &self.widths.square(), &dense)
        };
        let for_image = part(image.size(1), "to_out.0");
        let for_text = part(text.size(1), "to_add_out");
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
            norm: Modulated::new(widths, 6),
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
        let gate = |vectors: &Tensor, input: &Tensor| {
            let vector = vectors.narrow(1, self.widths.channels).unsqueeze(1);
            recorder.combine(&vector, input, "gate")
        };
        let gated = gate(&vectors, &attended);
        let mut new_image = recorder.combine(image, &gated, "add attention");
        let normed = self.renorm(recorder, "norm2", &new_image, &vectors, normed);
        let fed = self.feed_forward(recorder, "ff", &normed);
        let fed = gate_and_drop(&gate, &vectors, fed);
        new_image = recorder.combine(&new_image, &fed, "add feed-forward");
        let text_gated = gate(&text_vectors, &text_attended);
        let mut new_text = recorder.combine(text, &text_gated, "add attention");
        let text_normed = self.renorm(recorder, "norm2_context", &new_text, &text_vectors, text_normed);
        let text_fed = self.feed_forward(recorder, "ff_context", &text_normed);
        let text_fed_gated = gate(&text_vectors, &text_fed);
        let sum = recorder.combine(&new_text, &text_fed_gated, "add feed-forward");
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
        let vector = vectors.narrow(1, self.widths.channels).unsqueeze(1);
        let factor = recorder.scale(&vector, "one more");
        let scaled = recorder.combine(&plain, &factor, "modulate scale");
        drop(factor);
        let shifted = recorder.combine(&scaled, &vector, "modulate shift");
        drop(scaled);
        drop(plain);
        shifted
    }

    fn feed_forward(&self, recorder: &Recorder, name: &str, input: &Tensor) -> Tensor {
        let _place = recorder.enter(name);
        let mut hidden = recorder.linear("net.0.proj", &self.widen, input);
        hidden = recorder.map(&hidden, "gelu");
        recorder.linear("net.2", &self.narrow, &hidden)
    }
}

fn gate_and_drop(gate: &impl Fn(&Tensor, &Tensor) -> Tensor, vectors: &Tensor, input: Tensor) -> Tensor {
    gate(vectors, &input)
}

/// In fp16 a sum is clipped to finite numbers, in a copy.
fn finite(recorder: &Recorder, sum: Tensor) -> Tensor {
    if sum.element == Element::Float(DType::Fp16) { recorder.map(&sum, "clip") } else { sum }
}

/// A block over text and image in one stream.
#[derive(Clone, Debug)]
pub(super) struct SingleBlock {
    widths: Widths,
    norm: Modulated,
    attention: Attention,
    widen: Linear,
    narrow: Linear,
}

impl SingleBlock {
    pub(super) fn new(widths: Widths) -> Self {
        let inner = FEED_FORWARD * widths.channels;
        Self {
            widths,
            norm: Modulated::new(widths, 3),
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
        fed = recorder.map(&fed, "gelu");
        let attended = self.attention.single(recorder, &normed, table);
        let mut hidden = recorder.cat(&[&attended, &fed], 2);
        let vector = vectors.narrow(1, self.widths.channels).unsqueeze(1);
        hidden = {
            let projected = recorder.linear("proj_out", &self.narrow, &hidden);
            let gated = recorder.combine(&vector, &projected, "gate");
            drop(projected);
            gated
        };
        hidden = recorder.combine(&residual, &hidden, "add residual");
        hidden = finite(recorder, hidden);
        drop(residual);
        drop(normed);
        drop(vector);
        drop(vectors);
        drop(fed);
        drop(attended);
        (hidden.narrow(1, image.size(1)), hidden.narrow(1, text.size(1)))
    }
}
