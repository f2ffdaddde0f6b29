//! `W [out_features, in_features]`, `bias [out_features]`.

use super::{Dims, Sum, dot, matrix};

/// output = x·Wᵀ + bias: output[t, o] = Σᵢ x[t, i]·W[o, i] + bias[o]
pub fn linear_f32(d: Dims, weight: &[f64], bias: Option<&[f64]>, x: &[f64]) -> Vec<Sum> {
    matrix(d.tokens, d.out_features, |t, o| {
        let product = dot((0..d.in_features).map(|i| (x[t * d.in_features + i], weight[o * d.in_features + i])));
        bias.map_or(product, |bias| product.plus(Sum::of(bias[o])))
    })
}

/// [`linear_f32`] of one token.
pub fn linear_f32_gemv(d: Dims, weight: &[f64], bias: Option<&[f64]>, x: &[f64]) -> Vec<Sum> {
    linear_f32(Dims { tokens: 1, ..d }, weight, bias, x)
}

/// [`linear_f32`]
pub fn linear_f32_vec4(d: Dims, weight: &[f64], bias: Option<&[f64]>, x: &[f64]) -> Vec<Sum> {
    linear_f32(d, weight, bias, x)
}

/// d_input = d_output·W: d_input[t, i] = Σₒ d_output[t, o]·W[o, i]
pub fn linear_f32_t(d: Dims, weight: &[f64], d_output: &[f64]) -> Vec<Sum> {
    matrix(d.tokens, d.in_features, |t, i| {
        dot((0..d.out_features).map(|o| (d_output[t * d.out_features + o], weight[o * d.in_features + i])))
    })
}

/// [`linear_f32_t`] of one token.
pub fn linear_f32_t_gemv(d: Dims, weight: &[f64], d_output: &[f64]) -> Vec<Sum> {
    linear_f32_t(Dims { tokens: 1, ..d }, weight, d_output)
}

/// [`linear_f32_t`]
pub fn linear_f32_t_vec4(d: Dims, weight: &[f64], d_output: &[f64]) -> Vec<Sum> {
    linear_f32_t(d, weight, d_output)
}
