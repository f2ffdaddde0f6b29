//! dA += scale·dhᵀ·x.

use bytemuck::{Pod, Zeroable};

use super::{finite, grad_a_tiled, many};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Profile, Recording, Tensor, fold};
use crate::kernels::base::{linear_grad, suit_wide};

const RANKS: usize = 8;

/// `shaders/lora/grad_a.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/grad_a",
    source: &[wgsl!("../../../shaders/lora/grad_a.wgsl")],
    buffers: &[("dh", Access::Read), ("x", Access::Read), ("d_a", Access::Write)],
    constants: &[("COLUMNS", 16, 4), ("SLICES", 16, 1)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    in_features: u32,
    rank: u32,
    scale: f32,
}

/// Records `d_a += scale·dhᵀ·x`: `dh [tokens, rank]`, `x [tokens, in_features]`, `d_a [rank, in_features]`.
pub fn record(rec: &Recording, dh: &Tensor, x: &Tensor, d_a: &Tensor, scale: f32) -> Result<()> {
    let [rank, in_features] = d_a.matrix("d_a")?;
    let [tokens, _] = dh.matrix("dh")?;
    dh.expect_shape("dh", &[tokens, rank])?;
    x.expect_shape("x", &[tokens, in_features])?;
    if rec.gpu().profile() == Profile::Hardware && suit_wide([rank, in_features], tokens) {
        return linear_grad::record(rec, dh, x, d_a, finite("scale", scale)?);
    }
    if many(rec, tokens) && in_features.is_multiple_of(4) {
        return grad_a_tiled::record(rec, dh, x, d_a, scale);
    }
    let params = Params {
        tokens: tokens as u32,
        in_features: in_features as u32,
        rank: rank as u32,
        scale: finite("scale", scale)?,
    };
    rec.dispatch(
        &KERNEL,
        &[dh, x, d_a],
        params,
        fold(in_features.div_ceil(KERNEL.constant(rec.gpu(), "COLUMNS")) * rank.div_ceil(RANKS)),
    )
}
