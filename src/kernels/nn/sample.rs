//! The next token, chosen from logits.

use bytemuck::{Pod, Zeroable};

use crate::error::{Error, Result, show_number};
use crate::gpu::{Access, Kernel, Recording, Tensor};

/// `shaders/nn/sample.wgsl`
pub static KERNEL: Kernel = Kernel {
    name: "nn/sample",
    source: &[wgsl!("../../../shaders/nn/sample.wgsl")],
    buffers: &[
        ("logits", Access::Read),
        ("seen", Access::Write),
        ("cursor", Access::WriteInt),
        ("next_id", Access::WriteInt),
    ],
    constants: &[("LANES", 256, 8)],
    params_size: size_of::<Params>(),
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    vocabulary: u32,
    top_k: u32,
    temperature: f32,
    top_p: f32,
    penalty: f32,
    seed_low: u32,
    seed_high: u32,
    advance: u32,
}

/// How tokens are chosen; greedily by default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// What logits are divided by; 0 takes the most likely token.
    pub temperature: f64,
    /// Only this many most likely tokens; 0: all.
    pub top_k: usize,
    /// Only the most likely tokens that make up this share, in `(0, 1]`.
    pub top_p: f64,
    /// Divides the positive logits of tokens that were there before, and multiplies the negative ones.
    pub repetition_penalty: f64,
    /// The same seed gives the same tokens, as far as the logits are the same.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0, seed: 0 }
    }
}

impl Sampling {
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) naming the setting that is out of its range.
    pub fn check(&self) -> Result<()> {
        let wrong = |name, expected, value: f64| Err(Error::argument(name, expected, show_number(value)));
        if !(self.temperature >= 0.0 && (self.temperature as f32).is_finite()) {
            return wrong("temperature", "a finite number, at least 0", self.temperature);
        }
        if self.temperature > 0.0 && !(1.0 / self.temperature as f32).is_finite() {
            return wrong("temperature", "0, or a number that float32 can divide by", self.temperature);
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong("topP", "a number above 0, at most 1", self.top_p);
        }
        if !(self.repetition_penalty as f32 > 0.0 && (self.repetition_penalty as f32).is_finite()) {
            return wrong("repetitionPenalty", "a finite number above 0", self.repetition_penalty);
        }
        Ok(())
    }
}

/// Records the choice of the next token of `logits [1, vocabulary]` into `next_id [1]`, −1 where a logit is not finite;
/// notes it in `seen [vocabulary]` and adds `advance` to `cursor [1]`, of which the random number is a function.
pub fn record(
    rec: &Recording,
    logits: &Tensor,
    seen: &Tensor,
    cursor: &Tensor,
    next_id: &Tensor,
    sampling: &Sampling,
    advance: usize,
) -> Result<()> {
    sampling.check()?;
    let [_, vocabulary] = logits.matrix("logits")?;
    logits.expect_shape("logits", &[1, vocabulary])?;
    seen.expect_shape("seen", &[vocabulary])?;
    cursor.expect_shape("cursor", &[1])?;
    next_id.expect_shape("next_id", &[1])?;
    let params = Params {
        vocabulary: vocabulary as u32,
        top_k: sampling.top_k.min(vocabulary) as u32,
        temperature: sampling.temperature as f32,
        top_p: sampling.top_p as f32,
        penalty: sampling.repetition_penalty as f32,
        seed_low: sampling.seed as u32,
        seed_high: (sampling.seed >> 32) as u32,
        advance: advance as u32,
    };
    rec.dispatch(&KERNEL, &[logits, seen, cursor, next_id], params, [1, 1])
}
