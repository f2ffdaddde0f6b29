//! Adapters merged into the frozen weight, and taken out again.

use std::rc::Rc;

use super::adapter::Adapter;
use super::layer::LoraLinear;
use super::products;
use crate::base::WeightKind;
use crate::error::{Error, Result};
use crate::gpu::{Recording, Submission, Tensor};
use crate::kernels::lora::{bias_add, merge, merge_f16};

/// What a merge did, for the way back.
pub(super) struct Merged {
    adapter: Rc<Adapter>,
    /// The scaling at that time.
    scaling: f32,
    /// DoRA's row norms at that time.
    norm: Option<Tensor>,
    /// Weight and bias as they were before, where the caller wants them back to the bit.
    original: Option<(Tensor, Option<Tensor>)>,
}

impl LoraLinear {
    /// Adds the active adapters to the weight, `W + scaling·B·A` (with DoRA `m/‖·‖` times that), and what the layer then gives
    /// costs no more than the base. With `keep_original` a copy of the weight is kept, so that [`LoraLinear::unmerge`]
    /// restores every bit; without it, within rounding, which in f16 is 11 bits: it takes out what A and B hold then, so that
    /// nothing may be written into them meanwhile.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) where the base is neither in f32 nor f16, adapters are merged already, none is active, an optimiser updates
    /// one of them, or an adapter has a bias and the base none.
    pub fn merge(&self, keep_original: bool) -> Result<Submission> {
        let active = self.active();
        let refuse = |expected: &str, got: &str| Err(Error::argument("adapters", expected, got));
        if self.is_merged() {
            return refuse("none that is merged already", "merged ones");
        }
        if self.is_embedding() {
            return refuse("those of a linear layer", self.label());
        }
        if active.is_empty() {
            return refuse("an active one to merge", "none");
        }
        if let Some(owned) = active.iter().find(|adapter| adapter.is_owned()) {
            return refuse("adapters that no optimizer updates", owned.name());
        }
        if let Some(biased) = active.iter().find(|a| a.lora_bias().is_some() && self.base().bias().is_none()) {
            return refuse("a base with a bias, to which an adapter's bias can be added", biased.name());
        }
        let weight = self.base().mergeable()?;
        let rec = Recording::new(self.gpu());
        let original = if keep_original {
            let copy = |tensor: &Tensor| {
                let copy = tensor.another("original")?;
                rec.copy(tensor, &copy)?;
                Ok(copy)
            };
            Some((copy(weight)?, self.base().bias().map(copy).transpose()?))
        } else {
            None
        };
        let mut merged = Vec::new();
        for (i, adapter) in active.into_iter().enumerate() {
            let norm = self.row_norm(&rec, &adapter)?;
            let scaling = adapter.scaling();
            let original = if i == 0 { original.clone() } else { None };
            merged.push(Merged { adapter, scaling, norm, original });
            merged[i].record(&rec, self, false)?;
        }
        self.submit_merge(&rec, merged)
    }

    /// Takes merged adapters out of the weight again.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) where none is merged.
    pub fn unmerge(&self) -> Result<Submission> {
        if !self.is_merged() {
            return Err(Error::argument("adapters", "merged ones", "none"));
        }
        let rec = Recording::new(self.gpu());
        let merged = self.merged.borrow();
        match merged.iter().find_map(|m| m.original.as_ref()) {
            Some((weight, bias)) => {
                rec.copy(weight, self.base().mergeable()?)?;
                if let (Some(from), Some(to)) = (bias, self.base().bias()) {
                    rec.copy(from, to)?;
                }
            }
            None => merged.iter().rev().try_for_each(|m| m.record(&rec, self, true))?,
        }
        drop(merged);
        self.submit_merge(&rec, Vec::new())
    }

    /// Submits what leaves these adapters merged; the ones before where the GPU refuses it.
    fn submit_merge(&self, rec: &Recording, merged: Vec<Merged>) -> Result<Submission> {
        let submission = rec.try_submit()?;
        let (slot, before) = (self.merged.clone(), self.merged.replace(merged));
        Ok(submission.or_else(move || drop(slot.replace(before))))
    }

    /// Whether adapters are merged into the weight.
    pub fn is_merged(&self) -> bool {
        !self.merged.borrow().is_empty()
    }
}

impl Merged {
    fn record(&self, rec: &Recording, layer: &LoraLinear, back: bool) -> Result<()> {
        let Merged { adapter, scaling, norm, .. } = self;
        let weight = adapter.weight();
        let magnitude = adapter.magnitude().map(|magnitude| &magnitude.value);
        let dora = magnitude.zip(norm.as_ref()).map(|(magnitude, norm)| [magnitude, norm]);
        let sign = if back { -1.0 } else { 1.0 };
        let merged = layer.base().mergeable()?;
        match (layer.base().kind(), dora) {
            (WeightKind::F16, _) => merge_f16::record(rec, &weight.a, &weight.b, dora, merged, *scaling, back)?,
            (_, Some(_)) => merge::record(rec, &weight.a, &weight.b, dora, merged, *scaling, back)?,
            // W ± scaling·B·A is what `input_grad` does.
            (_, None) => products::input_grad(rec, &weight.a, &weight.b, merged, sign * scaling)?,
        }
        match (adapter.lora_bias(), layer.base().bias()) {
            (Some(bias), Some(base)) => bias_add::record(rec, &bias.value, &base.as_row()?, sign * scaling),
            _ => Ok(()),
        }
    }
}
