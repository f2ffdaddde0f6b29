//! d_input = f′(x)·d_output.

use bytemuck::{Pod, Zeroable};

use super::Activation;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, elementwise};

/// `shaders/nn/activation_grad.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/activation_grad",
    source: &[wgsl!("../../../shaders/nn/activation_grad.wgsl")],
    buffers: &[("x", Access::Read), ("d_output", Access::Read), ("d_input", Access::Write)],
    constants: &[("WORKGROUP", 256, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
    kind: u32,
}

/// Records `d_input = f′(x)·d_output`, all of one shape; overwrites d_input.
pub fn record(rec: &Recording, kind: Activation, x: &Tensor, d_output: &Tensor, d_input: &Tensor) -> Result<()> {
    d_output.expect_shape("d_output", x.shape())?;
    d_input.expect_shape("d_input", x.shape())?;
    let groups = elementwise(x.len(), 4 * KERNEL.constant(rec.gpu(), "WORKGROUP"));
    rec.dispatch(&KERNEL, &[x, d_output, d_input], Params { len: x.len() as u32, kind: kind as u32 }, groups)
}
