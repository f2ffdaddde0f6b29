//! A linear layer or an embedding of a model: frozen, with adapters, or trained whole.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use crate::base::{FrozenLinear, WeightKind};
use crate::error::{Error, Result};
use crate::gpu::{Recording, Tensor};
use crate::kernels::lora::bias_grad;
use crate::kernels::nn::embedding_grad;
use crate::lora::{LoraLinear, Trained, TrainingStep, products};

/// A linear layer of a model: frozen, perhaps with adapters.
pub struct Linear {
    /// As Hugging Face names it: `model.layers.0.self_attn.q_proj`.
    pub(crate) name: String,
    pub(crate) base: FrozenLinear,
    pub(crate) lora: RefCell<Option<Rc<LoraLinear>>>,
    pub(super) whole: RefCell<Option<Rc<Whole>>>,
}

/// A copy of a module, or of its bias alone, that is trained in its place.
pub(crate) struct Whole {
    /// Over the copy.
    linear: FrozenLinear,
    d_weight: Option<Tensor>,
    d_bias: Option<Tensor>,
    /// Whether it takes part in what is recorded from now on.
    enabled: Rc<Cell<bool>>,
}

impl Linear {
    pub(crate) fn new(name: String, base: FrozenLinear) -> Linear {
        Linear { name, base, lora: RefCell::default(), whole: RefCell::default() }
    }

