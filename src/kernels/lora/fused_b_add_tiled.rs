//! output += scale·(h·Bᵀ) in one dispatch, for many tokens.

use bytemuck::{Pod, Zeroable};

use super::finite;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

const TOKENS: usize = 8;

/// `shaders/lora/fused_b_add_tiled.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/fused_b_add_tiled",
    source: &[wgsl!("../../../shaders/lora/fused_b_add_tiled.wgsl")],
    buffers: &[("b", Access::Read), ("h", Access::Read), ("output", Access::Write)],
    constants: &[("COLUMNS", 32, 1), ("DOWN", 8, 1)],
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

/// Records what [`fused_b_add`](super::fused_b_add) does.
pub fn record(rec: &Recording, b: &Tensor, h: &Tensor, output: &Tensor, scale: f32) -> Result<()> {
    let [out_features, rank] = b.matrix("b")?;
    let [tokens, _] = h.matrix("h")?;
    h.expect_shape("h", &[tokens, rank])?;
    output.expect_shape("output", &[tokens, out_features])?;
    let params = Params {
        tokens: tokens as u32,
        out_features: out_features as u32,
        rank: rank as u32,
        scale: finite("scale", scale)?,
    };
    let [columns, down] = ["COLUMNS", "DOWN"].map(|name| KERNEL.constant(rec.gpu(), name));
    let groups = out_features.div_ceil(4 * columns) * tokens.div_ceil(down * TOKENS);
    rec.dispatch(&KERNEL, &[b, h, output], params, fold(groups))
}
