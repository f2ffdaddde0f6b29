//! What [`grad_b_dh`](super::grad_b_dh) leaves, added up: dB += Σ of its parts, dh = Σ of its parts.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/lora/grad_b_dh_sums.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/grad_b_dh_sums",
    source: &[wgsl!("../../../shaders/lora/grad_b_dh_sums.wgsl")],
    buffers: &[("parts", Access::Read), ("d_b", Access::Write), ("dh", Access::Write)],
    constants: &[("WORKGROUP", 128, 128)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    d_b_len: u32,
    d_b_parts: u32,
    dh_len: u32,
    dh_parts: u32,
}

/// Records `d_b += Σ` of `d_b_parts` and `dh = Σ` of `dh_parts`, which follow one another in
/// `parts [1, d_b_parts · |d_b| + dh_parts · |dh|]`.
pub fn record(
    rec: &Recording,
    parts: &Tensor,
    [d_b_parts, dh_parts]: [usize; 2],
    d_b: &Tensor,
    dh: &Tensor,
) -> Result<()> {
    parts.expect_shape("parts", &[1, d_b_parts * d_b.len() + dh_parts * dh.len()])?;
    let params = Params {
        d_b_len: d_b.len() as u32,
        d_b_parts: d_b_parts as u32,
        dh_len: dh.len() as u32,
        dh_parts: dh_parts as u32,
    };
    let groups = workgroups(d_b.len() + dh.len(), KERNEL.constant(rec.gpu(), "WORKGROUP"));
    rec.dispatch(&KERNEL, &[parts, d_b, dh], params, groups)
}
