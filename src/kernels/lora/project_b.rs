//! y = h·Bᵀ; overwrites y.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

const TOKENS: usize = 8;

/// `shaders/lora/project_b.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/project_b",
    source: &[wgsl!("../../../shaders/lora/project_b.wgsl")],
    buffers: &[("b", Access::Read), ("h", Access::Read), ("y", Access::Write)],
    constants: &[("COLUMNS", 32, 1), ("DOWN", 8, 1)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    out_features: u32,
    rank: u32,
}

/// Records `y = h·Bᵀ`: `b [out_features, rank]`, `h [tokens, rank]`, `y [tokens, out_features]`.
pub fn record(rec: &Recording, b: &Tensor, h: &Tensor, y: &Tensor) -> Result<()> {
    let [out_features, rank] = b.matrix("b")?;
    let [tokens, _] = h.matrix("h")?;
    h.expect_shape("h", &[tokens, rank])?;
    y.expect_shape("y", &[tokens, out_features])?;
    let params = Params { tokens: tokens as u32, out_features: out_features as u32, rank: rank as u32 };
    let [columns, down] = ["COLUMNS", "DOWN"].map(|name| KERNEL.constant(rec.gpu(), name));
    let groups = out_features.div_ceil(4 * columns) * tokens.div_ceil(down * TOKENS);
    rec.dispatch(&KERNEL, &[b, h, y], params, fold(groups))
}
