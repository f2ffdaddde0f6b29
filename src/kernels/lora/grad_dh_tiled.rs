//! dh = d_output·B, unscaled, for many tokens or a long inner dimension; overwrites dh.

use bytemuck::{Pod, Zeroable};

use super::shares;
use crate::error::{Error, Result};
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};
use crate::kernels::base::add_parts::{self, Sums};

const DOWN: usize = 8;
const EACH: usize = 4;
const RANKS: usize = 16;

/// `shaders/lora/grad_dh_tiled.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/grad_dh_tiled",
    source: &[wgsl!("../../../shaders/lora/grad_dh_tiled.wgsl")],
    buffers: &[("b", Access::Read), ("d_output", Access::Read), ("dh", Access::Write)],
    constants: &[("LANES", 16, 8)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    out_features: u32,
    rank: u32,
    part: u32,
}

/// Records what [`grad_dh`](super::grad_dh) does, for `out_features` divisible by four.
pub fn record(rec: &Recording, b: &Tensor, d_output: &Tensor, dh: &Tensor) -> Result<()> {
    let [out_features, rank] = b.matrix("b")?;
    let [tokens, _] = d_output.matrix("d_output")?;
    d_output.expect_shape("d_output", &[tokens, out_features])?;
    dh.expect_shape("dh", &[tokens, rank])?;
    if !out_features.is_multiple_of(4) {
        return Err(Error::shape("d_output", "columns divisible by four", out_features.to_string()));
    }
    let tiles = tokens.div_ceil(EACH * DOWN) * rank.div_ceil(RANKS);
    add_parts::record_sums(rec, Sums::all_of(dh), out_features, tiles, shares(tiles, out_features), |sums, part| {
        let params =
            Params { tokens: tokens as u32, out_features: out_features as u32, rank: rank as u32, part: part as u32 };
        rec.dispatch(&KERNEL, &[b, d_output, sums.output], params, fold(tiles * out_features.div_ceil(part)))
    })
}
