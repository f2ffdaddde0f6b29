//! output += scale·y.

use bytemuck::{Pod, Zeroable};

use super::finite;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, elementwise};

/// `shaders/lora/add_scaled.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/add_scaled",
    source: &[wgsl!("../../../shaders/lora/add_scaled.wgsl")],
    buffers: &[("y", Access::Read), ("output", Access::Write)],
    constants: &[("WORKGROUP", 256, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
    scale: f32,
}

/// Records `output += scale·y`, both of one shape.
pub fn record(rec: &Recording, y: &Tensor, output: &Tensor, scale: f32) -> Result<()> {
    output.expect_shape("output", y.shape())?;
    let params = Params { len: y.len() as u32, scale: finite("scale", scale)? };
    rec.dispatch(&KERNEL, &[y, output], params, elementwise(y.len(), 4 * KERNEL.constant(rec.gpu(), "WORKGROUP")))
}
