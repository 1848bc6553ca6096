//! The table of settings: what each would have reserved, the least memory, and whether it would have run out.

use headroom_base::Bytes;

use super::{CliError, Terminal};
use crate::replay::{Choice, OLDER_VARIABLE_NOTE, WhatIf};

/// A row for each setting, and which to take.
pub(super) fn print_settings<'a>(
    rows: impl Iterator<Item = (&'a WhatIf, bool)> + Clone,
    memory_bytes: Option<u64>,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    let judged = memory_bytes.map_or_else(|| "runs".to_owned(), |bytes| format!("in {}", Bytes(bytes)));
    let table: Vec<_> = rows.clone().map(|(answer, recorded)| setting_row(answer, recorded, memory_bytes)).collect();
    terminal.table(&["setting", ">reserved peak", ">least memory", &judged, "environment"], &table)?;
    terminal.line("≤: the driver's pool has no public policy; its figures are upper bounds.")?;
    let candidates: Vec<_> = rows.filter_map(|(answer, _)| answer.candidate()).collect();
    for line in Choice::of(&candidates).iter().flat_map(|choice| choice.lines("least memory")) {
        terminal.line(line)?;
    }
    terminal.line("Beside that a card needs room for the context (about half a GiB with CUDA) and other processes.")?;
    terminal.line(OLDER_VARIABLE_NOTE)?;
    Ok(())
}

fn setting_row(answer: &WhatIf, recorded: bool, memory_bytes: Option<u64>) -> Vec<String> {
    let bound = if answer.is_bound { "≤ " } else { "" };
    let limit = answer.limit_bytes.map_or_else(String::new, |limit| format!(" (limit {})", Bytes(limit)));
    let left = memory_bytes.zip(answer.least_capacity_bytes).map(|(memory, least)| memory.saturating_sub(least));
    let judged = match (answer.runs_out, left) {
        (None, _) => String::new(),
        (Some(true), _) if answer.is_bound => "may run out".to_owned(),
        (Some(true), _) => "runs out".to_owned(),
        (Some(false), left) => {
            let retries = match answer.retries {
                None | Some(0) => String::new(),
                Some(1) => ", 1 retry".to_owned(),
                Some(retries) => format!(", {retries} retries"),
            };
            format!("runs, {} to spare{retries}", Bytes(left.unwrap_or(0)))
        }
    };
    vec![
        format!("{}{}", answer.setting, if recorded { " (recorded)" } else { "" }),
        format!("{bound}{}{limit}", Bytes(answer.reserved_peak_bytes)),
        answer.least_capacity_bytes.map_or_else(|| "none".to_owned(), |least| format!("{bound}{}", Bytes(least))),
        judged,
        answer.environment.clone(),
    ]
}
