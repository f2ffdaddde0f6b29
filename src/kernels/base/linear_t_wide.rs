//! d_input = scale·d_output·W, or that added to it; for many tokens and inputs.

use super::linear_t::{Params, record_by};
use super::{Rows, TILES, Tiles, enough_wide, product};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor};

/// `shaders/base/linear_t_wide.wgsl` with each layout.
pub static KERNELS: [Kernel; 8] = product!(
    "linear_t_wide",
    "../../../shaders/base/linear_t_wide.wgsl",
    [("d_output", Access::Read), ("d_input", Access::Write)],
    [&[]; 8],
    TILES
);

/// Records what [`linear_t`](super::linear_t) does.
pub fn record(
    rec: &Recording,
    rows: &Rows,
    d_output: &Tensor,
    d_input: &Tensor,
    first_column: usize,
    accumulate: bool,
) -> Result<()> {
    let [tokens, _] = d_output.matrix("d_output")?;
    let enough = enough_wide([tokens, rows.in_features], rows.count);
    record_by(rec, Tiles::wide(rows.kernel(&KERNELS), enough), rows, d_output, d_input, first_column, accumulate)
}
