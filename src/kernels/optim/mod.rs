//! Optimisers: one dispatch updates a whole arena of parameters.

pub mod adamw;
pub mod begin_step;
pub mod end_micro_batch;
pub mod grad_norm;
pub mod sgd;
pub mod sgd_momentum;

/// Elements of an optimiser's `state` tensor: step (u32 bits), lr, 1/(1−β₁ᵗ), 1/√(1−β₂ᵗ), the factor of the gradients,
/// whether this step is skipped, attempts and skipped steps (u32 bits).
pub const STATE_LEN: usize = 8;

/// Elements of a step's `window` tensor, u32 bits: micro-batches done, and by [`find_non_finite`] one more than the layer in
/// whose output, and in whose gradient, something that is not finite began.
///
/// [`find_non_finite`]: crate::kernels::lora::find_non_finite
pub const WINDOW_LEN: usize = 4;

/// A second group of parameters: those from element `from` on learn `ratio` times as fast.
#[derive(Debug, Clone, Copy)]
pub struct LrRatio {
    /// First element of the group.
    pub from: usize,
    /// Factor of the learning rate.
    pub ratio: f32,
}

/// Hyper-parameters of AdamW, as `torch.optim.AdamW` names them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment, in `[0, 1)`.
    pub beta1: f64,
    /// Decay of the second moment, in `[0, 1)`.
    pub beta2: f64,
    /// Added to the denominator, outside the root.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl Default for AdamW {
    /// PyTorch's defaults.
    fn default() -> AdamW {
        AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
    }
}
