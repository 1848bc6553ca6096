//! A snapshot: its peaks, what was stranded, and a row for each setting.

use headroom_base::Bytes;
use headroom_reports::html::{Replay, ReplayRow, replay_page};
use headroom_reports::output::write_whole;
use headroom_reports::snapshot::Snapshot;

use super::settings::print_settings;
use super::{Answer, CliError, Exit, ReplayArgs, Terminal};
use crate::replay::snapshot::{device_of, explain};
use crate::replay::{Explained, NamedSetting};

/// Stranded segments that are listed.
const SEGMENTS_SHOWN: usize = 10;

/// Explains a snapshot.
pub(super) fn replayed(
    mut snapshot: Snapshot,
    more: &[NamedSetting],
    args: &ReplayArgs,
    terminal: &mut Terminal<'_>,
) -> Result<Exit, CliError> {
    if args.redact {
        snapshot.redact();
    }
    let memory_bytes = args.memory.map(|bytes| bytes.0);
    let device = device_of(&snapshot, args.device).ok_or_else(|| {
        let devices: Vec<_> = snapshot.devices().iter().map(i64::to_string).collect();
        CliError::Value(match args.device {
            Some(device) => format!("the snapshot has no device {device}; it has {}", devices.join(", ")),
            None => format!("{} has neither segments nor events of any device", args.file.display()),
        })
    })?;
    let explained = explain(&snapshot, device, more, memory_bytes);
    if let Some(path) = &args.html {
        let name = args.file.file_name().unwrap_or_default().to_string_lossy();
        let page = page(&name, &snapshot, &explained, memory_bytes);
        write_whole(path, page.as_bytes())?;
    }
    if args.json {
        terminal.json(&Answer { kind: "snapshot", memory_bytes, content: &explained })?;
    } else {
        print_snapshot(&explained, memory_bytes, terminal)?;
        if let Some(path) = &args.html {
            terminal.line(format!("Page: {}", path.display()))?;
        }
    }
    Ok(Exit::Success)
}

fn page(name: &str, snapshot: &Snapshot, explained: &Explained, memory_bytes: Option<u64>) -> String {
    let rows: Vec<ReplayRow> = explained
        .settings
        .iter()
        .map(|row| ReplayRow {
            name: if row.as_recorded {
                format!("{} (recorded)", row.answer.setting)
            } else {
                row.answer.setting.clone()
            },
            environment: row.answer.environment.clone(),
            allocated_peak_bytes: row.answer.allocated_peak_bytes,
            reserved_peak_bytes: row.answer.reserved_peak_bytes,
            least_capacity_bytes: row.answer.least_capacity_bytes,
            runs_out: row.answer.runs_out,
            is_bound: row.answer.is_bound,
        })
        .collect();
    replay_page(&Replay {
        title: &format!("Replay of {name}, device {}", explained.device),
        warnings: &explained.warnings,
        moments: &snapshot.timeline(explained.device),
        rows: &rows,
        memory_bytes,
        stranded: Some(&snapshot.stranded(explained.device)),
    })
}

fn print_snapshot(
    explained: &Explained,
    memory_bytes: Option<u64>,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    terminal.line(format!(
        "Device {}, {} events: {} allocated and {} reserved at the peak (after event {}).",
        explained.device,
        explained.events,
        Bytes(explained.peaks.allocated_bytes),
        Bytes(explained.peaks.reserved_bytes),
        explained.peaks.events
    ))?;
    for warning in &explained.warnings {
        terminal.line(format!("Note: {warning}."))?;
    }
    let stranded = &explained.stranded;
    terminal.line(format!(
        "\nAt the end {} are reserved: {} used, {} would go back, {} stranded in {} segments.",
        Bytes(stranded.reserved_bytes),
        Bytes(stranded.used_bytes),
        Bytes(stranded.releasable_bytes),
        Bytes(stranded.stranded_bytes),
        stranded.segments.len()
    ))?;
    if !stranded.segments.is_empty() {
        let rows: Vec<_> = stranded
            .segments
            .iter()
            .take(SEGMENTS_SHOWN)
            .map(|segment| {
                vec![
                    Bytes(segment.stranded_bytes).to_string(),
                    Bytes(segment.total_bytes).to_string(),
                    Bytes(segment.largest_free_bytes).to_string(),
                    segment.pinned_by(),
                ]
            })
            .collect();
        terminal.table(&[">stranded", ">of segment", ">largest free", "pinned by"], &rows)?;
    }
    let rows = explained.settings.iter().map(|row| (&row.answer, row.as_recorded));
    print_settings(rows, memory_bytes, terminal)
}
