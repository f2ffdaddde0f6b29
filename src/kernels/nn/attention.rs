//! Causal attention of grouped-query heads.

use bytemuck::{Pod, Zeroable};

use super::Heads;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

const ROWS: usize = 8;
const DIMS: usize = 32;

/// `shaders/nn/attention.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/attention",
    source: &[wgsl!("../../../shaders/nn/attention.wgsl")],
    buffers: &[
        ("q", Access::Read),
        ("k", Access::Read),
        ("v", Access::Read),
        ("segments", Access::ReadInt),
        ("output", Access::Write),
        ("stats", Access::Write),
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

/// Records `output = softmax(q·kᵀ/√head_dim)·v` over the keys that are not later than a query and of its segment;
/// overwrites `output`, and `stats [rows, heads, 2]` for the backward pass. `q`, `output [rows, heads·head_dim]`,
/// `k`, `v [rows, kv_heads·head_dim]`, `segments [batch, tokens]` of integers, rows being batch·tokens. A query of
/// segment 0, which is padding, sees nothing and gives 0: an attention mask of 0 and 1 is such segments.
#[allow(clippy::too_many_arguments)]
pub fn record(
    rec: &Recording,
    shape: Heads,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    segments: &Tensor,
    output: &Tensor,
    stats: &Tensor,
) -> Result<()> {
    let [batch, tokens] = segments.matrix("segments")?;
    shape.check(batch * tokens, &[("q", q), ("output", output)], &[("k", k), ("v", v)], Some(stats))?;
    let params = Params {
        batch: batch as u32,
        tokens: tokens as u32,
        heads: shape.heads as u32,
        kv_heads: shape.kv_heads as u32,
        pairs: (shape.head_dim / 2) as u32,
        scale: shape.scale(),
    };
    let groups = batch * tokens.div_ceil(ROWS) * shape.heads * (shape.head_dim / 2).div_ceil(DIMS);
    rec.dispatch(&KERNEL, &[q, k, v, segments, output, stats], params, fold(groups))
}
