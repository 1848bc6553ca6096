//! Tables whose columns and headers are declared together, so that they cannot come apart.

use std::fmt::Write as _;

use super::escape::Escaped;

/// How a column's cells stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    /// Words, to the left.
    Words(&'static str),
    /// Numbers, to the right.
    Number(&'static str),
    /// Long text that may break anywhere.
    Long(&'static str),
}

impl Column {
    fn title(self) -> &'static str {
        match self {
            Self::Words(title) | Self::Number(title) | Self::Long(title) => title,
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Words(_) => "",
            Self::Number(_) => " class=\"number\"",
            Self::Long(_) => " class=\"long\"",
        }
    }
}

/// A cell's text and the mark it carries (`good`, `bad`, `warn`, `muted`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    text: String,
    mark: Option<&'static str>,
}

impl Cell {
    pub(super) fn marked(text: impl ToString, mark: &'static str) -> Self {
        Self { text: text.to_string(), mark: Some(mark) }
    }

    /// A figure, or the word that it is unknown.
    pub(super) fn or_unknown(text: Option<impl ToString>) -> Self {
        text.map_or_else(|| Self::marked("unknown", "muted"), |text| Self::from(text.to_string()))
    }
}

impl<T: ToString> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.to_string(), mark: None }
    }
}

/// A table; every row has a cell for every column.
pub(super) fn table<const N: usize>(columns: [Column; N], rows: impl IntoIterator<Item = [Cell; N]>) -> String {
    let mut html = String::from("<div class=\"scroll\"><table><thead><tr>");
    for column in columns {
        let _ = write!(html, "<th scope=\"col\"{}>{}</th>", column.class(), Escaped(column.title()));
    }
    html.push_str("</tr></thead><tbody>\n");
    for row in rows {
        html.push_str("<tr>");
        for (column, cell) in columns.into_iter().zip(row) {
            let text = Escaped(&cell.text);
            let _ = match cell.mark {
                Some(mark) => write!(html, "<td{}><span class=\"{mark}\">{text}</span></td>", column.class()),
                None => write!(html, "<td{}>{text}</td>", column.class()),
            };
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    html
}
