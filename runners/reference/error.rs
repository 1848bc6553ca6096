//! What a computation can be refused for.

use crate::programs::computation::Source;
use crate::programs::{Element, TensorId};

/// What is wrong with one launch, or with one view.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    /// A view of a tensor that does not live at that moment.
    #[error("tensor {} does not live here: it is not allocated yet, or freed already", .0.0)]
    NotLive(TensorId),
    /// A view of an input or parameter that there is not.
    #[error("there is no {of:?}: the computation has {count} of them")]
    NoSuchGiven {
        /// What was looked at.
        of: Source,
        /// How many there are.
        count: usize,
    },
    /// A view of some elements of no memory.
    #[error("a view of nothing has {elements} elements")]
    NoMemory {
        /// How many.
        elements: u64,
    },
    /// A view with more or fewer strides than sizes.
    #[error("a view has {sizes} sizes and {strides} strides")]
    Strides {
        /// Sizes it has.
        sizes: usize,
        /// Strides it has.
        strides: usize,
    },
    /// A view that reaches beyond its memory.
    #[error("a view of {of:?} reaches element {}, and the last is {}", spelled(*last), spelled(elements.checked_sub(1)))]
    OutOfBounds {
        /// Whose memory.
        of: Source,
        /// The last element it reaches; none where that is beyond counting.
        last: Option<u64>,
        /// Elements that are there.
        elements: u64,
    },
    /// A view in another element type than that in which the memory is used.
    #[error("a view takes memory of {memory:?} for {view:?}")]
    ElementType {
        /// That of the memory.
        memory: Element,
        /// That of the view.
        view: Element,
    },
    /// A read of what nobody has written.
    #[error("it reads element {element} of {of:?}, which nobody has written")]
    Unwritten {
        /// Whose memory.
        of: Source,
        /// The first such element.
        element: usize,
    },
    /// A write to an input or parameter.
    #[error("it writes to {0:?}, which belongs to the caller")]
    WritesGiven(Source),
    /// A launch that writes one element more than once.
    #[error("it writes element {element} of {of:?} twice")]
    WritesTwice {
        /// Whose memory.
        of: Source,
        /// The first such element.
        element: usize,
    },
    /// A launch that reads what it writes elsewhere: the result depends on the order of its threads.
    #[error("it writes element {element} of {of:?} and reads it for another one")]
    Overlap {
        /// Whose memory.
        of: Source,
        /// The first such element.
        element: usize,
    },
    /// The wrong number of operands.
    #[error("it has {found} {what}, and takes {takes}")]
    Operands {
        /// Reads or writes.
        what: &'static str,
        /// How many it has.
        found: usize,
        /// What it takes.
        takes: &'static str,
    },
    /// Operands whose sizes do not fit together.
    #[error("{what}: {found:?}")]
    Shape {
        /// What must hold.
        what: &'static str,
        /// The sizes of the operands it was asked of.
        found: Vec<Vec<u64>>,
    },
    /// An index that points nowhere.
    #[error("index {index} does not point into {rows} rows")]
    Index {
        /// The index.
        index: f64,
        /// Rows there are.
        rows: usize,
    },
}

/// Why a computation was not executed to its end: a mistake of the program, or contents that do not fit it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReferenceError {
    /// A launch that cannot be right.
    #[error("launch {number}, {kernel} at {place}: {problem}")]
    Launch {
        /// Its place in the computation's launches.
        number: usize,
        /// What it computes.
        kernel: &'static str,
        /// Where the tensor that it writes is made.
        place: String,
        /// What is wrong.
        problem: Problem,
    },
    /// A launch that stands before an earlier one, or after the end.
    #[error("launch {number} stands after {after} steps: launches are in order, and the program has {steps} steps")]
    Order {
        /// Its place in the computation's launches.
        number: usize,
        /// Where it stands.
        after: usize,
        /// Steps of the program.
        steps: usize,
    },
    /// A step that allocates what lives or frees what does not.
    #[error("step {number} allocates a tensor that lives or frees one that does not: tensor {}", tensor.0)]
    Step {
        /// Its place in the program.
        number: usize,
        /// The tensor.
        tensor: TensorId,
    },
    /// A result that cannot be read.
    #[error("output {number}: {problem}")]
    Output {
        /// Its place in the computation's outputs.
        number: usize,
        /// What is wrong.
        problem: Problem,
    },
    /// Contents of another length than the tensor they are for.
    #[error("{name} has {elements} elements, and its contents {found}")]
    Contents {
        /// The input or parameter.
        name: String,
        /// Elements it has.
        elements: u64,
        /// Values given.
        found: usize,
    },
    /// Contents for what the computation does not have.
    #[error("the computation has neither an input nor a parameter named {name}")]
    UnknownContents {
        /// The name.
        name: String,
    },
}

fn spelled(element: Option<u64>) -> String {
    element.map_or_else(|| "none".to_owned(), |element| element.to_string())
}
