//! A bias beside `B`.

use bytemuck::{Pod, Zeroable};

use super::finite;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, elementwise};

/// `shaders/lora/bias_add.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/bias_add",
    source: &[wgsl!("../../../shaders/lora/bias_add.wgsl")],
    buffers: &[("bias", Access::Read), ("output", Access::Write)],
    constants: &[("WORKGROUP", 256, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    out_features: u32,
    scale: f32,
}

/// Records `output += scale·bias`: `bias [out_features]`, `output [tokens, out_features]`.
pub fn record(rec: &Recording, bias: &Tensor, output: &Tensor, scale: f32) -> Result<()> {
    let [tokens, out_features] = output.matrix("output")?;
    bias.expect_shape("bias", &[out_features])?;
    let params = Params { tokens: tokens as u32, out_features: out_features as u32, scale: finite("scale", scale)? };
    rec.dispatch(
        &KERNEL,
        &[bias, output],
        params,
        elementwise(output.len(), 4 * KERNEL.constant(rec.gpu(), "WORKGROUP")),
    )
}
