//! output += Σ parts: what sums over a part of the tokens each add up to.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::gpu::{Access, Kernel, Recording, Tensor, workgroups};

/// Tokens that are not worth sharing out.
const LEAST: usize = 128;
/// Workgroups that fill a GPU.
const ENOUGH: usize = 768;

/// `shaders/lora/add_parts.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "lora/add_parts",
    source: &[wgsl!("../../../shaders/lora/add_parts.wgsl")],
    buffers: &[("parts", Access::Read), ("output", Access::Write)],
    constants: &[("WORKGROUP", 64, 64)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    len: u32,
    parts: u32,
}

/// Records `output += Σ parts`, of `parts [parts, output's length]`.
pub fn record(rec: &Recording, parts: &Tensor, output: &Tensor) -> Result<()> {
    let [count, _] = parts.matrix("parts")?;
    parts.expect_shape("parts", &[count, output.len()])?;
    let params = Params { len: output.len() as u32, parts: count as u32 };
    let groups = workgroups(output.len(), KERNEL.constant(rec.gpu(), "WORKGROUP"));
    rec.dispatch(&KERNEL, &[parts, output], params, groups)
}

/// Adds to `output` what `record` sums over all tokens in `tiles` workgroups. Where those would not fill the device, it is
/// given a tensor `[parts, output's length]` and the number of tokens of a part, to overwrite it with as many sums; otherwise
/// `output` and all tokens, to add to it.
pub(super) fn record_sums(
    rec: &Recording,
    output: &Tensor,
    tokens: usize,
    tiles: usize,
    record: impl Fn(&Tensor, usize) -> Result<()>,
) -> Result<()> {
    let part = tokens.div_ceil((ENOUGH / tiles).min(tokens / LEAST).max(1)).next_multiple_of(4);
    if part >= tokens {
        return record(output, tokens);
    }
    let sums = rec.gpu().scratch_sums([tokens.div_ceil(part), output.len()])?;
    rec.all_or_nothing(|| {
        record(&sums, part)?;
        self::record(rec, &sums, output)
    })
}
