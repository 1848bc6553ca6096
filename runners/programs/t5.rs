//! `T5EncoderModel` with gated feed-forward layers: relative positions as a bias on attention scores.

use headroom_base::{DType, Operation};
use headroom_family::architecture::T5Encoder;

use super::attention::Seen;
use super::computation::{Filling, Pointwise, Reduction};
use super::derive::{Model, Request, Unsupported};
use super::layers::{Linear, Pieces};
use super::program::Role;
use super::recorder::{Recorder, Tensor};
use super::shape::{Element, Shape};

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
        let (channels, inner) = (u64::from(numbers.d_model), u64::from(numbers.num_heads) * u64::from(numbers.d_kv));
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

/// What is added to a mean square.
const EPSILON: f64 = 1e-6;
/// The distance from which all positions share the last bucket.
const FARTHEST: f64 = 128.0;
/// The largest number in half precision, and what the reference keeps from it where a sum overflowed.
const LARGEST_HALF: f64 = 65_504.0;
const HALF_RESERVE: f64 = 1000.0;

const fn times(factor: f64) -> Pointwise {
    Pointwise::Affine { factor, summand: 0.0 }
}

const fn plus(summand: f64) -> Pointwise {
    Pointwise::Affine { factor: 1.0, summand }
}

impl T5 {
    /// Root-mean-square normalisation, operator by operator, in fp32.
    fn norm(recorder: &Recorder, name: &str, input: &Tensor) -> Tensor {
        let _place = recorder.enter(name);
        let wide = recorder.to(input, Element::FP32, "norm in fp32");
        let squares = recorder.map(&wide, Pointwise::Power(2.0), "norm squares");
        drop(wide);
        let (mean, sizes) = ((Reduction::Mean, 2), [input.size(0), input.size(1), 1]);
        let variance = recorder.reduced(&squares, mean, &sizes, Element::FP32, "norm variance");
        drop(squares);
        let shifted = recorder.scale(&variance, plus(EPSILON), "norm shift");
        let deviation = recorder.map(&shifted, Pointwise::InverseRoot, "norm deviation");
        drop(shifted);
        let scaled = recorder.elementwise(&[input, &deviation], Element::FP32, Pointwise::Multiply, "norm scale");
        drop(deviation);
        let normed = recorder.to(&scaled, input.element, "norm in half");
        drop(scaled);
        let weight = recorder.parameter("weight", Shape::contiguous(&[input.size(2)]));
        let weighted = recorder.elementwise(&[&weight, &normed], input.element, Pointwise::Multiply, "norm weight");
        drop(normed);
        drop(variance);
        weighted
    }

    /// The bias that relative positions put on scores: computed by the first layer, shared by all.
    ///
    /// Keys after the query have the second half of the buckets. In each half the nearer distances have one bucket each,
    /// the others share the rest by their logarithm.
    fn position_bias(&self, recorder: &Recorder, tokens: u64) -> Tensor {
        let plane = [tokens, tokens];
        let element = Element::Int64;
        let half = f64::from(self.numbers.relative_attention_num_buckets / 2);
        let exact = f64::from(self.numbers.relative_attention_num_buckets / 4);
        let start = recorder.range(tokens, 1.0, element, "positions");
        let query = recorder.scale(&start, plus(0.0), "query positions");
        drop(start);
        let key = recorder.range(tokens, 1.0, element, "key positions");
        let relative = {
            let (key, query) = (key.unsqueeze(0), query.unsqueeze(1));
            recorder.computed(&plane, element, Pointwise::Subtract, &[&key, &query], "relative positions")
        };
        let after = recorder.computed(&plane, Element::Bool, Pointwise::IsPositive, &[&relative], "positions after");
        let side = recorder.computed(&plane, element, Pointwise::Copy, &[&after], "side");
        drop(after);
        let scaled = recorder.scale(&side, times(half), "side buckets");
        drop(side);
        let buckets = recorder.scale(&scaled, plus(0.0), "buckets");
        drop(scaled);
        let distance = recorder.map(&relative, Pointwise::Magnitude, "distances");
        let near = Pointwise::IsLess(exact);
        let is_small = recorder.computed(&plane, Element::Bool, near, &[&distance], "small distances");
        let limited = self.far_buckets(recorder, &distance, [half, exact]);
        let choice = [&is_small, &distance, &limited];
        let chosen = recorder.computed(&plane, element, Pointwise::Choose, &choice, "choose buckets");
        recorder.pointwise(Pointwise::Add, &[&buckets, &chosen], &buckets);
        drop(chosen);
        drop(distance);
        drop(is_small);
        drop(limited);
        let heads = u64::from(self.numbers.num_heads);
        let rows = u64::from(self.numbers.relative_attention_num_buckets);
        let table = recorder.parameter("relative_attention_bias.weight", Shape::contiguous(&[rows, heads]));
        let values = recorder.gathered(&table, &buckets, "position bias");
        drop(query);
        drop(key);
        drop(relative);
        drop(buckets);
        values
    }

