//! output += scale·(h·Bᵀ) in one dispatch, for many tokens.

use super::fused_b_add::{Params, record_by};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor};

const TOKENS: usize = 8;

/// `shaders/lora/fused_b_add_tiled.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/fused_b_add_tiled",
    source: &[wgsl!("../../../shaders/lora/fused_b_add_tiled.wgsl")],
    buffers: &[("b", Access::Read), ("h", Access::Read), ("parts", Access::Read), ("output", Access::Write)],
    constants: &[("COLUMNS", 32, 1), ("DOWN", 8, 1)],
    params_size: size_of::<Params>(),
};

/// Records what [`fused_b_add`](super::fused_b_add) does.
pub fn record(rec: &Recording, b: &Tensor, h: &Tensor, output: &Tensor, scale: f32) -> Result<()> {
    let [out_features, rank] = b.matrix("b")?;
    let [tokens, _] = h.matrix("h")?;
    h.expect_shape("h", &[tokens, rank])?;
    output.expect_shape("output", &[tokens, out_features])?;
    let [columns, down] = ["COLUMNS", "DOWN"].map(|name| KERNEL.constant(rec.gpu(), name));
    let groups = out_features.div_ceil(4 * columns) * tokens.div_ceil(down * TOKENS);
    record_by(rec, &KERNEL, groups, [b, h, output], scale)
}
