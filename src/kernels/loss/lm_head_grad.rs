//! The gradient of the cross-entropy at a chunk of the logits.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/loss/lm_head_grad.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "loss/lm_head_grad",
    source: &[wgsl!("../../../shaders/loss/lm_head_grad.wgsl")],
    buffers: &[("labels", Access::ReadInt), ("stats", Access::Read), ("logits", Access::Write)],
    constants: &[("WORKGROUP", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
    width: u32,
    first_class: u32,
    ignore_index: i32,
}

/// Records, in place of `logits [rows, width]` of the classes from `first_class` on, the gradient of the sum that
/// [`lm_head_loss`](super::lm_head_loss) records; `labels [rows]`, `stats [rows, 3]` of all classes.
pub fn record(
    rec: &Recording,
    labels: &Tensor,
    stats: &Tensor,
    logits: &Tensor,
    first_class: usize,
    ignore_index: i32,
) -> Result<()> {
    let [rows, width] = logits.matrix("logits")?;
    labels.expect_shape("labels", &[rows])?;
    stats.expect_shape("stats", &[rows, 3])?;
    let (len, width) = (logits.len() as u32, width as u32);
    let params = Params { len, width, first_class: first_class as u32, ignore_index };
    let groups = workgroups(logits.len(), KERNEL.constant(rec.gpu(), "WORKGROUP"));
    rec.dispatch(&KERNEL, &[labels, stats, logits], params, groups)
}
