//! One adapter of a layer: its weights, what is trained of them, and the switches of its variants.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use super::config::LoraConfig;
use super::weight::{LoraGrad, LoraWeight};
use crate::error::{Error, Result, show_number};
use crate::gpu::{Gpu, Tensor};

/// A trained tensor with its gradient.
#[derive(Clone)]
pub struct Trained {
    /// The parameter.
    pub value: Tensor,
    /// Its gradient, of the same shape; backward passes add to it.
    pub grad: Tensor,
}

/// One adapter: `A`, `B`, and what its variant adds.
pub struct Adapter {
    name: String,
    weight: LoraWeight,
    grad: LoraGrad,
    /// DoRA's magnitudes `[out_features]`.
    magnitude: Option<Trained>,
    /// A bias beside `B`, `[out_features]`: PEFT's `lora_bias`.
    lora_bias: Option<Trained>,
    /// The base's own bias `[out_features]`, where this adapter trains it.
    base_bias: Option<Trained>,
    /// `alpha/rank`, or with rsLoRA `alpha/√rank`.
    own_scaling: f32,
    /// Factor of it.
    scale: Cell<f32>,
    dropout: f64,
    owner: RefCell<Owner>,
}

/// The optimiser that updates an adapter, as long as it lives.
#[derive(Clone, Default)]
struct Owner {
    token: Weak<()>,
    /// The layer's number among its layers, and the adapter's among its adapters.
    layer: u32,
    adapter: u32,
}

impl Trained {
    /// Zeros.
    pub(crate) fn new(gpu: &Gpu, label: &str, shape: &[usize]) -> Result<Trained> {
        Ok(Trained { value: Tensor::zeros(gpu, label, shape)?, grad: Tensor::zeros(gpu, label, shape)? })
    }
}

impl Adapter {
    pub(super) fn new(
        gpu: &Gpu,
        name: &str,
        in_features: usize,
        out_features: usize,
        base_bias: Option<&Tensor>,
        config: &LoraConfig,
    ) -> Result<Adapter> {
        let weight = LoraWeight::new(gpu, in_features, out_features, config)?;
        let vector = |wanted: bool, label| wanted.then(|| Trained::new(gpu, label, &[out_features])).transpose();
        Ok(Adapter {
            name: name.into(),
            grad: LoraGrad::new(gpu, &weight)?,
            weight,
            magnitude: vector(config.use_dora, "magnitude")?,
            lora_bias: vector(config.lora_bias, "lora_B.bias")?,
            base_bias: match base_bias.filter(|_| config.train_bias) {
                Some(bias) => {
                    Some(Trained { value: bias.clone(), grad: Tensor::zeros(gpu, "bias.grad", &[out_features])? })
                }
                None => None,
            },
            own_scaling: config.scaling()?,
            scale: Cell::new(1.0),
            dropout: config.dropout,
            owner: RefCell::default(),
        })
    }

    /// Its name among the layer's adapters.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `A` and `B`.
    pub fn weight(&self) -> &LoraWeight {
        &self.weight
    }

    /// Their gradients.
    pub fn grad(&self) -> &LoraGrad {
        &self.grad
    }

    /// DoRA's magnitudes `[out_features]`.
    pub fn magnitude(&self) -> Option<&Trained> {
        self.magnitude.as_ref()
    }

    /// The bias beside `B`, `[out_features]`.
    pub fn lora_bias(&self) -> Option<&Trained> {
        self.lora_bias.as_ref()
    }

    /// The base's bias, where this adapter trains it.
    pub fn base_bias(&self) -> Option<&Trained> {
        self.base_bias.as_ref()
    }

    /// `alpha/rank`, or with rsLoRA `alpha/√rank`, times [`Self::scale`].
    pub fn scaling(&self) -> f32 {
        self.own_scaling * self.scale.get()
    }

    /// The factor of its scaling, 1 at first.
    pub fn scale(&self) -> f32 {
        self.scale.get()
    }

    /// Changes the factor of its scaling, for what is recorded from now on.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) where the scaling would not be finite.
    pub fn set_scale(&self, scale: f32) -> Result<()> {
        if !(self.own_scaling * scale).is_finite() {
            return Err(Error::argument("scale", "a finite number", show_number(scale.into())));
        }
        self.scale.set(scale);
        Ok(())
    }

    /// Share of the input that training steps drop before `A`.
    pub fn dropout(&self) -> f64 {
        self.dropout
    }

    /// What is trained, those that LoRA+ has learn at `A`'s rate first.
    pub(crate) fn trained(&self) -> [Vec<Trained>; 2] {
        let pair = |value: &Tensor, grad: &Tensor| Trained { value: value.clone(), grad: grad.clone() };
        let vectors = [&self.magnitude, &self.lora_bias, &self.base_bias];
        let mut fast = vec![pair(&self.weight.b, &self.grad.b)];
        fast.extend(vectors.into_iter().flatten().cloned());
        [vec![pair(&self.weight.a, &self.grad.a)], fast]
    }

    /// What a checkpoint must agree with; `scaled` with the factor of its scaling.
    pub(crate) fn description(&self, scaled: bool) -> String {
        let scaling = if scaled { self.scaling() } else { self.own_scaling };
        let (scaling, dropout) = (scaling.to_bits(), self.dropout.to_bits());
        let variants = [("dora", &self.magnitude), ("lora_bias", &self.lora_bias), ("bias", &self.base_bias)];
        let variants: String =
            variants.iter().filter(|(_, tensor)| tensor.is_some()).map(|(name, _)| format!(", {name}")).collect();
        format!("{} {}, {scaling:08x}, {dropout:016x}{variants}", self.name, self.weight.rank())
    }

    pub(crate) fn is_owned(&self) -> bool {
        self.owner.borrow().token.strong_count() > 0
    }

    pub(crate) fn is_owned_by(&self, token: &Rc<()>) -> bool {
        self.owner.borrow().token.as_ptr() == Rc::as_ptr(token)
    }

    pub(crate) fn own(&self, token: &Rc<()>, layer: u32, adapter: u32) {
        *self.owner.borrow_mut() = Owner { token: Rc::downgrade(token), layer, adapter };
    }

    /// The layer's number among its optimiser's layers, the adapter's among its adapters.
    pub(super) fn numbers(&self) -> (u32, u32) {
        let owner = self.owner.borrow();
        (owner.layer, owner.adapter)
    }

    /// Frees the GPU memory; the base's bias stays.
    pub(super) fn destroy(&self) {
        self.weight.destroy();
        self.grad.destroy();
        for trained in [&self.magnitude, &self.lora_bias].into_iter().flatten() {
            trained.value.destroy();
            trained.grad.destroy();
        }
        if let Some(bias) = &self.base_bias {
            bias.grad.destroy();
        }
    }
}
