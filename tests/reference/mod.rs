//! Every kernel once more, in f64, as plain loops over its equation: a function for each shader, by its name.
//!
//! An element comes with what its tolerance is derived from: S = Σ|aᵢ·bᵢ| and the number of products. Nothing here knows
//! the GPU or the tests.
#![allow(dead_code)] // each user takes a part

pub mod base;
pub mod lora;
pub mod loss;
pub mod nn;
pub mod optim;

/// The dimensions of one projection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dims {
    pub tokens: usize,
    pub in_features: usize,
    pub out_features: usize,
    pub rank: usize,
}

/// One element: a sum of products.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sum {
    /// Σ aᵢ·bᵢ
    pub value: f64,
    /// S = Σ |aᵢ·bᵢ|
    pub abs: f64,
    /// Number of products.
    pub terms: usize,
    /// What functions in it (exp, a root, a quotient) may err by, in units of 2⁻²⁴.
    pub extra: f64,
}

impl Sum {
    /// `1·value`
    pub fn of(value: f64) -> Sum {
        Sum { value, abs: value.abs(), terms: 1, extra: 0.0 }
    }

    /// `factor·self`
    pub fn times(self, factor: f64) -> Sum {
        let Sum { value, abs, terms, extra } = self;
        Sum { value: factor * value, abs: factor.abs() * abs, terms, extra: factor.abs() * extra }
    }

    /// `self + other`
    pub fn plus(self, other: Sum) -> Sum {
        Sum {
            value: self.value + other.value,
            abs: self.abs + other.abs,
            terms: self.terms + other.terms,
            extra: self.extra + other.extra,
        }
    }
}

/// Σ over the pairs.
fn dot(pairs: impl Iterator<Item = (f64, f64)>) -> Sum {
    pairs.fold(Sum::default(), |sum, (a, b)| sum.plus(Sum::of(a * b)))
}

/// `[rows, columns]`, row-major.
fn matrix(rows: usize, columns: usize, element: impl Fn(usize, usize) -> Sum) -> Vec<Sum> {
    (0..rows * columns).map(|i| element(i / columns, i % columns)).collect()
}

/// The values alone.
pub fn values(sums: &[Sum]) -> Vec<f64> {
    sums.iter().map(|sum| sum.value).collect()
}

/// Sums over a product chain: its value, and as S the same chain over absolute values; `terms` counts along the chain.
fn chain(value: &[Sum], abs: &[Sum], terms: usize) -> Vec<Sum> {
    value.iter().zip(abs).map(|(v, s)| Sum { value: v.value, abs: s.value, terms, extra: 0.0 }).collect()
}

fn abs(values: &[f64]) -> Vec<f64> {
    values.iter().map(|v| v.abs()).collect()
}

/// σ(z) = 1/(1 + e⁻ᶻ). An exponential errs by 3 + 2·|z| ulp, of 2 roundings each, by which σ changes times 1 − σ; the sum
/// has 1 rounding and the quotient 5.
fn logistic(z: f64) -> Sum {
    let [value, rest] = [z, -z].map(|z| if z < 0.0 { z.exp() / (1.0 + z.exp()) } else { 1.0 / (1.0 + (-z).exp()) });
    Sum { value, extra: 6.0 * value + (6.0 + 4.0 * z.abs()) * value * rest, ..Sum::default() }
}
