//! A program for people: what lives at its peak, which layers lead there, and a chart of it.

mod chart;

use std::fmt::Write as _;

use headroom_base::Bytes;

use super::program::{Live, Program, Run, Step};
pub use chart::html;

/// Layers shown at most; more are cut around the peak.
const LAYERS_SHOWN: usize = 40;
/// Layers below which a finer cut is shown, even if there are too many of it.
const LAYERS_WANTED: usize = 6;
/// Characters of the longest bar.
const BAR_WIDTH: u64 = 32;
/// Tensors shown at most; the rest is summed up.
const TENSORS_SHOWN: usize = 24;

/// Consecutive steps within one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Its path, cut to a depth at which there are few enough.
    pub place: String,
    /// Its first and last step.
    pub steps: (usize, usize),
    /// The most bytes live in it.
    pub peak_bytes: u64,
    /// Bytes live when it ends.
    pub after_bytes: u64,
}

/// The program's layers in execution order, at the greatest depth at which there are at most `most` of them, or at the
/// first that shows more than a handful.
pub fn layers(program: &Program, run: Run, most: usize) -> Vec<Layer> {
    let live = program.live_bytes(run);
    let deepest = program.allocations().map(|live| live.label.place.split('.').count()).max().unwrap_or(1);
    let mut best = layers_at(program, &live, 1);
    for depth in 2..=deepest {
        let finer = layers_at(program, &live, depth);
        if finer.len() > most && best.len() >= LAYERS_WANTED {
            break;
        }
        best = finer;
    }
    best
}

fn layers_at(program: &Program, live: &[u64], depth: usize) -> Vec<Layer> {
    let mut layers: Vec<Layer> = Vec::new();
    for (at, step) in program.steps.iter().enumerate() {
        let entered = match step {
            Step::Allocate { label, .. } => Some(cut(&label.place, depth)),
            Step::Free { .. } => None,
        };
        match (layers.last_mut(), entered) {
            (Some(layer), None) => extend(layer, at, live[at]),
            (Some(layer), Some(place)) if layer.place == place => extend(layer, at, live[at]),
            (_, entered) => layers.push(Layer {
                place: entered.unwrap_or_default().to_owned(),
                steps: (at, at),
                peak_bytes: live[at],
                after_bytes: live[at],
            }),
        }
    }
    layers
}

fn extend(layer: &mut Layer, at: usize, live_bytes: u64) {
    layer.steps.1 = at;
    layer.peak_bytes = layer.peak_bytes.max(live_bytes);
    layer.after_bytes = live_bytes;
}

/// The first `depth` parts of a path, a number counting with the name before it.
fn cut(place: &str, depth: usize) -> &str {
    let mut parts = 0;
    for (index, part) in place.split('.').scan(0, |end, part| {
        *end += part.len() + 1;
        Some((*end - 1, part))
    }) {
        let next_is_number = place[index..].trim_start_matches('.').starts_with(|c: char| c.is_ascii_digit());
        if !part.is_empty() && !next_is_number {
            parts += 1;
        }
        if parts == depth {
            return &place[..index];
        }
    }
    place
}

/// The tensors live at the peak, largest first.
pub fn at_peak(program: &Program, run: Run) -> Vec<Live<'_>> {
    let Some((at, _)) = program.peak(run) else { return Vec::new() };
    let mut live = program.live_at(at);
    if run == Run::Later {
        live.retain(|tensor| tensor.role != super::program::Role::Persistent);
    }
    live.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.since.cmp(&b.since)));
    live
}

/// A program as text: its size, the layers it runs through with the most that lives in each, and what lives at the
/// peak.
pub fn text(program: &Program, run: Run) -> String {
    let mut text = String::new();
    let allocations = program.allocations().count();
    let _ = writeln!(text, "{}: {} events, {allocations} allocations", program.case, program.steps.len());
    for input in &program.inputs {
        let _ = writeln!(text, "  given: {} {}", input.name, Bytes(input.bytes));
    }
    if program.persistent_bytes() > 0 {
        let _ = writeln!(text, "  libraries keep {} from the first run on", Bytes(program.persistent_bytes()));
    }
    let Some((at, peak_bytes)) = program.peak(run) else {
        text.push_str("nothing is allocated\n");
        return text;
    };
    let _ = writeln!(text, "  peak: {} at event {at}\n", Bytes(peak_bytes));
    write_layers(&mut text, program, run, at, peak_bytes);
    write_tensors(&mut text, program, run);
    text
}

