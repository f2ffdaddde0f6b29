//! The gradient of a table of which rows or columns were taken by their index.

use bytemuck::{Pod, Zeroable};

use super::embedding::strides;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};
use crate::kernels::lora::finite;

/// `shaders/nn/embedding_grad.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/embedding_grad",
    source: &[wgsl!("../../../shaders/nn/embedding_grad.wgsl")],
    buffers: &[("ids", Access::ReadInt), ("d_output", Access::Read), ("d_weight", Access::Write)],
    constants: &[("WORKGROUP", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    rows: u32,
    features: u32,
    row_stride: u32,
    column_stride: u32,
    scale: f32,
}

/// Records `d_weight[ids[row]] += scale·d_output[row]` for all rows: `ids [rows]` of integers, which are the caller's to
/// check, `d_output [rows, features]`, `d_weight [vocabulary, features]`, or with `columns` `[features, vocabulary]`.
pub fn record(
    rec: &Recording,
    ids: &Tensor,
    d_output: &Tensor,
    d_weight: &Tensor,
    columns: bool,
    scale: f32,
) -> Result<()> {
    let [features, row_stride, column_stride] = strides(d_weight, columns)?;
    let [rows, _] = d_output.matrix("d_output")?;
    ids.expect_shape("ids", &[rows])?;
    d_output.expect_shape("d_output", &[rows, features])?;
    let groups = workgroups(rows * features.div_ceil(4), KERNEL.constant(rec.gpu(), "WORKGROUP"));
    let [rows, features, row_stride, column_stride] = [rows, features, row_stride, column_stride].map(|n| n as u32);
    let params = Params { rows, features, row_stride, column_stride, scale: finite("scale", scale)? };
    rec.dispatch(&KERNEL, &[ids, d_output, d_weight], params, groups)
}
