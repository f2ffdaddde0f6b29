//! Rotary embedding.

use bytemuck::{Pod, Zeroable};

use crate::error::{Error, Result};
use crate::gpu::{Access, Kernel, Recording, Tensor, elementwise};

/// `shaders/nn/rope.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/rope",
    source: &[wgsl!("../../../shaders/nn/rope.wgsl")],
    buffers: &[
        ("cos_table", Access::Read),
        ("sin_table", Access::Read),
        ("position_ids", Access::ReadInt),
        ("x", Access::Write),
    ],
    constants: &[("WORKGROUP", 256, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    rows: u32,
    heads: u32,
    half_dim: u32,
    sin_factor: f32,
}

/// Records the rotation of each head of `x [rows, heads·head_dim]` in place, by the row of the tables
/// `cos_table, sin_table [positions, head_dim/2]` that `position_ids [rows]` names, which is the caller's to check;
/// backwards with `transposed`.
pub fn record(
    rec: &Recording,
    cos_table: &Tensor,
    sin_table: &Tensor,
    position_ids: &Tensor,
    x: &Tensor,
    transposed: bool,
) -> Result<()> {
    let [_, half_dim] = cos_table.matrix("cos_table")?;
    let [rows, width] = x.matrix("x")?;
    sin_table.expect_shape("sin_table", cos_table.shape())?;
    position_ids.expect_shape("position_ids", &[rows])?;
    if !width.is_multiple_of(2 * half_dim) {
        return Err(Error::shape("x", format!("rows of heads of {} elements", 2 * half_dim), width.to_string()));
    }
    let params = Params {
        rows: rows as u32,
        heads: (width / (2 * half_dim)) as u32,
        half_dim: half_dim as u32,
        sin_factor: if transposed { -1.0 } else { 1.0 },
    };
    let groups = elementwise(x.len() / 2, KERNEL.constant(rec.gpu(), "WORKGROUP"));
    rec.dispatch(&KERNEL, &[cos_table, sin_table, position_ids, x], params, groups)
}
