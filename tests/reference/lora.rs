//! `x [tokens, in_features]`, `A [rank, in_features]`, `B [out_features, rank]`, `h, dh [tokens, rank]`,
//! `output, y, d_output [tokens, out_features]`, `d_input [tokens, in_features]`.

use super::{Dims, Sum, abs, chain, dot, matrix, values};

/// h = x·Aᵀ: h[t, r] = Σᵢ x[t, i]·A[r, i]
pub fn project_a(d: Dims, a: &[f64], x: &[f64]) -> Vec<Sum> {
    matrix(d.tokens, d.rank, |t, r| {
        dot((0..d.in_features).map(|i| (x[t * d.in_features + i], a[r * d.in_features + i])))
    })
}

/// [`project_a`] of one token.
pub fn project_a_gemv(d: Dims, a: &[f64], x: &[f64]) -> Vec<Sum> {
    project_a(Dims { tokens: 1, ..d }, a, x)
}

/// [`project_a`]
pub fn project_a_subgroups(d: Dims, a: &[f64], x: &[f64]) -> Vec<Sum> {
    project_a(d, a, x)
}

/// [`project_a`]
pub fn project_a_tiled(d: Dims, a: &[f64], x: &[f64]) -> Vec<Sum> {
    project_a(d, a, x)
}

/// y = h·Bᵀ: y[t, o] = Σᵣ h[t, r]·B[o, r]
pub fn project_b(d: Dims, b: &[f64], h: &[f64]) -> Vec<Sum> {
    matrix(d.tokens, d.out_features, |t, o| dot((0..d.rank).map(|r| (h[t * d.rank + r], b[o * d.rank + r]))))
}

/// output += scale·y
pub fn add_scaled(y: &[f64], output: &[f64], scale: f64) -> Vec<Sum> {
    y.iter().zip(output).map(|(y, old)| Sum::of(*old).plus(Sum::of(scale * y))).collect()
}

/// output[t, o] += scale·Σᵣ h[t, r]·B[o, r]
pub fn fused_b_add(d: Dims, b: &[f64], h: &[f64], output: &[f64], scale: f64) -> Vec<Sum> {
    accumulate(&project_b(d, b, h), output, scale)
}

/// [`fused_b_add`]
pub fn fused_b_add_tiled(d: Dims, b: &[f64], h: &[f64], output: &[f64], scale: f64) -> Vec<Sum> {
    fused_b_add(d, b, h, output, scale)
}

/// dst = src
pub fn save_activation(src: &[f64]) -> Vec<Sum> {
    src.iter().map(|v| Sum::of(*v)).collect()
}

/// output += scale·bias, for every token.
pub fn bias_add(bias: &[f64], output: &[f64], scale: f64) -> Vec<Sum> {
    output.iter().enumerate().map(|(i, old)| Sum::of(*old).plus(Sum::of(scale * bias[i % bias.len()]))).collect()
}

/// d_bias += scale·Σₜ d_output
pub fn bias_grad(d_output: &[f64], d_bias: &[f64], scale: f64) -> Vec<Sum> {
    let features = d_bias.len();
    let column = |o: usize| dot(d_output.iter().skip(o).step_by(features).map(|g| (*g, 1.0)));
    (0..features).map(|o| Sum::of(d_bias[o]).plus(column(o).times(scale))).collect()
}

/// h *= factors, row by row.
pub fn scale_rows(factors: &[f64], h: &[f64]) -> Vec<Sum> {
    let rank = h.len() / factors.len();
    h.iter().enumerate().map(|(i, v)| Sum::of(v * factors[i / rank])).collect()
}

