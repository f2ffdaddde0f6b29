//! output = f(gate)·up.

use bytemuck::{Pod, Zeroable};

use super::Gate;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, elementwise};

/// `shaders/nn/gated.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/gated",
    source: &[wgsl!("../../../shaders/nn/gated.wgsl")],
    buffers: &[("gate", Access::Read), ("up", Access::Read), ("output", Access::Write)],
    constants: &[("WORKGROUP", 256, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
    kind: u32,
}

/// Records `output = f(gate)·up`, all of one shape; overwrites output.
pub fn record(rec: &Recording, kind: Gate, gate: &Tensor, up: &Tensor, output: &Tensor) -> Result<()> {
    up.expect_shape("up", gate.shape())?;
    output.expect_shape("output", gate.shape())?;
    let groups = elementwise(gate.len(), KERNEL.constant(rec.gpu(), "WORKGROUP"));
    rec.dispatch(&KERNEL, &[gate, up, output], Params { len: gate.len() as u32, kind: kind as u32 }, groups)
}