    /// The buckets of distances too far for one each.
    fn far_buckets(&self, recorder: &Recorder, distance: &Tensor, [half, exact]: [f64; 2]) -> Tensor {
        let (plane, element) = ([distance.size(0), distance.size(1)], distance.element);
        let mut wide = recorder.computed(&plane, Element::FP32, Pointwise::Copy, &[distance], "distances in fp32");
        for (function, operator) in [
            (Pointwise::Over(exact), "divide distances"),
            (Pointwise::Log, "log distances"),
            (Pointwise::Over((FARTHEST / exact).ln()), "divide logs"),
            (times(half - exact), "scale logs"),
        ] {
            wide = recorder.map(&wide, function, operator);
        }
        let whole = recorder.computed(&plane, element, Pointwise::Copy, &[&wide], "large buckets");
        drop(wide);
        let shifted = recorder.scale(&whole, plus(exact), "shift large buckets");
        drop(whole);
        let limit = recorder.filled_like(&shifted, half - 1.0, "last bucket");
        let limited = recorder.elementwise(&[&shifted, &limit], element, Pointwise::Minimum, "limit large buckets");
        drop(limit);
        drop(shifted);
        limited
    }

    fn attend(&self, recorder: &Recorder, input: &Tensor, bias: &mut Option<Tensor>) -> Tensor {
        let _place = recorder.enter("SelfAttention");
        let heads = u64::from(self.numbers.num_heads);
        let query = recorder.linear("q", &self.attention, input);
        let key = recorder.linear("k", &self.attention, input);
        let value = recorder.linear("v", &self.attention, input);
        let bias = bias.get_or_insert_with(|| self.position_bias(recorder, input.size(1)));
        let mut hidden = recorder.attention(
            &recorder.heads(&query, heads),
            &recorder.heads(&key, heads),
            &recorder.heads(&value, heads),
            Seen::Biased(&bias.permute(&[2, 0, 1])),
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
        let half = recorder.scale(&input, times(0.5), "half");
        let mut inner = recorder.map(&input, Pointwise::Power(3.0), "cube");
        inner = recorder.scale(&inner, times(0.044_715), "scale cube");
        inner = recorder.combine(&input, &inner, Pointwise::Add, "add cube");
        inner = recorder.scale(&inner, times((2.0 / std::f64::consts::PI).sqrt()), "scale sum");
        inner = recorder.map(&inner, Pointwise::Tanh, "tanh");
        inner = recorder.scale(&inner, plus(1.0), "shift");
        let output = recorder.combine(&half, &inner, Pointwise::Multiply, "gelu");
        drop(half);
        drop(inner);
        output
    }

    fn feed_forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let _place = recorder.enter("DenseReluDense");
        let gate = Self::activate(recorder, recorder.linear("wi_0", &self.widen, input));
        let linear = recorder.linear("wi_1", &self.widen, input);
        let gated = recorder.combine(&gate, &linear, Pointwise::Multiply, "gate");
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
        let magnitude = recorder.map(&input, Pointwise::Magnitude, "magnitude");
        let infinite = recorder.elementwise(&[&magnitude], Element::Bool, Pointwise::IsInfinite, "infinite");
        drop(magnitude);
        let flat = recorder.reshape(&infinite, &[infinite.shape.elements()]);
        let any = recorder.reduced(&flat, (Reduction::Any, 0), &[1], Element::Bool, "any infinite");
        drop(flat);
        drop(infinite);
        let range = Pointwise::Affine { factor: -HALF_RESERVE, summand: LARGEST_HALF };
        let limit = recorder.computed(&[1], Element::FP32, range, &[&any], "limit");
        drop(any);
        let lower = recorder.map(&limit, times(-1.0), "lower limit");
        let output = recorder.allocate(input.shape.preserved(), input.element, "clamp", Role::Output);
        recorder.pointwise(Pointwise::ClampTo, &[&input, &lower, &limit], &output);
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
            let sum = recorder.combine(input, &attended, Pointwise::Add, "add attention");
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
            let sum = recorder.combine(&hidden, &fed, Pointwise::Add, "add feed-forward");
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
        request.attends(u64::from(self.numbers.num_heads), tokens)?;
        let (rows, channels) = (u64::from(self.numbers.vocab_size), u64::from(self.numbers.d_model));
        let ids = recorder.input_of("input_ids", &[batch, tokens], Element::Int64, Filling::Below(rows));
        let table = recorder.parameter("shared.weight", Shape::contiguous(&[rows, channels]));
        let embedded = recorder.gathered(&table, &ids, "token embedding");
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
