//! ‖W + scale·B·A‖ of each row.

use bytemuck::{Pod, Zeroable};

use super::finite;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/lora/weight_norm.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/weight_norm",
    source: &[wgsl!("../../../shaders/lora/weight_norm.wgsl")],
    buffers: &[
        ("b", Access::Read),
        ("squares", Access::Read),
        ("aw", Access::Read),
        ("aa", Access::Read),
        ("norm", Access::Write),
    ],
    constants: &[("WORKGROUP", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    out_features: u32,
    rank: u32,
    scale: f32,
}

/// Records `norm [out_features]` of the rows of `W + scale·B·A`, from `b [out_features, rank]`, `squares [out_features]`
/// (‖W‖² by row), `aw [rank, out_features]` (A·Wᵀ) and `aa [rank, rank]` (A·Aᵀ).
pub fn record(
    rec: &Recording,
    b: &Tensor,
    squares: &Tensor,
    aw: &Tensor,
    aa: &Tensor,
    norm: &Tensor,
    scale: f32,
) -> Result<()> {
    let [out_features, rank] = b.matrix("b")?;
    squares.expect_shape("squares", &[out_features])?;
    aw.expect_shape("aw", &[rank, out_features])?;
    aa.expect_shape("aa", &[rank, rank])?;
    norm.expect_shape("norm", &[out_features])?;
    let params = Params { out_features: out_features as u32, rank: rank as u32, scale: finite("scale", scale)? };
    rec.dispatch(
        &KERNEL,
        &[b, squares, aw, aa, norm],
        params,
        workgroups(out_features, KERNEL.constant(rec.gpu(), "WORKGROUP")),
    )
}
