//! DoRA's backward pass but for the products that it shares with LoRA.

use bytemuck::{Pod, Zeroable};

use super::ENOUGH;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};
use crate::kernels::base::add_parts::{self, Sums};

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
    part: u32,
    accumulate: u32,
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
    let lanes = KERNEL.constant(rec.gpu(), "WORKGROUP");
    let sums = Sums::added_to(d_magnitude);
    add_parts::record_sums(rec, sums, tokens, out_features.div_ceil(lanes), ENOUGH, |sums, part| {
        let params = Params {
            tokens: tokens as u32,
            out_features: out_features as u32,
            part: part as u32,
            accumulate: sums.accumulate.into(),
        };
        let groups = workgroups(tokens.div_ceil(part) * out_features, lanes);
        rec.dispatch(&KERNEL, &[magnitude, norm, d_output, u, sums.output, du], params, groups)
    })
}
