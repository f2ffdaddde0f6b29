//! d_input = scale·d_output·W for one token; overwrites d_input or adds to it.

use bytemuck::{Pod, Zeroable};

use super::{Rows, product};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/base/linear_t_gemv.wgsl` with each layout.
pub static KERNELS: [Kernel; 8] = product!(
    "linear_t_gemv",
    "../../../shaders/base/linear_t_gemv.wgsl",
    [("d_output", Access::Read), ("d_input", Access::Write)],
    [&[("CHUNKS", 8, 8), ("SLICES", 32, 1)]; 8]
);

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    in_features: u32,
    first_row: u32,
    rows: u32,
    first_column: u32,
    accumulate: u32,
    scale: f32,
}

/// Records `d_input = d_output[·, first_column…]·W` of the `rows` of W, or with `accumulate` adds that:
/// `d_output [1, columns]`, `d_input [1, in_features]`.
pub fn record(
    rec: &Recording,
    rows: &Rows,
    d_output: &Tensor,
    d_input: &Tensor,
    first_column: usize,
    accumulate: bool,
) -> Result<()> {
    let [_, columns] = d_output.matrix("d_output")?;
    rows.check()?;
    rows.expect_room("d_output", columns, first_column)?;
    d_output.expect_shape("d_output", &[1, columns])?;
    d_input.expect_shape("d_input", &[1, rows.in_features])?;
    let params = Params {
        in_features: rows.in_features as u32,
        first_row: rows.first as u32,
        rows: rows.count as u32,
        first_column: first_column as u32,
        accumulate: accumulate.into(),
        scale: rows.scale,
    };
    let kernel = rows.kernel(&KERNELS);
    let groups = workgroups(rows.in_features.div_ceil(rows.layout.chunk()), kernel.constant(rec.gpu(), "CHUNKS"));
    rec.dispatch(kernel, &[&rows.weight, d_output, d_input], params, groups)
}
