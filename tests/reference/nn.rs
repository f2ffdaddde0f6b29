//! Elementwise functions and norms.
//!
//! `extra` is in roundings of 2⁻²⁴, from what WGSL lets functions err by: exp 3 + 2·|x| ulp, division 2.5 ulp, inverse
//! square root 2 ulp; an ulp is at most 2 roundings.

use super::{Sum, logistic};

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
