//! v = momentum·v + g + weight_decay·p; p -= lr·v.

use bytemuck::{Pod, Zeroable};

use super::{LrRatio, STATE_LEN};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/optim/sgd_momentum.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "optim/sgd_momentum",
    source: &[wgsl!("../../../shaders/optim/sgd_momentum.wgsl")],
    buffers: &[("grad", Access::Read), ("state", Access::Read), ("param", Access::Write), ("velocity", Access::Write)],
    constants: &[("WORKGROUP", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
    ratio_from: u32,
    lr_ratio: f32,
    weight_decay: f32,
    momentum: f32,
}

/// Records one update of `param` and `velocity` by `grad`, all of one shape, with the learning rate in `state [8]`.
#[allow(clippy::too_many_arguments)]
pub fn record(
    rec: &Recording,
    grad: &Tensor,
    state: &Tensor,
    param: &Tensor,
    velocity: &Tensor,
    weight_decay: f32,
    momentum: f32,
    group: LrRatio,
) -> Result<()> {
    grad.expect_shape("grad", param.shape())?;
    velocity.expect_shape("velocity", param.shape())?;
    state.expect_shape("state", &[STATE_LEN])?;
    let params = Params {
        len: param.len() as u32,
        ratio_from: group.from as u32,
        lr_ratio: group.ratio,
        weight_decay,
        momentum,
    };
    rec.dispatch(
        &KERNEL,
        &[grad, state, param, velocity],
        params,
        workgroups(param.len(), KERNEL.constant(rec.gpu(), "WORKGROUP")),
    )
}
