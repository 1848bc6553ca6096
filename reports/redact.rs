//! Takes host names, user names and absolute paths out of a report before it is written.

use std::path::PathBuf;

use headroom_base::mutant;
use serde_json::Value;

/// What stands in for a name that was taken out.
const REPLACEMENT: &str = "<redacted>";

/// What must not be found in a report.
#[derive(Clone, Debug, Default)]
pub struct Redaction {
    /// Paths below this folder are written relative to it.
    pub root: Option<PathBuf>,
    /// Host and user names. Those of one or two letters are left alone: they are parts of words.
    pub names: Vec<String>,
}

impl Redaction {
    /// The text without names and absolute paths.
    pub fn text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        let mut before = ' ';
        while let Some(first) = rest.chars().next() {
            let end = if starts_path(before, rest) { path_end(rest) } else { 0 };
            if end > 0 {
                out.push_str(&self.path(&rest[..end]));
                before = 'x';
                rest = &rest[end..];
            } else {
                out.push(first);
                before = first;
                rest = &rest[first.len_utf8()..];
            }
        }
        self.names.iter().filter(|name| name.chars().count() > 2).fold(out, |text, name| without_word(&text, name))
    }

    /// Redacts every text of a JSON value; keys stay as they are.
    pub fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                *text = mutant!(
                    "report_not_redacted",
                    "the names of people's machines and folders are published with their reports",
                    right: self.text(text),
                    wrong: text.clone(),
                );
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.value(field)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn path(&self, path: &str) -> String {
        if let Some(root) = self.root.as_ref().and_then(|root| root.to_str())
            && let Some(inside) = path.strip_prefix(root.trim_end_matches(['/', '\\']))
        {
            let relative = inside.trim_start_matches(['/', '\\']);
            if relative.is_empty() {
                return ".".into();
            }
            if relative.len() < inside.len() {
                return relative.into();
            }
        }
        let name = path.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().unwrap_or_default();
        format!("<path>/{name}")
    }
}

/// Whether an absolute path begins here: `/x`, `C:\x`, `C:/x` or `\\host\share`, at the start of a word.
/// The slashes of a URL come after a letter, a colon or each other.
fn starts_path(before: char, rest: &str) -> bool {
    if before.is_alphanumeric() || matches!(before, '/' | '\\' | '.' | '_' | '-' | '>' | '~' | '%') {
        return false;
    }
    let bytes = rest.as_bytes();
    let names =
        |index: usize| bytes.get(index).is_some_and(|b| b.is_ascii_alphanumeric() || b"._-".contains(b) || *b >= 0x80);
    let slash = |index: usize| bytes.get(index).is_some_and(|b| b"/\\".contains(b));
    let unix = bytes[0] == b'/' && names(1);
    let drive = bytes[0].is_ascii_alphabetic() && bytes.get(1) == Some(&b':') && slash(2) && names(3);
    let share = rest.starts_with("\\\\") && names(2);
    let file_url = rest.starts_with("file:///");
    unix || drive || share || file_url
}

fn path_end(rest: &str) -> usize {
    // A colon ends a path (`/a/b.py:12`), except the one of a drive letter or of `file:`.
    let colons_from = if rest.starts_with('/') || rest.starts_with('\\') { 0 } else { 5 };
    rest.char_indices()
        .find(|(index, c)| {
            c.is_whitespace()
                || matches!(c, '"' | '\'' | '`' | '<' | '>' | '|' | ',' | ';' | ')' | ']' | '}')
                || (*c == ':' && *index >= colons_from)
        })
        .map_or(rest.len(), |(index, _)| index)
}

fn without_word(text: &str, word: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        let joined = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        let inside_a_word =
            joined(before.chars().next_back().or(out.chars().next_back())) || joined(after.chars().next());
        out.push_str(before);
        out.push_str(if inside_a_word { word } else { REPLACEMENT });
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redaction() -> Redaction {
        Redaction {
            root: Some("/home/ada/headroom".into()),
            names: vec!["ada".into(), "babbage-3".into(), "ci".into()],
        }
    }

    #[test]
    fn absolute_paths_become_relative_or_lose_their_folders() {
        let cases = [
            ("read /home/ada/headroom/families/sdxl.yaml: no", "read families/sdxl.yaml: no"),
            ("--output=/home/ada/headroom/out", "--output=out"),
            ("at /home/ada/headroom.", "at <path>/headroom."),
            ("/home/ada/headroom", "."),
            ("/home/ada/headroom2/x", "<path>/x"),
            ("(/usr/lib/libcuda.so)", "(<path>/libcuda.so)"),
            (r"in C:\Users\ada\x.json now", "in <path>/x.json now"),
            (r"\\fileserver\share\x", "<path>/x"),
            ("file:///home/eve/x.html", "<path>/x.html"),
            ("/opt/a.py:12: error", "<path>/a.py:12: error"),
        ];
        for (text, expected) in cases {
            assert_eq!(redaction().text(text), expected);
        }
    }

    #[test]
    fn names_go_as_whole_words_only() {
        let cases = [
            ("ada@babbage-3 ran it", "<redacted>@<redacted> ran it"),
            ("adapter for ada", "adapter for <redacted>"),
            ("ci passed", "ci passed"),
        ];
        for (text, expected) in cases {
            assert_eq!(redaction().text(text), expected);
        }
    }

    #[test]
    fn what_is_no_path_and_no_name_stays() {
        let texts = [
            "sdxl::h200::demand/reservation",
            "https://github.com/pytorch/pytorch/issues/35901",
            "a / b",
            "12 GiB/s",
            "torch 2.11.0+cu130",
            "families/sdxl.yaml",
            "1/2",
        ];
        for text in texts {
            assert_eq!(redaction().text(text), text);
        }
    }

    #[test]
    fn every_text_of_a_value_is_redacted_and_nothing_else_changes() {
        let mut value = serde_json::json!({"a": ["/root/x", 1, null], "b": {"c": "ada"}});
        redaction().value(&mut value);
        assert_eq!(value, serde_json::json!({"a": ["<path>/x", 1, null], "b": {"c": "<redacted>"}}));
    }
}
