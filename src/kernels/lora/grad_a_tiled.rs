//! dA += scale·dhᵀ·x, for many tokens.

use bytemuck::{Pod, Zeroable};

use super::finite;
use crate::error::{Error, Result};
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};
use crate::kernels::base::add_parts::{self, Sums};

const RANKS: usize = 16;
/// Workgroups that a GPU holds at once: three on each of 132 multiprocessors of an H200. A second round would be of a few.
const ENOUGH: usize = 396;

/// `shaders/lora/grad_a_tiled.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/grad_a_tiled",
    source: &[wgsl!("../../../shaders/lora/grad_a_tiled.wgsl")],
    buffers: &[("dh", Access::Read), ("x", Access::Read), ("d_a", Access::Write)],
    constants: &[("COLUMNS", 32, 4), ("SLICES", 4, 1)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    in_features: u32,
    rank: u32,
    part: u32,
    accumulate: u32,
    scale: f32,
}

/// Records what [`grad_a`](super::grad_a) does, for `in_features` divisible by four.
pub fn record(rec: &Recording, dh: &Tensor, x: &Tensor, d_a: &Tensor, scale: f32) -> Result<()> {
    let [rank, in_features] = d_a.matrix("d_a")?;
    let [tokens, _] = dh.matrix("dh")?;
    dh.expect_shape("dh", &[tokens, rank])?;
    x.expect_shape("x", &[tokens, in_features])?;
    if !in_features.is_multiple_of(4) {
        return Err(Error::shape("x", "columns divisible by four", in_features.to_string()));
    }
    let scale = finite("scale", scale)?;
    let columns = 4 * KERNEL.constant(rec.gpu(), "COLUMNS");
    let tiles = in_features.div_ceil(columns) * rank.div_ceil(RANKS);
    add_parts::record_sums(rec, Sums::added_to(d_a), tokens, tiles, ENOUGH, |sums, part| {
        let params = Params {
            tokens: tokens as u32,
            in_features: in_features as u32,
            rank: rank as u32,
            part: part as u32,
            accumulate: sums.accumulate.into(),
            scale,
        };
        rec.dispatch(&KERNEL, &[dh, x, sums.output], params, fold(tiles * tokens.div_ceil(part)))
    })
}
