//! A program with the workspaces that the library really asks for, in place of the table's.

use std::collections::HashMap;

use headroom_base::grouped;

use crate::programs::computation::{Kernel, Launch, Source};
use crate::programs::{Computation, ConvolutionCall, Label, Role, Step, TensorId};

use super::error::CudaError;
use super::plan::convolution::ConvolutionShape;

/// What a workspace is called where the program makes none and the library wants one.
const OPERATOR: &str = "convolution workspace";

/// A convolution whose workspace is another than the table says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceDifference {
    /// Where in the model.
    pub place: String,
    /// The call.
    pub call: ConvolutionCall,
    /// What the table says, in bytes.
    pub table_bytes: u64,
    /// What the library asked for, in bytes.
    pub real_bytes: u64,
    /// The algorithm it chose.
    pub algorithm: String,
}

impl std::fmt::Display for WorkspaceDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { place, call, table_bytes, real_bytes, algorithm } = self;
        let ConvolutionCall { dtype, layout, batch, input_channels, output_channels, input, output, kernel } = call;
        write!(
            f,
            "{place}: {dtype:?} {layout:?} {batch} x {input_channels} {input:?} to {output_channels} {output:?} "
        )?;
        // In bytes: many differ by less than any larger unit shows.
        let (real, table) = (grouped(*real_bytes), grouped(*table_bytes));
        write!(f, "by {kernel:?}: {real} bytes by {algorithm}, the table says {table}")
    }
}

/// A computation whose convolutions have the workspaces that the library asks for, and where that differs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sized {
    pub(super) computation: Computation,
    pub(super) differences: Vec<WorkspaceDifference>,
}

/// What the library answers of one convolution: bytes of its workspace, and its algorithm.
pub(super) type Answer = (u64, String);

/// Replaces workspaces by what `decide` says. One of 0 bytes is neither made nor freed; one that the program does not
/// make is made right before its launch and freed right after.
///
/// # Errors
/// The first of `decide`, or of a convolution that the library cannot be told of.
pub(super) fn with_real_workspaces(
    computation: Computation,
    mut decide: impl FnMut(&ConvolutionShape) -> Result<Answer, CudaError>,
) -> Result<Sized, CudaError> {
    let places = places(&computation);
    let mut tables: HashMap<TensorId, u64> = HashMap::new();
    for live in computation.program.allocations().filter(|live| live.role == Role::Workspace) {
        tables.insert(live.tensor, live.bytes);
    }
    let mut real: HashMap<TensorId, u64> = HashMap::new();
    let mut needs = Vec::with_capacity(computation.launches.len());
    let mut differences = Vec::new();
    for (launch, place) in computation.launches.iter().zip(&places) {
        let Kernel::Convolution { workspace, .. } = &launch.kernel else {
            needs.push(0);
            continue;
        };
        let table_bytes = workspace.and_then(|tensor| tables.get(&tensor).copied()).unwrap_or(0);
        let shape = ConvolutionShape::of(launch)?;
        let (real_bytes, algorithm) = shape.as_ref().map_or(Ok((0, String::new())), &mut decide)?;
        if let (Some(shape), true) = (&shape, real_bytes != table_bytes) {
            let (place, call) = (place.to_string(), shape.table_call());
            differences.push(WorkspaceDifference { place, call, table_bytes, real_bytes, algorithm });
        }
        if let Some(tensor) = workspace {
            let most = real.entry(*tensor).or_default();
            *most = real_bytes.max(*most);
        }
        needs.push(real_bytes);
    }
    Ok(Sized { computation: rewritten(computation, &needs, &real, &places), differences })
}

/// Where each launch happens: the place of the tensor that it writes, and what it computes.
pub(super) fn places(computation: &Computation) -> Vec<Label> {
    let labels: HashMap<TensorId, &Label> =
        computation.program.allocations().map(|live| (live.tensor, live.label)).collect();
    let place = |launch: &Launch| {
        let written = launch.writes.first().map(|view| view.source);
        match written {
            Some(Source::Tensor(tensor)) => labels.get(&tensor).map(|label| (*label).clone()),
            _ => None,
        }
    };
    let unknown = || Label { place: "".into(), operator: "a tensor of no program" };
    computation.launches.iter().map(|launch| place(launch).unwrap_or_else(unknown)).collect()
}

/// A number for tensors that no program's own has.
fn first_free(computation: &Computation) -> u32 {
    computation.program.allocations().map(|live| live.tensor.0 + 1).max().unwrap_or(0)
}

fn rewritten(computation: Computation, needs: &[u64], real: &HashMap<TensorId, u64>, places: &[Label]) -> Computation {
    let mut next = first_free(&computation);
    let Computation { mut program, launches, inputs, parameters, outputs } = computation;
    let old = std::mem::take(&mut program.steps);
    let mut new_launches = Vec::with_capacity(launches.len());
    let mut waiting = launches.into_iter().zip(needs).zip(places).peekable();
    for at in 0..=old.len() {
        while let Some(((mut launch, &need), place)) = waiting.next_if(|((launch, _), _)| launch.after <= at) {
            let mut made = None;
            if let Kernel::Convolution { workspace, .. } = &mut launch.kernel {
                if workspace.is_none() && need > 0 {
                    made = Some(TensorId(next));
                    next += 1;
                    *workspace = made;
                } else if need == 0 {
                    *workspace = None;
                }
            }
            if let Some(tensor) = made {
                let label = Label { operator: OPERATOR, ..place.clone() };
                program.steps.push(Step::Allocate { tensor, bytes: need, label, role: Role::Workspace });
            }
            launch.after = program.steps.len();
            new_launches.push(launch);
            program.steps.extend(made.map(|tensor| Step::Free { tensor }));
        }
        match old.get(at) {
            Some(Step::Allocate { tensor, label, role, .. }) if real.contains_key(tensor) => {
                let bytes = real[tensor];
                if bytes > 0 {
                    let label = label.clone();
                    program.steps.push(Step::Allocate { tensor: *tensor, bytes, label, role: *role });
                }
            }
            Some(Step::Free { tensor }) if real.get(tensor) == Some(&0) => {}
            Some(step) => program.steps.push(step.clone()),
            None => {}
        }
    }
    Computation { program, launches: new_launches, inputs, parameters, outputs }
}
