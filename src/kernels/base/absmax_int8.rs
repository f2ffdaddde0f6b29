//! Activations of 8 bits a token, as floats again: BitNet's fake quantisation.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, fold};

/// `shaders/base/absmax_int8.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "base/absmax_int8",
    source: &[wgsl!("../../../shaders/base/absmax_int8.wgsl")],
    buffers: &[("x", Access::Read), ("output", Access::Write)],
    constants: &[("LANES", 64, 8)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    features: u32,
    padded: u32,
    rows: u32,
}

/// Records `output [rows, ⌈features / 4⌉ · 4] = round(s·x)/s`, `s = 127/max(max|x|, 10⁻⁵)` of each row of `x [rows, features]`,
/// rounded half to even; zeros in the columns that `x` has not.
pub fn record(rec: &Recording, x: &Tensor, output: &Tensor) -> Result<()> {
    let [rows, features] = x.matrix("x")?;
    let padded = features.next_multiple_of(4);
    output.expect_shape("output", &[rows, padded])?;
    let params = Params { features: features as u32, padded: padded as u32, rows: rows as u32 };
    rec.dispatch(&KERNEL, &[x, output], params, fold(rows))
}
