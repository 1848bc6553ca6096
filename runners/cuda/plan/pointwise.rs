//! Elementwise functions as kernels' texts, one for each function and its element types.

use crate::cuda::error::CudaError;
use crate::programs::Element;
use crate::programs::computation::{Pointwise, View};

use super::call::{Argument, Call, Instance, KernelCall, Place, blocks_for, name_of};
use super::walk::{Walk, broadcast};

const THREADS: u32 = 256;
/// Elements that a thread takes at once where all operands are dense.
const AT_ONCE: u64 = 4;

/// A function as C says it: over `a`, `b`, `c` (operands), `p`, `q` (constants), `index` and `other_index` (places in the
/// output), all of type `real`. What is no number fails every comparison but `!=`, and is to come out as it went in.
pub(super) struct Formula {
    name: &'static str,
    pub(super) operands: usize,
    pub(super) constants: [f64; 2],
    pub(super) text: &'static str,
}

/// `a` limited to a range; where one of its ends is no number, the outcome is none.
macro_rules! clamped {
    ($low:literal, $high:literal) => {
        concat!(
            $low, " != ", $low, " || ", $high, " != ", $high, " ? ", $low, " + ", $high, " : (a > ", $high, " ? ",
            $high, " : (a < ", $low, " ? ", $low, " : a))"
        )
    };
}

const fn formula(name: &'static str, operands: usize, text: &'static str) -> Formula {
    Formula { name, operands, constants: [0.0; 2], text }
}

fn with(constants: [f64; 2], name: &'static str, operands: usize, text: &'static str) -> Formula {
    Formula { name, operands, constants, text }
}

/// How a function is written.
pub(super) fn formula_of(function: Pointwise) -> Formula {
    match function {
        Pointwise::Copy => formula("copy", 1, "a"),
        Pointwise::Constant(value) => with([value, 0.0], "constant", 0, "p"),
        Pointwise::Index { step, .. } => with([step, 0.0], "index", 0, "index * p"),
        Pointwise::Add => formula("add", 2, "a + b"),
        Pointwise::Subtract => formula("subtract", 2, "a - b"),
        Pointwise::Multiply => formula("multiply", 2, "a * b"),
        Pointwise::Divide => formula("divide", 2, "a / b"),
        Pointwise::Minimum => formula("minimum", 2, "a > b || b != b ? b : a"),
        Pointwise::ConstantOver(value) => with([value, 0.0], "constant_over", 1, "p / a"),
        Pointwise::Affine { factor, summand } => with([factor, summand], "affine", 1, "p * a + q"),
        Pointwise::Over(value) => with([value, 0.0], "over", 1, "a / p"),
        Pointwise::Clamp { low, high } => with([low, high], "clamp", 1, clamped!("p", "q")),
        Pointwise::ClampTo => formula("clamp_to", 3, clamped!("b", "c")),
        Pointwise::Silu => formula("silu", 1, "a / (real(1) + exponential(-a))"),
        Pointwise::Gelu { tanh: false } => formula("gelu", 1, "gelu_exact(a)"),
        Pointwise::Gelu { tanh: true } => formula("gelu_tanh", 1, "gelu_by_tanh(a)"),
        Pointwise::Relu => formula("relu", 1, "a < real(0) ? real(0) : a"),
        Pointwise::Tanh => formula("tanh", 1, "hyperbolic_tangent(a)"),
        Pointwise::Sigmoid => formula("sigmoid", 1, "real(1) / (real(1) + exponential(-a))"),
        Pointwise::Exp => formula("exp", 1, "exponential(a)"),
        Pointwise::PowerOf(value) => with([value, 0.0], "power_of", 1, "power(p, a)"),
        Pointwise::Power(value) => with([value, 0.0], "power", 1, "power(a, p)"),
        Pointwise::Log => formula("log", 1, "logarithm(a)"),
        Pointwise::InverseRoot => formula("inverse_root", 1, "real(1) / root(a)"),
        Pointwise::Sine => formula("sine", 1, "sine(a)"),
        Pointwise::Cosine => formula("cosine", 1, "cosine(a)"),
        Pointwise::Magnitude => formula("magnitude", 1, "a < real(0) ? -a : a"),
        Pointwise::IsInfinite => formula("is_infinite", 1, "real(is_infinite(a))"),
        Pointwise::Equals(value) => with([value, 0.0], "equals", 1, "real(a == p)"),
        Pointwise::IsPositive => formula("is_positive", 1, "real(a > real(0))"),
        Pointwise::IsLess(value) => with([value, 0.0], "is_less", 1, "real(a < p)"),
        Pointwise::Choose => formula("choose", 3, "a != real(0) ? b : c"),
        Pointwise::MaskLater => formula("mask_later", 1, "index > other_index ? real(minus_infinity()) : a"),
    }
}

