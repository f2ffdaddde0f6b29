//! dB += scale·d_outputᵀ·h and dh = d_output·B from one reading of d_output for each eight ranks; by quads of invocations.

use bytemuck::{Pod, Zeroable};

use super::{finite, grad_b_dh_sums};
use crate::error::{Error, Result};
use crate::gpu::{Access, Gpu, Kernel, Recording, Tensor, fold};

const TOKENS: usize = 16;
const RANKS: usize = 8;
/// Workgroups that keep a GPU busy: two on each of 132 multiprocessors of an H200. With more of them more parts are to be added up.
const ENOUGH: usize = 264;
/// Tokens of a part that hide how long the first of them take.
const MOST: usize = 400;

/// `shaders/lora/grad_b_dh.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/grad_b_dh",
    source: &[wgsl!("../../../shaders/lora/grad_b_dh.wgsl")],
    buffers: &[("b", Access::Read), ("d_output", Access::Read), ("h", Access::Read), ("parts", Access::Write)],
    constants: &[("WORKGROUP", 128, 32)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    tokens: u32,
    out_features: u32,
    rank: u32,
    part: u32,
    scale: f32,
}

/// Whether it can take such a gradient, and is the fastest here: with more than eight ranks where a cache holds d_output for the
/// next eight.
pub(crate) fn suits(gpu: &Gpu, tokens: usize, out_features: usize, rank: usize) -> bool {
    let read = tokens.saturating_mul(out_features).saturating_mul(rank.div_ceil(RANKS)); // usize has 32 bits in a page
    let once = rank <= RANKS || read <= 1 << 24;
    gpu.has_subgroups() && tokens >= TOKENS && out_features.is_multiple_of(4) && once
}

/// Tokens of a part, divisible by [`TOKENS`]: of so many `tiles` of columns and ranks as few as keep a GPU busy.
fn part(tokens: usize, tiles: usize) -> usize {
    let least = if tokens * tiles < 64 * 2 * TOKENS { TOKENS } else { 2 * TOKENS };
    (tokens * tiles / ENOUGH).clamp(least, MOST).next_multiple_of(TOKENS)
}

/// Records `d_b += scale·d_outputᵀ·h` and `dh = d_output·B`: `b, d_b [out_features, rank]`, `d_output [tokens, out_features]`,
/// `h, dh [tokens, rank]`; `out_features` divisible by four.
pub fn record(
    rec: &Recording,
    b: &Tensor,
    d_output: &Tensor,
    h: &Tensor,
    d_b: &Tensor,
    dh: &Tensor,
    scale: f32,
) -> Result<()> {
    let [out_features, rank] = b.matrix("b")?;
    let [tokens, _] = d_output.matrix("d_output")?;
    d_output.expect_shape("d_output", &[tokens, out_features])?;
    h.expect_shape("h", &[tokens, rank])?;
    d_b.expect_shape("d_b", &[out_features, rank])?;
    dh.expect_shape("dh", &[tokens, rank])?;
    if !out_features.is_multiple_of(4) {
        return Err(Error::shape("d_output", "columns divisible by four", out_features.to_string()));
    }
    let scale = finite("scale", scale)?;
    let strips = out_features.div_ceil(2 * KERNEL.constant(rec.gpu(), "WORKGROUP"));
    let tiles = strips * rank.div_ceil(RANKS);
    let part = part(tokens, tiles);
    let counts = [tokens.div_ceil(part), strips];
    let parts = rec.gpu().scratch_sums([1, counts[0] * d_b.len() + counts[1] * dh.len()])?;
    let params = Params {
        tokens: tokens as u32,
        out_features: out_features as u32,
        rank: rank as u32,
        part: part as u32,
        scale,
    };
    rec.all_or_nothing(|| {
        rec.dispatch(&KERNEL, &[b, d_output, h, &parts], params, fold(counts[0] * tiles))?;
        grad_b_dh_sums::record(rec, &parts, counts, d_b, dh)
    })
}
