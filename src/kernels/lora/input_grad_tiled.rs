//! d_input += scale·(dh·A), for many tokens.

use bytemuck::{Pod, Zeroable};

use super::finite;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

const TOKENS: usize = 8;

/// `shaders/lora/input_grad_tiled.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/input_grad_tiled",
    source: &[wgsl!("../../../shaders/lora/input_grad_tiled.wgsl")],
    buffers: &[("a", Access::Read), ("dh", Access::Read), ("d_input", Access::Write)],
    constants: &[("COLUMNS", 32, 1), ("DOWN", 8, 1)],
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

/// Records what [`input_grad`](super::input_grad) does.
pub fn record(rec: &Recording, a: &Tensor, dh: &Tensor, d_input: &Tensor, scale: f32) -> Result<()> {
    let [rank, in_features] = a.matrix("a")?;
    let [tokens, _] = dh.matrix("dh")?;
    dh.expect_shape("dh", &[tokens, rank])?;
    d_input.expect_shape("d_input", &[tokens, in_features])?;
    let params = Params {
        tokens: tokens as u32,
        in_features: in_features as u32,
        rank: rank as u32,
        scale: finite("scale", scale)?,
    };
    let [columns, down] = ["COLUMNS", "DOWN"].map(|name| KERNEL.constant(rec.gpu(), name));
    let groups = in_features.div_ceil(4 * columns) * tokens.div_ceil(down * TOKENS);
    rec.dispatch(&KERNEL, &[a, dh, d_input], params, fold(groups))
}
