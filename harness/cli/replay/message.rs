//! An out-of-memory message: what its figures mean, and what may help.

use headroom_base::{Bytes, Reading};
use headroom_reports::oom_text::{self, Hardest};
use serde::Serialize;

use super::{Answer, CliError, Exit, ReplayArgs, Terminal, no_page};

/// A message's figures and what they mean.
#[derive(Serialize)]
struct MessageContent {
    /// How many messages the text has, and which of them this is, from 1.
    messages: usize,
    message: usize,
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
pub(super) fn explained(hardest: &Hardest, args: &ReplayArgs, terminal: &mut Terminal<'_>) -> Result<Exit, CliError> {
    no_page(args, "a message")?;
    remark_unused(args, terminal);
    let message = &hardest.oom;
    let explanation = oom_text::explain(message);
    let known = |reading: Reading| reading.known();
    let content = MessageContent {
        messages: hardest.count,
        message: hardest.number,
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
    if let Some(line) = which(hardest) {
        terminal.line(line)?;
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

/// Which message this is, where the text has several.
fn which(hardest: &Hardest) -> Option<String> {
    let Hardest { number, count, are_alike, .. } = *hardest;
    match (count, are_alike) {
        (1, _) => None,
        (_, true) => Some(format!("{count} messages, all alike.")),
        (_, false) => Some(format!(
            "{count} messages; this is number {number}, in which most is missing: what makes up for it makes up for the \
             others."
        )),
    }
}

/// A message has its own figures, and no requests that could be run again.
fn remark_unused(args: &ReplayArgs, terminal: &mut Terminal<'_>) {
    if args.memory.is_some() {
        terminal.remark("--memory is not used: a message says itself what the device has");
    }
    if !args.settings.is_empty() {
        terminal.remark("--setting is not used: a message has no requests to replay, a memory snapshot has");
    }
    if args.device.is_some() {
        terminal.remark("--device is not used: the message is read as it is");
    }
}
