//! output = a + b.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, elementwise};

/// `shaders/nn/add.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/add",
    source: &[wgsl!("../../../shaders/nn/add.wgsl")],
    buffers: &[("a", Access::Read), ("b", Access::Read), ("output", Access::Write)],
    constants: &[("WORKGROUP", 256, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
}

/// Records `output = a + b`, all of one shape; overwrites output.
pub fn record(rec: &Recording, a: &Tensor, b: &Tensor, output: &Tensor) -> Result<()> {
    b.expect_shape("b", a.shape())?;
    output.expect_shape("output", a.shape())?;
    let groups = elementwise(a.len(), KERNEL.constant(rec.gpu(), "WORKGROUP"));
    rec.dispatch(&KERNEL, &[a, b, output], Params { len: a.len() as u32 }, groups)
}
