//! output = scale·W·x + bias for one token; overwrites its columns of output.

use bytemuck::{Pod, Zeroable};

use super::{Bias, GEMV, Rows, product};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

const ROWS: usize = 4;

/// `shaders/base/linear_gemv.wgsl` with each layout.
pub static KERNELS: [Kernel; 8] = product!(
    "linear_gemv",
    "../../../shaders/base/linear_gemv.wgsl",
    [("bias", Access::Read), ("x", Access::Read), ("output", Access::Write)],
    [&[("LANES", 32, 8), ("TEAMS", 4, 1)]; 8],
    GEMV
);

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Params {
    in_features: u32,
    first_row: u32,
    rows: u32,
    first_column: u32,
    first_bias: u32,
    has_bias: u32,
    scale: f32,
}

/// Records `output[·, first_column…] = x·Wᵀ + bias` for the `rows` of W: `x [1, ⌈in_features / 4⌉ · 4]`,
/// `output [1, columns]`.
pub fn record(
    rec: &Recording,
    rows: &Rows,
    bias: Option<Bias>,
    x: &Tensor,
    output: &Tensor,
    first_column: usize,
) -> Result<()> {
    let kernel = rows.kernel(&KERNELS);
    record_by(rec, (kernel, kernel.constant(rec.gpu(), "TEAMS")), rows, bias, x, output, first_column)
}

/// By this kernel, a workgroup of which makes so many times [`ROWS`] rows.
pub(super) fn record_by(
    rec: &Recording,
    (kernel, teams): (&'static Kernel, usize),
    rows: &Rows,
    bias: Option<Bias>,
    x: &Tensor,
    output: &Tensor,
    first_column: usize,
) -> Result<()> {
    let [_, columns] = output.matrix("output")?;
    rows.check()?;
    rows.expect_room("output", columns, first_column)?;
    output.expect_shape("output", &[1, columns])?;
    x.expect_shape("x", &[1, rows.padded()])?;
    if let Some(Bias { bias, first }) = bias {
        rows.expect_room("bias", bias.len(), first)?;
    }
    let params = Params {
        in_features: rows.in_features as u32,
        first_row: rows.first as u32,
        rows: rows.count as u32,
        first_column: first_column as u32,
        first_bias: bias.map_or(0, |bias| bias.first as u32),
        has_bias: bias.is_some().into(),
        scale: rows.scale,
    };
    let tensors = [&rows.weight, bias.map_or(x, |bias| bias.bias), x, output];
    rec.dispatch(kernel, &tensors, params, workgroups(rows.count, ROWS * teams))
}
