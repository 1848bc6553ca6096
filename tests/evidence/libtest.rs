//! What a test program printed: which trials it ran, what each said and how it ended.

use std::collections::{BTreeMap, BTreeSet};

/// What a line says that ends a trial.
const ENDINGS: [&str; 3] = ["ok", "FAILED", "ignored"];

/// One trial.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tried {
    pub(crate) name: String,
    /// The lines it printed itself.
    pub(crate) said: Vec<String>,
    /// One of [`ENDINGS`]; empty where the text ends before it does.
    pub(crate) ending: String,
}

/// How many trials ended how, by the closing lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Closing {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
}

/// One run, or several one after the other.
#[derive(Debug, Default)]
pub(crate) struct Printed {
    pub(crate) trials: Vec<Tried>,
    /// None where no run came to its end.
    pub(crate) closing: Option<Closing>,
}

impl Printed {
    pub(crate) fn of(text: &str) -> Self {
        let mut printed = Self::default();
        for line in text.lines().filter(|line| !line.starts_with("# ")) {
            if let Some(closing) = line.strip_prefix("test result: ") {
                printed.closing = Some(printed.closing.unwrap_or_default().with(closing));
            } else if let Some((name, rest)) = begun(line) {
                let mut trial = Tried { name: name.to_owned(), said: Vec::new(), ending: String::new() };
                trial.take(rest);
                printed.trials.push(trial);
            } else if let Some(trial) = printed.trials.last_mut().filter(|trial| trial.ending.is_empty()) {
                trial.take(line);
            }
        }
        printed
    }

    pub(crate) fn trial(&self, name: &str) -> Option<&Tried> {
        self.trials.iter().find(|trial| trial.name == name)
    }

    /// The checks of each `FIRST::SECOND` before them.
    pub(crate) fn checks(&self) -> BTreeMap<(&str, &str), BTreeSet<&str>> {
        let mut checks: BTreeMap<_, BTreeSet<&str>> = BTreeMap::new();
        for trial in &self.trials {
            if let [first, second, check] = trial.name.split("::").collect::<Vec<_>>()[..] {
                checks.entry((first, second)).or_default().insert(check);
            }
        }
        checks
    }

    /// Fails unless every trial passed, and as many as the closing lines say.
    pub(crate) fn assert_all_passed(&self, what: &str) {
        let closing = self.closing.unwrap_or_else(|| panic!("{what}: no closing line"));
        for trial in &self.trials {
            assert_eq!(trial.ending, "ok", "{what}: {}", trial.name);
        }
        assert_eq!(closing, Closing { passed: self.trials.len(), failed: 0, ignored: 0 }, "{what}");
        assert!(closing.passed > 0, "{what}: nothing ran");
    }
}

impl Closing {
    /// With the counts of one more closing line.
    fn with(self, line: &str) -> Self {
        let count = |word: &str| {
            let counted = line.split(['.', ';']).map(str::trim).find_map(|part| part.strip_suffix(word));
            counted.and_then(|number| number.trim().parse::<usize>().ok()).unwrap_or_else(|| panic!("{word} in {line}"))
        };
        Self {
            passed: self.passed + count(" passed"),
            failed: self.failed + count(" failed"),
            ignored: self.ignored + count(" ignored"),
        }
    }
}

impl Tried {
    fn take(&mut self, line: &str) {
        if ENDINGS.contains(&line) {
            line.clone_into(&mut self.ending);
        } else if !line.is_empty() {
            self.said.push(line.to_owned());
        }
    }
}

/// The name of the trial that a line begins, and what stands behind it.
fn begun(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once("... ")?;
    let name = name.trim_end();
    (!name.contains(' ')).then_some((name, rest))
}

#[test]
fn what_a_trial_says_belongs_to_it_and_a_failure_is_one() {
    let text = "# commit abc\n\nrunning 3 tests\ntest a::b::one   ... 1 MiB on the first\nmore of it\nok\ntest a::b::two ... \
                FAILED\ntest c::d::three ... ignored\n\ntest result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 \
                filtered out; finished in 2.35s\n";
    let printed = Printed::of(text);
    let endings: Vec<&str> = printed.trials.iter().map(|trial| trial.ending.as_str()).collect();
    assert_eq!(endings, ["ok", "FAILED", "ignored"]);
    assert_eq!(printed.trial("a::b::one").unwrap().said, ["1 MiB on the first", "more of it"]);
    assert_eq!(printed.closing, Some(Closing { passed: 1, failed: 1, ignored: 1 }));
    assert_eq!(printed.checks()[&("a", "b")], BTreeSet::from(["one", "two"]));
    let twice = Printed::of(&text.repeat(2));
    assert_eq!(twice.closing, Some(Closing { passed: 2, failed: 2, ignored: 2 }));
    assert_eq!(Printed::of("test a::b::one ... said, and no more\n").closing, None);
}
