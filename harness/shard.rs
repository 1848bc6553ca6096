//! A part of the trials, for runs that are spread over several machines: `HEADROOM_SHARD=2/5`.

use std::fmt;
use std::str::FromStr;

use headroom_base::mutant;

/// The `index`-th of `count` parts, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

/// A text that names no part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("HEADROOM_SHARD is `{text}`: write i/n with 1 <= i <= n, for example 2/5")]
pub struct ParseShardError {
    text: String,
}

impl Shard {
    /// All of it.
    pub const WHOLE: Self = Self { index: 1, count: 1 };

    /// The part that the environment names, or all of it.
    ///
    /// # Errors
    /// When the variable is set to something else.
    pub fn from_environment() -> Result<Self, ParseShardError> {
        crate::variables::value_of("HEADROOM_SHARD").map_or(Ok(Self::WHOLE), |text| text.parse())
    }

    /// The items of this part. All parts together hold every item once.
    pub fn share<T>(self, items: Vec<T>) -> Vec<T> {
        let mine = |position: usize| {
            let first = mutant!(
                "shards_counted_from_zero",
                "trials that fall between the shards never run, and every machine reports green",
                right: self.index - 1,
                wrong: self.index,
            );
            position % self.count == first
        };
        items.into_iter().enumerate().filter(|(position, _)| mine(*position)).map(|(_, item)| item).collect()
    }
}

impl FromStr for Shard {
    type Err = ParseShardError;

    fn from_str(text: &str) -> Result<Self, ParseShardError> {
        let refused = || ParseShardError { text: text.to_owned() };
        let (index, count) = text.split_once('/').ok_or_else(refused)?;
        let index: usize = index.parse().map_err(|_| refused())?;
        let count: usize = count.parse().map_err(|_| refused())?;
        if (1..=count).contains(&index) { Ok(Self { index, count }) } else { Err(refused()) }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_together_hold_every_item_once() {
        let items: Vec<u32> = (0..17).collect();
        let mut together: Vec<u32> = (1..=5).flat_map(|index| Shard { index, count: 5 }.share(items.clone())).collect();
        together.sort_unstable();
        assert_eq!(together, items);
    }

    #[test]
    fn a_part_that_does_not_exist_is_refused_with_the_text() {
        for text in ["0/3", "4/3", "1", "a/b", "1/0", "/"] {
            let error = text.parse::<Shard>().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
