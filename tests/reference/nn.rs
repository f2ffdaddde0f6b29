//! Elementwise functions and norms.
//!
//! `extra` is in roundings of 2⁻²⁴, from what WGSL lets functions err by: exp 3 + 2·|x| ulp, division 2.5 ulp, inverse
//! square root 2 ulp; an ulp is at most 2 roundings.

use super::{Sum, dot, logistic, matrix};

/// Which elementwise function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Function {
    Tanh,
    Relu,
    Gelu,
    Silu,
}

/// Φ(x), the distribution function of the normal distribution: near 0 by its power series, in the tails by Laplace's
/// continued fraction.
fn normal_cdf(x: f64) -> f64 {
    let density = normal_density(x);
    if x.abs() < 4.0 {
        let (mut term, mut sum) = (x, x);
        for k in 1..100 {
            term *= x * x / f64::from(2 * k + 1);
            sum += term;
        }
        return 0.5 + density * sum;
    }
    let tail = density / (1..100).rev().fold(x.abs(), |below, k| x.abs() + f64::from(k) / below);
    if x > 0.0 { 1.0 - tail } else { tail }
}

/// φ(x) = e^(−x²/2)/√(2π)
fn normal_density(x: f64) -> f64 {
    (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// What Φ may err by: it is made from Φ(−|x|), whose fit errs by 1.2e-7, 2 roundings, its polynomial by 16; the argument
/// of the exponential has 5·x²/2 + 2 and the exponential itself 6 + 4·(x²/2 + 1.3); the products 2.
fn normal_cdf_error(x: f64) -> f64 {
    normal_cdf(-x.abs()) * (34.0 + 4.5 * x * x) + normal_cdf(x)
}

/// f(x)
pub fn activation(f: Function, x: f64) -> Sum {
    let of = |value: f64, extra: f64| Sum { value, extra, ..Sum::default() };
    match f {
        Function::Relu => of(x.max(0.0), 0.0),
        // (1 − e)/(1 + e) of e = e^(−2·|x|); below ¼ a series, right to 8 roundings.
        Function::Tanh => {
            let (y, e) = (x.tanh().abs(), (-2.0 * x.abs()).exp());
            let of_exp = if x.abs() < 0.25 { 0.0 } else { e * (6.0 + 8.0 * x.abs()) * (1.0 + y) / (1.0 + e) };
            of(x.tanh(), 8.0 * y + of_exp)
        }
        Function::Gelu => of(x * normal_cdf(x), x.abs() * normal_cdf_error(x)),
        Function::Silu => of(x * logistic(x).value, x.abs() * logistic(x).extra),
    }
}

/// f′(x)·d_output; relu's slope at 0 is 0.
pub fn activation_grad(f: Function, x: f64, d_output: f64) -> Sum {
    let of = |slope: f64, extra: f64| Sum { value: slope, extra, ..Sum::default() }.times(d_output);
    match f {
        Function::Relu => of(if x > 0.0 { 1.0 } else { 0.0 }, 0.0),
        // 4e/(1 + e)²
        Function::Tanh => {
            let slope = 1.0 / x.cosh().powi(2);
            of(slope, slope * (9.0 + (6.0 + 8.0 * x.abs()) * x.tanh().abs()))
        }
        // Φ + x·φ: the second has the exponential of an argument of x²/2 and three products.
        Function::Gelu => {
            let density = x * normal_density(x);
            of(normal_cdf(x) + density, normal_cdf_error(x) + density.abs() * (11.0 + 3.0 * x * x))
        }
        // σ(x)·(1 + x·σ(−x))
        Function::Silu => {
            let (up, down) = (logistic(x), logistic(-x));
            let factor = 1.0 + x * down.value;
            let factor_error = x.abs() * (down.extra + down.value) + factor.abs();
            of(up.value * factor, up.extra * factor.abs() + up.value * factor_error)
        }
    }
}

/// One row, its mean (0 unless centered) and 1/√(variance + eps), with what f32 may err by in the mean and, relatively, in
/// the last.
struct Row {
    centered: Vec<f64>,
    inv_deviation: f64,
    mean_error: f64,
    inv_deviation_error: f64,
}

fn row(x: &[f64], centered: bool, eps: f64) -> Row {
    let n = x.len() as f64;
    let average = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / n;
    let sum_error = 4.0 * n.sqrt() + 8.0; // of a sum, and of 1/n
    let mean = if centered { average(&mut x.iter().copied()) } else { 0.0 };
    let mean_error = if centered { sum_error * average(&mut x.iter().map(|v| v.abs())) } else { 0.0 };
    let differences: Vec<f64> = x.iter().map(|v| v - mean).collect();
    let variance = average(&mut differences.iter().map(|v| v * v));
    let spread = average(&mut differences.iter().map(|v| v.abs()));
    let variance_error = (sum_error + 2.0) * variance + 2.0 * spread * mean_error;
    Row {
        centered: differences,
        inv_deviation: 1.0 / (variance + eps).sqrt(),
        mean_error,
        inv_deviation_error: 5.0 + 0.5 * variance_error / (variance + eps),
    }
}

/// (x − μ)/√(mean((x − μ)²) + eps)·weight + bias over each row of `features`; RMS norm with μ = 0 unless `centered`.
pub fn norm(weight: &[f64], bias: Option<&[f64]>, x: &[f64], centered: bool, eps: f64) -> Vec<Sum> {
    let one = |x: &[f64]| {
        let r = row(x, centered, eps);
        let element = |i: usize| {
            let offset = bias.map_or(0.0, |bias| bias[i]);
            let scale = r.inv_deviation * weight[i];
            let extra = scale.abs() * (r.centered[i].abs() * (r.inv_deviation_error + 4.0) + r.mean_error);
            Sum { value: r.centered[i] * scale + offset, extra, ..Sum::default() }
        };
        (0..x.len()).map(element).collect::<Vec<_>>()
    };
    x.chunks(weight.len()).flat_map(one).collect()
}

/// The gradient of Σ d_output·norm(x) by x. With x̂ = (x − μ)/σ and g = weight·d_output it is
/// (g − mean(g) − x̂·mean(g·x̂))/σ, without mean(g) for RMS norm.
pub fn norm_grad(weight: &[f64], x: &[f64], d_output: &[f64], centered: bool, eps: f64) -> Vec<Sum> {
    let one = |(x, d_output): (&[f64], &[f64])| {
        let (r, n) = (row(x, centered, eps), x.len() as f64);
        let normed: Vec<f64> = r.centered.iter().map(|v| v * r.inv_deviation).collect();
        let normed_error = |i: usize| normed[i].abs() * (r.inv_deviation_error + 3.0) + r.inv_deviation * r.mean_error;
        let g: Vec<f64> = weight.iter().zip(d_output).map(|(w, d)| w * d).collect();
        let average = |f: &dyn Fn(usize) -> f64| (0..x.len()).map(f).sum::<f64>() / n;
        let sum_error = 4.0 * n.sqrt() + 9.0;
        let mean_g = if centered { average(&|i| g[i]) } else { 0.0 };
        let mean_g_error = if centered { sum_error * average(&|i| g[i].abs()) } else { 0.0 };
        let along = average(&|i| g[i] * normed[i]);
        let along_error = average(&|i| g[i].abs() * (normed_error(i) + sum_error * normed[i].abs()));
        let element = |i: usize| {
            let parts = g[i].abs() + mean_g.abs() + (normed[i] * along).abs();
            let error = 4.0 * parts + mean_g_error + normed[i].abs() * along_error + normed_error(i) * along.abs();
            let value = (g[i] - mean_g - normed[i] * along) * r.inv_deviation;
            let extra = r.inv_deviation * error + value.abs() * r.inv_deviation_error;
            Sum { value, extra, ..Sum::default() }
        };
        (0..x.len()).map(element).collect::<Vec<_>>()
    };
    x.chunks(weight.len()).zip(d_output.chunks(weight.len())).flat_map(one).collect()
}

/// x with each head's halves (a, b) as (a·cos − b·sin, b·cos + a·sin); `transposed` with −sin. One row of each table for
/// each position.
pub fn rope(half_dim: usize, [cos, sin]: [&[f64]; 2], position_ids: &[i32], x: &[f64], transposed: bool) -> Vec<Sum> {
    let sign = if transposed { -1.0 } else { 1.0 };
    let width = x.len() / position_ids.len();
    let element = |i: usize| {
        let (row, d) = (i / width, i % (2 * half_dim));
        let at = position_ids[row] as usize * half_dim + d % half_dim;
        let (c, s) = (cos[at], sign * sin[at]);
        match d < half_dim {
            true => dot([(x[i], c), (x[i + half_dim], -s)].into_iter()),
            false => dot([(x[i], c), (x[i - half_dim], s)].into_iter()),
        }
    };
    (0..x.len()).map(element).collect()
}

/// f(gate)·up, f being silu, or relu² where `squared`.
pub fn gated(squared: bool, gate: f64, up: f64) -> Sum {
    match squared {
        true => Sum { value: gate.max(0.0).powi(2) * up, extra: 2.0 * (gate * gate * up).abs(), ..Sum::default() },
        false => {
            let f = activation(Function::Silu, gate);
            Sum { extra: f.extra + f.value.abs(), ..f }.times(up)
        }
    }
}

/// [f′(gate)·up·d_output, f(gate)·d_output]
pub fn gated_grad(squared: bool, gate: f64, up: f64, d_output: f64) -> [Sum; 2] {
    let slope = match squared {
        true => Sum { value: 2.0 * gate.max(0.0), extra: 2.0 * gate.abs(), ..Sum::default() },
        false => activation_grad(Function::Silu, gate, 1.0),
    };
    let d_gate = Sum { extra: slope.extra + 2.0 * slope.value.abs(), ..slope }.times(up * d_output);
    [d_gate, gated(squared, gate, d_output)]
}

/// The dimensions of attention: q `[batch, tokens, heads, head_dim]`, k and v `[batch, tokens, kv_heads, head_dim]`.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    pub batch: usize,
    pub tokens: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl Attention {
    fn scale(self) -> f64 {
        1.0 / (self.head_dim as f64).sqrt()
    }

    /// The part of q for a row and a head, a row being a token of a sequence.
    fn query(self, row: usize, head: usize) -> std::ops::Range<usize> {
        let first = (row * self.heads + head) * self.head_dim;
        first..first + self.head_dim
    }

    /// The part of k or v for a row and a query head.
    fn key(self, row: usize, head: usize) -> std::ops::Range<usize> {
        let first = (row * self.kv_heads + head / (self.heads / self.kv_heads)) * self.head_dim;
        first..first + self.head_dim
    }

    /// The rows that a row sees: of its sequence and segment, and not later; none for padding.
    fn seen(self, row: usize, segments: &[i32]) -> Vec<usize> {
        let first = row / self.tokens * self.tokens;
        (first..=row).filter(|key| segments[*key] != 0 && segments[*key] == segments[row]).collect()
    }

    fn score(self, q: &[f64], k: &[f64], row: usize, key: usize, head: usize) -> Sum {
        product(&q[self.query(row, head)], &k[self.key(key, head)]).times(self.scale())
    }
}

fn product(a: &[f64], b: &[f64]) -> Sum {
    dot(a.iter().copied().zip(b.iter().copied()))
}

/// What a sum of products and one more factor may err by, in roundings.
fn error(sum: &Sum) -> f64 {
    4.0 * (sum.terms as f64).sqrt() * sum.abs + 3.0 * sum.value.abs()
}

/// softmax(q·kᵀ/√head_dim)·v and log Σ exp(q·kᵀ/√head_dim), 0 for rows that see nothing.
///
/// A share p errs, relatively, by its score's error, by 6 + 5·|z| for the exponential of a rounded argument z, and by as
/// much once more for each later tile of keys, whose running maximum corrects it.
pub fn attention(d: Attention, q: &[f64], k: &[f64], v: &[f64], segments: &[i32], tile: usize) -> [Vec<Sum>; 2] {
    let (mut output, mut log_sums) = (Vec::new(), Vec::new());
    for row in 0..d.batch * d.tokens {
        let seen = d.seen(row, segments);
        for head in 0..d.heads {
            if seen.is_empty() {
                output.extend(vec![Sum::default(); d.head_dim]);
                log_sums.push(Sum::default());
                continue;
            }
            let scores: Vec<Sum> = seen.iter().map(|key| d.score(q, k, row, *key, head)).collect();
            let highest = scores.iter().map(|s| s.value).fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|s| (s.value - highest).exp()).sum();
            let tiles = (d.tokens / tile) as f64;
            let share = |s: &Sum| (s.value - highest).exp() / total;
            let share_error = |s: &Sum| error(s) + 6.0 + 5.0 * (highest - s.value) + 7.0 * tiles;
            let sum_error = 4.0 * (seen.len() as f64).sqrt();
            let total_error = sum_error + scores.iter().map(|s| share(s) * share_error(s)).sum::<f64>();
            let mut sums = vec![Sum::default(); d.head_dim];
            for (s, key) in scores.iter().zip(&seen) {
                let error = share(s) * (share_error(s) + total_error + 6.0);
                add_row(&mut sums, share(s), error, &v[d.key(*key, head)]);
            }
            output.extend(sums);
            let value = highest + total.ln();
            let worst = scores.iter().map(error).fold(0.0, f64::max);
            let extra = total_error + worst + 8.0 + 6.0 * total.ln() + 2.0 * highest.abs();
            log_sums.push(Sum { value, extra, ..Sum::default() });
        }
    }
    [output, log_sums]
}

/// [`attention`]
pub fn attention_tiled(d: Attention, q: &[f64], k: &[f64], v: &[f64], segments: &[i32], tile: usize) -> [Vec<Sum>; 2] {
    attention(d, q, k, v, segments, tile)
}

/// What one query and one key have to do with each other in the backward pass: the share p, how far it errs relatively,
/// and the gradient at the score, with how far that errs.
struct Pair {
    share: f64,
    share_error: f64,
    slope: f64,
    slope_error: f64,
}

/// The tensors that the backward pass is given.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    pub q: &'a [f64],
    pub k: &'a [f64],
    pub v: &'a [f64],
    pub segments: &'a [i32],
    pub d_output: &'a [f64],
    /// [rows, heads]
    pub log_sums: &'a [f64],
}

