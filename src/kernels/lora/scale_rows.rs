//! One factor for each token.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/lora/scale_rows.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/scale_rows",
    source: &[wgsl!("../../../shaders/lora/scale_rows.wgsl")],
    buffers: &[("factors", Access::Read), ("h", Access::Write)],
    constants: &[("WORKGROUP", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    rank: u32,
}

/// Records `h *= factors` row by row: `factors [tokens]`, `h [tokens, rank]`.
pub fn record(rec: &Recording, factors: &Tensor, h: &Tensor) -> Result<()> {
    let [tokens, rank] = h.matrix("h")?;
    factors.expect_shape("factors", &[tokens])?;
    rec.dispatch(
        &KERNEL,
        &[factors, h],
        Params { tokens: tokens as u32, rank: rank as u32 },
        workgroups(tokens * rank, KERNEL.constant(rec.gpu(), "WORKGROUP")),
    )
}
