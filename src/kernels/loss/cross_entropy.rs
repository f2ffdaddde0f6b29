//! Softmax cross-entropy with class labels.

use bytemuck::{Pod, Zeroable};

use super::total;
use crate::error::{Error, Result, show_number};
use crate::gpu::{Access, Kernel, Recording, Tensor};

/// `shaders/loss/cross_entropy.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "loss/cross_entropy",
    source: &[wgsl!("../../../shaders/loss/cross_entropy.wgsl")],
    buffers: &[
        ("logits", Access::Read),
        ("labels", Access::ReadInt),
        ("d_logits", Access::Write),
        ("partial_sums", Access::Write),
    ],
    constants: &[("WORKGROUP", 64, 8)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    rows: u32,
    classes: u32,
    ignore_index: i32,
    smoothing: f32,
}

/// Records the sum over the rows whose label is not `ignore_index`, added to `totals [2]` with their number where
/// `accumulate`, else in its place, and its gradient into `d_logits`; `logits` and `d_logits [rows, classes]`,
/// `labels [rows]` of integers, `smoothing` in `[0, 1]` as PyTorch's `label_smoothing`.
#[allow(clippy::too_many_arguments)]
pub fn record(
    rec: &Recording,
    logits: &Tensor,
    labels: &Tensor,
    d_logits: &Tensor,
    totals: &Tensor,
    accumulate: bool,
    ignore_index: i32,
    smoothing: f32,
) -> Result<()> {
    let [rows, classes] = logits.matrix("logits")?;
    labels.expect_shape("labels", &[rows])?;
    d_logits.expect_shape("d_logits", &[rows, classes])?;
    if !(0.0..=1.0).contains(&smoothing) {
        return Err(Error::argument("labelSmoothing", "a number from 0 to 1", show_number(smoothing.into())));
    }
    let partial_sums = rec.gpu().scratch()?;
    let groups = rows.min(partial_sums.len() / 2);
    rec.all_or_nothing(|| {
        let params = Params { rows: rows as u32, classes: classes as u32, ignore_index, smoothing };
        rec.dispatch(&KERNEL, &[logits, labels, d_logits, &partial_sums], params, [groups as u32, 1])?;
        total::record(rec, &partial_sums, groups, totals, accumulate)
    })
}
