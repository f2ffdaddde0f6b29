//! Rows padded with zeros to whole vectors of four.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/base/pad_rows.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "base/pad_rows",
    source: &[wgsl!("../../../shaders/base/pad_rows.wgsl")],
    buffers: &[("x", Access::Read), ("output", Access::Write)],
    constants: &[("WORKGROUP", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    rows: u32,
    features: u32,
    padded: u32,
}

/// Records `output [rows, ⌈features / 4⌉ · 4]` with the columns of `x [rows, features]` and then zeros.
pub fn record(rec: &Recording, x: &Tensor, output: &Tensor) -> Result<()> {
    let [rows, features] = x.matrix("x")?;
    let padded = features.next_multiple_of(4);
    output.expect_shape("output", &[rows, padded])?;
    let params = Params { rows: rows as u32, features: features as u32, padded: padded as u32 };
    let groups = workgroups(rows * padded, KERNEL.constant(rec.gpu(), "WORKGROUP"));
    rec.dispatch(&KERNEL, &[x, output], params, groups)
}
