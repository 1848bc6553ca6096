//! A recording: how much of it came out equal, and of its traces what other settings would have needed.

use headroom_reports::recordings::Recording;
use serde::Serialize;

use super::settings::print_settings;
use super::{Answer, CliError, Exit, ReplayArgs, Terminal, no_page};
use crate::replay::{FileComparison, NamedSetting, Terms, WhatIf, compare, recording, what_if_all};

/// The settings of one trace of a recording.
#[derive(Serialize)]
struct TraceSettings {
    /// The recording of the file, from 1.
    recording: usize,
    settings: Vec<WhatIf>,
}

#[derive(Serialize)]
struct RecordingContent<'a> {
    #[serde(flatten)]
    comparison: &'a FileComparison,
    /// For traces, where a memory was asked about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    under_settings: Vec<TraceSettings>,
}

/// Replays every recording of a file.
pub(super) fn replayed(
    recordings: &[Recording],
    more: &[NamedSetting],
    args: &ReplayArgs,
    terminal: &mut Terminal<'_>,
) -> Result<Exit, CliError> {
    no_page(args, "a recording")?;
    if !more.is_empty() && args.memory.is_none() {
        terminal.remark("--setting is not used: recordings are run under other settings only with --memory");
    }
    let comparison =
        compare(recordings).map_err(|source| CliError::Replay { path: args.file.clone(), source: Box::new(source) })?;
    let memory_bytes = args.memory.map(|bytes| bytes.0);
    let under_settings = match memory_bytes {
        Some(_) => under_settings(recordings, more, memory_bytes),
        None => Vec::new(),
    };
    if args.json {
        let content = RecordingContent { comparison: &comparison, under_settings };
        terminal.json(&Answer { kind: "recording", memory_bytes, content })?;
    } else {
        print_comparison(&comparison, terminal)?;
        for TraceSettings { recording, settings } in &under_settings {
            terminal.line(format!("\nRecording {recording} under other settings, weights included:"))?;
            print_settings(settings.iter().map(|answer| (answer, false)), memory_bytes, terminal)?;
        }
    }
    Ok(if comparison.is_exact() { Exit::Success } else { Exit::CheckFailed })
}

fn under_settings(recordings: &[Recording], more: &[NamedSetting], memory_bytes: Option<u64>) -> Vec<TraceSettings> {
    let settings: Vec<_> = NamedSetting::tried().into_iter().chain(more.iter().cloned()).collect();
    let terms = Terms { memory_bytes, usual_limit_bytes: 0 };
    let traces = recordings.iter().enumerate();
    traces
        .filter_map(|(index, recorded)| {
            let requests = recording::requests_of(recorded)?;
            Some(TraceSettings { recording: index + 1, settings: what_if_all(&requests, &settings, terms) })
        })
        .collect()
}

fn print_comparison(comparison: &FileComparison, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let rows: Vec<_> = comparison
        .recordings
        .iter()
        .enumerate()
        .map(|(index, compared)| {
            let events = compared
                .segment_events
                .map_or_else(String::new, |events| format!("{} of {}", events.equal, events.compared));
            vec![
                (index + 1).to_string(),
                compared.name.clone(),
                format!("{} of {}", compared.figures.equal, compared.figures.compared),
                events,
            ]
        })
        .collect();
    terminal.table(&[">", "recording", ">figures equal", ">segment events equal"], &rows)?;
    terminal.line(format!("{} of {} figures are equal.", comparison.equal, comparison.compared))?;
    if let Some(first) = comparison.first_difference {
        let shown = |figure: Option<u64>| figure.map_or_else(|| "nothing".to_owned(), |figure| figure.to_string());
        let of = first.difference;
        terminal.line(format!(
            "First difference: recording {}, step {}, {:?}: {} recorded, {} replayed.",
            first.recording,
            of.step,
            of.figure,
            shown(of.recorded),
            shown(of.replayed)
        ))?;
    }
    Ok(())
}
