//! The command line as types; every command's help ends with an example.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use headroom_base::{AllocatorKind, Bytes, DType, MemoryLayout, Operation};
use headroom_family::Architecture;

use super::case::{parse_memory, parse_size};
use super::exit::EXIT_CODES_HELP;
use super::measure::USUAL_SIZE;

/// Measures, fits and reserves the working memory of image-generation operations.
///
/// With no command it runs every family on the best device it finds, prints a table per family and
/// writes a report.
#[derive(Debug, Parser)]
#[command(name = "headroom", version, after_help = EXIT_CODES_HELP)]
pub struct Arguments {
    /// What to do; without it, `run`.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// A folder of family files to use instead of the ones built in.
    #[arg(long, global = true, value_name = "DIR")]
    pub families: Option<PathBuf>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run families on a device, write the report and its companions.
    #[command(after_help = "Example:\n  headroom run --family sdxl --output target/headroom")]
    Run(RunArgs),
    /// Show what a calibration would run on a device, and what does not fit.
    #[command(after_help = "Example:\n  headroom plan --family sdxl --device 12GiB --json")]
    Plan(PlanArgs),
    /// Check a family file and list every mistake with line, column and suggestion.
    #[command(after_help = check_help())]
    Check(CheckArgs),
    /// Calibrate a family on a device and show the fit beside the built-in line.
    #[command(after_help = "Example:\n  headroom calibrate --family sdxl --device 24GiB --store measurements")]
    Calibrate(PlanArgs),
    /// Say how much to reserve for one operation, and where the number comes from.
    #[command(
        after_help = "Example:\n  headroom estimate --family sdxl --operation vae_decode --dtype fp16 --size 1024x1024 --allocator native"
    )]
    Estimate(EstimateArgs),
    /// Show an operation's tensors over time and which layer makes the peak.
    #[command(after_help = "Example:\n  headroom program sdxl vae_decode --size 1024x1024 --html decode.html")]
    Program(ProgramArgs),
    /// Say which allocator setting needs least for one operation or a whole generation, and whether it fits.
    #[command(
        after_help = "Examples:\n  headroom advise --family sdxl --operation vae_decode --dtype fp16 --size 1024x1024 --memory 12GiB\n  headroom advise --family sdxl --memory 12GiB"
    )]
    Advise(AdviseArgs),
    /// Replay a PyTorch memory snapshot, a recording or an out-of-memory message under other settings.
    #[command(after_help = REPLAY_HELP)]
    Replay(ReplayArgs),
    /// Build the shipped coefficients from reports, or check that they are up to date.
    #[command(
        after_help = "Examples:\n  headroom ship --check\n  headroom ship mine/report.json theirs/report.json tests/data/h200/windows.jsonl tests/data/h200/windows-options.jsonl"
    )]
    Ship(ShipArgs),
    /// Merge reports of several machines into one, and end as one run of all their trials would.
    #[command(after_help = MERGE_HELP)]
    Merge(MergeArgs),
    /// Run the family checks under every named wrong decision; each must be caught.
    #[command(after_help = "Example:\n  cargo run --features mutants -- mutants")]
    Mutants(MutantsArgs),
    /// Print the JSON Schema of family files, for editors.
    #[command(after_help = "Example:\n  headroom schema > families/schema.json")]
    Schema,
    /// List devices, their memory readers, and which of those were verified on hardware.
    #[command(after_help = "Examples:\n  headroom devices --json\n  headroom devices --measure=1GiB")]
    Devices(DevicesArgs),
}

const MERGE_HELP: &str = "It ends with the code that one run of all trials would: 1 where a trial failed or a run was stopped before its end,
otherwise 7 where a GPU was busy.

Example:
  headroom merge a/report.json b/report.json --output merged";

const REPLAY_HELP: &str = "To record a snapshot in a PyTorch program:
  torch.cuda.memory._record_memory_history()
  torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")   # after the run, or in the except block

Examples:
  headroom replay snapshot.pickle --memory 12GiB
  headroom replay message.txt            # the pasted text of an out-of-memory error
  python generate.py 2>&1 | headroom replay -
  headroom replay tests/data/h200/scenario-native.jsonl.gz --json";

