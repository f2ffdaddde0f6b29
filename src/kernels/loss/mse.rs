//! Mean squared error over all elements, with its gradient.

use bytemuck::{Pod, Zeroable};

use super::sum;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor};

/// Elements that one invocation takes, unless there are more than the scratch tensor has sums for.
const ELEMENTS: usize = 8;

/// `shaders/loss/mse.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "loss/mse",
    source: include_str!("../../../shaders/loss/mse.wgsl"),
    buffers: &[
        ("output", Access::Read),
        ("targets", Access::Read),
        ("d_output", Access::Write),
        ("partial_sums", Access::Write),
    ],
    constants: &[("WORKGROUP", 64, 8)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
    inv_len: f32,
}

/// Records `loss = mean((output − targets)²)` and `d_output = 2·(output − targets)/len`, in two dispatches;
/// `output`, `targets` and `d_output` of one shape, `loss [1]`.
pub fn record(rec: &Recording, output: &Tensor, targets: &Tensor, d_output: &Tensor, loss: &Tensor) -> Result<()> {
    targets.expect_shape("targets", output.shape())?;
    d_output.expect_shape("d_output", output.shape())?;
    let len = output.len();
    let scratch = rec.gpu().scratch()?;
    let groups = len.div_ceil(ELEMENTS * KERNEL.constant(rec.gpu(), "WORKGROUP")).min(scratch.len());
    let params = Params { len: len as u32, inv_len: (1.0 / len as f64) as f32 };
    rec.all_or_nothing(|| {
        rec.dispatch(&KERNEL, &[output, targets, d_output, &scratch], params, [groups as u32, 1])?;
        sum::record(rec, &scratch, groups, loss)
    })
}