/// The dimensions of an output whose indices a function is over.
fn indices_of(function: Pointwise, rank: usize) -> Result<Vec<usize>, CudaError> {
    match function {
        Pointwise::Index { dimension, .. } if dimension < rank => Ok(vec![dimension]),
        Pointwise::MaskLater if rank >= 2 => Ok(vec![rank - 1, rank - 2]),
        Pointwise::Index { .. } | Pointwise::MaskLater => {
            Err(CudaError::NoKernel { what: format!("{function:?} over {rank} dimensions") })
        }
        _ => Ok(Vec::new()),
    }
}

/// Whether arithmetic over an element type is in double precision.
pub(super) const fn is_wide(element: Element) -> bool {
    matches!(element, Element::Fp64 | Element::Int64 | Element::Int32)
}

/// The call that computes a function of some views into another.
pub(super) fn call(function: Pointwise, reads: &[View], output: &View) -> Result<Option<Call>, CudaError> {
    let formula = formula_of(function);
    if reads.len() != formula.operands {
        return Err(CudaError::NoKernel { what: format!("{} of {} operands", formula.name, reads.len()) });
    }
    if output.elements() == 0 {
        return Ok(None);
    }
    let sizes = &output.sizes;
    let mut strides: Vec<Vec<u64>> = vec![output.strides.clone()];
    strides.extend(reads.iter().map(|view| broadcast(view, sizes)));
    let indices = indices_of(function, sizes.len())?;
    for dimension in &indices {
        strides.push((0..sizes.len()).map(|own| u64::from(own == *dimension)).collect());
    }
    let walk = Walk::over(sizes, &strides.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    let dense = indices.is_empty() && walk.is_dense(strides.len());
    let threads = if dense { walk.count.div_ceil(AT_ONCE) } else { walk.count };
    let mut arguments = vec![Argument::Words(walk.words()), Argument::count(u64::from(dense))];
    arguments.push(Argument::At(Place::of(output)));
    arguments.extend((0..3).map(|operand| Argument::maybe(reads.get(operand))));
    arguments.extend(formula.constants.map(Argument::number));
    let elements: Vec<Element> = reads.iter().map(|view| view.element).collect();
    Ok(Some(Call::Kernel(KernelCall {
        instance: instance(&formula, output.element, &elements, indices.len()),
        blocks: blocks_for(threads, u64::from(THREADS)),
        threads: THREADS,
        shared_bytes: 0,
        arguments,
    })))
}

/// Adds an operand to a view in place.
pub(super) fn added(output: &View, operand: &View) -> Result<Call, CudaError> {
    let nothing = || CudaError::NoKernel { what: "a sum of nothing".to_owned() };
    call(Pointwise::Add, &[output.clone(), operand.clone()], output)?.ok_or_else(nothing)
}

/// The text of a kernel: a loop over groups of neighbours where all operands are dense, and one over single elements.
fn instance(formula: &Formula, output: Element, reads: &[Element], indices: usize) -> Instance {
    let real = if is_wide(output) || reads.iter().any(|element| is_wide(*element)) { "double" } else { "float" };
    let out = name_of(output);
    let name = std::iter::once(out).chain(reads.iter().map(|element| name_of(*element))).collect::<Vec<_>>().join("_");
    let name = format!("{}_{name}", formula.name);
    let letters = ["a", "b", "c"];
    let used = || letters.iter().zip(reads);
    let groups: String = used()
        .map(|(letter, element)| {
            format!("            group4<{0}> {letter}4 = ((const group4<{0}>*){letter}_at)[i];\n", name_of(*element))
        })
        .collect();
    let members: String =
        used().map(|(letter, _)| format!("                real {letter} = real(widen({letter}4.at[j]));\n")).collect();
    let loads: String = used()
        .zip(1..)
        .map(|((letter, element), operand)| {
            format!(
                "        real {letter} = real(widen(((const {}*){letter}_at)[at[{operand}]]));\n",
                name_of(*element)
            )
        })
        .collect();
    let operands = 1 + reads.len() + indices;
    let index: String = ["index", "other_index"][..indices]
        .iter()
        .zip(1 + reads.len()..)
        .map(|(name, operand)| format!("        real {name} = real(at[{operand}]);\n"))
        .collect();
    let dense = if indices > 0 {
        String::new()
    } else {
        format!(
            "    if (dense && aligned4<{out}>(out){aligned}) {{\n        u64 whole = walk.count / 4;\n        \
             for (u64 i = first_index(); i < whole; i += index_step()) {{\n{groups}            \
             group4<{out}> out4;\n            for (int j = 0; j < 4; ++j) {{\n{members}                \
             narrow(out4.at[j], {text});\n            }}\n            ((group4<{out}>*)out)[i] = out4;\n        }}\n        \
             start = whole * 4;\n    }}\n",
            aligned = used()
                .map(|(letter, element)| format!(" && aligned4<{}>({letter}_at)", name_of(*element)))
                .collect::<String>(),
            text = formula.text,
        )
    };
    let text = format!(
        "extern \"C\" __global__ void __launch_bounds__({THREADS}) {name}(const Walk walk, u64 dense, void* out, \
         const void* a_at, const void* b_at, const void* c_at, double first, double second) {{\n    \
         typedef {real} real;\n    const real p = real(first), q = real(second);\n    (void)p; (void)q;\n    \
         u64 start = 0;\n{dense}    \
         for (u64 i = start + first_index(); i < walk.count; i += index_step()) {{\n        u64 at[{operands}];\n        \
         locate<{operands}>(walk, i, at);\n{loads}{index}        \
         narrow((({out}*)out)[at[0]], {text});\n    }}\n}}\n",
        text = formula.text,
    );
    Instance { name, part: None, text }
}

#[cfg(test)]
mod tests {
    use headroom_base::DType;

    use super::*;
    use crate::programs::computation::Source;

    const HALF: Element = Element::Float(DType::Fp16);

    fn view(element: Element, sizes: &[u64], strides: &[u64]) -> View {
        View { source: Source::Input(0), element, offset: 0, sizes: sizes.to_vec(), strides: strides.to_vec() }
    }

    fn kernel(function: Pointwise, reads: &[View], output: &View) -> KernelCall {
        match call(function, reads, output) {
            Ok(Some(Call::Kernel(kernel))) => kernel,
            other => panic!("a kernel was expected, not {other:?}"),
        }
    }

    #[test]
    fn a_text_reads_each_operand_in_its_type_and_rounds_once_on_the_way_out() {
        let (half, single) = (view(HALF, &[8], &[1]), view(Element::FP32, &[8], &[1]));
        let KernelCall { instance, .. } = kernel(Pointwise::Multiply, &[half.clone(), single], &half);
        assert_eq!(instance.name, "multiply_f16_f16_f32");
        assert!(instance.text.contains("typedef float real;"));
        assert!(instance.text.contains("real b = real(widen(((const f32*)b_at)[at[2]]));"));
        assert_eq!(instance.text.matches("narrow(").count(), 2);
        assert_eq!(instance.text.matches('{').count(), instance.text.matches('}').count());
    }

    #[test]
    fn integers_and_doubles_are_computed_in_double_precision_and_masks_in_single() {
        let half = view(HALF, &[8], &[1]);
        for (element, real) in [(Element::Int64, "double"), (Element::Fp64, "double"), (Element::Bool, "float")] {
            let text = kernel(Pointwise::Copy, &[view(element, &[8], &[1])], &half).instance.text;
            assert!(text.contains(&format!("typedef {real} real;")), "{element:?}");
        }
    }

    #[test]
    fn constants_are_arguments_so_that_one_kernel_serves_them_all() {
        let half = view(HALF, &[8], &[1]);
        let affine = |factor| kernel(Pointwise::Affine { factor, summand: 1.0 }, std::slice::from_ref(&half), &half);
        assert_eq!(affine(2.0).instance, affine(3.0).instance);
        assert_ne!(affine(2.0).arguments, affine(3.0).arguments);
    }

    #[test]
    fn an_index_comes_from_the_walk_and_is_never_taken_in_groups() {
        let counted = view(Element::Int64, &[8], &[1]);
        let KernelCall { instance, arguments, .. } =
            kernel(Pointwise::Index { dimension: 0, step: 1.0 }, &[], &counted);
        assert!(instance.text.contains("real index = real(at[1]);"));
        assert!(!instance.text.contains("group4"));
        assert_eq!(arguments[1], Argument::count(0));
    }

    #[test]
    fn nothing_is_launched_for_no_elements_and_too_few_operands_are_refused() {
        let empty = view(HALF, &[0, 8], &[8, 1]);
        assert_eq!(call(Pointwise::Copy, std::slice::from_ref(&empty), &empty).unwrap(), None);
        assert!(call(Pointwise::Add, std::slice::from_ref(&empty), &empty).is_err());
    }
}
