//! `A` and `B`, and their gradients.

use super::config::LoraConfig;
use crate::error::{Error, Result};
use crate::gpu::{Gpu, Tensor};

/// The adapter's matrices `A [rank, in_features]` and `B [out_features, rank]`.
#[derive(Clone)]
pub struct LoraWeight {
    /// `A [rank, in_features]`
    pub a: Tensor,
    /// `B [out_features, rank]`
    pub b: Tensor,
    /// Both in their buffer, for updates in one dispatch; None when they came separately.
    arena: Option<Tensor>,
}

/// Gradients of a [`LoraWeight`], of the same shapes; kernels add to them.
#[derive(Clone)]
pub struct LoraGrad {
    /// `dA [rank, in_features]`
    pub a: Tensor,
    /// `dB [out_features, rank]`
    pub b: Tensor,
    arena: Option<Tensor>,
}

impl LoraWeight {
    /// `A` by the configuration's seed, `B` zero.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] as [`LoraConfig::scaling`]; [`Error::Limit`] where the rank is more than fits.
    pub fn new(gpu: &Gpu, in_features: usize, out_features: usize, config: &LoraConfig) -> Result<LoraWeight> {
        config.scaling()?;
        let [arena, a, b] = pair(gpu, "lora", ["lora_A", "lora_B"], in_features, out_features, config.rank)?;
        a.write(&config.initial_a(in_features))?;
        Ok(LoraWeight { a, b, arena: Some(arena) })
    }

    /// Over tensors that are there already.
    pub fn from_tensors(a: Tensor, b: Tensor) -> Result<LoraWeight> {
        let ([rank, _], [_, rank_b]) = (a.matrix("a")?, b.matrix("b")?);
        if rank != rank_b {
            return Err(Error::shape("b", format!("[out_features, {rank}], as a's rank"), crate::gpu::show(b.shape())));
        }
        Ok(LoraWeight { a, b, arena: None })
    }

    /// Rank of the adapter.
    pub fn rank(&self) -> usize {
        self.a.shape()[0]
    }

    /// Columns of `A`.
    pub fn in_features(&self) -> usize {
        self.a.shape()[1]
    }

    /// Rows of `B`.
    pub fn out_features(&self) -> usize {
        self.b.shape()[0]
    }

    /// Frees the GPU memory.
    pub fn destroy(&self) {
        destroy(&self.a, &self.b, &self.arena);
    }
}

impl LoraGrad {
    /// Zero gradients for `weight`.
    pub fn new(gpu: &Gpu, weight: &LoraWeight) -> Result<LoraGrad> {
        let (in_features, out_features) = (weight.in_features(), weight.out_features());
        let [arena, a, b] =
            pair(gpu, "lora gradient", ["lora_A.grad", "lora_B.grad"], in_features, out_features, weight.rank())?;
        Ok(LoraGrad { a, b, arena: Some(arena) })
    }

    /// Over tensors that are there already.
    pub fn from_tensors(a: Tensor, b: Tensor) -> LoraGrad {
        LoraGrad { a, b, arena: None }
    }

    /// Records zeros into both gradients.
    pub fn zero(&self, rec: &crate::gpu::Recording) -> Result<()> {
        rec.all_or_nothing(|| {
            rec.zero(&self.a)?;
            rec.zero(&self.b)
        })
    }

    /// Frees the GPU memory.
    pub fn destroy(&self) {
        destroy(&self.a, &self.b, &self.arena);
    }
}

/// An arena of `[rank, in_features]` and `[out_features, rank]`: the whole, the first, the second.
fn pair(
    gpu: &Gpu,
    label: &str,
    names: [&str; 2],
    in_features: usize,
    out_features: usize,
    rank: usize,
) -> Result<[Tensor; 3]> {
    let (arena, parts) =
        Tensor::arena(gpu, label, &[(names[0], &[rank, in_features]), (names[1], &[out_features, rank])])?;
    Ok([arena, parts[0].clone(), parts[1].clone()])
}

fn destroy(a: &Tensor, b: &Tensor, arena: &Option<Tensor>) {
    for tensor in [Some(a), Some(b), arena.as_ref()].into_iter().flatten() {
        tensor.destroy();
    }
}