fn pair(d: Attention, g: Given, delta: &Sum, row: usize, key: usize, head: usize) -> Pair {
    let score = d.score(g.q, g.k, row, key, head);
    let z = score.value - g.log_sums[row * d.heads + head];
    let share = z.exp();
    let share_error = error(&score) + 6.0 + 5.0 * z.abs();
    let d_share = product(&g.d_output[d.query(row, head)], &g.v[d.key(key, head)]);
    let difference = d_share.value - delta.value;
    let delta_error = if delta.terms > 1 { error(delta) } else { 0.0 };
    let slope = d.scale() * share * difference;
    let slope_error = slope.abs() * (share_error + 4.0) + d.scale() * share * (error(&d_share) + delta_error);
    Pair { share, share_error, slope, slope_error }
}

/// Adds factor·row, the factor erring by `factor_error`.
fn add_row(sums: &mut [Sum], factor: f64, factor_error: f64, row: &[f64]) {
    for (sum, value) in sums.iter_mut().zip(row) {
        *sum = sum.plus(Sum { extra: factor_error * value.abs(), ..Sum::of(factor * value) });
    }
}

/// [The gradient of Σ d_output·attention at q, delta = Σ output·d_output of each row and head]. With p the share of a key,
/// a query's gradient is Σ p·(d_output·vᵀ − delta)·k/√head_dim.
pub fn attention_grad_q(d: Attention, g: Given, output: &[f64]) -> [Vec<Sum>; 2] {
    let mut d_q = vec![Sum::default(); g.q.len()];
    let mut deltas = Vec::new();
    for row in 0..d.batch * d.tokens {
        for head in 0..d.heads {
            let at = d.query(row, head);
            let delta = product(&output[at.clone()], &g.d_output[at.clone()]);
            for key in d.seen(row, g.segments) {
                let p = pair(d, g, &delta, row, key, head);
                add_row(&mut d_q[at.clone()], p.slope, p.slope_error, &g.k[d.key(key, head)]);
            }
            deltas.push(delta);
        }
    }
    [d_q, deltas]
}

