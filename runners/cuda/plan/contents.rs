//! Values for memory that nobody has written, as calls.

use crate::programs::computation::{Filling, Given, Source, seed_of};

use super::call::{Argument, Instance, KernelCall, Part, Place, blocks_for, name_of};

const THREADS: u32 = 256;

/// The call that fills a parameter or an input with what stands in it where nobody gave it contents; `None` where it has
/// no elements.
pub(in crate::cuda) fn filling(given: &Given, source: Source) -> Option<KernelCall> {
    if given.elements == 0 {
        return None;
    }
    let counts = [("void*", "out"), ("u64", "count")];
    let seed = u64::from(seed_of(&given.name));
    let (template, parameters, more) = match given.filling {
        Filling::Around { centre, amplitude } => (
            "fill_around",
            [&counts[..], &[("u64", "seed"), ("double", "centre"), ("double", "amplitude")]].concat(),
            vec![Argument::count(seed), Argument::number(f64::from(centre)), Argument::number(f64::from(amplitude))],
        ),
        Filling::Below(below) => (
            "fill_below",
            [&counts[..], &[("u64", "seed"), ("u64", "below")]].concat(),
            vec![Argument::count(seed), Argument::count(below)],
        ),
        Filling::Counting => ("fill_counting", counts.to_vec(), Vec::new()),
    };
    let mut arguments = vec![Argument::At(Place { source, offset_bytes: 0 }), Argument::count(given.elements)];
    arguments.extend(more);
    Some(KernelCall {
        instance: Instance::of_template(Part::Contents, template, &[name_of(given.element)], THREADS, &parameters),
        blocks: blocks_for(given.elements, u64::from(THREADS)),
        threads: THREADS,
        shared_bytes: 0,
        arguments,
    })
}
