//! d_input = scale·d_output·W in f32; overwrites d_input or adds to it; by quads of invocations.

use bytemuck::{Pod, Zeroable};

use super::{Layout, QUADS_FROM, Rows};
use crate::error::Result;
use crate::gpu::{Access, Gpu, Kernel, Recording, Tensor, fold};

const TOKENS: usize = 8;
const INPUTS: usize = 8;

/// `shaders/base/linear_t_quad.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "base/linear_t_quad",
    source: &[wgsl!("../../../shaders/base/linear_t_quad.wgsl")],
    buffers: &[("weight", Access::Read), ("d_output", Access::Read), ("d_input", Access::Write)],
    constants: &[],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    in_features: u32,
    first_row: u32,
    rows: u32,
    token_stride: u32,
    row_stride: u32,
    first: u32,
    accumulate: u32,
    scale: f32,
}

/// Whether it can take these rows, and is the fastest here.
pub(crate) fn suits(gpu: &Gpu, rows: &Rows, tokens: usize) -> bool {
    gpu.has_quads() && tokens >= QUADS_FROM && rows.layout == Layout::F32
}

/// Records `d_input = d_output[·, first_column…]·W` of the `rows` of W, or with `accumulate` adds that:
/// `d_output [tokens, columns]`, `d_input [tokens, in_features]`; in_features divisible by 4.
pub fn record(
    rec: &Recording,
    rows: &Rows,
    d_output: &Tensor,
    d_input: &Tensor,
    first_column: usize,
    accumulate: bool,
) -> Result<()> {
    let [tokens, columns] = d_output.matrix("d_output")?;
    rows.expect_room("d_output", columns, first_column)?;
    dispatch(rec, rows, d_output, d_input, tokens, [columns, 1, first_column], accumulate)
}

/// The same with `d_outputᵀ [columns, tokens]` in place of d_output.
pub fn record_transposed(
    rec: &Recording,
    rows: &Rows,
    d_output: &Tensor,
    d_input: &Tensor,
    first_column: usize,
    accumulate: bool,
) -> Result<()> {
    let [columns, tokens] = d_output.matrix("d_output")?;
    rows.expect_room("d_output", columns, first_column)?;
    dispatch(rec, rows, d_output, d_input, tokens, [1, tokens, first_column * tokens], accumulate)
}

fn dispatch(
    rec: &Recording,
    rows: &Rows,
    d_output: &Tensor,
    d_input: &Tensor,
    tokens: usize,
    [token_stride, row_stride, first]: [usize; 3],
    accumulate: bool,
) -> Result<()> {
    rows.check_f32()?;
    d_input.expect_shape("d_input", &[tokens, rows.in_features])?;
    let params = Params {
        tokens: tokens as u32,
        in_features: rows.in_features as u32,
        first_row: rows.first as u32,
        rows: rows.count as u32,
        token_stride: token_stride as u32,
        row_stride: row_stride as u32,
        first: first as u32,
        accumulate: accumulate.into(),
        scale: rows.scale,
    };
    let quads = rows.in_features.div_ceil(2 * INPUTS) * tokens.div_ceil(2 * TOKENS);
    rec.dispatch(&KERNEL, &[&rows.weight, d_output, d_input], params, fold(quads))
}
