//! h = x·Aᵀ, unscaled; overwrites h.

use bytemuck::{Pod, Zeroable};

use super::{many_or_long, project_a_gemv, project_a_subgroups, project_a_tiled};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

const TOKENS: usize = 8;
const EACH: usize = 4;
const RANKS: usize = 16;

/// `shaders/lora/project_a.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/project_a",
    source: &[wgsl!("../../../shaders/lora/project_a.wgsl")],
    buffers: &[("a", Access::Read), ("x", Access::Read), ("h", Access::Write)],
    constants: &[("LANES", 32, 1)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    in_features: u32,
    rank: u32,
}

/// Records `h = x·Aᵀ`: `a [rank, in_features]`, `x [tokens, in_features]`, `h [tokens, rank]`.
pub fn record(rec: &Recording, a: &Tensor, x: &Tensor, h: &Tensor) -> Result<()> {
    let [rank, in_features] = a.matrix("a")?;
    let [tokens, _] = x.matrix("x")?;
    x.expect_shape("x", &[tokens, in_features])?;
    h.expect_shape("h", &[tokens, rank])?;
    if tokens == 1 {
        return project_a_gemv::record(rec, a, x, h);
    }
    if project_a_subgroups::suits(rec.gpu(), tokens, in_features, rank) {
        return project_a_subgroups::record(rec, a, x, h);
    }
    if many_or_long(rec, tokens, in_features) && in_features.is_multiple_of(4) {
        return project_a_tiled::record(rec, a, x, h);
    }
    let params = Params { tokens: tokens as u32, in_features: in_features as u32, rank: rank as u32 };
    let groups = tokens.div_ceil(EACH * TOKENS) * rank.div_ceil(RANKS);
    rec.dispatch(&KERNEL, &[a, x, h], params, fold(groups))
}
