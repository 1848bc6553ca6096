//! Free blocks of nearly one size, in order: a short line, or many of them one behind the other.
//!
//! Moving a few entries of a line is cheaper than walking a tree. A bin that would need to move many is cut into lines,
//! whose last keys lead to the right one. The order is descending, so that the entry that is taken most, the first in
//! best-fit order, stands at the end, where nothing needs to move when it leaves or comes back.

use super::free_blocks::Entry;

/// A line with more entries than this is cut in two.
const MOST_IN_LINE: usize = 48;
/// Lines that together have no more than this become one again; well below, so that a bin does not go back and forth.
const FEWEST_IN_LINES: usize = 16;

/// What entries are ordered by: the size in the upper half, the address in the lower.
pub(super) type Key = u128;

/// The blocks of one bin, in descending order.
#[derive(Clone, Debug)]
pub(super) enum Bin {
    /// Few of them.
    Line(Vec<Entry>),
    /// Many of them.
    Lines(Box<Lines>),
}

/// Lines one behind the other. Only the only one may be empty.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    lines: Vec<Vec<Entry>>,
    /// The key of each line's last entry, its lowest.
    lows: Vec<Key>,
}

/// Puts an entry where it belongs in a line.
#[inline]
fn insert(line: &mut Vec<Entry>, new: Entry) {
    let key = new.key();
    match line.last() {
        Some(lowest) if lowest.key() < key => line.insert(line.partition_point(|entry| entry.key() > key), new),
        _ => line.push(new),
    }
}

/// Removes the entry with this key from a line.
#[inline]
fn remove(line: &mut Vec<Entry>, key: Key) {
    if line.last().is_some_and(|lowest| lowest.key() == key) {
        line.pop();
        return;
    }
    let at = line.partition_point(|entry| entry.key() > key);
    debug_assert!(line.get(at).is_some_and(|entry| entry.key() == key), "a free block was not in its bin");
    if at < line.len() {
        line.remove(at);
    }
}

/// How many entries of a line have this key or a higher one; the lowest of those comes just before.
#[inline]
fn count_from(line: &[Entry], key: Key) -> usize {
    line.partition_point(|entry| entry.key() >= key)
}

impl Bin {
    pub(super) const EMPTY: Self = Self::Line(Vec::new());

    /// The entry with the lowest key.
    #[inline]
    pub(super) fn lowest(&self) -> Option<Entry> {
        match self {
            Self::Line(line) => line.last().copied(),
            Self::Lines(lines) => lines.lines.last()?.last().copied(),
        }
    }

    /// The lowest entry that is not below `key`.
    #[inline]
    pub(super) fn from(&self, key: Key) -> Option<Entry> {
        match self {
            Self::Line(line) => line[..count_from(line, key)].last().copied(),
            Self::Lines(lines) => lines.from(key),
        }
    }

    #[inline]
    pub(super) fn insert(&mut self, new: Entry) {
        match self {
            Self::Line(line) => {
                insert(line, new);
                if line.len() > MOST_IN_LINE {
                    self.cut();
                }
            }
            Self::Lines(lines) => lines.insert(new),
        }
    }

    /// Removes the entry with this key; whether the bin is empty then.
    #[inline]
    pub(super) fn remove(&mut self, key: Key) -> bool {
        match self {
            Self::Line(line) => {
                remove(line, key);
                line.is_empty()
            }
            Self::Lines(lines) => {
                lines.remove(key);
                if let [line] = lines.lines.as_mut_slice()
                    && line.len() <= FEWEST_IN_LINES
                {
                    *self = Self::Line(std::mem::take(line));
                }
                false
            }
        }
    }

    /// Adds all entries in ascending order.
    pub(super) fn append_to(&self, all: &mut Vec<Entry>) {
        match self {
            Self::Line(line) => all.extend(line.iter().rev()),
            Self::Lines(lines) => all.extend(lines.lines.iter().rev().flat_map(|line| line.iter().rev())),
        }
    }

    #[cold]
    fn cut(&mut self) {
        if let Self::Line(line) = self {
            let mut lines = Lines { lines: vec![std::mem::take(line)], lows: vec![0] };
            lines.cut(0);
            *self = Self::Lines(Box::new(lines));
        }
    }
}

impl Lines {
    /// The line in which an entry with this key is or would be.
    fn line_of(&self, key: Key) -> usize {
        let last = self.lows.len() - 1;
        if key <= self.lows[last] { last } else { self.lows.partition_point(|low| *low > key) }
    }

    fn from(&self, key: Key) -> Option<Entry> {
        let index = self.line_of(key);
        let line = &self.lines[index];
        let higher = || self.lines[index.checked_sub(1)?].last().copied();
        line[..count_from(line, key)].last().copied().or_else(higher)
    }

    fn insert(&mut self, new: Entry) {
        let index = self.line_of(new.key());
        let line = &mut self.lines[index];
        insert(line, new);
        let length = line.len();
        self.note_low(index);
        if length > MOST_IN_LINE {
            self.cut(index);
        }
    }

    fn remove(&mut self, key: Key) {
        let index = self.line_of(key);
        remove(&mut self.lines[index], key);
        if self.lines[index].is_empty() && self.lines.len() > 1 {
            // One line always stays, so that there is one to insert into.
            self.lines.remove(index);
            self.lows.remove(index);
        } else {
            self.note_low(index);
        }
    }

    #[inline]
    fn note_low(&mut self, index: usize) {
        self.lows[index] = self.lines[index].last().map_or(0, Entry::key);
    }

    #[cold]
    fn cut(&mut self, index: usize) {
        let line = &mut self.lines[index];
        let lower = line.split_off(line.len() / 2);
        self.lines.insert(index + 1, lower);
        self.lows.insert(index + 1, 0);
        self.note_low(index);
        self.note_low(index + 1);
    }
}
