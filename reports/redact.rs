//! Takes host names, user names and absolute paths out of a report before it is written.

use std::path::PathBuf;

use headroom_base::mutant;

use crate::free_text::each_free_text;
use crate::report::Report;

/// What stands in for a name that was taken out.
const REPLACEMENT: &str = "<redacted>";

/// Words that may stand between two slashes of one path.
const LONGEST_NAME_WORDS: usize = 4;

/// What must not be found in a report.
#[derive(Clone, Debug, Default)]
pub struct Redaction {
    /// Paths below this folder are written relative to it.
    pub root: Option<PathBuf>,
    /// Folders and files known by their place, each with the words that stand for it (`<home>`). Of what lies below one
    /// its own name is written.
    pub known: Vec<(PathBuf, String)>,
    /// Host and user names. Those of one or two letters are left alone: they are parts of words.
    pub names: Vec<String>,
}

impl Redaction {
    /// The report without names and absolute paths in its free texts. Identities (of families, devices, software and
    /// reports) stay what they are, whatever a person is called.
    pub fn report(&self, report: &Report) -> Report {
        let mut report = report.clone();
        let mut change = |text: &mut String| {
            *text = mutant!(
                "report_not_redacted",
                "the names of people's machines and folders are published with their reports",
                right: self.text(text),
                wrong: text.clone(),
            );
        };
        each_free_text(&mut report, &mut change);
        report
    }

    /// The text without names and absolute paths.
    pub fn text(&self, text: &str) -> String {
        let places = self.places();
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        let mut before = ' ';
        while let Some(first) = rest.chars().next() {
            let (end, words) = if starts_path(before, rest) { path(before, rest, &places) } else { (0, String::new()) };
            if end > 0 {
                out.push_str(&words);
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

    /// The root and the known places, the longest first: the folder of a file says more than the folder of that.
    fn places(&self) -> Vec<(String, &str)> {
        let root = self.root.iter().map(|root| (root, "."));
        let known = self.known.iter().map(|(path, words)| (path, words.as_str()));
        let mut places: Vec<(String, &str)> = root
            .chain(known)
            // Everything is below `/`, and nothing is said by that.
            .filter(|(path, _)| path.is_absolute() && path.file_name().is_some())
            .filter_map(|(path, words)| Some((path.to_str()?.trim_end_matches(['/', '\\']).to_owned(), words)))
            .collect();
        places.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        places
    }
}

/// How long the path is that begins here, and what is written in its place.
fn path(before: char, rest: &str, places: &[(String, &str)]) -> (usize, String) {
    let of_a_place = places.iter().find_map(|(place, words)| {
        let inside = rest.strip_prefix(place.as_str())?;
        let ends = inside.chars().next().is_none_or(|c| !is_of_a_name(c) || matches!(c, '/' | '\\'));
        ends.then_some((place.as_str(), *words))
    });
    let (place, words) = of_a_place.map_or(("", "<path>"), |(place, words)| (place, words));
    let inside = &rest[place.len()..];
    let further = match (place, inside.starts_with(['/', '\\'])) {
        ("", _) | (_, true) => quoted_end(before, rest).map_or_else(|| path_end(inside), |end| end - place.len()),
        (_, false) => 0,
    };
    let relative = inside[..further].trim_matches(['/', '\\']);
    let written = match (words, relative) {
        (words, "") => words.to_owned(),
        (".", relative) => relative.to_owned(),
        (words, relative) => format!("{words}/{}", relative.rsplit(['/', '\\']).next().unwrap_or_default()),
    };
    (place.len() + further, written)
}

/// Where the closing quote of a quoted path stands. A quoted command line has several paths, and ends none of them.
fn quoted_end(before: char, rest: &str) -> Option<usize> {
    if !matches!(before, '"' | '\'' | '`') {
        return None;
    }
    let end = rest.find([before, '\n', '\r'])?;
    (rest[end..].starts_with(before) && !rest[..end].contains(" /") && !rest[..end].contains(" -")).then_some(end)
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

/// Whether a path goes on with this character, spaces aside.
fn is_of_a_name(c: char) -> bool {
    !c.is_whitespace() && !matches!(c, '"' | '\'' | '`' | '<' | '>' | '|' | ',' | ';' | ':' | ')' | ']' | '}')
}

/// Where the path ends that begins here. White space ends it, unless a slash further on says that a folder's name has
/// spaces.
fn path_end(rest: &str) -> usize {
    // A colon ends a path (`/a/b.py:12`), except the one of a drive letter or of `file:`.
    let colons_from = if rest.starts_with('/') || rest.starts_with('\\') { 0 } else { 5 };
    let word_end = |from: usize| {
        let goes_on = |index, c| is_of_a_name(c) || (c == ':' && from + index < colons_from);
        rest[from..]
            .char_indices()
            .find(|(index, c)| !goes_on(*index, *c))
            .map_or(rest.len(), |(index, _)| from + index)
    };
    let mut end = word_end(0);
    let (mut looked, mut words) = (end, 0);
    while words < LONGEST_NAME_WORDS && rest[looked..].starts_with(' ') {
        let from = looked + 1;
        looked = word_end(from);
        let word = &rest[from..looked];
        // A word that begins with a slash is the next path; numbers with one are fractions.
        if word.is_empty() || word.starts_with(['/', '\\', '-']) {
            break;
        }
        words += 1;
        if word.contains(['/', '\\']) && word.contains(char::is_alphabetic) {
            (end, words) = (looked, 0);
        }
    }
    end
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
            known: vec![
                ("/home/ada".into(), "<home>".into()),
                ("/data/Ada L/w.safetensors".into(), "<weights>".into()),
                ("/".into(), "<everything>".into()),
            ],
            names: vec!["ada".into(), "babbage-3".into(), "ci".into()],
        }
    }

    #[test]
    fn absolute_paths_become_relative_or_lose_their_folders() {
        let cases = [
            ("read /home/ada/headroom/families/sdxl.yaml: no", "read families/sdxl.yaml: no"),
            ("--output=/home/ada/headroom/out", "--output=out"),
            ("at /home/ada/headroom: no", "at .: no"),
            ("/home/ada/headroom", "."),
            ("/home/ada/headroom2/x", "<home>/x"),
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
    fn a_folder_with_spaces_in_its_name_leaves_no_part_of_it() {
        let cases = [
            ("/data/Ada L/w.safetensors: no such file", "<weights>: no such file"),
            ("no `/data/Ada L/w.safetensors`", "no `<weights>`"),
            ("cannot read /home/ada/My Models/Ada L/x.bin: no", "cannot read <home>/x.bin: no"),
            ("cannot read /mnt/Jane Doe/models/x.bin: no", "cannot read <path>/x.bin: no"),
            ("cannot read /mnt/Jane van Doe/x.bin (gone)", "cannot read <path>/x.bin (gone)"),
            (r"C:\Users\Jane Doe\models\x.bin is gone", "<path>/x.bin is gone"),
            ("no `/mnt/Jane Doe/my file.bin` here", "no `<path>/my file.bin` here"),
            ("ran `/usr/bin/x --to /mnt/Jane/y`", "ran `<path>/x --to <path>/y`"),
            ("/mnt/a /mnt/b", "<path>/a <path>/b"),
            ("in /mnt/a 1/2 of it", "in <path>/a 1/2 of it"),
        ];
        for (text, expected) in cases {
            assert_eq!(redaction().text(text), expected);
        }
    }
}
