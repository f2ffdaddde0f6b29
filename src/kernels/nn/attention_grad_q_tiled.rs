//! The gradient of attention at its queries, for GPUs.

use bytemuck::{Pod, Zeroable};

use super::Heads;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

const ROWS: usize = 32;
const ACROSS: usize = 16;

/// `shaders/nn/attention_grad_q_tiled.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/attention_grad_q_tiled",
    source: &[wgsl!("../../../shaders/nn/attention_grad_q_tiled.wgsl")],
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

/// Records what [`attention_grad_q`](super::attention_grad_q) does.
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
    let groups = batch * tokens.div_ceil(ROWS) * shape.heads * shape.head_dim.div_ceil(4 * ACROSS);
    rec.dispatch(&KERNEL, &[q, k, v, segments, output, d_output, stats, d_q], params, fold(groups))
}
