//! `CLIPTextModel`: a causal text encoder, with or without a projection of the pooled text.

use headroom_base::Operation;
use headroom_family::architecture::ClipTextEncoder;

use super::attention::Seen;
use super::computation::{Filling, Kernel, Pointwise, Reduction};
use super::derive::{Model, Request, Unsupported};
use super::layers::{Linear, Pieces};
use super::recorder::{Recorder, Tensor};
use super::shape::{Element, Shape};
use super::transformer_block::{LAYER_EPSILON, LayerNorm};

/// The factor in the sigmoid form of GELU.
const QUICK: f64 = 1.702;

/// A CLIP text encoder.
#[derive(Clone, Debug)]
pub(super) struct ClipText {
    numbers: ClipTextEncoder,
    norm: LayerNorm,
    attention: Linear,
    widen: Linear,
    narrow: Linear,
}

impl From<&ClipTextEncoder> for ClipText {
    fn from(numbers: &ClipTextEncoder) -> Self {
        let (channels, inner) = (u64::from(numbers.hidden_size), u64::from(numbers.intermediate_size));
        Self {
            numbers: numbers.clone(),
            norm: LayerNorm { channels, affine: true, epsilon: LAYER_EPSILON },
            attention: Linear::new(channels, channels),
            widen: Linear::new(channels, inner),
            narrow: Linear::new(inner, channels),
        }
    }
}

impl ClipText {
    fn layer(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let normed = recorder.layer_norm("layer_norm1", &self.norm, input);
        let mut hidden = {
            let _place = recorder.enter("self_attn");
            self.attend(recorder, &normed)
        };
        drop(normed);
        hidden = recorder.combine(input, &hidden, Pointwise::Add, "add attention");
        let residual = hidden.clone();
        hidden = recorder.layer_norm("layer_norm2", &self.norm, &hidden);
        hidden = {
            let _place = recorder.enter("mlp");
            let mut fed = recorder.linear("fc1", &self.widen, &hidden);
            fed = self.activate(recorder, fed);
            recorder.linear("fc2", &self.narrow, &fed)
        };
        hidden = recorder.combine(&residual, &hidden, Pointwise::Add, "add feed-forward");
        drop(residual);
        hidden
    }

    fn attend(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let sizes = input.sizes();
        let heads = u64::from(self.numbers.num_attention_heads);
        let query = recorder.linear("q_proj", &self.attention, input);
        let key = recorder.linear("k_proj", &self.attention, input);
        let value = recorder.linear("v_proj", &self.attention, input);
        let mut hidden = recorder.attention(
            &recorder.heads(&query, heads),
            &recorder.heads(&key, heads),
            &recorder.heads(&value, heads),
            Seen::Earlier,
        );
        hidden = recorder.contiguous(&hidden.transpose(1, 2));
        hidden = recorder.reshape(&hidden, sizes);
        hidden = recorder.linear("out_proj", &self.attention, &hidden);
        drop(query);
        drop(key);
        drop(value);
        hidden
    }

    /// GELU is one operator; the sigmoid form is three.
    fn activate(&self, recorder: &Recorder, input: Tensor) -> Tensor {
        let _place = recorder.enter("activation_fn");
        if !self.numbers.quick_gelu {
            return recorder.map(&input, Pointwise::Gelu { tanh: false }, "gelu");
        }
        let scaled = recorder.scale(&input, Pointwise::Affine { factor: QUICK, summand: 0.0 }, "scale");
        let gate = recorder.map(&scaled, Pointwise::Sigmoid, "sigmoid");
        drop(scaled);
        recorder.combine(&input, &gate, Pointwise::Multiply, "gate")
    }

    /// The embeddings of tokens and of positions.
    fn tables(&self, recorder: &Recorder) -> (Tensor, Tensor) {
        let table =
            |name: &str, rows: u32| recorder.parameter(name, Shape::contiguous(&[u64::from(rows), self.norm.channels]));
        (
            table("embeddings.token_embedding.weight", self.numbers.vocab_size),
            table("embeddings.position_embedding.weight", self.numbers.max_position_embeddings),
        )
    }

