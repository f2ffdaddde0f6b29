//! An adapter added to the weight, and taken out of it.

use bytemuck::{Pod, Zeroable};

use super::finite;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/lora/merge.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/merge",
    source: &[wgsl!("../../../shaders/lora/merge.wgsl")],
    buffers: &[
        ("a", Access::Read),
        ("b", Access::Read),
        ("magnitude", Access::Read),
        ("norm", Access::Read),
        ("weight", Access::Write),
    ],
    constants: &[("WORKGROUP", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    out_features: u32,
    in_features: u32,
    rank: u32,
    scale: f32,
    has_magnitude: u32,
    back: u32,
}

/// Records `weight = factor·(weight + scale·B·A)` of `weight [out_features, in_features]`, or with `back`
/// `weight = weight/factor − scale·B·A`. The factor of a row is 1, or with DoRA's `[magnitude, norm]`, each `[out_features]`,
/// their quotient.
pub fn record(
    rec: &Recording,
    a: &Tensor,
    b: &Tensor,
    dora: Option<[&Tensor; 2]>,
    weight: &Tensor,
    scale: f32,
    back: bool,
) -> Result<()> {
    let [out_features, in_features] = weight.matrix("weight")?;
    let rank = check(a, b, dora, out_features, in_features)?;
    let [magnitude, norm] = dora.unwrap_or([a, b]);
    let params = Params {
        out_features: out_features as u32,
        in_features: in_features as u32,
        rank: rank as u32,
        scale: finite("scale", scale)?,
        has_magnitude: dora.is_some().into(),
        back: back.into(),
    };
    rec.dispatch(
        &KERNEL,
        &[a, b, magnitude, norm, weight],
        params,
        workgroups(out_features * in_features, KERNEL.constant(rec.gpu(), "WORKGROUP")),
    )
}

/// The rank of an adapter that fits the weight.
pub(super) fn check(
    a: &Tensor,
    b: &Tensor,
    dora: Option<[&Tensor; 2]>,
    out_features: usize,
    in_features: usize,
) -> Result<usize> {
    let [rank, _] = a.matrix("a")?;
    a.expect_shape("a", &[rank, in_features])?;
    b.expect_shape("b", &[out_features, rank])?;
    for (name, vector) in dora.iter().flat_map(|[magnitude, norm]| [("magnitude", magnitude), ("norm", norm)]) {
        vector.expect_shape(name, &[out_features])?;
    }
    Ok(rank)
}
