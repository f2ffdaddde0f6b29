//! d_input += scale·(dh·A), for many tokens.

use super::fused_b_add::{Params, record_by};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor};

const TOKENS: usize = 8;

/// `shaders/lora/input_grad_tiled.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/input_grad_tiled",
    source: &[wgsl!("../../../shaders/lora/input_grad_tiled.wgsl")],
    buffers: &[("a", Access::Read), ("dh", Access::Read), ("parts", Access::Read), ("d_input", Access::Write)],
    constants: &[("COLUMNS", 32, 1), ("DOWN", 8, 1)],
    params_size: size_of::<Params>(),
};

/// Records what [`input_grad`](super::input_grad) does.
pub fn record(rec: &Recording, a: &Tensor, dh: &Tensor, d_input: &Tensor, scale: f32) -> Result<()> {
    let [rank, in_features] = a.matrix("a")?;
    let [tokens, _] = dh.matrix("dh")?;
    dh.expect_shape("dh", &[tokens, rank])?;
    d_input.expect_shape("d_input", &[tokens, in_features])?;
    let [columns, down] = ["COLUMNS", "DOWN"].map(|name| KERNEL.constant(rec.gpu(), name));
    let groups = in_features.div_ceil(4 * columns) * tokens.div_ceil(down * TOKENS);
    record_by(rec, &KERNEL, groups, [a, dh, d_input], scale)
}