fn check_help() -> String {
    let kinds = Architecture::KINDS.join(", ");
    format!(
        "Kinds of architecture: {kinds}.\nTheir numbers, and every other field: headroom schema\n\nExample:\n  headroom check families/sdxl.yaml"
    )
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Families to run; all of them if none is named.
    #[arg(long = "family", value_name = "NAME")]
    pub family: Vec<String>,
    /// Devices to run on: `gpu`, or simulated ones by name, such as `12GiB`. Without it every attached GPU is used, and the
    /// families' own simulated devices.
    #[arg(long = "device", value_name = "NAME")]
    pub device: Vec<String>,
    /// Where the report goes.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_OUTPUT)]
    pub output: PathBuf,
    /// Print the report instead of tables.
    #[arg(long)]
    pub json: bool,
}

impl Default for RunArgs {
    fn default() -> Self {
        Self { family: Vec::new(), device: Vec::new(), output: PathBuf::from(DEFAULT_OUTPUT), json: false }
    }
}

/// Where a report goes when nobody says otherwise.
const DEFAULT_OUTPUT: &str = "target/headroom";

/// Arguments of `plan` and `calibrate`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The family.
    #[arg(long, value_name = "NAME")]
    pub family: String,
    /// The device: `gpu`, or a simulated one by name, such as `12GiB`.
    #[arg(long, value_name = "NAME")]
    pub device: String,
    /// The allocator.
    #[arg(long, default_value = "native")]
    pub allocator: AllocatorKind,
    /// How convolutions' tensors lie: `contiguous` as PyTorch has them, or `channels_last`, which is measured apart.
    #[arg(long, default_value = "contiguous")]
    pub layout: MemoryLayout,
    /// A folder of measurements: plans are priced from it, and a calibration is kept in it.
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The family file.
    pub file: PathBuf,
}

/// Which model an operation runs on, at which size and how.
#[derive(Debug, Args)]
pub struct SizedArgs {
    /// The model, where a family runs the operation on several.
    #[arg(long, value_name = "KEY", requires = "operation")]
    pub model: Option<String>,
    /// Pixels, as WIDTHxHEIGHT; every operation but text_encode needs it.
    #[arg(long, value_name = "WxH", value_parser = parse_size, requires = "operation")]
    pub size: Option<(u32, u32)>,
    /// Frames of a video.
    #[arg(long, default_value_t = 1, requires = "operation")]
    pub frames: u32,
    /// How many at once.
    #[arg(long, default_value_t = 1, requires = "operation")]
    pub batch: u32,
    /// Tokens of a text; text_encode needs it.
    #[arg(long, conflicts_with = "size", requires = "operation")]
    pub tokens: Option<u32>,
    /// Options such as `tile=512`, `overlap=25`, `attention=math`, `layout=channels_last`.
    #[arg(long = "option", value_name = "KEY=VALUE", value_parser = parse_option, requires = "operation")]
    pub options: Vec<(String, String)>,
}

