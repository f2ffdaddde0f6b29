//! Partial sums of the squared gradients.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, shared_workgroups};

/// Elements that one invocation takes, unless there are more than the partial sums have room for.
const ELEMENTS: usize = 8;

/// `shaders/optim/grad_norm.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "optim/grad_norm",
    source: &[wgsl!("../../../shaders/optim/grad_norm.wgsl")],
    buffers: &[("grad", Access::Read), ("partial_sums", Access::Write)],
    constants: &[("WORKGROUP", 64, 8)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
}

/// Records sums of squares of parts of `grad`, and returns how many there are, at the front of `partial_sums`.
pub fn record(rec: &Recording, grad: &Tensor, partial_sums: &Tensor) -> Result<usize> {
    let lanes = KERNEL.constant(rec.gpu(), "WORKGROUP");
    let groups = shared_workgroups(rec.gpu(), grad.len(), lanes, ELEMENTS, partial_sums.len());
    rec.dispatch(&KERNEL, &[grad, partial_sums], Params { len: grad.len() as u32 }, [groups as u32, 1])?;
    Ok(groups)
}
