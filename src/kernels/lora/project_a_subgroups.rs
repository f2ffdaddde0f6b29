//! h = x·Aᵀ, unscaled, for some tokens; overwrites h; the sums added up by subgroups.

use bytemuck::{Pod, Zeroable};

use crate::error::{Error, Result};
use crate::gpu::{Access, Gpu, Kernel, Recording, Tensor, fold};

const EACH: usize = 2;
const RANKS: usize = 8;

/// `shaders/lora/project_a_subgroups.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/project_a_subgroups",
    source: &[wgsl!("../../../shaders/lora/project_a_subgroups.wgsl")],
    buffers: &[("a", Access::Read), ("x", Access::Read), ("h", Access::Write)],
    constants: &[("WORKGROUP", 128, 16)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    in_features: u32,
    rank: u32,
}

/// Whether it can take such a product, and is the fastest here: every two tokens read all of A, from a cache.
pub(super) fn suits(gpu: &Gpu, tokens: usize, in_features: usize, rank: usize) -> bool {
    let read = tokens.saturating_mul(in_features).saturating_mul(rank.div_ceil(RANKS)); // usize has 32 bits in a page
    gpu.has_subgroups() && in_features.is_multiple_of(4) && read <= 1 << 22
}

/// Records what [`project_a`](super::project_a) does, for `in_features` divisible by four.
pub fn record(rec: &Recording, a: &Tensor, x: &Tensor, h: &Tensor) -> Result<()> {
    let [rank, in_features] = a.matrix("a")?;
    let [tokens, _] = x.matrix("x")?;
    x.expect_shape("x", &[tokens, in_features])?;
    h.expect_shape("h", &[tokens, rank])?;
    if !in_features.is_multiple_of(4) {
        return Err(Error::shape("x", "columns divisible by four", in_features.to_string()));
    }
    let params = Params { tokens: tokens as u32, in_features: in_features as u32, rank: rank as u32 };
    rec.dispatch(&KERNEL, &[a, x, h], params, fold(tokens.div_ceil(EACH) * rank.div_ceil(RANKS)))
}
