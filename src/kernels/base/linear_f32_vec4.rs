//! output = x·Wᵀ + bias; overwrites output; without workgroup memory.

use bytemuck::{Pod, Zeroable};

use crate::error::{Error, Result};
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

const TOKENS: usize = 8;
const OUTPUTS: usize = 4;

/// `shaders/base/linear_f32_vec4.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "base/linear_f32_vec4",
    source: include_str!("../../../shaders/base/linear_f32_vec4.wgsl"),
    buffers: &[("weight", Access::Read), ("bias", Access::Read), ("x", Access::Read), ("output", Access::Write)],
    constants: &[("WORKGROUP", 64, 64)],
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
    if !in_features.is_multiple_of(4) {
        return Err(Error::shape("weight", "in_features divisible by 4", in_features.to_string()));
    }
    let params = Params {
        tokens: tokens as u32,
        in_features: in_features as u32,
        out_features: out_features as u32,
        has_bias: bias.is_some().into(),
    };
    let tensors = [weight, bias.unwrap_or(weight), x, output];
    rec.dispatch(
        &KERNEL,
        &tensors,
        params,
        workgroups(out_features.div_ceil(OUTPUTS) * tokens.div_ceil(TOKENS), KERNEL.constant(rec.gpu(), "WORKGROUP")),
    )
}
