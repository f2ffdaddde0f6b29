//! dB += scale·d_outputᵀ·h, for many tokens.

use bytemuck::{Pod, Zeroable};

use super::finite;
use crate::error::{Error, Result};
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};
use crate::kernels::base::add_parts::{self, Sums};

const RANKS: usize = 16;
/// Workgroups that a GPU holds at once: three on each of 132 multiprocessors of an H200. A second round would be of a few.
const ENOUGH: usize = 396;

/// `shaders/lora/grad_b_tiled.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/grad_b_tiled",
    source: &[wgsl!("../../../shaders/lora/grad_b_tiled.wgsl")],
    buffers: &[("d_output", Access::Read), ("h", Access::Read), ("d_b", Access::Write)],
    constants: &[("COLUMNS", 32, 4), ("SLICES", 4, 1)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    out_features: u32,
    rank: u32,
    part: u32,
    accumulate: u32,
    scale: f32,
}

/// Records what [`grad_b`](super::grad_b) does, for `out_features` divisible by four.
pub fn record(rec: &Recording, d_output: &Tensor, h: &Tensor, d_b: &Tensor, scale: f32) -> Result<()> {
    let [out_features, rank] = d_b.matrix("d_b")?;
    let [tokens, _] = h.matrix("h")?;
    d_output.expect_shape("d_output", &[tokens, out_features])?;
    h.expect_shape("h", &[tokens, rank])?;
    if !out_features.is_multiple_of(4) {
        return Err(Error::shape("d_output", "columns divisible by four", out_features.to_string()));
    }
    let scale = finite("scale", scale)?;
    let columns = 4 * KERNEL.constant(rec.gpu(), "COLUMNS");
    let tiles = out_features.div_ceil(columns) * rank.div_ceil(RANKS);
    add_parts::record_sums(rec, Sums::added_to(d_b), tokens, tiles, ENOUGH, |sums, part| {
        let params = Params {
            tokens: tokens as u32,
            out_features: out_features as u32,
            rank: rank as u32,
            part: part as u32,
            accumulate: sums.accumulate.into(),
            scale,
        };
        rec.dispatch(&KERNEL, &[d_output, h, sums.output], params, fold(tiles * tokens.div_ceil(part)))
    })
}
