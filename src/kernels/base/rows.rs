//! Rows of W by their index; overwrites those rows of output.

use bytemuck::{Pod, Zeroable};

use super::{Rows, product};
use crate::error::{Error, Result};
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/base/rows.wgsl` with each layout.
pub static KERNELS: [Kernel; 8] = product!(
    "rows",
    "../../../shaders/base/rows.wgsl",
    [("ids", Access::ReadInt), ("output", Access::Write)],
    [&[("WORKGROUP", 64, 64)]; 8]
);

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    in_features: u32,
    rows: u32,
    first_id: u32,
    out_features: u32,
    scale: f32,
}

/// Records `output[t] = W[ids[t]]` for those ids that are among the `rows`, all of a weight, whose first has the index
/// `first_id` of `out_features`: `ids [tokens]` of integers, `output [tokens, in_features]`.
pub fn record(
    rec: &Recording,
    rows: &Rows,
    ids: &Tensor,
    output: &Tensor,
    first_id: usize,
    out_features: usize,
) -> Result<()> {
    let [tokens, _] = output.matrix("output")?;
    rows.check()?;
    if rows.first != 0 {
        return Err(Error::argument("rows", "a weight's rows from the first on", rows.first.to_string()));
    }
    ids.expect_shape("ids", &[tokens])?;
    output.expect_shape("output", &[tokens, rows.in_features])?;
    let params = Params {
        tokens: tokens as u32,
        in_features: rows.in_features as u32,
        rows: rows.count as u32,
        first_id: first_id as u32,
        out_features: out_features as u32,
        scale: rows.scale,
    };
    let kernel = rows.kernel(&KERNELS);
    let groups = workgroups(tokens * rows.in_features.div_ceil(4), kernel.constant(rec.gpu(), "WORKGROUP"));
    rec.dispatch(kernel, &[&rows.weight, ids, output], params, groups)
}
