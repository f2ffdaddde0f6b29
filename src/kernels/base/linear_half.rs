//! output = scale·x·Wᵀ + bias for W in f16 that is read as such; overwrites its columns of output.

use super::linear::{Params, record_by};
use super::{Bias, HALF, Layout, Rows, Tiles, enough};
use crate::error::Result;
use crate::gpu::{Access, Gpu, Kernel, Recording, Tensor};

const TILE: usize = 64;

/// `shaders/base/linear.wgsl` with f16.
pub static KERNEL: Kernel = Kernel {
    name: "base/linear_half",
    source: &[HALF, wgsl!("../../../shaders/base/linear.wgsl")],
    buffers: &[("weight", Access::ReadWords), ("bias", Access::Read), ("x", Access::Read), ("output", Access::Write)],
    constants: &[],
    params_size: size_of::<Params>(),
};

/// Whether it can take these rows, and is the fastest here for tiles of its width.
pub(super) fn suits(gpu: &Gpu, rows: &Rows) -> bool {
    gpu.has_f16() && rows.layout == Layout::F16
}

/// Records what [`linear`](super::linear) does, with the same bits where the device keeps f16's subnormal numbers.
pub fn record(
    rec: &Recording,
    rows: &Rows,
    bias: Option<Bias>,
    x: &Tensor,
    output: &Tensor,
    first_column: usize,
) -> Result<()> {
    if rows.layout != Layout::F16 {
        return Err(rows.other_than("float16"));
    }
    let tiles = Tiles { kernel: &KERNEL, width: TILE, enough: enough(rows.in_features) };
    record_by(rec, tiles, rows, bias, x, output, first_column)
}
