//! The same dropout for features divisible by four.

use bytemuck::{Pod, Zeroable};

use super::dropout::Mask;
use crate::error::{Error, Result};
use crate::gpu::{Access, Kernel, Recording, Tensor, elementwise};
use crate::kernels::optim::{STATE_LEN, WINDOW_LEN};

/// `shaders/lora/dropout_vec4.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/dropout_vec4",
    source: &[wgsl!("../../../shaders/lora/dropout_vec4.wgsl")],
    buffers: &[("x", Access::Read), ("state", Access::Read), ("window", Access::Read), ("output", Access::Write)],
    constants: &[("WORKGROUP", 256, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    rows: u32,
    features: u32,
    threshold: u32,
    scale: f32,
    seed_low: u32,
    seed_high: u32,
    layer: u32,
    accumulate: u32,
}

/// Records what [`dropout`](super::dropout) does, for `features` divisible by four.
pub fn record(
    rec: &Recording,
    x: &Tensor,
    state: &Tensor,
    window: &Tensor,
    output: &Tensor,
    mask: Mask,
    accumulate: bool,
) -> Result<()> {
    let [rows, features] = x.matrix("x")?;
    output.expect_shape("output", &[rows, features])?;
    state.expect_shape("state", &[STATE_LEN])?;
    window.expect_shape("window", &[WINDOW_LEN])?;
    if !features.is_multiple_of(4) {
        return Err(Error::shape("x", "columns divisible by four", features.to_string()));
    }
    let params = Params {
        rows: rows as u32,
        features: features as u32,
        threshold: (mask.p * 4_294_967_296.0) as u32,
        scale: (1.0 / (1.0 - mask.p)) as f32,
        seed_low: mask.seed as u32,
        seed_high: (mask.seed >> 32) as u32,
        layer: mask.layer,
        accumulate: accumulate.into(),
    };
    let blocks = rows * features / 4;
    rec.dispatch(
        &KERNEL,
        &[x, state, window, output],
        params,
        elementwise(blocks, KERNEL.constant(rec.gpu(), "WORKGROUP")),
    )
}