/// √(‖W‖² + 2·scale·(A·Wᵀ)·B + scale²·B·(A·Aᵀ)·Bᵀ) of each row, from those three; a root has 9 roundings, and its argument's
/// error comes through divided by twice the root.
pub fn weight_norm(rank: usize, b: &[f64], squares: &[f64], aw: &[f64], aa: &[f64], scale: f64) -> Vec<Sum> {
    let out_features = squares.len();
    let norm = |o: usize| {
        let b = &b[o * rank..][..rank];
        let cross = dot((0..rank).map(|r| (b[r], 2.0 * scale * aw[r * out_features + o])));
        let square = dot((0..rank * rank).map(|i| (b[i / rank] * b[i % rank], scale * scale * aa[i])));
        let sum = Sum::of(squares[o]).plus(cross).plus(square);
        let value = sum.value.sqrt();
        let inner = (4.0 * (sum.terms as f64).sqrt() * sum.abs + 2.0 * sum.value.abs()) / (2.0 * value);
        Sum { value, extra: inner + 9.0 * value, ..Sum::default() }
    };
    (0..out_features).map(norm).collect()
}

/// What DoRA is given.
#[derive(Debug, Clone, Copy)]
pub struct Dora<'a> {
    pub b: &'a [f64],
    pub h: &'a [f64],
    pub magnitude: &'a [f64],
    pub norm: &'a [f64],
    pub bias: Option<&'a [f64]>,
    /// With dropout the base's product of what was left of x.
    pub dropped: Option<&'a [f64]>,
}

/// What is there for a quotient by 0: a row of zeros has no direction.
fn or(zero: f64, numerator: f64, norm: f64) -> f64 {
    if norm == 0.0 { zero } else { numerator / norm }
}

/// u = p + scale·h·Bᵀ, p being output − bias or `dropped`; output += magnitude/norm·u − p. Returns u, output. A quotient has 5
/// roundings, its product 1; with norm 0 it is 0.
pub fn dora(d: Dims, given: Dora, output: &[f64], scale: f64) -> [Vec<Sum>; 2] {
    let y = project_b(d, given.b, given.h);
    let element = |i: usize| {
        let o = i % d.out_features;
        let p = match given.dropped {
            Some(dropped) => Sum::of(dropped[i]),
            None => Sum::of(output[i]).plus(Sum::of(-given.bias.map_or(0.0, |bias| bias[o]))),
        };
        let u = p.plus(y[i].times(scale));
        let mut scaled = u.times(or(0.0, given.magnitude[o], given.norm[o]));
        scaled.extra += 6.0 * scaled.value.abs();
        [u, Sum::of(output[i]).plus(scaled).plus(p.times(-1.0))]
    };
    let both: Vec<[Sum; 2]> = (0..output.len()).map(element).collect();
    [0, 1].map(|k| both.iter().map(|pair| pair[k]).collect())
}

/// [`dora`]
pub fn dora_tiled(d: Dims, given: Dora, output: &[f64], scale: f64) -> [Vec<Sum>; 2] {
    dora(d, given, output, scale)
}

/// d_magnitude += Σₜ d_output⊙u/norm, du = magnitude/norm·d_output, quotients by 0 being 0. Returns d_magnitude, du.
pub fn dora_grad(
    d: Dims,
    magnitude: &[f64],
    norm: &[f64],
    d_output: &[f64],
    u: &[f64],
    d_magnitude: &[f64],
) -> [Vec<Sum>; 2] {
    let n = d.out_features;
    let column = |o: usize| {
        let mut sum = dot((0..d.tokens).map(|t| (d_output[t * n + o], u[t * n + o]))).times(or(0.0, 1.0, norm[o]));
        sum.extra += 5.0 * sum.value.abs();
        Sum::of(d_magnitude[o]).plus(sum)
    };
    let du = |i: usize| {
        let value = or(0.0, magnitude[i % n], norm[i % n]) * d_output[i];
        Sum { extra: 6.0 * value.abs(), ..Sum::of(value) }
    };
    [(0..n).map(column).collect(), (0..d_output.len()).map(du).collect()]
}

