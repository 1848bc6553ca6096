//! `replay`: a snapshot, a recording or a message explained, and what other settings would have done.

mod message;
mod recording;
mod settings;
mod snapshot;

use serde::Serialize;

use super::args::ReplayArgs;
use super::error::CliError;
use super::exit::Exit;
use super::terminal::Terminal;
use crate::replay::{Material, NamedSetting, material};

/// What is printed as JSON: the kind, then what that kind has.
#[derive(Serialize)]
struct Answer<'a, T: Serialize> {
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    #[serde(flatten)]
    content: T,
}

/// Replays a file.
///
/// # Errors
/// When it cannot be read or is nothing that can be replayed, and when the page cannot be written.
pub(super) fn replay(args: &ReplayArgs, terminal: &mut Terminal<'_>) -> Result<Exit, CliError> {
    let mut more = Vec::new();
    for text in &args.settings {
        let setting = NamedSetting::parse("--setting", text)?;
        for note in &setting.settings.notes {
            terminal.remark(format!("--setting {text}: {note}"));
        }
        more.push(setting);
    }
    match material::read(&args.file)? {
        Material::Snapshot(snapshot) => snapshot::replayed(*snapshot, &more, args, terminal),
        Material::Recordings(recordings) => recording::replayed(&recordings, &more, args, terminal),
        Material::Message(message) => message::explained(&message, args, terminal),
    }
}

fn no_page(args: &ReplayArgs, what: &str) -> Result<(), CliError> {
    match &args.html {
        Some(_) => Err(CliError::Value(format!("--html needs a memory snapshot; {} is {what}", args.file.display()))),
        None => Ok(()),
    }
}
