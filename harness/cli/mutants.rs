//! `mutants`: every wrong decision that is compiled in, the checks that saw it, and the report with the kill matrix.

#[cfg(feature = "mutants")]
mod grading;

#[cfg(feature = "mutants")]
pub(super) use grading::mutants;

/// Without the feature there is no wrong decision in the program.
///
/// # Errors
/// Always; the text says how to build with them.
#[cfg(not(feature = "mutants"))]
pub(super) fn mutants(
    _: &super::args::MutantsArgs,
    _: Option<&std::path::Path>,
    _: &mut super::terminal::Terminal<'_>,
) -> Result<super::exit::Exit, super::error::CliError> {
    let how = "this build holds no wrong decisions; build with them: cargo run --features mutants -- mutants";
    Err(super::error::CliError::Unavailable(how.to_owned()))
}
