//! output = scale·x·Wᵀ + bias; overwrites its columns of output.

use bytemuck::{Pod, Zeroable};

use super::add_parts::{self, Sums};
use super::{Bias, Rows, Tiles, enough, linear_half, linear_wide, product, suit_wide};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

const TILE: usize = 64;

/// `shaders/base/linear.wgsl` with each layout.
pub static KERNELS: [Kernel; 8] = product!(
    "linear",
    "../../../shaders/base/linear.wgsl",
    [("bias", Access::Read), ("x", Access::Read), ("output", Access::Write)],
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
    first_bias: u32,
    has_bias: u32,
    part: u32,
    scale: f32,
}

/// Records `output[·, first_column…] = x·Wᵀ + bias` for the `rows` of W: `x [tokens, ⌈in_features / 4⌉ · 4]`,
/// `output [tokens, columns]`.
pub fn record(
    rec: &Recording,
    rows: &Rows,
    bias: Option<Bias>,
    x: &Tensor,
    output: &Tensor,
    first_column: usize,
) -> Result<()> {
    let [tokens, _] = output.matrix("output")?;
    if suit_wide([tokens, rows.count], rows.in_features) {
        return linear_wide::record(rec, rows, bias, x, output, first_column);
    }
    if linear_half::suits(rec.gpu(), rows) {
        return linear_half::record(rec, rows, bias, x, output, first_column);
    }
    let tiles = Tiles { kernel: rows.kernel(&KERNELS), width: TILE, enough: enough(rows.in_features) };
    record_by(rec, tiles, rows, bias, x, output, first_column)
}

/// By tiles of this size.
pub(super) fn record_by(
    rec: &Recording,
    Tiles { kernel, width, enough }: Tiles,
    rows: &Rows,
    bias: Option<Bias>,
    x: &Tensor,
    output: &Tensor,
    first_column: usize,
) -> Result<()> {
    let [tokens, columns] = output.matrix("output")?;
    rows.check()?;
    rows.expect_room("output", columns, first_column)?;
    x.expect_shape("x", &[tokens, rows.padded()])?;
    if let Some(Bias { bias, first }) = bias {
        rows.expect_room("bias", bias.len(), first)?;
    }
    let tiles = rows.count.div_ceil(width) * tokens.div_ceil(width);
    let sums = Sums { output, columns, first_column, width: rows.count, accumulate: false };
    add_parts::record_sums(rec, sums, rows.in_features, tiles, enough, |sums, part| {
        let params = Params {
            tokens: tokens as u32,
            in_features: rows.in_features as u32,
            first_row: rows.first as u32,
            rows: rows.count as u32,
            columns: sums.columns as u32,
            first_column: sums.first_column as u32,
            first_bias: bias.map_or(0, |bias| bias.first as u32),
            has_bias: bias.is_some().into(),
            part: part.div_ceil(4) as u32,
            scale: rows.scale,
        };
        let tensors = [&rows.weight, bias.map_or(x, |bias| bias.bias), x, sums.output];
        rec.dispatch(kernel, &tensors, params, fold(tiles * rows.in_features.div_ceil(part)))
    })
}
