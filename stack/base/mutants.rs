//! Named wrong versions of single decisions, compiled only under the feature `mutants`.
//!
//! An invariant nobody tests is a comment. Where a decision carries an invariant, the code states
//! the right expression, its wrong twin, and what would go wrong in the world:
//!
//! ```
//! use headroom_base::mutant;
//! let (analytic, empirical) = (2_u64, 4_u64);
//! let reservation = mutant!(
//!     "margin_on_the_whole_reservation",
//!     "terms that are known exactly would be inflated as if they had been measured",
//!     right: analytic + empirical * 105 / 100,
//!     wrong: (analytic + empirical) * 105 / 100,
//! );
//! assert_eq!(reservation, 6);
//! ```
//!
//! Without the feature the macro expands to the right expression and nothing else: `tests/expansion.rs` compares the
//! assembly of a function with and without it.

/// Chooses between the right expression and its named wrong twin; see the [module](crate::mutants).
#[cfg(not(feature = "mutants"))]
#[macro_export]
macro_rules! mutant {
    ($name:literal, $harm:literal, right: $right:expr, wrong: $wrong:expr $(,)?) => {
        $right
    };
}

/// Chooses between the right expression and its named wrong twin; see the [module](crate::mutants).
#[cfg(feature = "mutants")]
#[macro_export]
macro_rules! mutant {
    ($name:literal, $harm:literal, right: $right:expr, wrong: $wrong:expr $(,)?) => {{
        $crate::mutants::inventory::submit! {
            $crate::mutants::Point { name: $name, harm: $harm, file: file!(), line: line!() }
        }
        if $crate::mutants::is_chosen($name) { $wrong } else { $right }
    }};
}

#[cfg(feature = "mutants")]
pub use chosen::{Point, choose, clear, is_chosen, points, reached};
#[cfg(feature = "mutants")]
#[doc(hidden)]
pub use inventory;

#[cfg(feature = "mutants")]
mod chosen {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, RwLock};

    /// One use of the macro, collected from the code at link time.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Point {
        /// The mutant's name, unique in the program.
        pub name: &'static str,
        /// What goes wrong in the world when this decision is wrong.
        pub harm: &'static str,
        /// The file it stands in.
        pub file: &'static str,
        /// Its line.
        pub line: u32,
    }

    inventory::collect!(Point);

    static CHOSEN: RwLock<Option<&'static str>> = RwLock::new(None);
    static RECORDING: AtomicBool = AtomicBool::new(false);
    static REACHED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

    /// Every mutation point of the program, by name.
    pub fn points() -> Vec<&'static Point> {
        let mut points: Vec<_> = inventory::iter::<Point>.into_iter().collect();
        points.sort_by_key(|point| (point.name, point.file, point.line));
        points
    }

    /// Makes the named mutant the one whose wrong expression runs, in all threads; false if no code has that name.
    pub fn choose(name: &str) -> bool {
        let point = inventory::iter::<Point>.into_iter().find(|point| point.name == name);
        *CHOSEN.write().expect("no holder panics") = point.map(|point| point.name);
        point.is_some()
    }

    /// Goes back to the right expressions everywhere.
    pub fn clear() {
        *CHOSEN.write().expect("no holder panics") = None;
    }

    /// Runs `work` and returns the names of the mutation points it passed through, in any thread.
    pub fn reached<T>(work: impl FnOnce() -> T) -> (T, BTreeSet<&'static str>) {
        REACHED.lock().expect("no holder panics").clear();
        RECORDING.store(true, Ordering::SeqCst);
        let value = work();
        RECORDING.store(false, Ordering::SeqCst);
        (value, std::mem::take(&mut *REACHED.lock().expect("no holder panics")))
    }

    /// Whether the wrong expression of `name` is to run. Called by the macro.
    pub fn is_chosen(name: &'static str) -> bool {
        if RECORDING.load(Ordering::Relaxed) {
            REACHED.lock().expect("no holder panics").insert(name);
        }
        *CHOSEN.read().expect("no holder panics") == Some(name)
    }
}
