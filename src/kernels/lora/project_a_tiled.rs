//! h = x·Aᵀ, unscaled, for many tokens or a long inner dimension; overwrites h.

use bytemuck::{Pod, Zeroable};

use super::shares;
use crate::error::{Error, Result};
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};
use crate::kernels::base::add_parts::{self, Sums};

const DOWN: usize = 8;
const EACH: usize = 4;
const RANKS: usize = 16;

/// `shaders/lora/project_a_tiled.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/project_a_tiled",
    source: &[wgsl!("../../../shaders/lora/project_a_tiled.wgsl")],
    buffers: &[("a", Access::Read), ("x", Access::Read), ("h", Access::Write)],
    constants: &[("LANES", 16, 8)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    in_features: u32,
    rank: u32,
    part: u32,
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
    let tiles = tokens.div_ceil(EACH * DOWN) * rank.div_ceil(RANKS);
    add_parts::record_sums(rec, Sums::all_of(h), in_features, tiles, shares(tiles, in_features), |sums, part| {
        let params =
            Params { tokens: tokens as u32, in_features: in_features as u32, rank: rank as u32, part: part as u32 };
        rec.dispatch(&KERNEL, &[a, x, sums.output], params, fold(tiles * in_features.div_ceil(part)))
    })
}
