//! The seed documents' systems that compose kernels, as methods of [`Recording`].

use super::products;
use super::weight::{LoraGrad, LoraWeight};
use crate::error::Result;
use crate::gpu::{Recording, Tensor};
use crate::kernels::lora::{add_scaled, project_b};

impl Recording {
    /// `output += scale·B·(A·x)` in three dispatches (executeLoRAForward): `h = x·Aᵀ`, `y = h·Bᵀ`, `output += scale·y`.
    pub fn lora_forward(
        &self,
        weight: &LoraWeight,
        x: &Tensor,
        h: &Tensor,
        y: &Tensor,
        output: &Tensor,
        scale: f32,
    ) -> Result<()> {
        self.all_or_nothing(|| {
            products::project_a(self, &weight.a, x, h)?;
            project_b::record(self, &weight.b, h, y)?;
            add_scaled::record(self, y, output, scale)
        })
    }

    /// `output += scale·B·(A·x)` in two dispatches (executeLoRAForwardFused).
    pub fn lora_forward_fused(
        &self,
        weight: &LoraWeight,
        x: &Tensor,
        h: &Tensor,
        output: &Tensor,
        scale: f32,
    ) -> Result<()> {
        self.all_or_nothing(|| {
            products::project_a(self, &weight.a, x, h)?;
            products::fused_b_add(self, &weight.b, h, output, scale)
        })
    }

    /// The whole backward pass of one projection in four dispatches (executeLoRABackward); three without `d_input`.
    ///
    /// `d_output [tokens, out_features]` is the gradient from above, `saved_x` and `saved_h` are the forward's `x` and
    /// `h`, `dh [tokens, rank]` is overwritten; `grad` and `d_input [tokens, in_features]` are added to.
    #[allow(clippy::too_many_arguments)]
    pub fn lora_backward(
        &self,
        weight: &LoraWeight,
        d_output: &Tensor,
        saved_x: &Tensor,
        saved_h: &Tensor,
        dh: &Tensor,
        grad: &LoraGrad,
        d_input: Option<&Tensor>,
        scale: f32,
    ) -> Result<()> {
        grad.a.expect_shape("grad.a", weight.a.shape())?;
        grad.b.expect_shape("grad.b", weight.b.shape())?;
        self.all_or_nothing(|| {
            products::grad_b_and_dh(self, &weight.b, d_output, saved_h, &grad.b, dh, scale)?;
            products::grad_a(self, dh, saved_x, &grad.a, scale)?;
            match d_input {
                Some(d_input) => products::input_grad(self, &weight.a, dh, d_input, scale),
                None => Ok(()),
            }
        })
    }
}
