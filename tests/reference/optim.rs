//! One parameter at a time, as the update rules of PyTorch's documentation are written.

use super::Sum;

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
    let decayed = Sum { value: p * (1.0 - lr * o.weight_decay), abs: p.abs(), terms: 1 };
    [decayed.plus(step.times(-1.0)), m, v]
}

/// What step t uses: t itself, lr of step t (the table's last row holds for all later ones), 1/(1−β₁ᵗ), 1/√(1−β₂ᵗ).
pub fn begin_step(steps_done: u32, lr: &[f64], beta1: f64, beta2: f64) -> (u32, [f64; 3]) {
    let t = steps_done + 1;
    let correction = |beta: f64| 1.0 - beta.powi(t as i32);
    (t, [lr[(steps_done as usize).min(lr.len() - 1)], 1.0 / correction(beta1), 1.0 / correction(beta2).sqrt()])
}
