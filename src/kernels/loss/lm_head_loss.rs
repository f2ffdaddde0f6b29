//! The cross-entropy of all classes from what their chunks left.

use bytemuck::{Pod, Zeroable};

use super::total;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor};

/// `shaders/loss/lm_head_loss.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "loss/lm_head_loss",
    source: &[wgsl!("../../../shaders/loss/lm_head_loss.wgsl")],
    buffers: &[("stats", Access::Read), ("labels", Access::ReadInt), ("partial_sums", Access::Write)],
    constants: &[("WORKGROUP", 64, 8)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    rows: u32,
    classes: u32,
    ignore_index: i32,
}

/// Records the sum over the rows whose label is not `ignore_index`, added to `totals [2]` with their number where
/// `accumulate`, else in its place; `stats [rows, 3]` of [`lm_head_stats`](super::lm_head_stats), `labels [rows]`.
pub fn record(
    rec: &Recording,
    stats: &Tensor,
    labels: &Tensor,
    totals: &Tensor,
    accumulate: bool,
    classes: usize,
    ignore_index: i32,
) -> Result<()> {
    let [rows, _] = stats.matrix("stats")?;
    stats.expect_shape("stats", &[rows, 3])?;
    labels.expect_shape("labels", &[rows])?;
    let partial_sums = rec.gpu().scratch()?;
    let groups = rows.div_ceil(KERNEL.constant(rec.gpu(), "WORKGROUP")).min(partial_sums.len() / 2);
    rec.all_or_nothing(|| {
        let params = Params { rows: rows as u32, classes: classes as u32, ignore_index };
        rec.dispatch(&KERNEL, &[stats, labels, &partial_sums], params, [groups as u32, 1])?;
        total::record(rec, &partial_sums, groups, totals, accumulate)
    })
}
