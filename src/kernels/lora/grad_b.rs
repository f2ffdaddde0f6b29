//! dB += scale·d_outputᵀ·h.

use bytemuck::{Pod, Zeroable};

use super::{finite, grad_b_tiled, many};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Profile, Recording, Tensor, fold};
use crate::kernels::base::{linear_grad, suit_wide};

const RANKS: usize = 8;

/// `shaders/lora/grad_b.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/grad_b",
    source: &[wgsl!("../../../shaders/lora/grad_b.wgsl")],
    buffers: &[("d_output", Access::Read), ("h", Access::Read), ("d_b", Access::Write)],
    constants: &[("COLUMNS", 16, 4), ("SLICES", 16, 1)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    out_features: u32,
    rank: u32,
    scale: f32,
}

/// Records `d_b += scale·d_outputᵀ·h`: `d_output [tokens, out_features]`, `h [tokens, rank]`, `d_b [out_features, rank]`.
pub fn record(rec: &Recording, d_output: &Tensor, h: &Tensor, d_b: &Tensor, scale: f32) -> Result<()> {
    let [out_features, rank] = d_b.matrix("d_b")?;
    let [tokens, _] = h.matrix("h")?;
    d_output.expect_shape("d_output", &[tokens, out_features])?;
    h.expect_shape("h", &[tokens, rank])?;
    if rec.gpu().profile() == Profile::Hardware && suit_wide([out_features, rank], tokens) {
        return linear_grad::record(rec, d_output, h, d_b, finite("scale", scale)?);
    }
    if many(rec, tokens) && out_features.is_multiple_of(4) {
        return grad_b_tiled::record(rec, d_output, h, d_b, scale);
    }
    let params = Params {
        tokens: tokens as u32,
        out_features: out_features as u32,
        rank: rank as u32,
        scale: finite("scale", scale)?,
    };
    rec.dispatch(
        &KERNEL,
        &[d_output, h, d_b],
        params,
        fold(out_features.div_ceil(KERNEL.constant(rec.gpu(), "COLUMNS")) * rank.div_ceil(RANKS)),
    )
}