/// [`attention_grad_q`]
pub fn attention_grad_q_tiled(d: Attention, g: Given, output: &[f64]) -> [Vec<Sum>; 2] {
    attention_grad_q(d, g, output)
}

/// The gradients of Σ d_output·attention at k and v, given delta: Σ p·(d_output·vᵀ − delta)·q/√head_dim and Σ p·d_output.
pub fn attention_grad_kv(d: Attention, g: Given, deltas: &[f64]) -> [Vec<Sum>; 2] {
    let mut d_k = vec![Sum::default(); g.k.len()];
    let mut d_v = d_k.clone();
    for row in 0..d.batch * d.tokens {
        for head in 0..d.heads {
            for key in d.seen(row, g.segments) {
                let p = pair(d, g, &Sum::of(deltas[row * d.heads + head]), row, key, head);
                let (query, at) = (d.query(row, head), d.key(key, head));
                add_row(&mut d_k[at.clone()], p.slope, p.slope_error, &g.q[query.clone()]);
                add_row(&mut d_v[at], p.share, p.share * p.share_error, &g.d_output[query]);
            }
        }
    }
    [d_k, d_v]
}

/// [`attention_grad_kv`]
pub fn attention_grad_kv_tiled(d: Attention, g: Given, deltas: &[f64]) -> [Vec<Sum>; 2] {
    attention_grad_kv(d, g, deltas)
}

