//! What one update needs: norm, guard, learning rate and bias corrections.

use bytemuck::{Pod, Zeroable};

use super::{STATE_LEN, WINDOW_LEN};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor};

/// `shaders/optim/begin_step.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "optim/begin_step",
    source: &[wgsl!("../../../shaders/optim/begin_step.wgsl")],
    buffers: &[
        ("lr", Access::Read),
        ("bias", Access::Read),
        ("partial_sums", Access::Read),
        ("totals", Access::Read),
        ("window", Access::Read),
        ("state", Access::Write),
        ("log", Access::Write),
    ],
    constants: &[("WORKGROUP", 64, 8)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    lr_rows: u32,
    bias_rows: u32,
    partials: u32,
    log_rows: u32,
    max_norm: f32,
}

/// The read-only inputs of [`record`].
pub struct Inputs<'a> {
    /// `[rows]`: the learning rate of each step.
    pub lr: &'a Tensor,
    /// `[rows, 2]`: 1/(1−β₁ᵗ), 1/√(1−β₂ᵗ).
    pub bias: &'a Tensor,
    /// Sums of squared gradients, the first `partials` of them.
    pub partial_sums: &'a Tensor,
    /// How many.
    pub partials: usize,
    /// `[2]`: the sum of the loss and of what was counted in it.
    pub totals: &'a Tensor,
    /// `[4]`: where something that is not finite began.
    pub window: &'a Tensor,
    /// Clip the gradients to this norm; 0 leaves them.
    pub max_norm: f32,
}

/// Records the beginning of a step, into `state [8]` and the next row of `log [rows, 4]`.
pub fn record(rec: &Recording, inputs: Inputs, state: &Tensor, log: &Tensor) -> Result<()> {
    let Inputs { lr, bias, partial_sums, partials, totals, window, max_norm } = inputs;
    let [bias_rows, _] = bias.matrix("bias")?;
    bias.expect_shape("bias", &[bias_rows, 2])?;
    totals.expect_shape("totals", &[2])?;
    window.expect_shape("window", &[WINDOW_LEN])?;
    state.expect_shape("state", &[STATE_LEN])?;
    let [log_rows, _] = log.matrix("log")?;
    log.expect_shape("log", &[log_rows, 4])?;
    let params = Params {
        lr_rows: lr.len() as u32,
        bias_rows: bias_rows as u32,
        partials: partials.min(partial_sums.len()) as u32,
        log_rows: log_rows as u32,
        max_norm,
    };
    rec.dispatch(&KERNEL, &[lr, bias, partial_sums, totals, window, state, log], params, [1, 1])
}
