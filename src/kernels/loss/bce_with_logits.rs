//! Binary cross-entropy with logits.

use bytemuck::{Pod, Zeroable};

use super::{ELEMENTS, total};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, shared_workgroups};

/// `shaders/loss/bce_with_logits.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "loss/bce_with_logits",
    source: &[wgsl!("../../../shaders/loss/bce_with_logits.wgsl")],
    buffers: &[
        ("output", Access::Read),
        ("targets", Access::Read),
        ("d_output", Access::Write),
        ("partial_sums", Access::Write),
    ],
    constants: &[("WORKGROUP", 256, 8), ("SUMS", 16, 4)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
}

/// Records the sum over all elements of the binary cross-entropy of logits `output` with `targets` in [0, 1], added to
/// `totals [2]` with their number where `accumulate`, else in its place, and its gradient into `d_output`; `output`,
/// `targets` and `d_output` of one shape.
pub fn record(
    rec: &Recording,
    output: &Tensor,
    targets: &Tensor,
    d_output: &Tensor,
    totals: &Tensor,
    accumulate: bool,
) -> Result<()> {
    targets.expect_shape("targets", output.shape())?;
    d_output.expect_shape("d_output", output.shape())?;
    let partial_sums = rec.gpu().scratch()?;
    let lanes = KERNEL.constant(rec.gpu(), "WORKGROUP");
    let groups = shared_workgroups(rec.gpu(), output.len(), lanes, ELEMENTS, partial_sums.len() / 2);
    rec.all_or_nothing(|| {
        let params = Params { len: output.len() as u32 };
        rec.dispatch(&KERNEL, &[output, targets, d_output, &partial_sums], params, [groups as u32, 1])?;
        total::record(rec, &partial_sums, groups, totals, accumulate)
    })
}