/// factor·(W + scale·B·A), or back: W/factor − scale·B·A; the factor of a row is magnitude/norm, of 5 roundings as is a
/// quotient by it; with norm 0 it is 1.
pub fn merge(
    d: Dims,
    a: &[f64],
    b: &[f64],
    dora: Option<[&[f64]; 2]>,
    weight: &[f64],
    scale: f64,
    back: bool,
) -> Vec<Sum> {
    matrix(d.out_features, d.in_features, |o, i| {
        let delta = dot((0..d.rank).map(|r| (b[o * d.rank + r], a[r * d.in_features + i]))).times(scale);
        let old = Sum::of(weight[o * d.in_features + i]);
        let (factor, error) = dora.map_or((1.0, 0.0), |[magnitude, norm]| (or(1.0, magnitude[o], norm[o]), 11.0));
        if back {
            let mut old = old.times(1.0 / factor);
            old.extra += error * old.value.abs();
            old.plus(delta.times(-1.0))
        } else {
            let mut new = old.plus(delta).times(factor);
            new.extra += error * new.value.abs();
            new
        }
    })
}

/// The same, rounded to the nearest f16, half to even, or to infinity: units of 2⁻¹⁰ of the number's power of two, which is at
/// least 2⁻¹⁴.
pub fn merge_f16(
    d: Dims,
    a: &[f64],
    b: &[f64],
    dora: Option<[&[f64]; 2]>,
    weight: &[f64],
    scale: f64,
    back: bool,
) -> Vec<f64> {
    let rounded = |value: f64| {
        let unit = 2f64.powi((value.abs().log2().floor() as i32).max(-14) - 10);
        let nearest = (value / unit).round_ties_even() * unit;
        if nearest.abs() > 65504.0 { f64::INFINITY.copysign(value) } else { nearest }
    };
    merge(d, a, b, dora, weight, scale, back).iter().map(|sum| rounded(sum.value)).collect()
}

/// What a mask is drawn from, beside row and column.
#[derive(Debug, Clone, Copy)]
pub struct Draw {
    pub p: f64,
    pub seed: u64,
    pub step: u32,
    pub micro_batch: u32,
    pub layer: u32,
}

