//! `T5EncoderModel` with gated feed-forward layers: relative positions as a bias on attention scores.

use headroom_base::{DType, Operation};
use headroom_family::architecture::T5Encoder;

use super::derive::{Model, Request, Unsupported};
use super::layers::{Linear, Pieces};
use super::recorder::{Recorder, Tensor};
use super::shape::Element;

/// A T5 text encoder.
#[derive(Clone, Debug)]
pub(super) struct T5 {
    numbers: T5Encoder,
    attention: Linear,
    output: Linear,
    widen: Linear,
    narrow: Linear,
}

impl From<&T5Encoder> for T5 {
    fn from(numbers: &T5Encoder) -> Self {
        let (channels, inner) = (u64::from(numbers.d_model), u64::from(numbers.num_heads * numbers.d_kv));
        let fed = u64::from(numbers.d_ff);
        Self {
            numbers: numbers.clone(),
            attention: Linear::without_bias(channels, inner),
            output: Linear::without_bias(inner, channels),
            widen: Linear::without_bias(channels, fed),
            narrow: Linear::without_bias(fed, channels),
        }
    }
}

impl T5 {
    /// Root-mean-square normalisation, operator by operator, in fp32.
    fn norm(recorder: &Recorder, name: &str, input: &Tensor) -> Tensor {
        let _place = recorder.enter(name);
        let wide = recorder.to(input, Element::FP32, "norm in fp32");
        let squares = recorder.map(&wide, "norm squares");
        drop(wide);
        let variance = recorder.empty(&[input.size(0), input.size(1), 1], Element::FP32, "norm variance");
        drop(squares);
        let shifted = recorder.scale(&variance, "norm shift");
        let deviation = recorder.map(&shifted, "norm deviation");
        drop(shifted);
        let scaled = recorder.elementwise(&[input, &deviation], Element::FP32, "norm scale");
        drop(deviation);
        let normed = recorder.to(&scaled, input.element, "norm in half");
        drop(scaled);
        let weighted = recorder.map(&normed, "norm weight");
        drop(normed);
        drop(variance);
        weighted
    }

    /// The bias that relative positions put on scores: computed by the first layer, shared by all.
    fn position_bias(&self, recorder: &Recorder, tokens: u64) -> Tensor {
        let plane = [tokens, tokens];
        let element = Element::Int64;
        let start = recorder.empty(&[tokens], element, "positions");
        let query = recorder.scale(&start, "query positions");
        drop(start);
        let key = recorder.empty(&[tokens], element, "key positions");
        let relative = recorder.empty(&plane, element, "relative positions");
        let after = recorder.empty(&plane, Element::Bool, "positions after");
        let side = recorder.empty(&plane, element, "side");
        drop(after);
        let scaled = recorder.scale(&side, "side buckets");
        drop(side);
        let buckets = recorder.scale(&scaled, "buckets");
        drop(scaled);
        let distance = recorder.map(&relative, "distances");
        let is_small = recorder.empty(&plane, Element::Bool, "small distances");
        let mut wide = recorder.empty(&plane, Element::FP32, "distances in fp32");
        for operator in ["divide distances", "log distances", "divide logs", "scale logs"] {
            wide = recorder.map(&wide, operator);
        }
        let whole = recorder.empty(&plane, element, "large buckets");
        drop(wide);
        let shifted = recorder.scale(&whole, "shift large buckets");
        drop(whole);
        let limit = recorder.map(&shifted, "last bucket");
        let limited = recorder.map(&shifted, "limit large buckets");
        drop(limit);
        drop(shifted);
        drop(recorder.empty(&plane, element, "choose buckets"));
        drop(distance);
        drop(is_small);
        drop(limited);
        let sizes = [tokens, tokens, u64::from(self.numbers.num_heads)];
        let values = recorder.empty(&sizes, recorder.element(), "position bias");
        drop(query);
        drop(key);
        drop(relative);
        drop(buckets);
        values
    }

    fn attend(&self, recorder: &Recorder, input: &Tensor, bias: &mut Option<Tensor>) -> Tensor {
        let _place = recorder.enter("SelfAttention");
        let heads = u64::from(self.numbers.num_heads);
        let query = recorder.linear("q", &self.attention, input);
        let key = recorder.linear("k", &self.attention, input);
        let value = recorder.linear("v", &self.attention, input);
        let bias = bias.get_or_insert_with(|| self.position_bias(recorder, input.size(1)));
        let mut hidden = recorder.biased_attention(
            &recorder.heads(&query, heads),
            &recorder.heads(&key, heads),
            &recorder.heads(&value, heads),
            bias,
        );
        hidden = recorder.contiguous(&hidden.transpose(1, 2));
        hidden = recorder.reshape(&hidden, query.sizes());
        hidden = recorder.linear("o", &self.output, &hidden);
        drop(query);
        drop(key);
        drop(value);
        hidden
    }

