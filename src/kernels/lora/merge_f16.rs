//! An adapter added to a weight in f16, and taken out of it.

use bytemuck::{Pod, Zeroable};

use super::finite;
use super::merge::check;
use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// `shaders/lora/merge_f16.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/merge_f16",
    source: &[wgsl!("../../../shaders/lora/merge_f16.wgsl")],
    buffers: &[
        ("a", Access::Read),
        ("b", Access::Read),
        ("magnitude", Access::Read),
        ("norm", Access::Read),
        ("weight", Access::WriteWords),
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

/// [`merge`](super::merge::record) for a weight as [`Layout::F16`](crate::kernels::base::Layout::F16) has it:
/// `weight [out_features, 4·⌈in_features / 8⌉]` words of two columns. Results are rounded to the nearest f16, half to even.
pub fn record(
    rec: &Recording,
    a: &Tensor,
    b: &Tensor,
    dora: Option<[&Tensor; 2]>,
    weight: &Tensor,
    scale: f32,
    back: bool,
) -> Result<()> {
    let ([out_features, words], [_, in_features]) = (weight.matrix("weight")?, a.matrix("a")?);
    weight.expect_shape("weight", &[out_features, 4 * in_features.div_ceil(8)])?;
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
        workgroups(out_features * words, KERNEL.constant(rec.gpu(), "WORKGROUP")),
    )
}
