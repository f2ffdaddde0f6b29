//! `W [out_features, in_features]`, `bias [out_features]`; weights as files have them, dequantised by the formats' definitions.

use super::{Dims, Sum, dot, matrix};

// ── weights ──

/// Which half of the ternary formats' names applies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Ternary {
    I2S,
    Transformers,
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]))
}

/// A half-precision number: (−1)^sign · 2^(exponent − 15) · 1.fraction, subnormal where the exponent is 0.
pub fn half(bits: u16) -> f64 {
    let (sign, exponent, fraction) = (bits >> 15, bits >> 10 & 31, f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 => panic!("a half that is not finite"),
        e => (1024.0 + fraction) * 2f64.powi(i32::from(e) - 25),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

pub fn weight_f32(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into()).collect()
}

/// [`weight_f32`], of any width.
pub fn weight_f32_any(bytes: &[u8]) -> Vec<f64> {
    weight_f32(bytes)
}

pub fn weight_f16(bytes: &[u8]) -> Vec<f64> {
    halves(bytes).map(half).collect()
}

/// [`weight_f16`], read in another way.
pub fn weight_half(bytes: &[u8]) -> Vec<f64> {
    weight_f16(bytes)
}

pub fn weight_bf16(bytes: &[u8]) -> Vec<f64> {
    halves(bytes).map(|bits| f32::from_bits(u32::from(bits) << 16).into()).collect()
}

/// Codes less 1, times the scale: of i2_s the last four bytes, of transformers' packing given.
pub fn weight_ternary(bytes: &[u8], packing: Ternary, rows: usize, columns: usize, scale: f64) -> Vec<f64> {
    let n = rows * columns;
    let code = |i: usize| match packing {
        Ternary::I2S => {
            let (block, at) = (i / 128, i % 128);
            bytes[32 * block + at % 32] >> (6 - 2 * (at / 32)) & 3
        }
        Ternary::Transformers => {
            let (row, column, quarter) = (i / columns, i % columns, rows / 4);
            bytes[row % quarter * columns + column] >> (2 * (row / quarter)) & 3
        }
    };
    let scale = match packing {
        Ternary::I2S => f32::from_le_bytes(bytes[n / 4..n / 4 + 4].try_into().unwrap()).into(),
        Ternary::Transformers => scale,
    };
    (0..n).map(|i| scale * (f64::from(code(i)) - 1.0)).collect()
}

/// Blocks of a factor and 32 numbers of 8 bits.
pub fn weight_q8_0(bytes: &[u8]) -> Vec<f64> {
    bytes
        .chunks_exact(34)
        .flat_map(|b| {
            let d = half(u16::from_le_bytes([b[0], b[1]]));
            b[2..].iter().map(move |q| d * f64::from(*q as i8)).collect::<Vec<_>>()
        })
        .collect()
}

/// The 32 numbers of 4 bits in 16 bytes: first the lower halves, then the upper ones.
fn nibbles(bytes: &[u8]) -> Vec<f64> {
    bytes.iter().map(|b| f64::from(b & 15)).chain(bytes.iter().map(|b| f64::from(b >> 4))).collect()
}

/// Blocks of a factor and 32 numbers of 4 bits, less 8.
pub fn weight_q4_0(bytes: &[u8]) -> Vec<f64> {
    bytes
        .chunks_exact(18)
        .flat_map(|b| {
            let d = half(u16::from_le_bytes([b[0], b[1]]));
            nibbles(&b[2..]).into_iter().map(move |q| d * (q - 8.0))
        })
        .collect()
}

/// Blocks of a factor, an offset and 32 numbers of 4 bits.
pub fn weight_q4_1(bytes: &[u8]) -> Vec<f64> {
    bytes
        .chunks_exact(20)
        .flat_map(|b| {
            let [d, m] = [half(u16::from_le_bytes([b[0], b[1]])), half(u16::from_le_bytes([b[2], b[3]]))];
            nibbles(&b[4..]).into_iter().map(move |q| d * q + m)
        })
        .collect()
}

// ── products ──

/// output = x·Wᵀ + bias: output[t, o] = Σᵢ x[t, i]·W[o, i] + bias[o]
pub fn linear(d: Dims, weight: &[f64], bias: Option<&[f64]>, x: &[f64]) -> Vec<Sum> {
    matrix(d.tokens, d.out_features, |t, o| {
        let product = dot((0..d.in_features).map(|i| (x[t * d.in_features + i], weight[o * d.in_features + i])));
        bias.map_or(product, |bias| product.plus(Sum::of(bias[o])))
    })
}

/// [`linear`] of one token.
pub fn linear_gemv(d: Dims, weight: &[f64], bias: Option<&[f64]>, x: &[f64]) -> Vec<Sum> {
    linear(Dims { tokens: 1, ..d }, weight, bias, x)
}

/// [`linear_gemv`]
pub fn linear_gemv_subgroups(d: Dims, weight: &[f64], bias: Option<&[f64]>, x: &[f64]) -> Vec<Sum> {
    linear_gemv(d, weight, bias, x)
}

/// [`linear`]
pub fn linear_half(d: Dims, weight: &[f64], bias: Option<&[f64]>, x: &[f64]) -> Vec<Sum> {
    linear(d, weight, bias, x)
}

/// [`linear`]
pub fn linear_vec4(d: Dims, weight: &[f64], bias: Option<&[f64]>, x: &[f64]) -> Vec<Sum> {
    linear(d, weight, bias, x)
}

/// [`linear`]
pub fn linear_wide(d: Dims, weight: &[f64], bias: Option<&[f64]>, x: &[f64]) -> Vec<Sum> {
    linear(d, weight, bias, x)
}

/// [`linear`]
pub fn linear_quad(d: Dims, weight: &[f64], bias: Option<&[f64]>, x: &[f64]) -> Vec<Sum> {
    linear(d, weight, bias, x)
}

/// d_input = d_output·W: d_input[t, i] = Σₒ d_output[t, o]·W[o, i]
pub fn linear_t(d: Dims, weight: &[f64], d_output: &[f64]) -> Vec<Sum> {
    matrix(d.tokens, d.in_features, |t, i| {
        dot((0..d.out_features).map(|o| (d_output[t * d.out_features + o], weight[o * d.in_features + i])))
    })
}

/// [`linear_t`] of one token.
pub fn linear_t_gemv(d: Dims, weight: &[f64], d_output: &[f64]) -> Vec<Sum> {
    linear_t(Dims { tokens: 1, ..d }, weight, d_output)
}

/// [`linear_t`]
pub fn linear_t_half(d: Dims, weight: &[f64], d_output: &[f64]) -> Vec<Sum> {
    linear_t(d, weight, d_output)
}

/// [`linear_t`]
pub fn linear_t_vec4(d: Dims, weight: &[f64], d_output: &[f64]) -> Vec<Sum> {
    linear_t(d, weight, d_output)
}

/// [`linear_t`]
pub fn linear_t_wide(d: Dims, weight: &[f64], d_output: &[f64]) -> Vec<Sum> {
    linear_t(d, weight, d_output)
}

/// leftᵀ·right: d_weight[o, i] = Σₜ left[t, o]·right[t, i]
pub fn linear_grad(d: Dims, left: &[f64], right: &[f64]) -> Vec<Sum> {
    matrix(d.out_features, d.in_features, |o, i| {
        dot((0..d.tokens).map(|t| (left[t * d.out_features + o], right[t * d.in_features + i])))
    })
}

/// [`linear_t`]
pub fn linear_t_quad(d: Dims, weight: &[f64], d_output: &[f64]) -> Vec<Sum> {
    linear_t(d, weight, d_output)
}

/// output[t] = W[ids[t]]
pub fn rows(d: Dims, weight: &[f64], ids: &[usize]) -> Vec<Sum> {
    matrix(ids.len(), d.in_features, |t, i| Sum::of(weight[ids[t] * d.in_features + i]))
}

/// squares[o] = Σᵢ W[o, i]²
pub fn row_squares(features: usize, weight: &[f64]) -> Vec<Sum> {
    weight.chunks_exact(features).map(|row| dot(row.iter().map(|w| (*w, *w)))).collect()
}

// ── activations ──

/// The columns of x, then zeros up to a multiple of four.
pub fn pad_rows(features: usize, x: &[f64]) -> Vec<f64> {
    let pad = features.next_multiple_of(4) - features;
    x.chunks_exact(features).flat_map(|row| row.iter().copied().chain(vec![0.0; pad])).collect()
}

/// output = round(s·x)/s, s = 127/max(max|x|, 10⁻⁵), with s and s·x in f32 as in PyTorch: which way a number is rounded depends
/// on their last bits. The way back errs by a quotient and a product.
pub fn absmax_int8(features: usize, x: &[f32]) -> Vec<Sum> {
    x.chunks_exact(features)
        .flat_map(|row| {
            let s = 127.0 / row.iter().fold(1e-5f32, |m, v| m.max(v.abs()));
            row.iter().map(move |v| {
                let value = f64::from((v * s).round_ties_even().clamp(-128.0, 127.0)) / f64::from(s);
                Sum { value, abs: value.abs(), terms: 1, extra: 7.0 * value.abs() }
            })
        })
        .collect()
}

/// sums + Σ parts, each as long as sums
pub fn add_parts(parts: &[f64], sums: &[f64]) -> Vec<Sum> {
    let of = |i: usize| parts[i..].iter().step_by(sums.len()).fold(Sum::of(sums[i]), |sum, p| sum.plus(Sum::of(*p)));
    (0..sums.len()).map(of).collect()
}
