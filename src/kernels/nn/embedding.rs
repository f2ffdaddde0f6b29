//! Rows or columns of a table by their index.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/nn/embedding.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/embedding",
    source: &[wgsl!("../../../shaders/nn/embedding.wgsl")],
    buffers: &[("weight", Access::Read), ("ids", Access::ReadInt), ("output", Access::Write)],
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
}

/// Features of a table, and the strides of its ids and features: of `[vocabulary, features]`, or with `columns` of
/// `[features, vocabulary]`.
pub(super) fn strides(weight: &Tensor, columns: bool) -> Result<[usize; 3]> {
    let [first, last] = weight.matrix("weight")?;
    Ok(if columns { [first, 1, last] } else { [last, last, 1] })
}

/// Records `output[row] = weight[ids[row]]`: `weight [vocabulary, features]`, or with `columns` `[features, vocabulary]`,
/// `ids [rows]` of integers, which are the caller's to check, `output [rows, features]`.
pub fn record(rec: &Recording, weight: &Tensor, ids: &Tensor, output: &Tensor, columns: bool) -> Result<()> {
    let [features, row_stride, column_stride] = strides(weight, columns)?;
    let [rows, _] = output.matrix("output")?;
    ids.expect_shape("ids", &[rows])?;
    output.expect_shape("output", &[rows, features])?;
    let groups = workgroups(output.len(), KERNEL.constant(rec.gpu(), "WORKGROUP"));
    let [rows, features, row_stride, column_stride] = [rows, features, row_stride, column_stride].map(|n| n as u32);
    rec.dispatch(&KERNEL, &[weight, ids, output], Params { rows, features, row_stride, column_stride }, groups)
}
