//! The gradient of a bias.

use bytemuck::{Pod, Zeroable};

use super::finite;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/lora/bias_grad.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/bias_grad",
    source: &[wgsl!("../../../shaders/lora/bias_grad.wgsl")],
    buffers: &[("d_output", Access::Read), ("d_bias", Access::Write)],
    constants: &[("WORKGROUP", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    out_features: u32,
    scale: f32,
}

/// Records `d_bias += scale·Σₜ d_output`: `d_output [tokens, out_features]`, `d_bias [out_features]`.
pub fn record(rec: &Recording, d_output: &Tensor, d_bias: &Tensor, scale: f32) -> Result<()> {
    let [tokens, out_features] = d_output.matrix("d_output")?;
    d_bias.expect_shape("d_bias", &[out_features])?;
    let params = Params { tokens: tokens as u32, out_features: out_features as u32, scale: finite("scale", scale)? };
    rec.dispatch(
        &KERNEL,
        &[d_output, d_bias],
        params,
        workgroups(out_features, KERNEL.constant(rec.gpu(), "WORKGROUP")),
    )
}
