//! `program`: an operation's tensors over time, the layer that makes the peak, and what lives there.

use headroom_base::Case;
use headroom_reports::output::write_whole;
use headroom_runners::programs::show::{Layer, at_peak, html, layers, text};
use headroom_runners::programs::{self, Live, Program, Run, Step};
use serde::Serialize;

use super::args::ProgramArgs;
use super::chosen::Chosen;
use super::error::CliError;
use super::exit::Exit;
use super::terminal::Terminal;
use crate::catalogue::Catalogue;

/// Layers listed for programs, at the greatest depth at which there are no more.
const MOST_LAYERS: usize = 64;

/// One event. What names a tensor is its number.
#[derive(Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
enum Event<'a> {
    Allocate {
        #[serde(flatten)]
        tensor: Tensor<'a>,
    },
    Free {
        tensor: u32,
    },
}

#[derive(Serialize)]
struct Tensor<'a> {
    tensor: u32,
    bytes: u64,
    place: &'a str,
    operator: &'static str,
    role: &'static str,
}

/// The first moment at which most is live, library workspaces of earlier runs left out.
#[derive(Serialize)]
struct Peak<'a> {
    step: usize,
    /// Each tensor rounded up to the allocator's unit of 512 bytes.
    live_bytes: u64,
    live: Vec<Tensor<'a>>,
}

#[derive(Serialize)]
struct LayerShown {
    place: String,
    first_step: usize,
    last_step: usize,
    peak_bytes: u64,
    after_bytes: u64,
}

#[derive(Serialize)]
struct Answer<'a> {
    family: &'a str,
    model: &'a str,
    case: Case,
    inputs: Vec<Input<'a>>,
    steps: Vec<Event<'a>>,
    layers: Vec<LayerShown>,
    peak: Option<Peak<'a>>,
}

#[derive(Serialize)]
struct Input<'a> {
    name: &'a str,
    bytes: u64,
}

/// Shows a program.
///
/// # Errors
/// For names that are not known, a case that has no program, and when the page cannot be written.
pub(super) fn program(
    args: &ProgramArgs,
    catalogue: &Catalogue,
    terminal: &mut Terminal<'_>,
) -> Result<Exit, CliError> {
    let chosen = Chosen::named((&args.family, args.operation, args.dtype), &args.sized, catalogue)?;
    let architecture = chosen.model.architecture().ok_or_else(|| {
        let key = &chosen.model.key;
        CliError::Value(format!(
            "model `{key}` is known by its size alone: give it an architecture to derive a program"
        ))
    })?;
    let execution = chosen.execution_of_its_own();
    let program = programs::program(architecture, &chosen.case, &execution)
        .map_err(|error| CliError::Value(error.to_string()))?;
    if let Some(path) = &args.html {
        write_whole(path, html(&chosen.name(), &program, Run::Later).as_bytes())?;
    }
    if args.json {
        terminal.json(&answer(&chosen, &program))?;
        return Ok(Exit::Success);
    }
    terminal.line(chosen.name())?;
    terminal.line(text(&program, Run::Later).trim_end())?;
    if let Some(path) = &args.html {
        terminal.line(format!("Page: {}", path.display()))?;
    }
    Ok(Exit::Success)
}

fn answer<'a>(chosen: &Chosen<'a>, program: &'a Program) -> Answer<'a> {
    let peak = program.peak(Run::Later).map(|(step, live_bytes)| Peak {
        step,
        live_bytes,
        live: at_peak(program, Run::Later).iter().map(tensor).collect(),
    });
    Answer {
        family: &chosen.family.name,
        model: &chosen.model.key,
        case: chosen.case,
        inputs: program.inputs.iter().map(|piece| Input { name: &piece.name, bytes: piece.bytes }).collect(),
        steps: program.steps.iter().map(event).collect(),
        layers: layers(program, Run::Later, MOST_LAYERS).into_iter().map(layer).collect(),
        peak,
    }
}

fn event(step: &Step) -> Event<'_> {
    match step {
        Step::Allocate { tensor, bytes, label, role } => Event::Allocate {
            tensor: Tensor {
                tensor: tensor.0,
                bytes: *bytes,
                place: &label.place,
                operator: label.operator,
                role: role.name(),
            },
        },
        Step::Free { tensor } => Event::Free { tensor: tensor.0 },
    }
}

fn tensor<'a>(live: &Live<'a>) -> Tensor<'a> {
    let Live { tensor, bytes, label, role, .. } = *live;
    Tensor { tensor: tensor.0, bytes, place: &label.place, operator: label.operator, role: role.name() }
}

fn layer(layer: Layer) -> LayerShown {
    let Layer { place, steps: (first_step, last_step), peak_bytes, after_bytes } = layer;
    LayerShown { place, first_step, last_step, peak_bytes, after_bytes }
}
