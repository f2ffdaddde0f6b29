//! output = scale·W·x + bias for one token; overwrites its columns of output; added up by subgroups.

use super::linear_gemv::{Params, record_by};
use super::{Bias, GEMV, Rows, product};
use crate::error::Result;
use crate::gpu::{Access, Gpu, Kernel, Recording, Tensor};

const TEAMS: usize = 4;

/// `shaders/base/linear_gemv_subgroups.wgsl` with each layout but those of 4 bits, for which it is not faster.
pub static KERNELS: [Kernel; 6] = {
    const PRODUCT: &str = wgsl!("../../../shaders/base/linear_gemv_subgroups.wgsl");
    const CONSTANTS: [&[(&str, u32, u32)]; 6] = [&[]; 6];
    macro_rules! one {
        ($layout:literal, $i:literal, $access:ident) => {
            product!(
                @one "linear_gemv_subgroups", $layout, $i, $access,
                [("bias", Access::Read), ("x", Access::Read), ("output", Access::Write)], GEMV
            )
        };
    }
    [
        one!("f32", 0, Read),
        one!("f32_any", 1, Read),
        one!("f16", 2, ReadWords),
        one!("bf16", 3, ReadWords),
        one!("ternary", 4, ReadWords),
        one!("q8_0", 5, ReadWords),
    ]
};

/// Whether it can take these rows, and is the fastest here.
pub(crate) fn suits(gpu: &Gpu, rows: &Rows) -> bool {
    gpu.has_subgroups() && KERNELS.get(rows.layout as usize).is_some()
}

/// Records what [`linear_gemv`](super::linear_gemv) does.
pub fn record(
    rec: &Recording,
    rows: &Rows,
    bias: Option<Bias>,
    x: &Tensor,
    output: &Tensor,
    first_column: usize,
) -> Result<()> {
    let kernel = KERNELS.get(rows.layout as usize).ok_or_else(|| rows.other_than("more than 4 bits"))?;
    record_by(rec, (kernel, TEAMS), rows, bias, x, output, first_column)
}
