//! The one owner of what the process prints.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::Serialize;

/// Where a command's words go: results on one stream, remarks on the other.
///
/// A reader that went away (`headroom … | head`) is no failure: what it would have read is dropped, and the command
/// goes on to its own exit code.
pub struct Terminal<'a> {
    results: &'a mut dyn Write,
    remarks: &'a mut dyn Write,
    interactive: bool,
    reader_gone: bool,
}

impl<'a> Terminal<'a> {
    /// Writes results and remarks to the given streams; `interactive` allows progress bars.
    pub fn new(results: &'a mut dyn Write, remarks: &'a mut dyn Write, interactive: bool) -> Self {
        Self { results, remarks, interactive, reader_gone: false }
    }

    /// Whether a person watches, so that bars may move.
    pub const fn is_interactive(&self) -> bool {
        self.interactive
    }

    /// A line of the result.
    ///
    /// # Errors
    /// When the stream cannot be written to.
    pub fn line(&mut self, text: impl AsRef<str>) -> io::Result<()> {
        self.write(text.as_ref())
    }

    /// The whole result as JSON.
    ///
    /// # Errors
    /// When the stream cannot be written to.
    pub fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string_pretty(value).map_err(io::Error::other)?;
        self.write(&text)
    }

    /// Hands everything on to whoever reads it.
    ///
    /// # Errors
    /// When the stream cannot be written to.
    pub fn flush(&mut self) -> io::Result<()> {
        let flushed = self.results.flush();
        self.unless_reader_gone(flushed)
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        if self.reader_gone {
            return Ok(());
        }
        let written = writeln!(self.results, "{text}");
        self.unless_reader_gone(written)
    }

    fn unless_reader_gone(&mut self, outcome: io::Result<()>) -> io::Result<()> {
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.reader_gone = true;
                Ok(())
            }
            other => other,
        }
    }

    /// A table of the result: a header, then rows; columns whose header starts with `>` are right-aligned.
    ///
    /// # Errors
    /// When the stream cannot be written to.
    pub fn table(&mut self, header: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        let mut table = Table::new();
        table.load_style(UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(header.iter().map(|title| title.trim_start_matches('>')));
        for row in rows {
            table.add_row(row);
        }
        for (column, title) in table.column_iter_mut().zip(header) {
            if title.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        self.write(&table.to_string())
    }

    /// Something about the work rather than its result.
    pub fn remark(&mut self, text: impl AsRef<str>) {
        // A closed stream for remarks must not fail the command whose result is still wanted.
        let _ = writeln!(self.remarks, "{}", text.as_ref());
    }

    /// What is said of a command that was refused before it ran, where a report stands in its output folder.
    pub fn remark_nothing_ran(&mut self, output: &Path) {
        if output.join("report.json").exists() {
            self.remark(format!("Nothing ran: what stands in {} is of an earlier run.", output.display()));
        }
    }
}

/// Whether a person watches the remarks.
pub fn is_watched() -> bool {
    io::stderr().is_terminal()
}
