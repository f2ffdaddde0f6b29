//! dh = d_output·B, unscaled; overwrites dh.

use bytemuck::{Pod, Zeroable};

use super::{grad_dh_gemv, grad_dh_tiled, many_or_long};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

const TOKENS: usize = 8;
const EACH: usize = 4;
const RANKS: usize = 16;

/// `shaders/lora/grad_dh.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/grad_dh",
    source: &[wgsl!("../../../shaders/lora/grad_dh.wgsl")],
    buffers: &[("b", Access::Read), ("d_output", Access::Read), ("dh", Access::Write)],
    constants: &[("LANES", 32, 1)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    out_features: u32,
    rank: u32,
}

/// Records `dh = d_output·B`: `b [out_features, rank]`, `d_output [tokens, out_features]`, `dh [tokens, rank]`.
pub fn record(rec: &Recording, b: &Tensor, d_output: &Tensor, dh: &Tensor) -> Result<()> {
    let [out_features, rank] = b.matrix("b")?;
    let [tokens, _] = d_output.matrix("d_output")?;
    d_output.expect_shape("d_output", &[tokens, out_features])?;
    dh.expect_shape("dh", &[tokens, rank])?;
    if tokens == 1 {
        return grad_dh_gemv::record(rec, b, d_output, dh);
    }
    if many_or_long(rec, tokens, out_features) && out_features.is_multiple_of(4) {
        return grad_dh_tiled::record(rec, b, d_output, dh);
    }
    let params = Params { tokens: tokens as u32, out_features: out_features as u32, rank: rank as u32 };
    let groups = tokens.div_ceil(EACH * TOKENS) * rank.div_ceil(RANKS);
    rec.dispatch(&KERNEL, &[b, d_output, dh], params, fold(groups))
}
