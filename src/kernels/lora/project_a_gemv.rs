//! h = x·Aᵀ for one token; overwrites h.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

/// `shaders/lora/project_a_gemv.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/project_a_gemv",
    source: &[wgsl!("../../../shaders/lora/project_a_gemv.wgsl")],
    buffers: &[("a", Access::Read), ("x", Access::Read), ("h", Access::Write)],
    constants: &[("LANES", 256, 16)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    in_features: u32,
    rank: u32,
}

/// Records `h = x·Aᵀ`: `a [rank, in_features]`, `x [1, in_features]`, `h [1, rank]`.
pub fn record(rec: &Recording, a: &Tensor, x: &Tensor, h: &Tensor) -> Result<()> {
    let [rank, in_features] = a.matrix("a")?;
    x.expect_shape("x", &[1, in_features])?;
    h.expect_shape("h", &[1, rank])?;
    let params = Params { in_features: in_features as u32, rank: rank as u32 };
    rec.dispatch(&KERNEL, &[a, x, h], params, fold(rank))
}
