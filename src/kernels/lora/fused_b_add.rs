//! output += scale·(h·Bᵀ) in one dispatch.

use bytemuck::{Pod, Zeroable};

use super::{finite, fused_b_add_tiled, many};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};
use crate::kernels::base::add_parts;

const TOKENS: usize = 4;

/// `shaders/lora/fused_b_add.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/fused_b_add",
    source: &[wgsl!("../../../shaders/lora/fused_b_add.wgsl")],
    buffers: &[("b", Access::Read), ("h", Access::Read), ("parts", Access::Read), ("output", Access::Write)],
    constants: &[("COLUMNS", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Params {
    tokens: u32,
    columns: u32,
    rank: u32,
    parts: u32,
    scale: f32,
}

/// Records `output += scale·(h·Bᵀ)`: `b [out_features, rank]`, `h [tokens, rank]`, `output [tokens, out_features]`.
/// Parts whose sum is to be all of `output`, recorded last, are added up in the same dispatch.
pub fn record(rec: &Recording, b: &Tensor, h: &Tensor, output: &Tensor, scale: f32) -> Result<()> {
    let [out_features, rank] = b.matrix("b")?;
    let [tokens, _] = h.matrix("h")?;
    h.expect_shape("h", &[tokens, rank])?;
    output.expect_shape("output", &[tokens, out_features])?;
    // Of tiles of 128 columns narrow results would leave most idle.
    if many(rec, tokens) && out_features > 64 {
        return fused_b_add_tiled::record(rec, b, h, output, scale);
    }
    let groups = out_features.div_ceil(KERNEL.constant(rec.gpu(), "COLUMNS")) * tokens.div_ceil(TOKENS);
    record_by(rec, &KERNEL, groups, [b, h, output], scale)
}

/// By so many workgroups of one of the kernels that add a product of two matrices of this rank.
pub(super) fn record_by(
    rec: &Recording,
    kernel: &'static Kernel,
    groups: usize,
    [weight, input, output]: [&Tensor; 3],
    scale: f32,
) -> Result<()> {
    let ([tokens, columns], [_, rank]) = (output.matrix("output")?, input.matrix("input")?);
    let scale = finite("scale", scale)?;
    add_parts::record_onto(rec, output, |count, parts| {
        let [tokens, columns, rank] = [tokens, columns, rank].map(|n| n as u32);
        let params = Params { tokens, columns, rank, parts: count, scale };
        rec.dispatch(kernel, &[weight, input, parts.unwrap_or(weight), output], params, fold(groups))
    })
}
