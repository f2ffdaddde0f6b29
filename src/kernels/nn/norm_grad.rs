//! The gradient of layer norm and RMS norm.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

/// `shaders/nn/norm_grad.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/norm_grad",
    source: &[wgsl!("../../../shaders/nn/norm_grad.wgsl")],
    buffers: &[("weight", Access::Read), ("x", Access::Read), ("d_output", Access::Read), ("d_input", Access::Write)],
    constants: &[("WORKGROUP", 64, 8)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    rows: u32,
    features: u32,
    centered: u32,
    accumulate: u32,
    eps: f32,
}

/// Records the gradient of [`norm`](super::norm) at `x [rows, features]`; overwrites `d_input`, of `x`'s shape, or adds
/// to it with `accumulate`.
#[allow(clippy::too_many_arguments)]
pub fn record(
    rec: &Recording,
    weight: &Tensor,
    x: &Tensor,
    d_output: &Tensor,
    d_input: &Tensor,
    centered: bool,
    eps: f32,
    accumulate: bool,
) -> Result<()> {
    let [rows, features] = x.matrix("x")?;
    weight.expect_shape("weight", &[features])?;
    d_output.expect_shape("d_output", x.shape())?;
    d_input.expect_shape("d_input", x.shape())?;
    let (rows_u32, features) = (rows as u32, features as u32);
    let params = Params { rows: rows_u32, features, centered: centered.into(), accumulate: accumulate.into(), eps };
    rec.dispatch(&KERNEL, &[weight, x, d_output, d_input], params, fold(rows))
}
