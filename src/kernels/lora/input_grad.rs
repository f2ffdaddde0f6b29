//! d_input += scale·(dh·A).

use super::fused_b_add::{Params, record_by};
use super::{input_grad_tiled, many};
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor};

const TOKENS: usize = 4;

/// `shaders/lora/input_grad.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/input_grad",
    source: &[wgsl!("../../../shaders/lora/input_grad.wgsl")],
    buffers: &[("a", Access::Read), ("dh", Access::Read), ("parts", Access::Read), ("d_input", Access::Write)],
    constants: &[("COLUMNS", 64, 64)],
    params_size: size_of::<Params>(),
};

/// Records `d_input += scale·(dh·A)`: `a [rank, in_features]`, `dh [tokens, rank]`, `d_input [tokens, in_features]`.
/// Parts whose sum is to be all of `d_input`, recorded last, are added up in the same dispatch.
pub fn record(rec: &Recording, a: &Tensor, dh: &Tensor, d_input: &Tensor, scale: f32) -> Result<()> {
    let [rank, in_features] = a.matrix("a")?;
    let [tokens, _] = dh.matrix("dh")?;
    dh.expect_shape("dh", &[tokens, rank])?;
    d_input.expect_shape("d_input", &[tokens, in_features])?;
    // Of tiles of 128 columns narrow results would leave most idle.
    if many(rec, tokens) && in_features > 64 {
        return input_grad_tiled::record(rec, a, dh, d_input, scale);
    }
    let groups = in_features.div_ceil(KERNEL.constant(rec.gpu(), "COLUMNS")) * tokens.div_ceil(TOKENS);
    record_by(rec, &KERNEL, groups, [a, dh, d_input], scale)
}
