//! How an operation is executed: switches of the framework, and what the GPU's libraries need beside the tensors.

use headroom_base::{AttentionKernel, DType, MemoryLayout};

use super::workspaces::WorkspaceModel;

/// What decides an operation's memory beside its architecture and its case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Execution {
    /// How attention is computed.
    pub attention: AttentionKernel,
    /// The memory layout of weights and input.
    pub memory_layout: MemoryLayout,
    /// Whether the convolution library searches for its fastest algorithm: then the first run tries several.
    pub convolution_benchmark: bool,
    /// What libraries need on this GPU architecture.
    pub workspaces: WorkspaceModel,
    /// The element type in which the weights are stored, where the operation runs in another: it then holds a
    /// converted copy of all weights for its duration.
    pub stored: Option<DType>,
}

impl Default for Execution {
    /// PyTorch's defaults on a Hopper GPU.
    fn default() -> Self {
        Self {
            attention: AttentionKernel::Fused,
            memory_layout: MemoryLayout::Contiguous,
            convolution_benchmark: false,
            workspaces: WorkspaceModel::Hopper,
            stored: None,
        }
    }
}

/// A library that keeps a workspace of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Library {
    /// Matrix products without a bias, and batched ones.
    Cublas,
    /// Matrix products with a bias.
    CublasLt,
}

impl Library {
    /// Every library, in the order in which most models first use them.
    pub const ALL: [Self; 2] = [Self::Cublas, Self::CublasLt];

    /// The word shown to people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cublas => "cublas workspace",
            Self::CublasLt => "cublaslt workspace",
        }
    }
}
