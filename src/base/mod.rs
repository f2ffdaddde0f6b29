//! The frozen weight under an adapter.

use crate::error::Result;
use crate::gpu::{Gpu, Recording, Tensor};
use crate::kernels::base::{linear_f32, linear_f32_t};

/// A frozen linear layer `output = x·Wᵀ + bias` with weights in f32. Clones have the same weights.
#[derive(Clone)]
pub struct FrozenLinear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl FrozenLinear {
    /// Uploads `weight [out_features, in_features]` and, where there is one, `bias [out_features]`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) where a length differs, [`Error::Limit`](crate::Error::Limit) above the device's limits.
    pub fn new(
        gpu: &Gpu,
        out_features: usize,
        in_features: usize,
        weight: &[f32],
        bias: Option<&[f32]>,
    ) -> Result<FrozenLinear> {
        let weight = Tensor::from_slice(gpu, "weight", &[out_features, in_features], weight)?;
        let bias = bias.map(|bias| Tensor::from_slice(gpu, "bias", &[out_features], bias)).transpose()?;
        FrozenLinear::from_tensors(weight, bias)
    }

    /// A layer over tensors that are on the GPU already.
    pub fn from_tensors(weight: Tensor, bias: Option<Tensor>) -> Result<FrozenLinear> {
        let [out_features, _] = weight.matrix("weight")?;
        if let Some(bias) = &bias {
            bias.expect_shape("bias", &[out_features])?;
        }
        Ok(FrozenLinear { weight, bias })
    }

    /// `W [out_features, in_features]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias `[out_features]`, if there is one.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The outputs `first .. first + count` alone, without bias: `first` rows must make a multiple of 256 bytes.
    pub(crate) fn rows(&self, first: usize, count: usize) -> Result<FrozenLinear> {
        Ok(FrozenLinear { weight: self.weight.rows(first, count)?, bias: None })
    }

    /// Number of columns of `W`.
    pub fn in_features(&self) -> usize {
        self.weight.shape()[1]
    }

    /// Number of rows of `W`.
    pub fn out_features(&self) -> usize {
        self.weight.shape()[0]
    }

    /// Records `output = x·Wᵀ + bias`; overwrites `output [tokens, out_features]`.
    pub fn forward(&self, rec: &Recording, x: &Tensor, output: &Tensor) -> Result<()> {
        linear_f32::record(rec, &self.weight, self.bias.as_ref(), x, output)
    }

    /// Records `output = x·Wᵀ`.
    pub(crate) fn forward_without_bias(&self, rec: &Recording, x: &Tensor, output: &Tensor) -> Result<()> {
        linear_f32::record(rec, &self.weight, None, x, output)
    }

    /// Records `d_input = d_output·W`; overwrites `d_input [tokens, in_features]`.
    pub fn backward_input(&self, rec: &Recording, d_output: &Tensor, d_input: &Tensor) -> Result<()> {
        linear_f32_t::record(rec, &self.weight, d_output, d_input)
    }

    /// Frees the GPU memory.
    pub fn destroy(&self) {
        self.weight.destroy();
        if let Some(bias) = &self.bias {
            bias.destroy();
        }
    }
}
