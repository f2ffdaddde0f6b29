//! d_input = scale·d_output·W for W in f16 that is read as such; overwrites d_input or adds to it.

use super::linear_t::{Params, record_by};
use super::{HALF, Layout, Rows, Tiles, enough};
use crate::error::Result;
use crate::gpu::{Access, Gpu, Kernel, Recording, Tensor};

const TILE: usize = 64;

/// `shaders/base/linear_t.wgsl` with f16.
pub static KERNEL: Kernel = Kernel {
    name: "base/linear_t_half",
    source: &[HALF, wgsl!("../../../shaders/base/linear_t.wgsl")],
    buffers: &[("weight", Access::ReadWords), ("d_output", Access::Read), ("d_input", Access::Write)],
    constants: &[],
    params_size: size_of::<Params>(),
};

/// Whether it can take these rows, and is the fastest here for tiles of its width.
pub(super) fn suits(gpu: &Gpu, rows: &Rows) -> bool {
    gpu.has_f16() && rows.layout == Layout::F16
}

/// Records what [`linear_t`](super::linear_t) does, with the same bits where the device keeps f16's subnormal numbers.
pub fn record(
    rec: &Recording,
    rows: &Rows,
    d_output: &Tensor,
    d_input: &Tensor,
    first_column: usize,
    accumulate: bool,
) -> Result<()> {
    if rows.layout != Layout::F16 {
        return Err(rows.other_than("float16"));
    }
    let tiles = Tiles { kernel: &KERNEL, width: TILE, enough: enough(rows.count) };
    record_by(rec, tiles, rows, d_output, d_input, first_column, accumulate)
}