/// The last row of [`attention`] over `keys` rows, for a q of that row alone.
pub fn attention_step(d: Attention, q: &[f64], k: &[f64], v: &[f64], tile: usize) -> Vec<Sum> {
    let width = d.heads * d.head_dim;
    let all = [vec![0.0; (d.tokens - 1) * width], q.to_vec()].concat();
    let [output, _] = attention(d, &all, k, v, &vec![1; d.tokens], tile);
    output[(d.tokens - 1) * width..].to_vec()
}

/// The cache with x from row `cursor` on.
pub fn cache_write(x: &[f64], cursor: usize, width: usize, cache: &[f64]) -> Vec<f64> {
    let mut after = cache.to_vec();
    after[cursor * width..cursor * width + x.len()].copy_from_slice(x);
    after
}

/// a + b
pub fn add(a: f64, b: f64) -> Sum {
    dot([(a, 1.0), (b, 1.0)].into_iter())
}

/// The rows of a table that the ids name.
pub fn embedding(weight: &[f64], features: usize, ids: &[i32]) -> Vec<f64> {
    ids.iter().flat_map(|id| weight[*id as usize * features..][..features].to_vec()).collect()
}

/// A table's gradient: to each row is added what came of it, wherever its id stood.
pub fn embedding_grad(ids: &[i32], d_output: &[f64], before: &[f64], features: usize, scale: f64) -> Vec<Sum> {
    matrix(before.len() / features, features, |row, feature| {
        let own = ids.iter().enumerate().filter(|(_, id)| **id as usize == row);
        let sum = dot(own.map(|(t, _)| (d_output[t * features + feature], scale)));
        sum.plus(Sum::of(before[row * features + feature]))
    })
}

