//! Frozen parts of a network between its linear layers.

use crate::error::{Error, Result, show_number};
use crate::gpu::{Gpu, Recording, Tensor};
pub use crate::kernels::nn::Activation;
use crate::kernels::nn::{norm, norm_grad};

/// A frozen layer norm or RMS norm over the last dimension.
pub struct Norm {
    weight: Tensor,
    bias: Option<Tensor>,
    centered: bool,
    eps: f32,
}

impl Norm {
    /// Layer norm (`centered`) or RMS norm with `weight [features]`, for layer norm perhaps with `bias [features]`.
    pub fn new(gpu: &Gpu, weight: &[f32], bias: Option<&[f32]>, centered: bool, eps: f64) -> Result<Norm> {
        if !(eps >= 0.0 && (eps as f32).is_finite()) {
            return Err(Error::argument("eps", "a finite number, at least 0", show_number(eps)));
        }
        let shape = [weight.len()];
        let weight = Tensor::from_slice(gpu, "norm weight", &shape, weight)?;
        let bias = bias.map(|bias| Tensor::from_slice(gpu, "norm bias", &shape, bias)).transpose()?;
        Ok(Norm { weight, bias, centered, eps: eps as f32 })
    }

    /// `[features]`
    pub(crate) fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Width of what it takes and gives.
    pub fn features(&self) -> usize {
        self.weight.len()
    }

    /// What it is, as a checkpoint says it.
    pub(crate) fn description(&self) -> String {
        let kind = if self.centered { "LayerNorm" } else { "RmsNorm" };
        format!("{kind}[{}, {:08x}]", self.features(), self.eps.to_bits())
    }

    /// Records the forward pass; overwrites `output`, of the shape of `x [rows, features]`.
    pub fn forward(&self, rec: &Recording, x: &Tensor, output: &Tensor) -> Result<()> {
        norm::record(rec, &self.weight, self.bias.as_ref(), x, output, self.centered, self.eps)
    }

    /// Records the gradient at `x`; overwrites `d_input`.
    pub fn backward_input(&self, rec: &Recording, x: &Tensor, d_output: &Tensor, d_input: &Tensor) -> Result<()> {
        norm_grad::record(rec, &self.weight, x, d_output, d_input, self.centered, self.eps, false)
    }

    /// As [`Norm::backward_input`], added to `d_input`.
    pub(crate) fn add_backward_input(
        &self,
        rec: &Recording,
        x: &Tensor,
        d_output: &Tensor,
        d_input: &Tensor,
    ) -> Result<()> {
        norm_grad::record(rec, &self.weight, x, d_output, d_input, self.centered, self.eps, true)
    }

    /// Frees the GPU memory.
    pub fn destroy(&self) {
        self.weight.destroy();
        self.bias.iter().for_each(Tensor::destroy);
    }
}
