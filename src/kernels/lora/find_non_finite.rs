//! The layer in which something that is not finite began.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, shared_workgroups};
use crate::kernels::optim::WINDOW_LEN;

/// `shaders/lora/find_non_finite.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/find_non_finite",
    source: &[wgsl!("../../../shaders/lora/find_non_finite.wgsl")],
    buffers: &[("output", Access::Read), ("dh", Access::Read), ("window", Access::Write)],
    constants: &[("WORKGROUP", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    output_len: u32,
    dh_len: u32,
    layer: u32,
}

/// Elements that one invocation looks at, until there are 1,024 workgroups.
const ELEMENTS: usize = 16;

/// Records the search through a layer's `output [tokens, out_features]` and `dh [tokens, rank]`, into `window [4]`.
pub fn record(rec: &Recording, output: &Tensor, dh: &Tensor, window: &Tensor, layer: u32) -> Result<()> {
    window.expect_shape("window", &[WINDOW_LEN])?;
    let params = Params { output_len: output.len() as u32, dh_len: dh.len() as u32, layer };
    let lanes = KERNEL.constant(rec.gpu(), "WORKGROUP");
    let groups = shared_workgroups(rec.gpu(), output.len().max(dh.len()), lanes, ELEMENTS, 1024);
    rec.dispatch(&KERNEL, &[output, dh, window], params, [groups as u32, 1])
}