/// pcg4d of Jarzynski and Olano, "Hash Functions for GPU Rendering" (2020): one step of a linear congruential generator for
/// each word, then twice every word plus the product of two others, with a xorshift between; all modulo 2³².
fn pcg4d(key: [u32; 4]) -> [u32; 4] {
    let mut v = key.map(|word| word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    for round in 0..2 {
        for (to, a, b) in [(0, 1, 3), (1, 2, 0), (2, 0, 1), (3, 1, 2)] {
            v[to] = v[to].wrapping_add(v[a].wrapping_mul(v[b]));
        }
        if round == 0 {
            v = v.map(|word| word ^ (word >> 16));
        }
    }
    v
}

/// Whether the element at (row, column) is kept: u ≥ p·2³² of a uniform 32-bit u.
pub fn is_kept(draw: Draw, row: usize, column: usize) -> bool {
    let key = pcg4d([draw.seed as u32, (draw.seed >> 32) as u32, draw.step, draw.micro_batch]);
    let place = [row as u32, (column / 4) as u32, draw.layer, 0];
    let random = pcg4d(std::array::from_fn(|i| key[i] ^ place[i]));
    f64::from(random[column % 4]) >= (draw.p * 2f64.powi(32)).floor()
}

/// output = m⊙x/(1−p), added to what there is.
pub fn dropout(features: usize, x: &[f64], old: Option<&[f64]>, draw: Draw) -> Vec<Sum> {
    let element = |i: usize| {
        let kept = if is_kept(draw, i / features, i % features) { x[i] / (1.0 - draw.p) } else { 0.0 };
        let sum = Sum { terms: 2, ..Sum::of(kept) };
        old.map_or(sum, |old| sum.plus(Sum::of(old[i])))
    };
    (0..x.len()).map(element).collect()
}

/// [`dropout`]
pub fn dropout_vec4(features: usize, x: &[f64], old: Option<&[f64]>, draw: Draw) -> Vec<Sum> {
    dropout(features, x, old, draw)
}

/// `[micro-batches, layer + 1 of an output that is not finite, of a gradient]` after one more layer.
pub fn find_non_finite(output: &[f32], dh: &[f32], window: [u32; 3], layer: u32) -> [u32; 3] {
    let bad = |values: &[f32]| values.iter().any(|v| !v.is_finite());
    let output = if bad(output) { layer + 1 } else { window[1] };
    let gradient = if bad(dh) && window[2] == 0 { layer + 1 } else { window[2] };
    [window[0], output, gradient]
}

/// dB += scale·d_outputᵀ·h: dB[o, r] += scale·Σₜ d_output[t, o]·h[t, r]
pub fn grad_b(d: Dims, d_output: &[f64], h: &[f64], d_b: &[f64], scale: f64) -> Vec<Sum> {
    let product = matrix(d.out_features, d.rank, |o, r| {
        dot((0..d.tokens).map(|t| (d_output[t * d.out_features + o], h[t * d.rank + r])))
    });
    accumulate(&product, d_b, scale)
}

/// [`grad_b`]
pub fn grad_b_tiled(d: Dims, d_output: &[f64], h: &[f64], d_b: &[f64], scale: f64) -> Vec<Sum> {
    grad_b(d, d_output, h, d_b, scale)
}

/// dh = d_output·B, unscaled: dh[t, r] = Σₒ d_output[t, o]·B[o, r]
pub fn grad_dh(d: Dims, b: &[f64], d_output: &[f64]) -> Vec<Sum> {
    matrix(d.tokens, d.rank, |t, r| {
        dot((0..d.out_features).map(|o| (d_output[t * d.out_features + o], b[o * d.rank + r])))
    })
}

/// [`grad_dh`] of one token.
pub fn grad_dh_gemv(d: Dims, b: &[f64], d_output: &[f64]) -> Vec<Sum> {
    grad_dh(Dims { tokens: 1, ..d }, b, d_output)
}

/// [`grad_dh`]
pub fn grad_dh_tiled(d: Dims, b: &[f64], d_output: &[f64]) -> Vec<Sum> {
    grad_dh(d, b, d_output)
}

/// [`grad_b`] and [`grad_dh`]
pub fn grad_b_dh(d: Dims, b: &[f64], d_output: &[f64], h: &[f64], d_b: &[f64], scale: f64) -> [Vec<Sum>; 2] {
    [grad_b(d, d_output, h, d_b, scale), grad_dh(d, b, d_output)]
}

/// dB += Σₚ parts[p] and dh = Σₚ of what follows them.
pub fn grad_b_dh_sums(parts: &[f64], [d_b_parts, dh_parts]: [usize; 2], d_b: &[f64], dh_len: usize) -> [Vec<Sum>; 2] {
    let (of_d_b, of_dh) = parts.split_at(d_b_parts * d_b.len());
    let sum = |parts: &[f64], i: usize, len: usize, count: usize| dot((0..count).map(|p| (parts[p * len + i], 1.0)));
    let sums: Vec<Sum> = (0..d_b.len()).map(|i| sum(of_d_b, i, d_b.len(), d_b_parts)).collect();
    [accumulate(&sums, d_b, 1.0), (0..dh_len).map(|i| sum(of_dh, i, dh_len, dh_parts)).collect()]
}

/// dA += scale·dhᵀ·x: dA[r, i] += scale·Σₜ dh[t, r]·x[t, i]
pub fn grad_a(d: Dims, dh: &[f64], x: &[f64], d_a: &[f64], scale: f64) -> Vec<Sum> {
    let product =
        matrix(
            d.rank,
            d.in_features,
            |r, i| dot((0..d.tokens).map(|t| (dh[t * d.rank + r], x[t * d.in_features + i]))),
        );
    accumulate(&product, d_a, scale)
}

/// [`grad_a`]
pub fn grad_a_tiled(d: Dims, dh: &[f64], x: &[f64], d_a: &[f64], scale: f64) -> Vec<Sum> {
    grad_a(d, dh, x, d_a, scale)
}

/// d_input += scale·dh·A: d_input[t, i] += scale·Σᵣ dh[t, r]·A[r, i]
pub fn input_grad(d: Dims, a: &[f64], dh: &[f64], d_input: &[f64], scale: f64) -> Vec<Sum> {
    let product =
        matrix(
            d.tokens,
            d.in_features,
            |t, i| dot((0..d.rank).map(|r| (dh[t * d.rank + r], a[r * d.in_features + i]))),
        );
    accumulate(&product, d_input, scale)
}

/// [`input_grad`]
pub fn input_grad_tiled(d: Dims, a: &[f64], dh: &[f64], d_input: &[f64], scale: f64) -> Vec<Sum> {
    input_grad(d, a, dh, d_input, scale)
}

fn accumulate(product: &[Sum], old: &[f64], scale: f64) -> Vec<Sum> {
    product.iter().zip(old).map(|(sum, old)| sum.times(scale).plus(Sum::of(*old))).collect()
}

/// output += scale·B·(A·x), from the kernels above.
pub fn lora_forward(d: Dims, a: &[f64], b: &[f64], x: &[f64], output: &[f64], scale: f64) -> Vec<Sum> {
    let forward = |a: &[f64], b: &[f64], x: &[f64], output: &[f64], scale| {
        fused_b_add(d, b, &values(&project_a(d, a, x)), output, scale)
    };
    let s = forward(&abs(a), &abs(b), &abs(x), &abs(output), scale.abs());
    chain(&forward(a, b, x, output, scale), &s, d.in_features + d.rank + 1)
}

/// What the backward pass adds to or overwrites.
pub struct Backward {
    pub dh: Vec<Sum>,
    pub d_a: Vec<Sum>,
    pub d_b: Vec<Sum>,
    pub d_input: Vec<Sum>,
}

/// The old values that [`lora_backward`] adds to.
#[derive(Clone)]
pub struct Old {
    pub d_a: Vec<f64>,
    pub d_b: Vec<f64>,
    pub d_input: Vec<f64>,
}

/// All gradients of [`lora_forward`] by d_output, from the kernels above.
pub fn lora_backward(d: Dims, a: &[f64], b: &[f64], x: &[f64], d_output: &[f64], old: &Old, scale: f64) -> Backward {
    let backward = |a: &[f64], b: &[f64], x: &[f64], d_output: &[f64], old: &Old, scale| {
        let h = values(&project_a(d, a, x));
        let dh = grad_dh(d, b, d_output);
        let dh_values = values(&dh);
        Backward {
            d_b: grad_b(d, d_output, &h, &old.d_b, scale),
            d_a: grad_a(d, &dh_values, x, &old.d_a, scale),
            d_input: input_grad(d, a, &dh_values, &old.d_input, scale),
            dh,
        }
    };
    let old_abs = Old { d_a: abs(&old.d_a), d_b: abs(&old.d_b), d_input: abs(&old.d_input) };
    let s = backward(&abs(a), &abs(b), &abs(x), &abs(d_output), &old_abs, scale.abs());
    let v = backward(a, b, x, d_output, old, scale);
    Backward {
        dh: v.dh,
        d_a: chain(&v.d_a, &s.d_a, d.out_features + d.tokens + 1),
        d_b: chain(&v.d_b, &s.d_b, d.in_features + d.tokens + 1),
        d_input: chain(&v.d_input, &s.d_input, d.out_features + d.rank + 1),
    }
}
