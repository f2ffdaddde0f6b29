//! output = x·Wᵀ + bias; overwrites output.

use bytemuck::{Pod, Zeroable};

use super::{linear_f32_gemv, linear_f32_vec4};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Profile, Recording, Tensor, fold};

const TILE: usize = 64;

/// `shaders/base/linear_f32.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "base/linear_f32",
    source: include_str!("../../../shaders/base/linear_f32.wgsl"),
    buffers: &[("weight", Access::Read), ("bias", Access::Read), ("x", Access::Read), ("output", Access::Write)],
    constants: &[],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    in_features: u32,
    out_features: u32,
    has_bias: u32,
}

/// Records `output = x·Wᵀ + bias`: `weight [out_features, in_features]`, `bias [out_features]`, `x [tokens, in_features]`,
/// `output [tokens, out_features]`.
pub fn record(rec: &Recording, weight: &Tensor, bias: Option<&Tensor>, x: &Tensor, output: &Tensor) -> Result<()> {
    let [out_features, in_features] = weight.matrix("weight")?;
    let [tokens, _] = x.matrix("x")?;
    x.expect_shape("x", &[tokens, in_features])?;
    output.expect_shape("output", &[tokens, out_features])?;
    if let Some(bias) = bias {
        bias.expect_shape("bias", &[out_features])?;
    }
    if tokens == 1 {
        return linear_f32_gemv::record(rec, weight, bias, x, output);
    }
    if rec.gpu().profile() == Profile::Software && in_features.is_multiple_of(4) {
        return linear_f32_vec4::record(rec, weight, bias, x, output);
    }
    let params = Params {
        tokens: tokens as u32,
        in_features: in_features as u32,
        out_features: out_features as u32,
        has_bias: bias.is_some().into(),
    };
    let tensors = [weight, bias.unwrap_or(weight), x, output];
    rec.dispatch(&KERNEL, &tensors, params, fold(out_features.div_ceil(TILE) * tokens.div_ceil(TILE)))
}