    /// Its name in the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn lora(&self) -> Option<Rc<LoraLinear>> {
        self.lora.borrow().clone()
    }

    /// The copy that is trained, where it takes part.
    fn whole(&self) -> Option<Rc<Whole>> {
        self.whole.borrow().clone().filter(|whole| whole.enabled.get())
    }

    /// The adapters, where they take part.
    fn active(&self) -> Option<Rc<LoraLinear>> {
        self.lora().filter(|lora| lora.is_enabled())
    }

    /// What is not an adapter's.
    pub(super) fn base(&self) -> FrozenLinear {
        self.whole().map_or_else(|| self.base.clone(), |whole| whole.linear.clone())
    }

    /// Makes a copy in f32 that is trained, and puts its tensors into `all` by their names in the model's files.
    pub(super) fn train_whole(&self, enabled: &Rc<Cell<bool>>, all: &mut Vec<(String, Trained)>) -> Result<()> {
        if matches!(self.base.kind(), WeightKind::BitLinear { .. }) {
            return Err(Error::unsupported(format!("modules_to_save: `{}` has ternary weights", self.name)));
        }
        let weight = self.base.to_f32(&self.name)?;
        let d_weight = weight.another(&self.name)?;
        all.push((format!("{}.weight", self.name), Trained { value: weight.clone(), grad: d_weight.clone() }));
        self.train(FrozenLinear::from_tensors(weight, None)?, Some(d_weight), enabled, all)
    }

    /// The same with the bias alone, before an adapter is put on it; nothing where there is none.
    pub(super) fn train_bias(&self, enabled: &Rc<Cell<bool>>, all: &mut Vec<(String, Trained)>) -> Result<()> {
        match self.base.bias() {
            Some(_) => self.train(self.base.clone(), None, enabled, all),
            None => Ok(()),
        }
    }

    fn train(
        &self,
        mut linear: FrozenLinear,
        d_weight: Option<Tensor>,
        enabled: &Rc<Cell<bool>>,
        all: &mut Vec<(String, Trained)>,
    ) -> Result<()> {
        let mut d_bias = None;
        if let Some(from) = self.base.bias() {
            let trained = Trained::new(from.gpu(), &self.name, from.shape())?;
            let rec = Recording::new(from.gpu());
            rec.copy(from, &trained.value)?;
            drop(rec.try_submit()?);
            linear = linear.with_bias(trained.value.clone());
            d_bias = Some(trained.grad.clone());
            all.push((format!("{}.bias", self.name), trained));
        }
        *self.whole.borrow_mut() = Some(Rc::new(Whole { linear, d_weight, d_bias, enabled: enabled.clone() }));
        Ok(())
    }

    /// Forgets the copy.
    pub(super) fn drop_whole(&self) {
        self.whole.take();
    }

    /// Whether something of it is trained.
    pub(super) fn trains(&self) -> bool {
        self.active().is_some() || self.whole().is_some()
    }

    /// Overwrites `output [rows, out_features]`.
    pub(super) fn forward(
        &self,
        rec: &Recording,
        x: &Tensor,
        output: &Tensor,
        step: Option<&TrainingStep>,
    ) -> Result<()> {
        match self.active() {
            Some(lora) => lora.record_forward_into(rec, x, output, step),
            None => self.base().forward(rec, x, output),
        }
    }

    /// After a forward pass of this `x` to this `output`: adds to the gradients, and overwrites `d_input` where it is given.
    pub(super) fn backward(
        &self,
        rec: &Recording,
        [x, output]: [&Tensor; 2],
        d_output: &Tensor,
        d_input: Option<&Tensor>,
        step: Option<&TrainingStep>,
    ) -> Result<()> {
        if let Some(whole) = self.whole() {
            if let Some(d_weight) = &whole.d_weight {
                // dW = d_outputᵀ·x, as B's gradient is of h.
                products::grad_b(rec, d_output, x, d_weight, 1.0)?;
            }
            if let Some(d_bias) = &whole.d_bias {
                bias_grad::record(rec, d_output, d_bias, 1.0)?;
            }
        }
        if let Some(lora) = self.active() {
            return lora.record_backward_of(rec, x, output, d_output, d_input, step);
        }
        d_input.map_or(Ok(()), |d_input| self.base().backward_input(rec, d_output, d_input))
    }

    /// Of an embedding: overwrites `output [rows, width]` with the rows of `ids [rows]`.
    pub(super) fn embed(&self, rec: &Recording, ids: &Tensor, output: &Tensor) -> Result<()> {
        match self.active() {
            Some(lora) => lora.record_embed(rec, ids, output),
            None => self.base().embed(rec, ids, output),
        }
    }

    /// After [`Linear::embed`]: adds to the gradients.
    pub(super) fn embed_backward(
        &self,
        rec: &Recording,
        [ids, output]: [&Tensor; 2],
        d_output: &Tensor,
        step: Option<&TrainingStep>,
    ) -> Result<()> {
        if let Some(lora) = self.active() {
            return lora.record_embed_backward(rec, ids, output, d_output, step);
        }
        match self.whole().as_ref().and_then(|whole| whole.d_weight.as_ref()) {
            Some(d_weight) => embedding_grad::record(rec, ids, d_output, d_weight, false, 1.0),
            None => Ok(()),
        }
    }

    // Of a head, some columns of whose output are there at a time.

    /// Records what all columns have in common.
    pub(super) fn begin_columns(&self, rec: &Recording, x: &Tensor, step: Option<&TrainingStep>) -> Result<()> {
        self.active().map_or(Ok(()), |lora| lora.begin_columns(rec, x, step))
    }

    /// Overwrites `output [rows, columns]`.
    pub(super) fn columns(&self, rec: &Recording, columns: Range<usize>, x: &Tensor, output: &Tensor) -> Result<()> {
        match self.active() {
            Some(lora) => lora.record_columns(rec, &columns, x, output),
            None => self.base().forward_rows(rec, columns, x, output),
        }
    }

    /// Adds to the gradients, and overwrites `d_input`, or with `more` adds to it.
    pub(super) fn columns_backward(
        &self,
        rec: &Recording,
        columns: Range<usize>,
        [x, d_output]: [&Tensor; 2],
        d_input: Option<&Tensor>,
        more: bool,
    ) -> Result<()> {
        if let Some(lora) = self.active() {
            return lora.record_columns_backward(rec, &columns, d_output, d_input, more);
        }
        if let Some(d_weight) = self.whole().as_ref().and_then(|whole| whole.d_weight.as_ref()) {
            products::grad_b(rec, d_output, x, &d_weight.rows(&columns)?, 1.0)?;
        }
        let Some(d_input) = d_input else { return Ok(()) };
        self.base().backward_vocabulary(rec, columns, d_output, d_input, more)
    }

    /// Records what is left when all columns have gone back.
    pub(super) fn end_columns(
        &self,
        rec: &Recording,
        x: &Tensor,
        d_input: Option<&Tensor>,
        step: Option<&TrainingStep>,
    ) -> Result<()> {
        self.active().map_or(Ok(()), |lora| lora.end_columns(rec, x, d_input, step))
    }

    /// Frees adapters and base.
    pub(super) fn destroy(&self) {
        if let Some(lora) = self.lora.take() {
            lora.destroy_adapters();
        }
        self.base.destroy();
    }
}
