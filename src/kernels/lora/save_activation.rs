//! dst = src.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, elementwise};

/// `shaders/lora/save_activation.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/save_activation",
    source: &[wgsl!("../../../shaders/lora/save_activation.wgsl")],
    buffers: &[("src", Access::Read), ("dst", Access::Write)],
    constants: &[("WORKGROUP", 256, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
}

/// Records `dst = src`, both of one shape.
pub fn record(rec: &Recording, src: &Tensor, dst: &Tensor) -> Result<()> {
    dst.expect_shape("dst", src.shape())?;
    rec.dispatch(
        &KERNEL,
        &[src, dst],
        Params { len: src.len() as u32 },
        elementwise(src.len(), 4 * KERNEL.constant(rec.gpu(), "WORKGROUP")),
    )
}
