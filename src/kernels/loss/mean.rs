//! From sums to means.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/loss/mean.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "loss/mean",
    source: &[wgsl!("../../../shaders/loss/mean.wgsl")],
    buffers: &[("totals", Access::Read), ("d_output", Access::Write), ("loss", Access::Write)],
    constants: &[("WORKGROUP", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
}

/// Records `loss [1] = totals[0]/totals[1]` and `d_output /= totals[1]`; zeros where `totals[1]` is 0.
pub fn record(rec: &Recording, totals: &Tensor, d_output: &Tensor, loss: &Tensor) -> Result<()> {
    totals.expect_shape("totals", &[2])?;
    loss.expect_shape("loss", &[1])?;
    let groups = workgroups(d_output.len(), KERNEL.constant(rec.gpu(), "WORKGROUP"));
    rec.dispatch(&KERNEL, &[totals, d_output, loss], Params { len: d_output.len() as u32 }, groups)
}
