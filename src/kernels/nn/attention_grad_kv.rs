//! The gradients of attention at its keys and values.

use bytemuck::{Pod, Zeroable};

use super::Heads;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

const KEYS: usize = 8;
const DIMS: usize = 32;

/// `shaders/nn/attention_grad_kv.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/attention_grad_kv",
    source: &[wgsl!("../../../shaders/nn/attention_grad_kv.wgsl")],
    buffers: &[
        ("q", Access::Read),
        ("k", Access::Read),
        ("v", Access::Read),
        ("segments", Access::ReadInt),
        ("d_output", Access::Read),
        ("stats", Access::Read),
        ("d_k", Access::Write),
        ("d_v", Access::Write),
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

/// Records the gradients at `k` and `v` of [`attention`](super::attention), after
/// [`attention_grad_q`](super::attention_grad_q), which completes `stats`; overwrites `d_k` and `d_v`, of `k`'s shape.
#[allow(clippy::too_many_arguments)]
pub fn record(
    rec: &Recording,
    shape: Heads,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    segments: &Tensor,
    d_output: &Tensor,
    stats: &Tensor,
    d_k: &Tensor,
    d_v: &Tensor,
) -> Result<()> {
    let [batch, tokens] = segments.matrix("segments")?;
    let like_k = [("k", k), ("v", v), ("d_k", d_k), ("d_v", d_v)];
    shape.check(batch * tokens, &[("q", q), ("d_output", d_output)], &like_k, Some(stats))?;
    let params = Params {
        batch: batch as u32,
        tokens: tokens as u32,
        heads: shape.heads as u32,
        kv_heads: shape.kv_heads as u32,
        pairs: (shape.head_dim / 2) as u32,
        scale: shape.scale(),
    };
    let groups = batch * tokens.div_ceil(KEYS) * shape.kv_heads * (shape.head_dim / 2).div_ceil(DIMS);
    rec.dispatch(&KERNEL, &[q, k, v, segments, d_output, stats, d_k, d_v], params, fold(groups))
}
