//! d_input = d_output·W for one token; overwrites d_input.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/base/linear_f32_t_gemv.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "base/linear_f32_t_gemv",
    source: include_str!("../../../shaders/base/linear_f32_t_gemv.wgsl"),
    buffers: &[("weight", Access::Read), ("d_output", Access::Read), ("d_input", Access::Write)],
    constants: &[("COLUMNS", 32, 16), ("SLICES", 8, 1)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    in_features: u32,
    out_features: u32,
}

/// Records `d_input = d_output·W`: `weight [out_features, in_features]`, `d_output [1, out_features]`,
/// `d_input [1, in_features]`.
pub fn record(rec: &Recording, weight: &Tensor, d_output: &Tensor, d_input: &Tensor) -> Result<()> {
    let [out_features, in_features] = weight.matrix("weight")?;
    d_output.expect_shape("d_output", &[1, out_features])?;
    d_input.expect_shape("d_input", &[1, in_features])?;
    let params = Params { in_features: in_features as u32, out_features: out_features as u32 };
    rec.dispatch(
        &KERNEL,
        &[weight, d_output, d_input],
        params,
        workgroups(in_features, KERNEL.constant(rec.gpu(), "COLUMNS")),
    )
}
