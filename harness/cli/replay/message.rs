//! Out-of-memory messages: what their figures mean, and what may help.

use headroom_reports::oom_text::{self, Explanation, Figure, Figureless, Hardest, Pasted};
use serde::Serialize;

use super::{Answer, CliError, Exit, ReplayArgs, Terminal, no_page};

/// A text's messages: the one in which most is missing, then those of other devices.
#[derive(Serialize)]
struct TextContent {
    /// How many messages with figures the text has.
    messages: usize,
    #[serde(flatten)]
    hardest: MessageContent,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    others: Vec<MessageContent>,
}

/// A message's figures and what they mean.
#[derive(Default, Serialize)]
struct MessageContent {
    /// Which of the text's messages this is, from 1; none for an error without figures.
    message: Option<usize>,
    /// What an error without figures is.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    device: Option<u32>,
    requested_bytes: Option<u64>,
    total_bytes: Option<u64>,
    free_bytes: Option<u64>,
    allocated_bytes: Option<u64>,
    reserved_bytes: Option<u64>,
    unallocated_bytes: Option<u64>,
    findings: Vec<String>,
    help: Vec<String>,
}

/// A part of what is printed: the content, with the sentences before it.
struct Part {
    lead: Vec<String>,
    content: MessageContent,
}

/// Explains a text.
pub(super) fn explained(pasted: &Pasted, args: &ReplayArgs, terminal: &mut Terminal<'_>) -> Result<Exit, CliError> {
    no_page(args, "a message")?;
    remark_unused(args, terminal);
    let hardest = pasted.hardest();
    let parts: Vec<Part> = hardest
        .iter()
        .map(|hardest| of_message(hardest, pasted.messages.len()))
        .chain(pasted.figureless.iter().copied().map(of_figureless))
        .collect();
    if args.json {
        let mut contents = parts.into_iter().map(|part| part.content);
        let content = TextContent {
            messages: pasted.messages.len(),
            hardest: contents.next().unwrap_or_default(),
            others: contents.collect(),
        };
        terminal.json(&Answer { kind: "message", memory_bytes: None, content })?;
        return Ok(Exit::Success);
    }
    if parts.len() > 1 {
        terminal.line(format!("{}; each is explained.", several(&hardest, pasted)))?;
    }
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            terminal.line("")?;
        }
        print(part, terminal)?;
    }
    Ok(Exit::Success)
}

/// What a text with several devices or kinds of error has.
fn several(hardest: &[Hardest], pasted: &Pasted) -> String {
    let mut devices: Vec<_> = hardest.iter().map(|hardest| hardest.oom.device).collect();
    devices.dedup();
    let mut has = match (pasted.messages.len(), devices.len()) {
        (0, _) => Vec::new(),
        (1, _) => vec!["1 message".to_owned()],
        (count, 0 | 1) => vec![format!("{count} messages")],
        (count, devices) => vec![format!("{count} messages of {devices} devices")],
    };
    match pasted.figureless.len() {
        0 => {}
        1 => has.push("1 error without figures".to_owned()),
        count => has.push(format!("{count} errors without figures")),
    }
    has.join(" and ")
}

fn of_message(hardest: &Hardest, messages: usize) -> Part {
    let message = &hardest.oom;
    let Explanation { findings, help } = oom_text::explain(message);
    let bytes = |figure: Option<Figure>| figure.map(|figure| figure.bytes);
    let on = message.device.map_or_else(String::new, |device| format!(" on device {device}"));
    let mut lead: Vec<String> = which(hardest, messages).into_iter().collect();
    lead.push(format!("A request of {} failed{on}.", message.requested));
    let content = MessageContent {
        message: Some(hardest.number),
        error: None,
        device: message.device,
        requested_bytes: Some(message.requested.bytes),
        total_bytes: bytes(message.total),
        free_bytes: bytes(message.free),
        allocated_bytes: bytes(message.allocated),
        reserved_bytes: bytes(message.reserved),
        unallocated_bytes: bytes(message.unallocated),
        findings: findings.iter().map(ToString::to_string).collect(),
        help: help.iter().map(ToString::to_string).collect(),
    };
    Part { lead, content }
}

fn of_figureless(error: Figureless) -> Part {
    let lead = vec![format!("An error without figures of the device: {}.", error.name())];
    let content = MessageContent {
        error: Some(error.name()),
        findings: vec![error.meaning()],
        help: error.help().into_iter().map(str::to_owned).collect(),
        ..MessageContent::default()
    };
    Part { lead, content }
}

fn print(part: &Part, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    for line in &part.lead {
        terminal.line(line)?;
    }
    for finding in &part.content.findings {
        terminal.line(format!("- {finding}"))?;
    }
    if !part.content.help.is_empty() {
        terminal.line("What may help, the most promising first:")?;
    }
    for (index, help) in part.content.help.iter().enumerate() {
        terminal.line(format!("{}. {help}", index + 1))?;
    }
    Ok(())
}

/// Which message this is, where the text has several.
fn which(hardest: &Hardest, messages: usize) -> Option<String> {
    let Hardest { number, count, are_alike, .. } = *hardest;
    let alone = count == messages;
    match (count, are_alike) {
        (1, _) if alone => None,
        (1, _) => Some(format!("Message {number}:")),
        (_, true) if alone => Some(format!("{count} messages, all alike.")),
        (_, true) => Some(format!("{count} messages, all alike, of which this is number {number} of the text:")),
        (_, false) if !alone => Some(format!(
            "{count} messages of this device; number {number} of the text is the one in which most is missing: what makes up \
             for it makes up for the device's others."
        )),
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
