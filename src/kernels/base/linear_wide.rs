//! output = scale·x·Wᵀ + bias; overwrites its columns of output; for many tokens and outputs.

use super::linear::{Params, record_by};
use super::{Bias, Rows, TILES, Tiles, enough_wide, product};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor};

/// `shaders/base/linear_wide.wgsl` with each layout.
pub static KERNELS: [Kernel; 8] = product!(
    "linear_wide",
    "../../../shaders/base/linear_wide.wgsl",
    [("bias", Access::Read), ("x", Access::Read), ("output", Access::Write)],
    [&[]; 8],
    TILES
);

/// Records what [`linear`](super::linear) does.
pub fn record(
    rec: &Recording,
    rows: &Rows,
    bias: Option<Bias>,
    x: &Tensor,
    output: &Tensor,
    first_column: usize,
) -> Result<()> {
    let [tokens, _] = output.matrix("output")?;
    let enough = enough_wide([tokens, rows.count], rows.in_features);
    record_by(rec, Tiles::wide(rows.kernel(&KERNELS), enough), rows, bias, x, output, first_column)
}
