//! Rows of a table by their index.

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
}

/// Records `output[row] = weight[ids[row]]`: `weight [vocabulary, features]`, `ids [rows]` of integers, which are the
/// caller's to check, `output [rows, features]`.
pub fn record(rec: &Recording, weight: &Tensor, ids: &Tensor, output: &Tensor) -> Result<()> {
    let [_, features] = weight.matrix("weight")?;
    let [rows, _] = output.matrix("output")?;
    ids.expect_shape("ids", &[rows])?;
    output.expect_shape("output", &[rows, features])?;
    let groups = workgroups(output.len(), KERNEL.constant(rec.gpu(), "WORKGROUP"));
    rec.dispatch(&KERNEL, &[weight, ids, output], Params { rows: rows as u32, features: features as u32 }, groups)
}