fn write_layers(text: &mut String, program: &Program, run: Run, at: usize, peak_bytes: u64) {
    let layers = layers(program, run, LAYERS_SHOWN);
    let holds_peak = |layer: &Layer| (layer.steps.0..=layer.steps.1).contains(&at);
    let middle = layers.iter().position(holds_peak).unwrap_or(0);
    let from = middle.saturating_sub(LAYERS_SHOWN / 2).min(layers.len().saturating_sub(LAYERS_SHOWN));
    let shown = &layers[from..layers.len().min(from + LAYERS_SHOWN)];
    let width = shown.iter().map(|layer| layer.place.len()).max().unwrap_or(0).max(5);
    let _ = writeln!(text, "{:width$}  {:>12}  {:>12}  most that lives in it", "layer", "most", "after");
    if from > 0 {
        let _ = writeln!(text, "… {from} layers before");
    }
    for layer in shown {
        let filled = u128::from(layer.peak_bytes) * u128::from(BAR_WIDTH) / u128::from(peak_bytes.max(1));
        let bar = "█".repeat(usize::try_from(filled).unwrap_or(0));
        let mark = if holds_peak(layer) { " ◀ peak" } else { "" };
        let _ = writeln!(
            text,
            "{:width$}  {:>12}  {:>12}  {bar}{mark}",
            layer.place,
            Bytes(layer.peak_bytes).to_string(),
            Bytes(layer.after_bytes).to_string(),
        );
    }
    let after = layers.len() - from - shown.len();
    if after > 0 {
        let _ = writeln!(text, "… {after} layers after");
    }
    text.push('\n');
}

fn write_tensors(text: &mut String, program: &Program, run: Run) {
    let live = at_peak(program, run);
    let _ = writeln!(text, "live at the peak:");
    for tensor in live.iter().take(TENSORS_SHOWN) {
        let _ = writeln!(
            text,
            "{:>12}  {:10}  since event {:<6} {}",
            Bytes(tensor.bytes).to_string(),
            tensor.role.name(),
            tensor.since,
            tensor.label
        );
    }
    let rest: u64 = live.iter().skip(TENSORS_SHOWN).map(|tensor| tensor.bytes).sum();
    if rest > 0 {
        let _ = writeln!(text, "{:>12}  in {} smaller ones", Bytes(rest).to_string(), live.len() - TENSORS_SHOWN);
    }
}

#[cfg(test)]
mod tests {
    use headroom_base::{Case, DType, Operation};
    use headroom_family::Architecture;
    use headroom_family::architecture::AutoencoderKl;

    use super::super::{Execution, program};
    use super::*;

    fn decode() -> Program {
        let case = Case::image(Operation::VaeDecode, DType::Fp16, 256, 256);
        program(&Architecture::AutoencoderKl(AutoencoderKl::default()), &case, &Execution::default()).unwrap()
    }

    #[test]
    fn a_path_is_cut_with_its_numbers() {
        assert_eq!(cut("decoder.up_blocks.3.resnets.0.conv1", 1), "decoder");
        assert_eq!(cut("decoder.up_blocks.3.resnets.0.conv1", 2), "decoder.up_blocks.3");
        assert_eq!(cut("decoder.up_blocks.3.resnets.0.conv1", 3), "decoder.up_blocks.3.resnets.0");
        assert_eq!(cut("decoder", 4), "decoder");
    }

    #[test]
    fn layers_cover_every_event_and_one_of_them_holds_the_peak() {
        let program = decode();
        let layers = layers(&program, Run::Later, 40);
        assert!(layers.len() > 5 && layers.len() <= 40, "{} layers", layers.len());
        assert_eq!(layers.first().map(|layer| layer.steps.0), Some(0));
        for pair in layers.windows(2) {
            assert_eq!(pair[0].steps.1 + 1, pair[1].steps.0);
        }
        let (_, peak) = program.peak(Run::Later).unwrap();
        assert_eq!(layers.iter().map(|layer| layer.peak_bytes).max(), Some(peak));
    }

    #[test]
    fn what_lives_at_the_peak_adds_up_to_it() {
        let program = decode();
        let (_, peak) = program.peak(Run::Later).unwrap();
        let live: u64 = at_peak(&program, Run::Later).iter().map(|live| live.bytes.next_multiple_of(512)).sum();
        assert_eq!(live, peak);
        let shown = text(&program, Run::Later);
        assert!(shown.contains("◀ peak") && shown.contains("convolution workspace"), "{shown}");
    }

    #[test]
    fn the_chart_needs_nothing_from_elsewhere() {
        let page = html("decode <1024>", &decode(), Run::Later);
        assert!(page.starts_with("<!doctype html>") && page.contains("<svg") && page.contains("decode &lt;1024&gt;"));
        for outside in ["http://", "https://", "<script src", "<link"] {
            assert!(!page.replace("http://www.w3.org/2000/svg", "").contains(outside), "{outside}");
        }
    }
}
