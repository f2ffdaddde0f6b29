//! The gradient of output = f(gate)·up.

use bytemuck::{Pod, Zeroable};

use super::Gate;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, elementwise};

/// `shaders/nn/gated_grad.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/gated_grad",
    source: &[wgsl!("../../../shaders/nn/gated_grad.wgsl")],
    buffers: &[
        ("gate", Access::Read),
        ("up", Access::Read),
        ("d_output", Access::Read),
        ("d_gate", Access::Write),
        ("d_up", Access::Write),
    ],
    constants: &[("WORKGROUP", 256, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
    kind: u32,
}

/// Records `d_gate = f′(gate)·up·d_output` and `d_up = f(gate)·d_output`, all of one shape; overwrites both.
pub fn record(
    rec: &Recording,
    kind: Gate,
    gate: &Tensor,
    up: &Tensor,
    d_output: &Tensor,
    d_gate: &Tensor,
    d_up: &Tensor,
) -> Result<()> {
    for (name, tensor) in [("up", up), ("d_output", d_output), ("d_gate", d_gate), ("d_up", d_up)] {
        tensor.expect_shape(name, gate.shape())?;
    }
    let groups = elementwise(gate.len(), KERNEL.constant(rec.gpu(), "WORKGROUP"));
    let params = Params { len: gate.len() as u32, kind: kind as u32 };
    rec.dispatch(&KERNEL, &[gate, up, d_output, d_gate, d_up], params, groups)
}
