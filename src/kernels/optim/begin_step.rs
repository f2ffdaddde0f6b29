//! The step counter on the GPU, and what the step's learning rate and bias corrections are.

use bytemuck::{Pod, Zeroable};

use super::STATE_LEN;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor};

/// `shaders/optim/begin_step.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "optim/begin_step",
    source: include_str!("../../../shaders/optim/begin_step.wgsl"),
    buffers: &[("lr", Access::Read), ("bias", Access::Read), ("state", Access::Write)],
    constants: &[],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    lr_rows: u32,
    bias_rows: u32,
}

/// Records the beginning of a step: `lr [rows]`, `bias [rows, 2]`, `state [4]`: step (u32), lr, 1/(1−β₁ᵗ), 1/√(1−β₂ᵗ).
pub fn record(rec: &Recording, lr: &Tensor, bias: &Tensor, state: &Tensor) -> Result<()> {
    let [bias_rows, _] = bias.matrix("bias")?;
    bias.expect_shape("bias", &[bias_rows, 2])?;
    state.expect_shape("state", &[STATE_LEN])?;
    let params = Params { lr_rows: lr.len() as u32, bias_rows: bias_rows as u32 };
    rec.dispatch(&KERNEL, &[lr, bias, state], params, [1, 1])
}
