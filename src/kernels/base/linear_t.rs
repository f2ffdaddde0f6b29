//! d_input = scale·d_output·W; overwrites d_input or adds to it.

use bytemuck::{Pod, Zeroable};

use super::{Rows, product};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

const TILE: usize = 64;

/// `shaders/base/linear_t.wgsl` with each layout.
pub static KERNELS: [Kernel; 8] = product!(
    "linear_t",
    "../../../shaders/base/linear_t.wgsl",
    [("d_output", Access::Read), ("d_input", Access::Write)],
    [&[]; 8]
);

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    in_features: u32,
    first_row: u32,
    rows: u32,
    columns: u32,
    first_column: u32,
    accumulate: u32,
    scale: f32,
}

/// Records `d_input = d_output[·, first_column…]·W` of the `rows` of W, or with `accumulate` adds that:
/// `d_output [tokens, columns]`, `d_input [tokens, in_features]`.
pub fn record(
    rec: &Recording,
    rows: &Rows,
    d_output: &Tensor,
    d_input: &Tensor,
    first_column: usize,
    accumulate: bool,
) -> Result<()> {
    let [tokens, columns] = d_output.matrix("d_output")?;
    rows.check()?;
    rows.expect_room("d_output", columns, first_column)?;
    d_input.expect_shape("d_input", &[tokens, rows.in_features])?;
    let params = Params {
        tokens: tokens as u32,
        in_features: rows.in_features as u32,
        first_row: rows.first as u32,
        rows: rows.count as u32,
        columns: columns as u32,
        first_column: first_column as u32,
        accumulate: accumulate.into(),
        scale: rows.scale,
    };
    let groups = fold(rows.in_features.div_ceil(TILE) * tokens.div_ceil(TILE));
    rec.dispatch(rows.kernel(&KERNELS), &[&rows.weight, d_output, d_input], params, groups)
}
