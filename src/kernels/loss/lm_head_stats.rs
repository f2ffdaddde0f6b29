//! The running maximum and sum of a row's logits, a chunk of the classes at a time.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

/// `shaders/loss/lm_head_stats.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "loss/lm_head_stats",
    source: &[wgsl!("../../../shaders/loss/lm_head_stats.wgsl")],
    buffers: &[("logits", Access::Read), ("labels", Access::ReadInt), ("stats", Access::Write)],
    constants: &[("WORKGROUP", 64, 8)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    rows: u32,
    width: u32,
    first_class: u32,
}

/// Records the merge of `logits [rows, width]`, those of the classes from `first_class` on, into `stats [rows, 3]`: the
/// maximum, Σ exp(z − maximum) and the logit of `labels [rows]`. The chunk of class 0 begins anew.
pub fn record(rec: &Recording, logits: &Tensor, labels: &Tensor, stats: &Tensor, first_class: usize) -> Result<()> {
    let [rows, width] = logits.matrix("logits")?;
    labels.expect_shape("labels", &[rows])?;
    stats.expect_shape("stats", &[rows, 3])?;
    let params = Params { rows: rows as u32, width: width as u32, first_class: first_class as u32 };
    rec.dispatch(&KERNEL, &[logits, labels, stats], params, fold(rows))
}
