//! output += scale·(h·Bᵀ) in one dispatch.

use bytemuck::{Pod, Zeroable};

use super::{finite, fused_b_add_tiled, many};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

const TOKENS: usize = 4;

/// `shaders/lora/fused_b_add.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/fused_b_add",
    source: &[wgsl!("../../../shaders/lora/fused_b_add.wgsl")],
    buffers: &[("b", Access::Read), ("h", Access::Read), ("output", Access::Write)],
    constants: &[("COLUMNS", 64, 64)],
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

/// Records `output += scale·(h·Bᵀ)`: `b [out_features, rank]`, `h [tokens, rank]`, `output [tokens, out_features]`.
pub fn record(rec: &Recording, b: &Tensor, h: &Tensor, output: &Tensor, scale: f32) -> Result<()> {
    let [out_features, rank] = b.matrix("b")?;
    let [tokens, _] = h.matrix("h")?;
    h.expect_shape("h", &[tokens, rank])?;
    output.expect_shape("output", &[tokens, out_features])?;
    // Of tiles of 128 columns narrow results would leave most idle.
    if many(rec, tokens) && out_features > 64 {
        return fused_b_add_tiled::record(rec, b, h, output, scale);
    }
    let params = Params {
        tokens: tokens as u32,
        out_features: out_features as u32,
        rank: rank as u32,
        scale: finite("scale", scale)?,
    };
    rec.dispatch(
        &KERNEL,
        &[b, h, output],
        params,
        fold(out_features.div_ceil(KERNEL.constant(rec.gpu(), "COLUMNS")) * tokens.div_ceil(TOKENS)),
    )
}
