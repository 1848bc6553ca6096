//! A program as plain requests, to be run under any allocator setting on a card of any size.

use headroom_device::replay::{Request, Requests};

use crate::programs::{Piece, Program, Role, Run, Step};

/// The requests of a program: weights, inputs and (after a first run) library workspaces live when it begins.
pub fn requests(program: &Program, weights: &[Piece], run: Run) -> Requests {
    let mut live: Vec<u64> = weights.iter().chain(&program.inputs).map(|piece| piece.bytes).collect();
    if run == Run::Later {
        live.extend(program.allocations().filter(|made| made.role == Role::Persistent).map(|made| made.bytes));
    }
    let first = live.len() as u64;
    let operation = program.steps.iter().filter_map(|step| match step {
        Step::Allocate { role: Role::Persistent, .. } if run == Run::Later => None,
        Step::Allocate { tensor, bytes, .. } => {
            Some(Request::Allocate { id: first + u64::from(tensor.0), bytes: *bytes })
        }
        Step::Free { tensor } => Some(Request::Free { id: first + u64::from(tensor.0) }),
    });
    let operation = operation.collect();
    Requests { live: live.into_iter().enumerate().map(|(id, bytes)| (id as u64, bytes)).collect(), operation }
}
