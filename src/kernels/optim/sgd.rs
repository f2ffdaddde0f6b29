//! p -= lr·(g + weight_decay·p).

use bytemuck::{Pod, Zeroable};

use super::{LrRatio, STATE_LEN};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/optim/sgd.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "optim/sgd",
    source: &[wgsl!("../../../shaders/optim/sgd.wgsl")],
    buffers: &[("grad", Access::Read), ("state", Access::Read), ("param", Access::Write)],
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
}

/// Records one update of `param` by `grad`, both of one shape, with the learning rate in `state [8]`.
pub fn record(
    rec: &Recording,
    grad: &Tensor,
    state: &Tensor,
    param: &Tensor,
    weight_decay: f32,
    group: LrRatio,
) -> Result<()> {
    grad.expect_shape("grad", param.shape())?;
    state.expect_shape("state", &[STATE_LEN])?;
    let params = Params { len: param.len() as u32, ratio_from: group.from as u32, lr_ratio: group.ratio, weight_decay };
    rec.dispatch(
        &KERNEL,
        &[grad, state, param],
        params,
        workgroups(param.len(), KERNEL.constant(rec.gpu(), "WORKGROUP")),
    )
}