    /// The state of the last token: found by comparing ids, picked by index.
    fn pool(&self, recorder: &Recorder, ids: &Tensor, states: &Tensor) -> Tensor {
        let (batch, tokens) = (ids.size(0), ids.size(1));
        let plane = [batch, tokens];
        let items = recorder.range(batch, 1.0, Element::Int64, "items");
        let narrow = recorder.computed(&plane, Element::Int32, Pointwise::Copy, &[ids], "ids as int32");
        let end = Pointwise::Equals(f64::from(self.numbers.vocab_size.saturating_sub(1)));
        let matches = recorder.computed(&plane, Element::Bool, end, &[&narrow], "end of text");
        drop(narrow);
        let counted = recorder.computed(&plane, Element::Int32, Pointwise::Copy, &[&matches], "end of text as int32");
        drop(matches);
        let first = (Reduction::FirstLargest, 1);
        let index = recorder.reduced(&counted, first, &[batch], Element::Int64, "end of text index");
        drop(counted);
        let pooled = recorder.empty(&[batch, states.size(2)], states.element, "pooled");
        recorder.launch(Kernel::PickRow, &[states, &index], &[&pooled]);
        drop(index);
        drop(items);
        pooled
    }
}

impl Model for ClipText {
    fn parameters(&self, pieces: &mut Pieces) {
        let channels = self.norm.channels;
        let fill = |p: &mut Pieces| {
            p.within("embeddings", |p| {
                p.parameter("token_embedding.weight", &[u64::from(self.numbers.vocab_size), channels]);
                p.parameter("position_embedding.weight", &[u64::from(self.numbers.max_position_embeddings), channels]);
                p.buffer("position_ids", &[u64::from(self.numbers.max_position_embeddings)], Element::Int64);
            });
            for layer in 0..self.numbers.num_hidden_layers {
                p.within(format!("encoder.layers.{layer}"), |p| {
                    for name in ["k_proj", "v_proj", "q_proj", "out_proj"] {
                        p.within(format!("self_attn.{name}"), |p| self.attention.parameters(p));
                    }
                    p.within("layer_norm1", |p| self.norm.parameters(p));
                    p.within("mlp.fc1", |p| self.widen.parameters(p));
                    p.within("mlp.fc2", |p| self.narrow.parameters(p));
                    p.within("layer_norm2", |p| self.norm.parameters(p));
                });
            }
            p.within("final_layer_norm", |p| self.norm.parameters(p));
        };
        match self.numbers.projection_dim {
            None => fill(pieces),
            Some(width) => {
                pieces.within("text_model", fill);
                pieces.parameter("text_projection.weight", &[u64::from(width), channels]);
            }
        }
    }

    fn run(&self, recorder: &Recorder, request: Request<'_>) -> Result<Vec<Tensor>, Unsupported> {
        if request.case.operation != Operation::TextEncode {
            return Err(request.no_such_operation("text_encode"));
        }
        let tokens = request.tokens()?;
        let most = u64::from(self.numbers.max_position_embeddings);
        if tokens > most {
            return Err(request.no_such_extent(format!("at most {most} tokens")));
        }
        request.attends(u64::from(self.numbers.num_attention_heads), tokens)?;
        let (batch, channels) = (request.batch(), self.norm.channels);
        let vocabulary = u64::from(self.numbers.vocab_size);
        let ids = recorder.input_of("input_ids", &[batch, tokens], Element::Int64, Filling::Below(vocabulary));
        let text_model = self.numbers.projection_dim.map(|_| recorder.enter("text_model"));
        let (words, places) = self.tables(recorder);
        let words = recorder.gathered(&words, &ids, "token embedding");
        let row = Shape::contiguous(&[1, most]);
        let positions = recorder.parameter_of("embeddings.position_ids", row, Element::Int64).narrow(1, 0, tokens);
        let places = recorder.gathered(&places, &positions, "position embedding");
        let embedded = recorder.combine(&words, &places, Pointwise::Add, "add positions");
        drop(words);
        drop(places);
        let mut hidden = embedded.clone();
        for layer in 0..self.numbers.num_hidden_layers {
            let _place = recorder.enter(format!("encoder.layers.{layer}"));
            hidden = self.layer(recorder, &hidden);
        }
        let normed = recorder.layer_norm("final_layer_norm", &self.norm, &hidden);
        let pooled = self.pool(recorder, &ids, &normed);
        drop(embedded);
        drop(hidden);
        drop(text_model);
        let mut output = vec![normed, pooled];
        if let Some(width) = self.numbers.projection_dim {
            let projection = Linear::without_bias(channels, u64::from(width));
            output.push(recorder.linear("text_projection", &projection, &output[1]));
        }
        Ok(output)
    }
}
