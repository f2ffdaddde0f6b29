//! Adapters at the two ends of a language model: on its embedding, and on its head, whose output is never there at once.

use std::ops::Range;

use super::layer::{LoraLinear, TrainingStep};
use super::products;
use crate::base::FrozenLinear;
use crate::error::{Error, Result};
use crate::gpu::{Recording, Tensor};
use crate::kernels::lora::{bias_add, bias_grad, find_non_finite};
use crate::kernels::nn::{embedding, embedding_grad};

impl LoraLinear {
    /// Records `output[t] = W[ids[t]] + scaling·B·A[:, ids[t]]` of an embedding: `ids [tokens]`; overwrites
    /// `output [tokens, width]`. Nothing is dropped before `A`, as in PEFT.
    pub(crate) fn record_embed(&self, rec: &Recording, ids: &Tensor, output: &Tensor) -> Result<()> {
        let [tokens, _] = output.matrix("output")?;
        let workspace = self.activations(tokens)?;
        rec.all_or_nothing(|| {
            self.base().embed(rec, ids, output)?;
            for (a, _) in self.taking_part(&workspace, None) {
                let weight = a.adapter.weight();
                embedding::record(rec, &weight.a, ids, &a.h, true)?;
                products::fused_b_add(rec, &weight.b, &a.h, output, a.adapter.scaling())?;
            }
            Ok(())
        })?;
        self.set_tokens(tokens);
        Ok(())
    }

    /// Records the backward pass after it: adds to the gradients.
    pub(crate) fn record_embed_backward(
        &self,
        rec: &Recording,
        ids: &Tensor,
        output: &Tensor,
        d_output: &Tensor,
        step: Option<&TrainingStep>,
    ) -> Result<()> {
        let workspace = self.activations(output.matrix("output")?[0])?;
        rec.all_or_nothing(|| {
            for (a, _) in self.taking_part(&workspace, None) {
                let (weight, grad, scaling) = (a.adapter.weight(), a.adapter.grad(), a.adapter.scaling());
                products::grad_b_and_dh(rec, &weight.b, d_output, &a.h, &grad.b, &a.dh, scaling)?;
                embedding_grad::record(rec, ids, &a.dh, &grad.a, true, scaling)?;
                if let Some(step) = step {
                    find_non_finite::record(rec, output, &a.dh, &step.window, a.adapter.numbers().0)?;
                }
            }
            Ok(())
        })
    }

    /// Records what the columns of an output have in common, `h = x·Aᵀ`, before [`LoraLinear::record_columns`].
    pub(crate) fn begin_columns(&self, rec: &Recording, x: &Tensor, step: Option<&TrainingStep>) -> Result<()> {
        let workspace = self.activations(x.matrix("x")?[0])?;
        if self.outside().iter().any(|adapter| adapter.magnitude().is_some()) {
            return Err(Error::unsupported(format!("DoRA on `{}`", self.label())));
        }
        self.project(rec, x, &workspace, step).map(drop)
    }

    /// Records some columns of the output, of which the first is a multiple of 64: overwrites `output [tokens, columns]`.
    pub(crate) fn record_columns(
        &self,
        rec: &Recording,
        columns: &Range<usize>,
        x: &Tensor,
        output: &Tensor,
    ) -> Result<()> {
        let workspace = self.activations(x.matrix("x")?[0])?;
        self.base().forward_rows(rec, columns.clone(), x, output)?;
        for (a, _) in self.taking_part(&workspace, None) {
            let scaling = a.adapter.scaling();
            products::fused_b_add(rec, &a.adapter.weight().b.rows(columns)?, &a.h, output, scaling)?;
            if let Some(bias) = a.adapter.lora_bias() {
                bias_add::record(rec, &bias.value.rows(columns)?, output, scaling)?;
            }
        }
        Ok(())
    }

    /// Records the backward pass of some columns: adds to their part of the gradients, and with `more` to what the columns before
    /// gave `d_input [tokens, in_features]`.
    pub(crate) fn record_columns_backward(
        &self,
        rec: &Recording,
        columns: &Range<usize>,
        d_output: &Tensor,
        d_input: Option<&Tensor>,
        more: bool,
    ) -> Result<()> {
        let workspace = self.activations(d_output.matrix("d_output")?[0])?;
        if let Some(d_input) = d_input {
            self.base().backward_vocabulary(rec, columns.clone(), d_output, d_input, more)?;
        }
        for (a, _) in self.taking_part(&workspace, None) {
            let (weight, grad, scaling) = (a.adapter.weight(), a.adapter.grad(), a.adapter.scaling());
            if let Some(bias) = a.adapter.lora_bias() {
                bias_grad::record(rec, d_output, &bias.grad.rows(columns)?, scaling)?;
            }
            products::grad_b(rec, d_output, &a.h, &grad.b.rows(columns)?, scaling)?;
            let b = FrozenLinear::from_tensors(weight.b.clone(), None)?;
            b.backward_vocabulary(rec, columns.clone(), d_output, &a.dh, more)?;
        }
        Ok(())
    }

    /// Records the rest of the backward pass, once all columns gave their part of `dh`: adds to A's gradient, and to `d_input`.
    pub(crate) fn end_columns(
        &self,
        rec: &Recording,
        x: &Tensor,
        d_input: Option<&Tensor>,
        step: Option<&TrainingStep>,
    ) -> Result<()> {
        let workspace = self.activations(x.matrix("x")?[0])?;
        for (a, mask) in self.taking_part(&workspace, step) {
            self.backward_from_dh(rec, a, [None; 2], x, d_input, step, mask, workspace.dropped.as_ref())?;
            if let Some(step) = step {
                find_non_finite::record(rec, &a.h, &a.dh, &step.window, a.adapter.numbers().0)?;
            }
        }
        Ok(())
    }
}
