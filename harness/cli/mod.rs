//! The command line: one file a command, one way to print, one way to fail.

mod advise;
mod annotations;
pub mod args;
mod calibrate;
mod case;
mod check;
mod chosen;
mod devices;
mod error;
mod estimate;
mod exit;
mod measure;
mod merge;
mod mutants;
mod options;
mod place;
mod plan;
mod program;
mod redaction;
mod replay;
mod run;
mod ship;
mod stored;
mod terminal;
mod totals;

use std::io;

use clap::Parser;

use crate::catalogue::Catalogue;
use args::{Arguments, Command};

pub use error::CliError;
pub use exit::{EXIT_CODES_HELP, Exit};
pub use options::{OptionError, Options};
pub use terminal::{Terminal, is_watched};

/// Reads the process's arguments, does what they say, and tells how it ended.
pub fn main() -> Exit {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return answer_of_clap(&error),
    };
    let (mut results, mut remarks) = (io::stdout().lock(), io::stderr());
    let mut terminal = Terminal::new(&mut results, &mut remarks, is_watched());
    answer(&arguments, &mut terminal)
}

/// Help and version are results; anything else is a command line that could not be read.
fn answer_of_clap(error: &clap::Error) -> Exit {
    // What cannot be printed here has nowhere else to go.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage } else { Exit::Success }
}

/// Does what the arguments say. An error is said on the remarks' stream.
pub fn answer(arguments: &Arguments, terminal: &mut Terminal<'_>) -> Exit {
    let outcome = dispatch(arguments, terminal).and_then(|exit| {
        terminal.flush()?;
        Ok(exit)
    });
    outcome.unwrap_or_else(|error| {
        terminal.remark(error.to_string());
        error.exit()
    })
}

fn dispatch(arguments: &Arguments, terminal: &mut Terminal<'_>) -> Result<Exit, CliError> {
    let folder = arguments.families.as_deref();
    let catalogue = || Catalogue::load(folder);
    match &arguments.command {
        None => run::run(&args::RunArgs::default(), folder, terminal),
        Some(Command::Run(args)) => run::run(args, folder, terminal),
        Some(Command::Mutants(args)) => mutants::mutants(args, folder, terminal),
        Some(Command::Plan(args)) => plan::plan(args, &catalogue()?, terminal),
        Some(Command::Check(args)) => check::check(args, terminal),
        Some(Command::Estimate(args)) => estimate::estimate(args, &catalogue()?, terminal),
        Some(Command::Schema) => check::schema(terminal),
        Some(Command::Devices(args)) => devices::devices(args, &catalogue()?, terminal),
        Some(Command::Advise(args)) => advise::advise(args, &catalogue()?, terminal),
        Some(Command::Calibrate(args)) => calibrate::calibrate(args, &catalogue()?, terminal),
        Some(Command::Merge(args)) => merge::merge(args, terminal),
        Some(Command::Program(args)) => program::program(args, &catalogue()?, terminal),
        Some(Command::Replay(args)) => replay::replay(args, terminal),
        Some(Command::Ship(args)) => ship::ship(args, &Catalogue::load_for_recordings(folder)?, terminal),
    }
}
