//! d_input = scale·d_output·W; overwrites d_input or adds to it; without workgroup memory.

use bytemuck::{Pod, Zeroable};

use super::{Rows, product};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

const TOKENS: usize = 8;
const INPUTS: usize = 8;

/// `shaders/base/linear_t_vec4.wgsl` with each layout.
pub static KERNELS: [Kernel; 8] = product!(
    "linear_t_vec4",
    "../../../shaders/base/linear_t_vec4.wgsl",
    [("d_output", Access::Read), ("d_input", Access::Write)],
    [&[("WORKGROUP", 64, 64)]; 8]
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
    let kernel = rows.kernel(&KERNELS);
    let tiles = rows.in_features.div_ceil(INPUTS) * tokens.div_ceil(TOKENS);
    let groups = workgroups(tiles, kernel.constant(rec.gpu(), "WORKGROUP"));
    rec.dispatch(kernel, &[&rows.weight, d_output, d_input], params, groups)
}
