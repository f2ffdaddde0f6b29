//! The gradient of attention at its queries.

use bytemuck::{Pod, Zeroable};

use super::Heads;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

const ROWS: usize = 8;
const DIMS: usize = 32;

/// `shaders/nn/attention_grad_q.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/attention_grad_q",
    source: &[wgsl!("../../../shaders/nn/attention_grad_q.wgsl")],
    buffers: &[
        ("q", Access::Read),
        ("k", Access::Read),
        ("v", Access::Read),
        ("segments", Access::ReadInt),
        ("output", Access::Read),
        ("d_output", Access::Read),
        ("stats", Access::Write),
        ("d_q", Access::Write),
    ],
    constants: &[],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    batch: u32,
    tokens: u32,
    heads: u32,
    kv_heads: u32,
    pairs: u32,
    scale: f32,
}

/// Records the gradient at `q` of [`attention`](super::attention), which left `output` and `stats`; overwrites `d_q`, of
/// `q`'s shape, and the half of `stats` that [`attention_grad_kv`](super::attention_grad_kv) needs.
#[allow(clippy::too_many_arguments)]
pub fn record(
    rec: &Recording,
    shape: Heads,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    segments: &Tensor,
    output: &Tensor,
    d_output: &Tensor,
    stats: &Tensor,
    d_q: &Tensor,
) -> Result<()> {
    let [batch, tokens] = segments.matrix("segments")?;
    let like_q = [("q", q), ("output", output), ("d_output", d_output), ("d_q", d_q)];
    shape.check(batch * tokens, &like_q, &[("k", k), ("v", v)], Some(stats))?;
    let params = Params {
        batch: batch as u32,
        tokens: tokens as u32,
        heads: shape.heads as u32,
        kv_heads: shape.kv_heads as u32,
        pairs: (shape.head_dim / 2) as u32,
        scale: shape.scale(),
    };
    let groups = batch * tokens.div_ceil(ROWS) * shape.heads * (shape.head_dim / 2).div_ceil(DIMS);
    rec.dispatch(&KERNEL, &[q, k, v, segments, output, d_output, stats, d_q], params, fold(groups))
}
