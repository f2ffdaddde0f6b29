//! DoRA's forward pass, for many tokens.

use bytemuck::{Pod, Zeroable};

use super::dora::Inputs;
use super::finite;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

const TOKENS: usize = 8;

/// `shaders/lora/dora_tiled.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/dora_tiled",
    source: &[wgsl!("../../../shaders/lora/dora_tiled.wgsl")],
    buffers: &[
        ("b", Access::Read),
        ("h", Access::Read),
        ("magnitude", Access::Read),
        ("norm", Access::Read),
        ("bias", Access::Read),
        ("u", Access::Write),
        ("output", Access::Write),
    ],
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
    has_bias: u32,
    dropped: u32,
}

/// Records what [`dora`](super::dora) does.
pub fn record(rec: &Recording, inputs: Inputs, u: &Tensor, output: &Tensor, scale: f32, dropped: bool) -> Result<()> {
    let Inputs { b, h, magnitude, norm, bias } = inputs;
    let [out_features, rank] = b.matrix("b")?;
    let [tokens, _] = h.matrix("h")?;
    h.expect_shape("h", &[tokens, rank])?;
    for (name, vector) in [("magnitude", magnitude), ("norm", norm)].into_iter().chain(bias.map(|bias| ("bias", bias)))
    {
        vector.expect_shape(name, &[out_features])?;
    }
    u.expect_shape("u", &[tokens, out_features])?;
    output.expect_shape("output", &[tokens, out_features])?;
    let params = Params {
        tokens: tokens as u32,
        out_features: out_features as u32,
        rank: rank as u32,
        scale: finite("scale", scale)?,
        has_bias: bias.is_some().into(),
        dropped: dropped.into(),
    };
    let [columns, down] = ["COLUMNS", "DOWN"].map(|name| KERNEL.constant(rec.gpu(), name));
    rec.dispatch(
        &KERNEL,
        &[b, h, magnitude, norm, bias.unwrap_or(norm), u, output],
        params,
        fold(out_features.div_ceil(4 * columns) * tokens.div_ceil(down * TOKENS)),
    )
}
