//! Frozen parts of a network between its linear layers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::error::{Error, Result, show_number};
use crate::gpu::{Gpu, Recording, Tensor};
use crate::kernels::lora::dora_grad;
pub use crate::kernels::nn::Activation;
use crate::kernels::nn::{norm, norm_grad};

/// A frozen layer norm or RMS norm over the last dimension.
pub struct Norm {
    weight: Tensor,
    bias: Option<Tensor>,
    centered: bool,
    eps: f32,
    trained: RefCell<Option<TrainedNorm>>,
}

/// A copy of a norm's weight that is trained in its place.
struct TrainedNorm {
    /// `[features]`
    value: Tensor,
    /// `[features]`
    grad: Tensor,
    room: Rc<NormRoom>,
    /// Whether it takes part in what is recorded from now on.
    enabled: Rc<Cell<bool>>,
}

/// Room for what the gradients of norms' weights are made of.
#[derive(Default)]
pub(crate) struct NormRoom(RefCell<Option<[Tensor; 3]>>);

impl NormRoom {
    /// Makes it large enough for norms of `elements` elements at most, `features` of them in a row.
    pub(crate) fn reserve(&self, gpu: &Gpu, elements: usize, features: usize) -> Result<()> {
        let mut room = self.0.borrow_mut();
        let fits = |[normed, _, ones]: &[Tensor; 3]| {
            normed.len() >= elements && ones.len() >= features && !normed.has_failed()
        };
        if !room.as_ref().is_some_and(fits) {
            let zeros = |label| Tensor::zeros(gpu, label, &[elements]);
            let ones = Tensor::from_slice(gpu, "ones", &[features], &vec![1.0; features])?;
            *room = Some([zeros("normed")?, zeros("gradient")?, ones]);
        }
        Ok(())
    }

    pub(crate) fn destroy(&self) {
        if let Some(room) = self.0.take() {
            room.iter().for_each(Tensor::destroy_storage);
        }
    }
}

impl TrainedNorm {
    /// Records `d_weight += Σ d_output·x̂`, as DoRA's magnitudes get their gradient of what they scale.
    fn record_grad(&self, rec: &Recording, norm: &Norm, x: &Tensor, d_output: &Tensor) -> Result<()> {
        let room = self.room.0.borrow();
        let Some([normed, rest, ones]) = room.as_ref() else { return Err(Error::disposed("norms".into())) };
        let ones = ones.prefix(&[norm.features()])?;
        let (normed, rest) = (normed.prefix(x.shape())?, rest.prefix(x.shape())?);
        norm::record(rec, &ones, None, x, &normed, norm.centered, norm.eps)?;
        dora_grad::record(rec, &ones, &ones, d_output, &normed, &self.grad, &rest)
    }
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
        Ok(Norm { weight, bias, centered, eps: eps as f32, trained: RefCell::default() })
    }

    /// `[features]`
    pub(crate) fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Makes a copy of the weight that is trained in its place, submitted; with its gradient.
    pub(crate) fn train_whole(&self, room: &Rc<NormRoom>, enabled: &Rc<Cell<bool>>) -> Result<[Tensor; 2]> {
        let [value, grad] = [self.weight.another("norm weight")?, self.weight.another("norm weight")?];
        let rec = Recording::new(self.weight.gpu());
        rec.copy(&self.weight, &value)?;
        drop(rec.try_submit()?);
        let (room, enabled) = (room.clone(), enabled.clone());
        *self.trained.borrow_mut() = Some(TrainedNorm { value: value.clone(), grad: grad.clone(), room, enabled });
        Ok([value, grad])
    }

    /// Forgets the copy.
    pub(crate) fn drop_whole(&self) {
        self.trained.take();
    }

    /// Whether its weight is trained and takes part.
    pub(crate) fn trains(&self) -> bool {
        self.trained.borrow().as_ref().is_some_and(|trained| trained.enabled.get())
    }

    /// The weight that takes part.
    fn used(&self) -> Tensor {
        let trained = self.trained.borrow();
        trained.as_ref().filter(|t| t.enabled.get()).map_or_else(|| self.weight.clone(), |t| t.value.clone())
    }

    fn backward(
        &self,
        rec: &Recording,
        x: &Tensor,
        d_output: &Tensor,
        d_input: &Tensor,
        accumulate: bool,
    ) -> Result<()> {
        if let Some(trained) = self.trained.borrow().as_ref().filter(|trained| trained.enabled.get()) {
            trained.record_grad(rec, self, x, d_output)?;
        }
        norm_grad::record(rec, &self.used(), x, d_output, d_input, self.centered, self.eps, accumulate)
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
        norm::record(rec, &self.used(), self.bias.as_ref(), x, output, self.centered, self.eps)
    }

    /// Records the gradient at `x`; overwrites `d_input`.
    pub fn backward_input(&self, rec: &Recording, x: &Tensor, d_output: &Tensor, d_input: &Tensor) -> Result<()> {
        self.backward(rec, x, d_output, d_input, false)
    }

    /// As [`Norm::backward_input`], added to `d_input`.
    pub(crate) fn add_backward_input(
        &self,
        rec: &Recording,
        x: &Tensor,
        d_output: &Tensor,
        d_input: &Tensor,
    ) -> Result<()> {
        self.backward(rec, x, d_output, d_input, true)
    }

    /// Frees the GPU memory.
    pub fn destroy(&self) {
        self.weight.destroy();
        self.bias.iter().for_each(Tensor::destroy);
    }
}
