//! d_input = scale·d_output·W; overwrites d_input or adds to it.

use bytemuck::{Pod, Zeroable};

use super::add_parts::{self, Sums};
use super::{Rows, Tiles, enough, linear_t_half, linear_t_wide, product, suit_wide};
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
pub(super) struct Params {
    tokens: u32,
    in_features: u32,
    first_row: u32,
    rows: u32,
    columns: u32,
    first_column: u32,
    accumulate: u32,
    part: u32,
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
    let [tokens, _] = d_output.matrix("d_output")?;
    if suit_wide([tokens, rows.in_features], rows.count) {
        return linear_t_wide::record(rec, rows, d_output, d_input, first_column, accumulate);
    }
    if linear_t_half::suits(rec.gpu(), rows) {
        return linear_t_half::record(rec, rows, d_output, d_input, first_column, accumulate);
    }
    let tiles = Tiles { kernel: rows.kernel(&KERNELS), width: TILE, enough: enough(rows.count) };
    record_by(rec, tiles, rows, d_output, d_input, first_column, accumulate)
}

/// By tiles of this size.
pub(super) fn record_by(
    rec: &Recording,
    Tiles { kernel, width, enough }: Tiles,
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
    let tiles = rows.in_features.div_ceil(width) * tokens.div_ceil(width);
    let width = rows.in_features;
    let sums = Sums { output: d_input, columns: width, first_column: 0, width, accumulate };
    add_parts::record_sums(rec, sums, rows.count, tiles, enough, |sums, part| {
        let params = Params {
            tokens: tokens as u32,
            in_features: rows.in_features as u32,
            first_row: rows.first as u32,
            rows: rows.count as u32,
            columns: columns as u32,
            first_column: first_column as u32,
            accumulate: sums.accumulate.into(),
            part: part as u32,
            scale: rows.scale,
        };
        let tensors = [&rows.weight, d_output, sums.output];
        rec.dispatch(kernel, &tensors, params, fold(tiles * rows.count.div_ceil(part)))
    })
}
