//! Operations of models as programs: ordered allocations and frees, derived from the architecture.
//!
//! A model is a tree of layers, written once over shapes. Running it on a recorder executes the reference's forward
//! pass on sizes alone: a tensor is logged when it is made and when its last holder lets go, as in Python. Run on the
//! caching allocator of `headroom-device`, a program predicts peak allocated and reserved memory with no GPU.

mod attention;
mod autoencoder_kl;
mod autoencoder_tiny;
mod causal;
mod clip;
pub mod computation;
mod derive;
mod distribution;
mod estimator;
pub mod evidence;
mod execution;
mod flux;
mod layers;
mod operators;
mod partial_sums;
mod predict;
mod program;
mod recorder;
mod recordings;
mod residual;
mod shape;
pub mod show;
pub mod small;
mod t5;
mod tiling;
mod transformer_block;
mod unet;
mod workspaces;

pub use computation::Computation;
pub use derive::{Unsupported, computation, program, weights};
pub use estimator::{Estimator, analytic_terms, cost_units, estimator, line};
pub use execution::{Execution, Library};
pub use predict::{Peaks, Prediction, PredictionError, Start, predict, predict_program, predicted_demand_bytes};
pub use program::{Label, Live, Piece, Program, Role, Run, Step, TensorId};
pub use shape::Element;
pub use workspaces::{ConvolutionCall, ConvolutionTerms, WorkspaceModel};
