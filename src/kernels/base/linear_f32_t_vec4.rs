//! d_input = d_output·W; overwrites d_input; without workgroup memory.

use bytemuck::{Pod, Zeroable};

use crate::error::{Error, Result};
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

const TOKENS: usize = 8;

/// `shaders/base/linear_f32_t_vec4.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "base/linear_f32_t_vec4",
    source: include_str!("../../../shaders/base/linear_f32_t_vec4.wgsl"),
    buffers: &[("weight", Access::Read), ("d_output", Access::Read), ("d_input", Access::Write)],
    constants: &[("WORKGROUP", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    in_features: u32,
    out_features: u32,
}

/// Records `d_input = d_output·W`: `weight [out_features, in_features]`, `d_output [tokens, out_features]`,
/// `d_input [tokens, in_features]`.
pub fn record(rec: &Recording, weight: &Tensor, d_output: &Tensor, d_input: &Tensor) -> Result<()> {
    let [out_features, in_features] = weight.matrix("weight")?;
    let [tokens, _] = d_output.matrix("d_output")?;
    d_output.expect_shape("d_output", &[tokens, out_features])?;
    d_input.expect_shape("d_input", &[tokens, in_features])?;
    if !in_features.is_multiple_of(4) || !out_features.is_multiple_of(4) {
        return Err(Error::shape("weight", "features divisible by 4", crate::gpu::show(weight.shape())));
    }
    let params = Params { tokens: tokens as u32, in_features: in_features as u32, out_features: out_features as u32 };
    rec.dispatch(
        &KERNEL,
        &[weight, d_output, d_input],
        params,
        workgroups(in_features / 4 * tokens.div_ceil(TOKENS), KERNEL.constant(rec.gpu(), "WORKGROUP")),
    )
}
