//! DoRA's backward pass but for the products that it shares with LoRA.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/lora/dora_grad.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/dora_grad",
    source: &[wgsl!("../../../shaders/lora/dora_grad.wgsl")],
    buffers: &[
        ("magnitude", Access::Read),
        ("norm", Access::Read),
        ("d_output", Access::Read),
        ("u", Access::Read),
        ("d_magnitude", Access::Write),
        ("du", Access::Write),
    ],
    constants: &[("WORKGROUP", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    out_features: u32,
}

/// Records `d_magnitude += Σₜ d_output⊙u/norm` and `du = magnitude/norm·d_output`: `magnitude, norm, d_magnitude
/// [out_features]`, `d_output, u, du [tokens, out_features]`.
pub fn record(
    rec: &Recording,
    magnitude: &Tensor,
    norm: &Tensor,
    d_output: &Tensor,
    u: &Tensor,
    d_magnitude: &Tensor,
    du: &Tensor,
) -> Result<()> {
    let [tokens, out_features] = d_output.matrix("d_output")?;
    for (name, vector) in [("magnitude", magnitude), ("norm", norm), ("d_magnitude", d_magnitude)] {
        vector.expect_shape(name, &[out_features])?;
    }
    u.expect_shape("u", &[tokens, out_features])?;
    du.expect_shape("du", &[tokens, out_features])?;
    rec.dispatch(
        &KERNEL,
        &[magnitude, norm, d_output, u, d_magnitude, du],
        Params { tokens: tokens as u32, out_features: out_features as u32 },
        workgroups(out_features, KERNEL.constant(rec.gpu(), "WORKGROUP")),
    )
}
