//! Attention of the newest token over a cache of keys and values.

use bytemuck::{Pod, Zeroable};

use super::Heads;
use crate::error::{Error, Result};
use crate::gpu::{Access, Kernel, Recording, Tensor};

const MAX_PAIRS: usize = 128;

/// `shaders/nn/attention_step.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/attention_step",
    source: &[wgsl!("../../../shaders/nn/attention_step.wgsl")],
    buffers: &[
        ("q", Access::Read),
        ("k_cache", Access::Read),
        ("v_cache", Access::Read),
        ("cursor", Access::ReadInt),
        ("output", Access::Write),
    ],
    constants: &[("LANES", 128, 8)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    heads: u32,
    kv_heads: u32,
    pairs: u32,
    scale: f32,
}

/// Records `output = softmax(q·kᵀ/√head_dim)·v` over the keys `0 … cursor` of the caches `[capacity, kv_heads·head_dim]`;
/// overwrites `output`; `q`, `output [1, heads·head_dim]`, `cursor [1]` an integer below capacity.
pub fn record(
    rec: &Recording,
    shape: Heads,
    q: &Tensor,
    k_cache: &Tensor,
    v_cache: &Tensor,
    cursor: &Tensor,
    output: &Tensor,
) -> Result<()> {
    let [capacity, _] = k_cache.matrix("k_cache")?;
    shape.check(1, &[("q", q), ("output", output)], &[], None)?;
    shape.check(capacity, &[], &[("k_cache", k_cache), ("v_cache", v_cache)], None)?;
    cursor.expect_shape("cursor", &[1])?;
    let pairs = shape.head_dim / 2;
    if pairs > MAX_PAIRS {
        return Err(Error::argument("head_dim", "at most 256", shape.head_dim.to_string()));
    }
    let (heads, kv_heads) = (shape.heads as u32, shape.kv_heads as u32);
    let params = Params { heads, kv_heads, pairs: pairs as u32, scale: shape.scale() };
    rec.dispatch(&KERNEL, &[q, k_cache, v_cache, cursor, output], params, [heads, 1])
}