/// How a token is chosen.
#[derive(Debug, Clone, Copy)]
pub struct Sampling {
    /// 0: the largest logit.
    pub temperature: f64,
    /// 0: all.
    pub top_k: usize,
    pub top_p: f64,
    pub penalty: f64,
    pub seed: u64,
}

/// pcg4d (Jarzynski and Olano 2020): its first word.
fn pcg4d(key: [u32; 4]) -> u32 {
    let mut v = key.map(|k| k.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    let mix = |v: &mut [u32; 4]| {
        for (i, a, b) in [(0, 1, 3), (1, 2, 0), (2, 0, 1), (3, 1, 2)] {
            v[i] = v[i].wrapping_add(v[a].wrapping_mul(v[b]));
        }
    };
    mix(&mut v);
    v = v.map(|k| k ^ (k >> 16));
    mix(&mut v);
    v[0]
}

/// The token that transformers' processors leave to choose from, by its place: penalty, temperature, top k, top p, and then
/// by the random number of seed and cursor, in the order of the tokens.
pub fn sample(logits: &[f64], seen: &[bool], s: Sampling, cursor: i32) -> usize {
    let penalized = |(z, seen): (&f64, &bool)| match seen {
        true if *z > 0.0 => z / s.penalty,
        true => z * s.penalty,
        false => *z,
    };
    let mut scores: Vec<f64> = logits.iter().zip(seen).map(penalized).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if s.temperature == 0.0 {
        return scores.iter().position(|z| *z == largest).unwrap();
    }
    scores.iter_mut().for_each(|z| *z = (*z - largest) / s.temperature);
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    if s.top_k > 0 {
        let least = scores[order[s.top_k.min(order.len()) - 1]];
        order.retain(|i| scores[*i] >= least);
    }
    let total: f64 = order.iter().map(|i| scores[*i].exp()).sum();
    if s.top_p < 1.0 {
        // From the least likely on, those go that together have no more than 1 − top_p.
        let mut sum = 0.0;
        while order.len() > 1 {
            sum += scores[order[order.len() - 1]].exp();
            if sum > (1.0 - s.top_p) * total {
                break;
            }
            order.pop();
        }
    }
    order.sort_unstable();
    let total: f64 = order.iter().map(|i| scores[*i].exp()).sum();
    let word = pcg4d([s.seed as u32, (s.seed >> 32) as u32, cursor as u32, 0x7361_6d70]);
    let goal = f64::from(word >> 8) / 16_777_216.0 * total;
    let mut sum = 0.0;
    for i in &order {
        sum += scores[*i].exp();
        if sum > goal {
            return *i;
        }
    }
    order[order.len() - 1]
}
