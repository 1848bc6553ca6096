//! Looking up what is shipped for a line: the same environment if there is one, else the most conservative.

use std::fmt;
use std::sync::LazyLock;

use headroom_base::{Estimate, HardEnvironment, LineKey, Source, mutant};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::shipped::{Shipped, ShippedLine};

/// How close what is shipped comes to the environment that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Measured in the same hard environment.
    SameEnvironment,
    /// Measured with the same allocator, but other settings of it or another framework version: the largest
    /// of what is known is taken.
    SameAllocator,
    /// Nothing is known for the allocator: the largest over the others of the same backend is taken.
    OtherAllocators,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameEnvironment => "measured in this environment",
            Self::SameAllocator => "measured with other settings or another framework version; the largest is taken",
            Self::OtherAllocators => "not measured with this allocator; the largest of the others is taken",
        })
    }
}

/// What is shipped for one line, with how it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltIn<'a> {
    first: &'a ShippedLine,
    others: Vec<&'a ShippedLine>,
    basis: Basis,
}

impl<'a> BuiltIn<'a> {
    /// How close it comes to the environment that was asked for.
    pub const fn basis(&self) -> Basis {
        self.basis
    }

    /// The shipped lines that are taken into account, at least one.
    pub fn lines(&self) -> impl Iterator<Item = &'a ShippedLine> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// The reservation for a size: the largest over the lines.
    pub fn estimate(&self, units: u64, analytic_bytes: u64) -> Estimate {
        let of_line = |line: &ShippedLine| {
            let coefficients = &line.coefficients;
            let denominator = coefficients.denominator();
            Estimate::of_fraction(analytic_bytes, coefficients.numerator_at(units), denominator, Source::BuiltIn)
        };
        self.others.iter().fold(of_line(self.first), |largest, line| {
            let next = of_line(line);
            if next.reservation_bytes > largest.reservation_bytes { next } else { largest }
        })
    }
}

/// All shipped lines, ready for lookup.
#[derive(Clone, Debug, Default)]
pub struct BuiltIns {
    by_line: FxHashMap<LineKey, Vec<ShippedLine>>,
}

static COMPILED_IN: LazyLock<BuiltIns> = LazyLock::new(|| {
    let files = [
        include_str!("shipped/cuda-native.json"),
        include_str!("shipped/cuda-expandable_segments.json"),
        include_str!("shipped/cuda-cuda_malloc_async.json"),
    ];
    BuiltIns::new(files.map(|text| Shipped::parse(text).expect("a test reads every compiled-in file")))
});

impl BuiltIns {
    /// Indexes shipped files.
    pub fn new(files: impl IntoIterator<Item = Shipped>) -> Self {
        let mut by_line: FxHashMap<LineKey, Vec<ShippedLine>> = FxHashMap::default();
        for line in files.into_iter().flat_map(|file| file.lines) {
            by_line.entry(line.line.clone()).or_default().push(line);
        }
        Self { by_line }
    }

    /// The files this program was built with.
    pub fn compiled_in() -> &'static Self {
        &COMPILED_IN
    }

    /// What is shipped for a line in an environment.
    ///
    /// Backend, attention kernel, convolution benchmark and memory layout must be the same: they change what
    /// an operation needs by more than any margin. Allocator, its settings and the framework version may
    /// differ; the answer's [`basis`](BuiltIn::basis) says so, and then the largest of all that is known is taken.
    pub fn find(&self, hard: &HardEnvironment, line: &LineKey) -> Option<BuiltIn<'_>> {
        let comparable = |shipped: &&ShippedLine| {
            let there = &shipped.environment;
            there.backend == hard.backend
                && mutant!(
                    "shipped_for_another_kernel_used",
                    "attention that materialises its scores is priced as if it did not",
                    right: there.attention == hard.attention,
                    wrong: true,
                )
                && there.convolution_benchmark == hard.convolution_benchmark
                && there.memory_layout == hard.memory_layout
        };
        let lines = self.by_line.get(line)?;
        let known = || lines.iter().filter(comparable);
        if let Some(first) = known().find(|shipped| is_same(&shipped.environment, hard)) {
            return Some(BuiltIn { first, others: Vec::new(), basis: Basis::SameEnvironment });
        }
        let same_allocator = |shipped: &&ShippedLine| shipped.environment.allocator == hard.allocator;
        gathered(known().filter(same_allocator), Basis::SameAllocator).or_else(|| {
            mutant!(
                "allocator_fall_back_takes_the_first",
                "an allocator nobody measured gets the figure of the thriftiest one and runs out of memory",
                right: gathered(known(), Basis::OtherAllocators),
                wrong: gathered(known().take(1), Basis::OtherAllocators),
            )
        })
    }
}

/// Equality, with every field named so that a new one is not forgotten.
///
/// Texts are compared by length first: comparing the bytes of an empty one, at its dangling address, was measured
/// to cost 150 ns on a processor with masked loads, more than the rest of the lookup.
fn is_same(left: &HardEnvironment, right: &HardEnvironment) -> bool {
    let HardEnvironment {
        backend,
        allocator,
        allocator_settings,
        framework,
        attention,
        convolution_benchmark,
        memory_layout,
    } = left;
    let same_text = |one: &str, other: &str| one.len() == other.len() && (one.is_empty() || one == other);
    *backend == right.backend
        && *allocator == right.allocator
        && *attention == right.attention
        && *convolution_benchmark == right.convolution_benchmark
        && *memory_layout == right.memory_layout
        && same_text(allocator_settings, &right.allocator_settings)
        && same_text(framework, &right.framework)
}

fn gathered<'a>(mut lines: impl Iterator<Item = &'a ShippedLine>, basis: Basis) -> Option<BuiltIn<'a>> {
    let first = lines.next()?;
    Some(BuiltIn { first, others: lines.collect(), basis })
}

/// What this program was built with for a line in an environment; see [`BuiltIns::find`].
pub fn built_in(hard: &HardEnvironment, line: &LineKey) -> Option<BuiltIn<'static>> {
    BuiltIns::compiled_in().find(hard, line)
}
