//! d_input = d_output·W; overwrites d_input.

use bytemuck::{Pod, Zeroable};

use super::{linear_f32_t_gemv, linear_f32_t_vec4};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Profile, Recording, Tensor, fold};

const TILE: usize = 64;

/// `shaders/base/linear_f32_t.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "base/linear_f32_t",
    source: include_str!("../../../shaders/base/linear_f32_t.wgsl"),
    buffers: &[("weight", Access::Read), ("d_output", Access::Read), ("d_input", Access::Write)],
    constants: &[],
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
    if tokens == 1 {
        return linear_f32_t_gemv::record(rec, weight, d_output, d_input);
    }
    if rec.gpu().profile() == Profile::Software && in_features.is_multiple_of(4) && out_features.is_multiple_of(4) {
        return linear_f32_t_vec4::record(rec, weight, d_output, d_input);
    }
    let params = Params { tokens: tokens as u32, in_features: in_features as u32, out_features: out_features as u32 };
    rec.dispatch(
        &KERNEL,
        &[weight, d_output, d_input],
        params,
        fold(in_features.div_ceil(TILE) * tokens.div_ceil(TILE)),
    )
}
