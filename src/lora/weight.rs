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
}

/// Gradients of a [`LoraWeight`], of the same shapes; kernels add to them.
#[derive(Clone)]
pub struct LoraGrad {
    /// `dA [rank, in_features]`
    pub a: Tensor,
    /// `dB [out_features, rank]`
    pub b: Tensor,
}

impl LoraWeight {
    /// `A` by the configuration's seed, `B` zero.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) as [`LoraConfig::check`]; [`Limit`](crate::error::ErrorKind::Limit) where the rank is more than fits.
    pub fn new(gpu: &Gpu, in_features: usize, out_features: usize, config: &LoraConfig) -> Result<LoraWeight> {
        config.check()?;
        let [a, b] = pair(gpu, "lora", ["lora_A", "lora_B"], in_features, out_features, config.rank)?;
        a.write(&config.initial_a(in_features)?)?;
        Ok(LoraWeight { a, b })
    }

    /// That the device can hold A and B, before anything is computed for them.
    ///
    /// # Errors
    /// [`Limit`](crate::error::ErrorKind::Limit).
    #[cfg(target_arch = "wasm32")]
    pub(crate) fn check_size(gpu: &Gpu, in_features: usize, out_features: usize, rank: usize) -> Result<()> {
        let width = in_features as u64 + out_features as u64;
        crate::gpu::check_size(gpu, "lora", width.saturating_mul(rank as u64).saturating_mul(4))
    }

    /// Over tensors that are there already.
    pub fn from_tensors(a: Tensor, b: Tensor) -> Result<LoraWeight> {
        let ([rank, _], [_, rank_b]) = (a.matrix("a")?, b.matrix("b")?);
        if rank != rank_b {
            return Err(Error::shape("b", format!("[out_features, {rank}], as a's rank"), crate::gpu::show(b.shape())));
        }
        Ok(LoraWeight { a, b })
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
        self.a.destroy();
        self.b.destroy();
    }
}

impl LoraGrad {
    /// Zero gradients for `weight`.
    pub fn new(gpu: &Gpu, weight: &LoraWeight) -> Result<LoraGrad> {
        weight.a.expect_gpu(gpu)?;
        let (in_features, out_features) = (weight.in_features(), weight.out_features());
        let [a, b] =
            pair(gpu, "lora gradient", ["lora_A.grad", "lora_B.grad"], in_features, out_features, weight.rank())?;
        Ok(LoraGrad { a, b })
    }

    /// Over tensors that are there already.
    pub fn from_tensors(a: Tensor, b: Tensor) -> LoraGrad {
        LoraGrad { a, b }
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
        self.a.destroy();
        self.b.destroy();
    }
}

/// `[rank, in_features]` and `[out_features, rank]` in one buffer.
fn pair(
    gpu: &Gpu,
    label: &str,
    names: [&str; 2],
    in_features: usize,
    out_features: usize,
    rank: usize,
) -> Result<[Tensor; 2]> {
    let (_, parts) = Tensor::arena(gpu, label, &[(names[0], &[rank, in_features]), (names[1], &[out_features, rank])])?;
    Ok([parts[0].clone(), parts[1].clone()])
}
