//! output = f(x).

use bytemuck::{Pod, Zeroable};

use super::Activation;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, elementwise};

/// `shaders/nn/activation.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/activation",
    source: &[wgsl!("../../../shaders/nn/activation.wgsl")],
    buffers: &[("x", Access::Read), ("output", Access::Write)],
    constants: &[("WORKGROUP", 256, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
    kind: u32,
}

/// Records `output = f(x)`, both of one shape; overwrites output.
pub fn record(rec: &Recording, kind: Activation, x: &Tensor, output: &Tensor) -> Result<()> {
    output.expect_shape("output", x.shape())?;
    let groups = elementwise(x.len(), 4 * KERNEL.constant(rec.gpu(), "WORKGROUP"));
    rec.dispatch(&KERNEL, &[x, output], Params { len: x.len() as u32, kind: kind as u32 }, groups)
}
