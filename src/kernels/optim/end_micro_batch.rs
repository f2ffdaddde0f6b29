//! The counter of micro-batches within a step.

use bytemuck::{Pod, Zeroable};

use super::WINDOW_LEN;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor};

/// `shaders/optim/end_micro_batch.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "optim/end_micro_batch",
    source: &[wgsl!("../../../shaders/optim/end_micro_batch.wgsl")],
    buffers: &[("window", Access::Write)],
    constants: &[],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    count: u32,
}

/// Records that one more micro-batch of `window [4]` is done.
pub fn record(rec: &Recording, window: &Tensor) -> Result<()> {
    window.expect_shape("window", &[WINDOW_LEN])?;
    rec.dispatch(&KERNEL, &[window], Params { count: 1 }, [1, 1])
}
