//! The operation that a command line means: whose, at which size, run how.

use headroom_base::{AllocatorKind, Case, DType, Extent, HardEnvironment, Operation};
use headroom_family::{Architecture, Family, Misfit, Model};
use headroom_runners::programs::{self, Execution, Unsupported};

use super::args::{CaseArgs, SizedArgs};
use super::case::CaseParts;
use super::error::CliError;
use super::options::Options;
use crate::bench::simulated_environment;
use crate::catalogue::{Catalogue, model_of};
use crate::pricing::execution_of;

/// One operation of one model of a family.
pub(super) struct Chosen<'a> {
    /// The family.
    pub(super) family: &'a Family,
    /// The model.
    pub(super) model: &'a Model,
    /// The operation and its size.
    pub(super) case: Case,
    options: Options,
}

impl<'a> Chosen<'a> {
    /// What `estimate` and `advise` are asked about.
    ///
    /// # Errors
    /// For names that are not known, and for a case that the model does not have.
    pub(super) fn of(args: &CaseArgs, catalogue: &'a Catalogue) -> Result<Self, CliError> {
        Self::named((&args.family, args.operation, Some(args.dtype)), &args.sized, catalogue)
    }

    /// An operation of a family's model, in the model's own element type where none is named.
    ///
    /// # Errors
    /// For names that are not known, and for a case that the model does not have.
    pub(super) fn named(
        (family, operation, dtype): (&str, Operation, Option<DType>),
        sized: &SizedArgs,
        catalogue: &'a Catalogue,
    ) -> Result<Self, CliError> {
        let family = catalogue.family(family)?;
        let model = model_of(family, sized.model.as_deref(), operation)?;
        let options = Options::read(&sized.options)?;
        let parts = CaseParts {
            operation,
            dtype: dtype.unwrap_or(model.dtype),
            size: sized.size,
            frames: sized.frames,
            batch: sized.batch,
            tokens: sized.tokens,
            tiling: options.tiling,
        };
        Self::new(family, model, &parts, options)
    }

    fn new(family: &'a Family, model: &'a Model, parts: &CaseParts, options: Options) -> Result<Self, CliError> {
        let case = parts.case().map_err(CliError::Value)?;
        let chosen = Self { family, model, case, options };
        if let Some(architecture) = model.architecture() {
            if !architecture.runs(case.operation) {
                let (key, kind, operation) = (&model.key, architecture.kind(), case.operation);
                return Err(CliError::Value(format!(
                    "model `{key}` is a {kind}, which runs no {operation}: leave --model out or name another"
                )));
            }
            chosen.has_such_a_case(architecture)?;
        }
        Ok(chosen)
    }

    /// An operation without a program is priced all the same; a size that the operation cannot have is a mistake, and so
    /// is one of which it would give the whole latents alone. An encode takes any and leaves the rest out.
    fn has_such_a_case(&self, architecture: &Architecture) -> Result<(), CliError> {
        match programs::program(architecture, &self.case, &self.execution(AllocatorKind::Native)) {
            Err(error @ (Unsupported::Extent { .. } | Unsupported::Tiling { .. })) => {
                return Err(CliError::Value(error.to_string()));
            }
            Err(Unsupported::Operation { .. } | Unsupported::Parameter { .. }) | Ok(_) => {}
        }
        if let (Operation::VaeDecode | Operation::Denoise, Extent::Pixels { width, height, frames }) =
            (self.case.operation, self.case.extent)
            && let Some(Misfit { message, help }) = self.family.misfit(self.model, [width, height, frames])
        {
            let help = help.map(|help| format!(": {help}")).unwrap_or_default();
            return Err(CliError::Value(format!("{message}{help}")));
        }
        Ok(())
    }

    /// The software it runs in.
    pub(super) fn hard(&self, allocator: AllocatorKind) -> HardEnvironment {
        self.options.applied_to(simulated_environment(allocator).hard)
    }

    /// How its program runs.
    pub(super) fn execution(&self, allocator: AllocatorKind) -> Execution {
        execution_of(self.model, &self.case, &self.hard(allocator))
    }

    /// How its program runs where the weights were loaded in the element type that it runs in.
    pub(super) fn execution_of_its_own(&self) -> Execution {
        Execution { stored: None, ..self.execution(AllocatorKind::Native) }
    }

    /// `vae_decode fp16 1024x1024 of sdxl's vae`, for people.
    pub(super) fn name(&self) -> String {
        format!("{} of {}'s {}", self.case, self.family.name, self.model.key)
    }
}
