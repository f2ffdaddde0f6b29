//! output = scale·x·Wᵀ + bias in f32; overwrites its columns of output or adds to them; by quads of invocations.

use bytemuck::{Pod, Zeroable};

use super::{Bias, Layout, QUADS_FROM, Rows};
use crate::error::Result;
use crate::gpu::{Access, Gpu, Kernel, Recording, Tensor, fold};

const TOKENS: usize = 16;
const OUTPUTS: usize = 8;

/// `shaders/base/linear_quad.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "base/linear_quad",
    source: &[wgsl!("../../../shaders/base/linear_quad.wgsl")],
    buffers: &[("weight", Access::Read), ("bias", Access::Read), ("x", Access::Read), ("output", Access::Write)],
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
    columns: u32,
    first_column: u32,
    first_bias: u32,
    has_bias: u32,
    accumulate: u32,
    scale: f32,
}

/// Whether it can take these rows, and is the fastest here.
pub(crate) fn suits(gpu: &Gpu, rows: &Rows, tokens: usize) -> bool {
    gpu.has_quads() && tokens >= QUADS_FROM && rows.layout == Layout::F32
}

/// Records `output[·, first_column…] = x·Wᵀ + bias` for the `rows` of W, or with `accumulate` adds that:
/// `x [tokens, in_features]`, `output [tokens, columns]`; in_features divisible by 4.
pub fn record(
    rec: &Recording,
    rows: &Rows,
    bias: Option<Bias>,
    x: &Tensor,
    output: &Tensor,
    first_column: usize,
    accumulate: bool,
) -> Result<()> {
    let [tokens, columns] = output.matrix("output")?;
    rows.check_f32()?;
    rows.expect_room("output", columns, first_column)?;
    x.expect_shape("x", &[tokens, rows.in_features])?;
    if let Some(Bias { bias, first }) = bias {
        rows.expect_room("bias", bias.len(), first)?;
    }
    let params = Params {
        tokens: tokens as u32,
        in_features: rows.in_features as u32,
        first_row: rows.first as u32,
        rows: rows.count as u32,
        columns: columns as u32,
        first_column: first_column as u32,
        first_bias: bias.map_or(0, |bias| bias.first as u32),
        has_bias: bias.is_some().into(),
        accumulate: accumulate.into(),
        scale: rows.scale,
    };
    let tensors = [&rows.weight, bias.map_or(x, |bias| bias.bias), x, output];
    let quads = rows.count.div_ceil(2 * OUTPUTS) * tokens.div_ceil(2 * TOKENS);
    rec.dispatch(&KERNEL, &tensors, params, fold(quads))
}
