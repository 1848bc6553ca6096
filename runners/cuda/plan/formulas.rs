//! What the texts of elementwise functions come to, held against the reference: also for what is infinite or no number.

use super::pointwise::{Formula, formula_of};
use crate::programs::computation::Pointwise;
use crate::reference::of_numbers;

/// A reader of the few words of C that formulas are written in.
struct Reader<'a> {
    formula: &'a Formula,
    operands: [f64; 3],
    rest: &'a str,
}

impl Reader<'_> {
    /// Whether this comes next; then it is read.
    fn takes(&mut self, word: &str) -> bool {
        let after = self.rest.trim_start().strip_prefix(word);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn expect(&mut self, word: &str) {
        assert!(self.takes(word), "{word:?} is expected before {:?} in {:?}", self.rest, self.formula.text);
    }

    fn choice(&mut self) -> f64 {
        let mut value = self.comparison();
        while self.takes("||") {
            let other = self.comparison();
            value = truth(value != 0.0 || other != 0.0);
        }
        if !self.takes("?") {
            return value;
        }
        let then = self.choice();
        self.expect(":");
        let otherwise = self.choice();
        if value == 0.0 { otherwise } else { then }
    }

    fn comparison(&mut self) -> f64 {
        let left = self.sum();
        if self.takes("==") {
            truth(left == self.sum())
        } else if self.takes("!=") {
            truth(left != self.sum())
        } else if self.takes("<") {
            truth(left < self.sum())
        } else if self.takes(">") {
            truth(left > self.sum())
        } else {
            left
        }
    }

    fn sum(&mut self) -> f64 {
        let mut value = self.product();
        loop {
            if self.takes("+") {
                value += self.product();
            } else if self.takes("-") {
                value -= self.product();
            } else {
                return value;
            }
        }
    }

    fn product(&mut self) -> f64 {
        let mut value = self.factor();
        loop {
            if self.takes("*") {
                value *= self.factor();
            } else if self.takes("/") {
                value /= self.factor();
            } else {
                return value;
            }
        }
    }

    fn factor(&mut self) -> f64 {
        if self.takes("-") {
            return -self.factor();
        }
        let rest = self.rest.trim_start();
        let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        self.rest = rest;
        let ([a, b, c], [p, q]) = (self.operands, self.formula.constants);
        match word {
            "a" => a,
            "b" => b,
            "c" => c,
            "p" => p,
            "q" => q,
            number if number.starts_with(|letter: char| letter.is_ascii_digit()) => {
                number.parse().expect("a number is whole")
            }
            function => {
                self.expect("(");
                let first = self.choice();
                let second = if self.takes(",") { self.choice() } else { 0.0 };
                self.expect(")");
                called(function, first, second)
            }
        }
    }
}

fn truth(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// A function of the kernels' sources, in double precision; without a name, what stands in parentheses.
fn called(function: &str, a: f64, b: f64) -> f64 {
    match function {
        "" | "real" => a,
        "exponential" => a.exp(),
        "logarithm" => a.ln(),
        "root" => a.sqrt(),
        "sine" => a.sin(),
        "cosine" => a.cos(),
        "power" => a.powf(b),
        "hyperbolic_tangent" => a.tanh(),
        "is_infinite" => truth(a.is_infinite()),
        other => panic!("{other:?} is no function of a formula"),
    }
}

/// Every function whose text says all of it.
fn functions() -> Vec<Pointwise> {
    use Pointwise as P;
    let none = f64::NAN;
    let clamps = [(-1.0, 2.0), (none, 2.0), (-1.0, none), (f64::NEG_INFINITY, f64::INFINITY)];
    let clamps = clamps.map(|(low, high)| P::Clamp { low, high });
    let plain = [P::Copy, P::Add, P::Subtract, P::Multiply, P::Divide, P::Minimum, P::ClampTo, P::Silu, P::Relu];
    let more = [P::Tanh, P::Sigmoid, P::Exp, P::Log, P::InverseRoot, P::Sine, P::Cosine, P::Magnitude, P::Choose];
    let asked = [P::IsInfinite, P::IsPositive, P::IsLess(2.0), P::Equals(2.0), P::Equals(none)];
    let by_constants = [
        P::Constant(3.0),
        P::ConstantOver(3.0),
        P::Affine { factor: 2.0, summand: 1.0 },
        P::Over(3.0),
        P::PowerOf(3.0),
        P::Power(3.0),
    ];
    clamps.into_iter().chain(plain).chain(more).chain(asked).chain(by_constants).collect()
}

#[test]
fn every_formula_comes_to_what_the_reference_says_also_of_what_is_infinite_or_no_number() {
    let numbers = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -2.5, 1.0, 2.0];
    for function in functions() {
        let formula = formula_of(function);
        for which in 0..numbers.len().pow(formula.operands as u32) {
            let operands: [f64; 3] =
                std::array::from_fn(|at| numbers[which / numbers.len().pow(at as u32) % numbers.len()]);
            let mut reader = Reader { formula: &formula, operands, rest: formula.text };
            let (found, expected) = (reader.choice(), of_numbers(&function, operands));
            assert_eq!(reader.rest, "", "{:?} is read to its end", formula.text);
            let same = found == expected
                || found.is_nan() && expected.is_nan()
                || (found - expected).abs() <= 1e-12 * expected.abs().min(f64::MAX);
            assert!(same, "{function:?} of {operands:?} is {found} by {:?}, not {expected}", formula.text);
        }
    }
}
