//! total = Σ values.

use bytemuck::{Pod, Zeroable};

use crate::error::{Error, Result};
use crate::gpu::{Access, Kernel, Recording, Tensor};

/// `shaders/loss/sum.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "loss/sum",
    source: include_str!("../../../shaders/loss/sum.wgsl"),
    buffers: &[("values", Access::Read), ("total", Access::Write)],
    constants: &[("WORKGROUP", 64, 8)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
}

/// Records `total [1] = Σ` of the first `len` of `values`.
pub fn record(rec: &Recording, values: &Tensor, len: usize, total: &Tensor) -> Result<()> {
    total.expect_shape("loss", &[1])?;
    if len > values.len() {
        return Err(Error::shape("values", format!("at least {len} elements"), values.len().to_string()));
    }
    rec.dispatch(&KERNEL, &[values, total], Params { len: len as u32 }, [1, 1])
}
