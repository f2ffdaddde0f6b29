//! d_weight += scale·leftᵀ·right, the gradient of a whole weight or of an adapter of large rank; for many rows and columns.

use bytemuck::{Pod, Zeroable};

use super::add_parts::{self, Sums};
use super::{TILES, WIDE, enough_wide};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

/// `shaders/base/linear_grad.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "base/linear_grad",
    source: &[TILES, wgsl!("../../../shaders/base/linear_grad.wgsl")],
    buffers: &[("left", Access::Read), ("right", Access::Read), ("d_weight", Access::Write)],
    constants: &[],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    rows: u32,
    columns: u32,
    accumulate: u32,
    part: u32,
    scale: f32,
}

/// Records `d_weight += scale·leftᵀ·right`: `left [tokens, rows]`, `right [tokens, columns]`, `d_weight [rows, columns]`.
pub fn record(rec: &Recording, left: &Tensor, right: &Tensor, d_weight: &Tensor, scale: f32) -> Result<()> {
    let [rows, columns] = d_weight.matrix("d_weight")?;
    let [tokens, _] = left.matrix("left")?;
    left.expect_shape("left", &[tokens, rows])?;
    right.expect_shape("right", &[tokens, columns])?;
    let tiles = rows.div_ceil(WIDE) * columns.div_ceil(WIDE);
    add_parts::record_sums(
        rec,
        Sums::added_to(d_weight),
        tokens,
        tiles,
        enough_wide([rows, columns], tokens),
        |sums, part| {
            let params = Params {
                tokens: tokens as u32,
                rows: rows as u32,
                columns: columns as u32,
                accumulate: sums.accumulate.into(),
                part: part as u32,
                scale,
            };
            rec.dispatch(&KERNEL, &[left, right, sums.output], params, fold(tiles * tokens.div_ceil(part)))
        },
    )
}
