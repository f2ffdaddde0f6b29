//! Losses are means over all elements.

use super::{Sum, dot};

/// loss = Σ (output − target)²/len, with its gradient 2·(output − target)/len.
pub fn mse(output: &[f64], targets: &[f64]) -> (Sum, Vec<Sum>) {
    let scale = 1.0 / output.len() as f64;
    let pairs = || output.iter().zip(targets);
    let loss = dot(pairs().map(|(o, t)| (o - t, o - t))).times(scale);
    let gradient = pairs().map(|(o, t)| Sum::of(*o).plus(Sum::of(-t)).times(2.0 * scale)).collect();
    (loss, gradient)
}

/// total = Σ values
pub fn sum(values: &[f64]) -> Sum {
    dot(values.iter().map(|v| (*v, 1.0)))
}
