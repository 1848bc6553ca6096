//! An out-of-memory message: what its figures mean, and what may help.

use headroom_base::{Bytes, Reading};
use headroom_reports::oom_text::{self, OutOfMemory};
use serde::Serialize;

use super::{Answer, CliError, Exit, ReplayArgs, Terminal, no_page};

/// A message's figures and what they mean.
#[derive(Serialize)]
struct MessageContent {
    requested_bytes: u64,
    total_bytes: Option<u64>,
    free_bytes: Option<u64>,
    allocated_bytes: Option<u64>,
    reserved_bytes: Option<u64>,
    unallocated_bytes: Option<u64>,
    findings: Vec<String>,
    help: Vec<String>,
}

/// Explains a message.
pub(super) fn explained(
    message: &OutOfMemory,
    args: &ReplayArgs,
    terminal: &mut Terminal<'_>,
) -> Result<Exit, CliError> {
    no_page(args, "a message")?;
    let explanation = oom_text::explain(message);
    let known = |reading: Reading| reading.known();
    let content = MessageContent {
        requested_bytes: message.requested_bytes,
        total_bytes: known(message.total_bytes),
        free_bytes: known(message.free_bytes),
        allocated_bytes: known(message.allocated_bytes),
        reserved_bytes: known(message.reserved_bytes),
        unallocated_bytes: known(message.unallocated_bytes()),
        findings: explanation.findings.iter().map(ToString::to_string).collect(),
        help: explanation.help.iter().map(ToString::to_string).collect(),
    };
    if args.json {
        terminal.json(&Answer { kind: "message", memory_bytes: None, content })?;
        return Ok(Exit::Success);
    }
    terminal.line(format!("A request of {} failed.", Bytes(content.requested_bytes)))?;
    for finding in &content.findings {
        terminal.line(format!("- {finding}"))?;
    }
    if !content.help.is_empty() {
        terminal.line("What may help, the most promising first:")?;
    }
    for (index, help) in content.help.iter().enumerate() {
        terminal.line(format!("{}. {help}", index + 1))?;
    }
    Ok(Exit::Success)
}
