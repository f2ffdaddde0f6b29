//! dh = d_output·B for one token; overwrites dh.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

/// `shaders/lora/grad_dh_gemv.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/grad_dh_gemv",
    source: &[wgsl!("../../../shaders/lora/grad_dh_gemv.wgsl")],
    buffers: &[("b", Access::Read), ("d_output", Access::Read), ("dh", Access::Write)],
    constants: &[("LANES", 256, 16)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    out_features: u32,
    rank: u32,
}

/// Records `dh = d_output·B`: `b [out_features, rank]`, `d_output [1, out_features]`, `dh [1, rank]`.
pub fn record(rec: &Recording, b: &Tensor, d_output: &Tensor, dh: &Tensor) -> Result<()> {
    let [out_features, rank] = b.matrix("b")?;
    d_output.expect_shape("d_output", &[1, out_features])?;
    dh.expect_shape("dh", &[1, rank])?;
    let params = Params { out_features: out_features as u32, rank: rank as u32 };
    rec.dispatch(&KERNEL, &[b, d_output, dh], params, fold(rank))
}