    /// The approximation of GELU that is written out in eight operators.
    fn activate(recorder: &Recorder, input: Tensor) -> Tensor {
        let _place = recorder.enter("act");
        let half = recorder.scale(&input, "half");
        let mut inner = recorder.map(&input, "cube");
        inner = recorder.scale(&inner, "scale cube");
        inner = recorder.combine(&input, &inner, "add cube");
        inner = recorder.scale(&inner, "scale sum");
        inner = recorder.map(&inner, "tanh");
        inner = recorder.scale(&inner, "shift");
        let output = recorder.combine(&half, &inner, "gelu");
        drop(half);
        drop(inner);
        output
    }

    fn feed_forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let _place = recorder.enter("DenseReluDense");
        let gate = Self::activate(recorder, recorder.linear("wi_0", &self.widen, input));
        let linear = recorder.linear("wi_1", &self.widen, input);
        let gated = recorder.combine(&gate, &linear, "gate");
        let output = recorder.linear("wo", &self.narrow, &gated);
        drop(gated);
        drop(gate);
        drop(linear);
        output
    }

    /// In fp16 every layer's result is clamped to finite numbers.
    fn clamp(recorder: &Recorder, input: Tensor) -> Tensor {
        if input.element != Element::Float(DType::Fp16) {
            return input;
        }
        let magnitude = recorder.map(&input, "magnitude");
        let infinite = recorder.elementwise(&[&magnitude], Element::Bool, "infinite");
        drop(magnitude);
        let any = recorder.empty(&[1], Element::Bool, "any infinite");
        drop(infinite);
        let limit = recorder.empty(&[1], Element::FP32, "limit");
        drop(any);
        let lower = recorder.map(&limit, "lower limit");
        let output = recorder.map(&input, "clamp");
        drop(lower);
        drop(input);
        drop(limit);
        output
    }

    fn block(&self, recorder: &Recorder, input: &Tensor, bias: &mut Option<Tensor>) -> Tensor {
        let mut hidden = {
            let _place = recorder.enter("layer.0");
            let normed = Self::norm(recorder, "layer_norm", input);
            let attended = self.attend(recorder, &normed, bias);
            let sum = recorder.combine(input, &attended, "add attention");
            drop(attended);
            drop(normed);
            sum
        };
        hidden = Self::clamp(recorder, hidden);
        hidden = {
            let _place = recorder.enter("layer.1");
            let normed = Self::norm(recorder, "layer_norm", &hidden);
            let fed = self.feed_forward(recorder, &normed);
            drop(normed);
            let sum = recorder.combine(&hidden, &fed, "add feed-forward");
            drop(fed);
            sum
        };
        Self::clamp(recorder, hidden)
    }
}

impl Model for T5 {
    fn parameters(&self, pieces: &mut Pieces) {
        let channels = u64::from(self.numbers.d_model);
        pieces.parameter("shared.weight", &[u64::from(self.numbers.vocab_size), channels]);
        for block in 0..self.numbers.num_layers {
            pieces.within(format!("encoder.block.{block}"), |p| {
                p.within("layer.0.SelfAttention", |p| {
                    for name in ["q", "k", "v"] {
                        p.within(name, |p| self.attention.parameters(p));
                    }
                    p.within("o", |p| self.output.parameters(p));
                    if block == 0 {
                        let buckets = u64::from(self.numbers.relative_attention_num_buckets);
                        p.parameter("relative_attention_bias.weight", &[buckets, u64::from(self.numbers.num_heads)]);
                    }
                });
                p.parameter("layer.0.layer_norm.weight", &[channels]);
                p.within("layer.1.DenseReluDense.wi_0", |p| self.widen.parameters(p));
                p.within("layer.1.DenseReluDense.wi_1", |p| self.widen.parameters(p));
                p.within("layer.1.DenseReluDense.wo", |p| self.narrow.parameters(p));
                p.parameter("layer.1.layer_norm.weight", &[channels]);
            });
        }
        pieces.parameter("encoder.final_layer_norm.weight", &[channels]);
    }

    fn run(&self, recorder: &Recorder, request: Request<'_>) -> Result<Vec<Tensor>, Unsupported> {
        if request.case.operation != Operation::TextEncode {
            return Err(request.no_such_operation("text_encode"));
        }
        let (batch, tokens) = (request.batch(), request.tokens()?);
        drop(recorder.input("input_ids", &[batch, tokens], Element::Int64));
        let sizes = [batch, tokens, u64::from(self.numbers.d_model)];
        let embedded = recorder.empty(&sizes, recorder.element(), "token embedding");
        let mut hidden = embedded.clone();
        let mut bias = None;
        for block in 0..self.numbers.num_layers {
            let _place = recorder.enter(format!("encoder.block.{block}"));
            hidden = self.block(recorder, &hidden, &mut bias);
        }
        let output = Self::norm(recorder, "encoder.final_layer_norm", &hidden);
        drop(hidden);
        drop(embedded);
        drop(bias);
        Ok(vec![output])
    }
}

impl Recorder {
    /// Attention with a bias on its scores, laid out as no fused kernel takes it: the scores are materialised.
    fn biased_attention(&self, query: &Tensor, key: &Tensor, value: &Tensor, bias: &Tensor) -> Tensor {
        debug_assert_eq!(bias.size(2), query.size(1), "one bias for each head");
        self.math_attention(query, key, value)
    }
}
