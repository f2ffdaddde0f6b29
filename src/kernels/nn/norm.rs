//! Layer norm and RMS norm.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

/// `shaders/nn/norm.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/norm",
    source: &[wgsl!("../../../shaders/nn/norm.wgsl")],
    buffers: &[("weight", Access::Read), ("bias", Access::Read), ("x", Access::Read), ("output", Access::Write)],
    constants: &[("WORKGROUP", 64, 8)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    rows: u32,
    features: u32,
    centered: u32,
    has_bias: u32,
    eps: f32,
}

/// Records the norm of each row of `x [rows, features]` times `weight [features]` plus `bias [features]`; `centered` is
/// layer norm, else RMS norm.
pub fn record(
    rec: &Recording,
    weight: &Tensor,
    bias: Option<&Tensor>,
    x: &Tensor,
    output: &Tensor,
    centered: bool,
    eps: f32,
) -> Result<()> {
    let [rows, features] = x.matrix("x")?;
    weight.expect_shape("weight", &[features])?;
    bias.map_or(Ok(()), |bias| bias.expect_shape("bias", &[features]))?;
    output.expect_shape("output", x.shape())?;
    let params = Params {
        rows: rows as u32,
        features: features as u32,
        centered: centered.into(),
        has_bias: bias.is_some().into(),
        eps,
    };
    rec.dispatch(&KERNEL, &[weight, bias.unwrap_or(weight), x, output], params, fold(rows))
}
