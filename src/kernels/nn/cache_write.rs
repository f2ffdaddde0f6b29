//! New rows of a cache of keys or values.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/nn/cache_write.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/cache_write",
    source: &[wgsl!("../../../shaders/nn/cache_write.wgsl")],
    buffers: &[("x", Access::Read), ("cursor", Access::ReadInt), ("cache", Access::Write)],
    constants: &[("WORKGROUP", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
    width: u32,
}

/// Records `cache[cursor + row] = x[row]`: `x [rows, width]`, `cache [capacity, width]`, `cursor [1]` an integer that
/// leaves room for the rows.
pub fn record(rec: &Recording, x: &Tensor, cursor: &Tensor, cache: &Tensor) -> Result<()> {
    let [_, width] = x.matrix("x")?;
    let [capacity, _] = cache.matrix("cache")?;
    cache.expect_shape("cache", &[capacity, width])?;
    cursor.expect_shape("cursor", &[1])?;
    let groups = workgroups(x.len(), KERNEL.constant(rec.gpu(), "WORKGROUP"));
    rec.dispatch(&KERNEL, &[x, cursor, cache], Params { len: x.len() as u32, width: width as u32 }, groups)
}
