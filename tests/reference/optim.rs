//! One parameter at a time, as the update rules of PyTorch's documentation are written.

use super::{Sum, dot};

/// torch.optim.SGD without momentum: p − lr·(g + weight_decay·p)
pub fn sgd(p: f64, g: f64, lr: f64, weight_decay: f64) -> Sum {
    Sum::of(p).plus(Sum::of(g).plus(Sum::of(weight_decay * p)).times(-lr))
}

/// torch.optim.SGD: v' = momentum·v + g + weight_decay·p, p' = p − lr·v'. Returns p', v'.
pub fn sgd_momentum(p: f64, v: f64, g: f64, lr: f64, weight_decay: f64, momentum: f64) -> [Sum; 2] {
    let v = Sum::of(momentum * v).plus(Sum::of(g)).plus(Sum::of(weight_decay * p));
    [Sum::of(p).plus(v.times(-lr)), v]
}

/// Hyper-parameters of [`adamw`].
#[derive(Debug, Clone, Copy)]
pub struct AdamW {
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
}

/// torch.optim.AdamW at step t: m' = β₁·m + (1−β₁)·g, v' = β₂·v + (1−β₂)·g²,
/// p' = p·(1 − lr·weight_decay) − lr·(m'/(1−β₁ᵗ)) / (√(v'/(1−β₂ᵗ)) + eps). Returns p', m', v'; the S of p' is |p| plus
/// the step that the S of m' would make.
pub fn adamw(p: f64, [m, v]: [f64; 2], g: f64, lr: f64, t: i32, o: AdamW) -> [Sum; 3] {
    let m = Sum::of(o.beta1 * m).plus(Sum::of((1.0 - o.beta1) * g));
    let v = Sum::of(o.beta2 * v).plus(Sum::of((1.0 - o.beta2) * g * g));
    let denominator = (v.value / (1.0 - o.beta2.powi(t))).sqrt() + o.eps;
    let step = m.times(lr / (1.0 - o.beta1.powi(t)) / denominator);
    let decayed = Sum { value: p * (1.0 - lr * o.weight_decay), ..Sum::of(p.abs()) };
    [decayed.plus(step.times(-1.0)), m, v]
}

/// Micro-batches done.
pub fn end_micro_batch(done: u32) -> u32 {
    done + 1
}

/// Σ g²
pub fn grad_norm(grad: &[f64]) -> Sum {
    dot(grad.iter().map(|g| (*g, *g)))
}

/// What one step is given.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    pub steps_done: u32,
    pub lr: &'a [f64],
    /// Rows of 1/(1−β₁ᵗ), 1/√(1−β₂ᵗ).
    pub bias: &'a [[f64; 2]],
    /// Σ g², of gradients that are sums.
    pub squares: Sum,
    /// The loss, a sum, and over how many.
    pub totals: [f64; 2],
    /// 0: no clipping.
    pub max_norm: f64,
}

/// What one step uses.
#[derive(Debug, Clone, Copy)]
pub struct Begun {
    pub lr: f64,
    pub bias: [f64; 2],
    /// Of the gradients.
    pub factor: Sum,
    pub loss: Sum,
    /// Before clipping.
    pub norm: Sum,
}

/// The tables' rows of this step, the last ones holding for all later steps; loss and norm of the means; and the factor
/// by which gradients become means that `clip_grad_norm_` has clipped: min(1, max_norm/(norm + 1e-6))/count.
///
/// A quotient has 5 roundings, a root 9.
pub fn begin_step(given: Inputs) -> Begun {
    let Inputs { steps_done, lr, bias, squares, totals: [sum, count], max_norm } = given;
    let norm = squares.value.sqrt() / count;
    let norm_error = 2.0 * (squares.terms as f64).sqrt() + 16.0;
    let clip = if max_norm > 0.0 { (max_norm / (norm + 1e-6)).min(1.0) } else { 1.0 };
    let factor_error = if clip < 1.0 { norm_error + 12.0 } else { 5.0 };
    let of = |value: f64, error: f64| Sum { value, extra: error * value.abs(), ..Sum::default() };
    Begun {
        lr: lr[(steps_done as usize).min(lr.len() - 1)],
        bias: bias[(steps_done as usize).min(bias.len() - 1)],
        factor: of(clip / count, factor_error),
        loss: of(sum / count, 6.0),
        norm: of(norm, norm_error),
    }
}

/// 1/(1−β₁ᵗ), 1/√(1−β₂ᵗ) for t = 1 up to `rows`.
pub fn bias_corrections(beta1: f64, beta2: f64, rows: u32) -> Vec<[f64; 2]> {
    let row = |t| [1.0 / (1.0 - beta1.powi(t)), 1.0 / (1.0 - beta2.powi(t)).sqrt()];
    (1..=rows as i32).map(row).collect()
}
