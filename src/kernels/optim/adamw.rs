//! torch.optim.AdamW's update.

use bytemuck::{Pod, Zeroable};

use super::{AdamW, LrRatio, STATE_LEN};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/optim/adamw.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "optim/adamw",
    source: &[wgsl!("../../../shaders/optim/adamw.wgsl")],
    buffers: &[("grad", Access::Read), ("state", Access::Read), ("param", Access::Write), ("moments", Access::Write)],
    constants: &[("WORKGROUP", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
    ratio_from: u32,
    lr_ratio: f32,
    beta1: f32,
    beta2: f32,
    one_minus_beta1: f32,
    one_minus_beta2: f32,
    eps: f32,
    weight_decay: f32,
}

/// Records one update of `param` and `moments` (`[2, len]`: m, v) by `grad`, with learning rate and bias corrections in
/// `state [8]`.
pub fn record(
    rec: &Recording,
    grad: &Tensor,
    state: &Tensor,
    param: &Tensor,
    moments: &Tensor,
    options: &AdamW,
    group: LrRatio,
) -> Result<()> {
    grad.expect_shape("grad", param.shape())?;
    moments.expect_shape("moments", &[2, param.len()])?;
    state.expect_shape("state", &[STATE_LEN])?;
    let params = Params {
        len: param.len() as u32,
        ratio_from: group.from as u32,
        lr_ratio: group.ratio,
        beta1: options.beta1 as f32,
        beta2: options.beta2 as f32,
        one_minus_beta1: (1.0 - options.beta1) as f32,
        one_minus_beta2: (1.0 - options.beta2) as f32,
        eps: options.eps as f32,
        weight_decay: options.weight_decay as f32,
    };
    rec.dispatch(
        &KERNEL,
        &[grad, state, param, moments],
        params,
        workgroups(param.len(), KERNEL.constant(rec.gpu(), "WORKGROUP")),
    )
}