/// One operation at one size.
#[derive(Debug, Args)]
pub struct CaseArgs {
    /// The family.
    #[arg(long, value_name = "NAME")]
    pub family: String,
    /// The operation.
    #[arg(long)]
    pub operation: Operation,
    /// The element type.
    #[arg(long)]
    pub dtype: DType,
    /// Which of its models, at which size, run how.
    #[command(flatten)]
    pub sized: SizedArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `estimate`.
#[derive(Debug, Args)]
pub struct EstimateArgs {
    /// The case.
    #[command(flatten)]
    pub case: CaseArgs,
    /// The allocator.
    #[arg(long)]
    pub allocator: AllocatorKind,
    /// A folder of measurements; with it a calibration of the device prices first.
    #[arg(long, value_name = "DIR", requires = "device")]
    pub store: Option<PathBuf>,
    /// The device whose measurements are meant: `gpu`, or a simulated one by name, such as `24GiB`.
    #[arg(long, value_name = "NAME", requires = "store")]
    pub device: Option<String>,
}

/// Arguments of `advise`.
#[derive(Debug, Args)]
pub struct AdviseArgs {
    /// The family.
    #[arg(long, value_name = "NAME")]
    pub family: String,
    /// The operation; without it the whole of a generation, by the family's pipeline.
    #[arg(long, requires = "dtype")]
    pub operation: Option<Operation>,
    /// The element type.
    #[arg(long, requires = "operation")]
    pub dtype: Option<DType>,
    /// Which of its models, at which size, run how.
    #[command(flatten)]
    pub sized: SizedArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// The card's memory.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Option<Bytes>,
    /// The allocator in use now, to say what a change saves.
    #[arg(long, requires = "operation")]
    pub allocator: Option<AllocatorKind>,
}

/// Arguments of `program`.
#[derive(Debug, Args)]
pub struct ProgramArgs {
    /// The family.
    pub family: String,
    /// The operation.
    pub operation: Operation,
    /// The element type; the model's stored one if not given.
    #[arg(long)]
    pub dtype: Option<DType>,
    /// Which of its models, at which size, run how.
    #[command(flatten)]
    pub sized: SizedArgs,
    /// Write a chart here. A link is followed, a pipe or device (`/dev/stdout`) is written into.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// A snapshot pickle (plain or gzipped), a recording (JSON lines), or a text with an out-of-memory message (an error
    /// for want of memory without figures is explained too); `-` reads standard input.
    pub file: PathBuf,
    /// The memory to judge by: what the process may take, so the card's less its context and other processes.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Option<Bytes>,
    /// The device of a snapshot; the one that held most if not given.
    #[arg(long, value_name = "NUMBER")]
    pub device: Option<i64>,
    /// Another setting to try, as PYTORCH_ALLOC_CONF has it, such as `max_split_size_mb:64`.
    #[arg(long = "setting", value_name = "KEY:VALUE")]
    pub settings: Vec<String>,
    /// Leave the paths of source files out.
    #[arg(long)]
    pub redact: bool,
    /// Write a page with charts here, for a snapshot. A link is followed, a pipe or device (`/dev/stdout`) is written into.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The repository that is meant when nobody says otherwise.
pub(super) const HERE: &str = ".";

/// Arguments of `ship`.
#[derive(Debug, Args)]
pub struct ShipArgs {
    /// Reports to build from (or recordings, `.jsonl`); with none, the recordings kept in the repository.
    pub reports: Vec<PathBuf>,
    /// Compare only; exit 1 if the shipped data is out of date.
    #[arg(long)]
    pub check: bool,
    /// Take a change that would otherwise be refused.
    #[arg(long, conflicts_with = "check")]
    pub accept: bool,
    /// The largest change of a line, in percent, that needs no --accept.
    #[arg(long, value_name = "PERCENT", default_value_t = 10)]
    pub limit_percent: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// The repository whose shipped data is meant.
    #[arg(long, value_name = "DIR", default_value = HERE)]
    pub repository: PathBuf,
}

/// Arguments of `merge`.
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// The reports.
    #[arg(required = true)]
    pub reports: Vec<PathBuf>,
    /// Where the merged report goes.
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
}

/// Arguments of `mutants`.
#[derive(Debug, Args)]
pub struct MutantsArgs {
    /// Only these mutants.
    #[arg(long = "name", value_name = "NAME")]
    pub names: Vec<String>,
    /// Grade by the checks of families on an attached GPU, `gpu`: those mutants that the checks there pass.
    #[arg(long, value_name = "NAME", requires = "family")]
    pub device: Option<String>,
    /// The families whose checks grade on the GPU.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "device")]
    pub family: Vec<String>,
    /// Where the report with the kill matrix goes.
    #[arg(long, value_name = "DIR", default_value = "target/headroom-mutants")]
    pub output: PathBuf,
}

/// Arguments of `devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Measure on each attached GPU how fast weights reach it and what a cached allocation costs, instead of listing.
    ///
    /// SIZE is what is copied at a time (4GiB if not given); the host needs as much memory, and as much room among
    /// the temporary files.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, num_args = 0..=1, require_equals = true, default_missing_value = USUAL_SIZE)]
    pub measure: Option<Bytes>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

fn parse_option(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .ok_or_else(|| format!("`{text}` is no option: write KEY=VALUE, for example tile=512"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_every_command_shows_an_example() {
        let mut command = Arguments::command();
        command.clone().debug_assert();
        for sub in command.get_subcommands_mut() {
            let help = sub.render_long_help().to_string();
            assert!(help.contains("Example"), "{} has no example", sub.get_name());
        }
    }
}
