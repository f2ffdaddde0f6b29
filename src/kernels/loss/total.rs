//! The sum of a loss and what it counts.

use bytemuck::{Pod, Zeroable};

use crate::error::{Error, Result};
use crate::gpu::{Access, Kernel, Recording, Tensor};

/// `shaders/loss/total.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "loss/total",
    source: &[wgsl!("../../../shaders/loss/total.wgsl")],
    buffers: &[("partial_sums", Access::Read), ("totals", Access::Write)],
    constants: &[("WORKGROUP", 64, 8)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
    accumulate: u32,
}

/// Records `totals [2] = Σ` of the first `len` pairs of `partial_sums`, or with `accumulate` `+=`.
pub fn record(rec: &Recording, partial_sums: &Tensor, len: usize, totals: &Tensor, accumulate: bool) -> Result<()> {
    totals.expect_shape("totals", &[2])?;
    if 2 * len > partial_sums.len() {
        return Err(Error::shape(
            "partial_sums",
            format!("at least {len} pairs"),
            (partial_sums.len() / 2).to_string(),
        ));
    }
    rec.dispatch(&KERNEL, &[partial_sums, totals], Params { len: len as u32, accumulate: accumulate.into() }, [1, 1])
}
