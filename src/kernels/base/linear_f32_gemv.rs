//! output = W·x + bias for one token; overwrites output.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

/// `shaders/base/linear_f32_gemv.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "base/linear_f32_gemv",
    source: include_str!("../../../shaders/base/linear_f32_gemv.wgsl"),
    buffers: &[("weight", Access::Read), ("bias", Access::Read), ("x", Access::Read), ("output", Access::Write)],
    constants: &[("LANES", 64, 8)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    in_features: u32,
    out_features: u32,
    has_bias: u32,
}

/// Records `output = x·Wᵀ + bias`: `weight [out_features, in_features]`, `bias [out_features]`, `x [1, in_features]`,
/// `output [1, out_features]`.
pub fn record(rec: &Recording, weight: &Tensor, bias: Option<&Tensor>, x: &Tensor, output: &Tensor) -> Result<()> {
    let [out_features, in_features] = weight.matrix("weight")?;
    x.expect_shape("x", &[1, in_features])?;
    output.expect_shape("output", &[1, out_features])?;
    if let Some(bias) = bias {
        bias.expect_shape("bias", &[out_features])?;
    }
    let params =
        Params { in_features: in_features as u32, out_features: out_features as u32, has_bias: bias.is_some().into() };
    rec.dispatch(&KERNEL, &[weight, bias.unwrap_or(weight), x, output], params, fold(out_features))
}
