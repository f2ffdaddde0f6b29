//! DoRA's forward pass: the rows of `W + scale·B·A` made `magnitude` long.

use bytemuck::{Pod, Zeroable};

use super::{dora_tiled, finite, many};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/lora/dora.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/dora",
    source: &[wgsl!("../../../shaders/lora/dora.wgsl")],
    buffers: &[
        ("b", Access::Read),
        ("h", Access::Read),
        ("magnitude", Access::Read),
        ("norm", Access::Read),
        ("bias", Access::Read),
        ("u", Access::Write),
        ("output", Access::Write),
    ],
    constants: &[("WORKGROUP", 64, 64)],
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

/// The read-only inputs of [`record`].
pub struct Inputs<'a> {
    /// `B [out_features, rank]`
    pub b: &'a Tensor,
    /// `h [tokens, rank]`
    pub h: &'a Tensor,
    /// `[out_features]`
    pub magnitude: &'a Tensor,
    /// `[out_features]`: the norms of the rows of `W + scale·B·A`.
    pub norm: &'a Tensor,
    /// The base's bias `[out_features]`.
    pub bias: Option<&'a Tensor>,
}

/// Records `u = p + scale·h·Bᵀ` and `output += magnitude/norm·u − p`, of `u, output [tokens, out_features]`: `p` is
/// `output − bias`, or where `dropped` what `u` holds.
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
    if many(rec, tokens) {
        return dora_tiled::record(rec, Inputs { b, h, magnitude, norm, bias }, u, output, scale, dropped);
    }
    let params = Params {
        tokens: tokens as u32,
        out_features: out_features as u32,
        rank: rank as u32,
        scale: finite("scale", scale)?,
        has_bias: bias.is_some().into(),
        dropped: dropped.into(),
    };
    rec.dispatch(
        &KERNEL,
        &[b, h, magnitude, norm, bias.unwrap_or(norm), u, output],
        params,
        workgroups(tokens.div_ceil(4) * out_features, KERNEL.constant(rec.gpu(), "WORKGROUP")),
    )
}
