//! Elementwise functions over broadcast operands.

use headroom_base::DType;

use super::dense::Dense;
use crate::programs::Element;
use crate::programs::computation::Pointwise;

/// How many operands a function takes.
pub(super) fn operands(function: &Pointwise) -> usize {
    use Pointwise as P;
    match function {
        P::Constant(_) | P::Index { .. } => 0,
        P::Add | P::Subtract | P::Multiply | P::Divide | P::Minimum => 2,
        P::ClampTo | P::Choose => 3,
        _ => 1,
    }
}

/// The word shown to people.
pub(super) fn name(function: &Pointwise) -> &'static str {
    use Pointwise as P;
    match function {
        P::Copy => "copy",
        P::Constant(_) => "constant",
        P::Index { .. } => "index",
        P::Add => "add",
        P::Subtract => "subtract",
        P::Multiply => "multiply",
        P::Divide => "divide",
        P::Minimum => "minimum",
        P::ConstantOver(_) => "constant over",
        P::Affine { .. } => "affine",
        P::Over(_) => "over",
        P::Clamp { .. } => "clamp",
        P::ClampTo => "clamp to",
        P::Silu => "silu",
        P::Gelu { .. } => "gelu",
        P::Relu => "relu",
        P::Tanh => "tanh",
        P::Sigmoid => "sigmoid",
        P::Exp => "exp",
        P::PowerOf(_) => "power of",
        P::Power(_) => "power",
        P::Log => "log",
        P::InverseRoot => "inverse root",
        P::Sine => "sine",
        P::Cosine => "cosine",
        P::Magnitude => "magnitude",
        P::IsInfinite => "is infinite",
        P::Equals(_) => "equals",
        P::IsPositive => "is positive",
        P::IsLess(_) => "is less",
        P::Choose => "choose",
        P::MaskLater => "mask later",
    }
}

/// The function at every index of the output. `elements` are the types of all operands and the output.
pub(super) fn compute(function: &Pointwise, reads: &[Dense], written: &[usize], elements: &[Element]) -> Dense {
    let double = elements.iter().any(|element| matches!(element, Element::Fp64 | Element::Int64 | Element::Int32));
    let arithmetic = Arithmetic { double };
    if let Pointwise::Index { dimension, step } = function {
        return Dense::from_fn(written, |index| arithmetic.product(index[*dimension] as f64, *step));
    }
    Dense::from_fn(written, |index| {
        let mut operands = [0.0; 3];
        for (operand, read) in operands.iter_mut().zip(reads) {
            *operand = read.broadcast_at(index);
        }
        match (function, index) {
            (Pointwise::MaskLater, [.., row, column]) if column > row => f64::NEG_INFINITY,
            _ => arithmetic.apply(function, operands),
        }
    })
}

/// The function of single numbers in fp64, to hold what kernels say against.
#[cfg(test)]
pub(crate) fn of_numbers(function: &Pointwise, operands: [f64; 3]) -> f64 {
    Arithmetic { double: true }.apply(function, operands)
}

/// Arithmetic in fp64, or in fp32: then every constant and every result in between is rounded to it.
#[derive(Clone, Copy)]
struct Arithmetic {
    double: bool,
}

impl Arithmetic {
    fn kept(self, value: f64) -> f64 {
        if self.double { value } else { super::memory::rounded(value, Element::Float(DType::Fp32)) }
    }

    fn product(self, a: f64, b: f64) -> f64 {
        self.kept(a * self.kept(b))
    }

    fn sigmoid(self, a: f64) -> f64 {
        self.kept(1.0 / self.kept(1.0 + self.kept((-a).exp())))
    }

    fn gelu(self, a: f64, tanh: bool) -> f64 {
        let inner = if tanh {
            let cube = self.kept(self.kept(a * a) * a);
            let sum = self.kept(a + self.product(cube, 0.044_715));
            self.kept(self.product(sum, (2.0 / std::f64::consts::PI).sqrt()).tanh())
        } else {
            self.kept(libm::erf(self.product(a, std::f64::consts::FRAC_1_SQRT_2)))
        };
        self.kept(self.kept(0.5 * a) * self.kept(1.0 + inner))
    }

    fn apply(self, function: &Pointwise, [a, b, c]: [f64; 3]) -> f64 {
        use Pointwise as P;
        let truth = |holds: bool| f64::from(u8::from(holds));
        let value = match *function {
            P::Copy | P::MaskLater => a,
            P::Constant(constant) => constant,
            P::Index { .. } => unreachable!("an index has no operand and is computed of its own"),
            P::Add => a + b,
            P::Subtract => a - b,
            P::Multiply => a * b,
            P::Divide => a / b,
            P::Minimum => limited(a, f64::NEG_INFINITY, b),
            P::ConstantOver(constant) => self.kept(constant) / a,
            P::Affine { factor, summand } => self.product(a, factor) + self.kept(summand),
            P::Over(constant) => a / self.kept(constant),
            P::Clamp { low, high } => limited(a, self.kept(low), self.kept(high)),
            P::ClampTo => limited(a, b, c),
            P::Silu => a * self.sigmoid(a),
            P::Gelu { tanh } => self.gelu(a, tanh),
            P::Relu => limited(a, 0.0, f64::INFINITY),
            P::Tanh => a.tanh(),
            P::Sigmoid => self.sigmoid(a),
            P::Exp => a.exp(),
            P::PowerOf(base) => self.kept(base).powf(a),
            P::Power(exponent) => a.powf(self.kept(exponent)),
            P::Log => a.ln(),
            P::InverseRoot => 1.0 / self.kept(a.sqrt()),
            P::Sine => a.sin(),
            P::Cosine => a.cos(),
            P::Magnitude => a.abs(),
            P::IsInfinite => truth(a.is_infinite()),
            P::Equals(constant) => truth(a == self.kept(constant)),
            P::IsPositive => truth(a > 0.0),
            P::IsLess(constant) => truth(a < self.kept(constant)),
            P::Choose => {
                if a == 0.0 {
                    c
                } else {
                    b
                }
            }
        };
        self.kept(value)
    }
}

/// `a` in the range; no number stays none.
fn limited(a: f64, low: f64, high: f64) -> f64 {
    if low.is_nan() || high.is_nan() {
        return f64::NAN;
    }
    if a > high {
        high
    } else if a < low {
        low
    } else {
        a
    }
}
