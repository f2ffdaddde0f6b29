//! A frozen linear layer with an adapter.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::{Rc, Weak};

use super::config::LoraConfig;
use super::weight::{LoraGrad, LoraWeight};
use crate::base::FrozenLinear;
use crate::error::{Error, Result};
use crate::gpu::{Gpu, Recording, Tensor};
use crate::kernels::lora::dropout::{self, Mask};
use crate::kernels::lora::{find_non_finite, input_grad};

/// `output = base(x) + scaling·B·(A·x)`, forward and backward.
pub struct LoraLinear {
    gpu: Gpu,
    name: Option<String>,
    base: FrozenLinear,
    weight: LoraWeight,
    grad: LoraGrad,
    scaling: f32,
    dropout: f64,
    enabled: Cell<bool>,
    /// Activations for the largest batch so far.
    workspace: RefCell<Option<Workspace>>,
    /// Of whom, and which of its layers.
    optimizer: RefCell<(Weak<()>, u32)>,
}

/// What a training step's dropout depends on, and where it says what was not finite.
pub(crate) struct TrainingStep {
    /// The optimiser's `state`, which counts steps.
    pub state: Tensor,
    /// The optimiser's `window`, which counts micro-batches.
    pub window: Tensor,
    /// The training's seed.
    pub seed: u64,
}

struct Workspace {
    /// Tokens of the forward pass recorded last, whose `h` they hold.
    tokens: usize,
    output: Tensor,
    h: Tensor,
    dh: Tensor,
    /// With dropout: what is left of `x`, and in the backward pass what its gradient is made of.
    dropped: Option<Tensor>,
}

impl Workspace {
    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        [&self.output, &self.h, &self.dh].into_iter().chain(&self.dropped)
    }
}

impl LoraLinear {
    /// Puts a new adapter on `base`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for rank 0, an alpha that is not finite or a dropout outside `[0, 1)`, [`Error::Limit`] where it does not fit.
    pub fn new(gpu: &Gpu, name: Option<&str>, base: FrozenLinear, config: &LoraConfig) -> Result<LoraLinear> {
        base.weight().expect_gpu(gpu)?;
        let weight = LoraWeight::new(gpu, base.in_features(), base.out_features(), config)?;
        let grad = LoraGrad::new(gpu, &weight)?;
        Ok(LoraLinear {
            gpu: gpu.clone(),
            name: name.map(str::to_string),
            base,
            weight,
            grad,
            scaling: config.scaling()?,
            dropout: config.dropout,
            enabled: Cell::new(true),
            workspace: RefCell::default(),
            optimizer: RefCell::default(),
        })
    }

    /// The module's name in the model.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn label(&self) -> &str {
        self.name().unwrap_or("a layer without a name")
    }

    /// The frozen layer.
    pub fn base(&self) -> &FrozenLinear {
        &self.base
    }

    /// The adapter.
    pub fn weight(&self) -> &LoraWeight {
        &self.weight
    }

    /// The adapter's gradients.
    pub fn grad(&self) -> &LoraGrad {
        &self.grad
    }

    /// `alpha/rank`, or with rsLoRA `alpha/√rank`.
    pub fn scaling(&self) -> f32 {
        self.scaling
    }

    /// Share of the input that training steps drop before `A`.
    pub fn dropout(&self) -> f64 {
        self.dropout
    }

    /// Whether the adapter takes part.
    pub fn is_enabled(&self) -> bool {
        self.enabled.get()
    }

    /// Switches the adapter on or off for what is recorded from now on.
    pub fn set_enabled(&self, enabled: bool) {
        self.enabled.set(enabled);
    }

    /// Parameters with their gradients.
    pub(crate) fn trainable(&self) -> [(&Tensor, &Tensor); 2] {
        [(&self.weight.a, &self.grad.a), (&self.weight.b, &self.grad.b)]
    }

    pub(crate) fn is_owned(&self) -> bool {
        self.optimizer.borrow().0.strong_count() > 0
    }

    pub(crate) fn own(&self, token: &Rc<()>, index: u32) {
        *self.optimizer.borrow_mut() = (Rc::downgrade(token), index);
    }

    /// Records the forward pass of `x [tokens, in_features]` and returns its output `[tokens, out_features]`, which the
    /// layer owns and the next forward pass overwrites. Without dropout, which is for a trainer's steps.
    pub fn forward(&self, rec: &Recording, x: &Tensor) -> Result<Tensor> {
        self.record_forward(rec, x, None)
    }

    /// The same in a training step, with dropout.
    pub(crate) fn record_forward(&self, rec: &Recording, x: &Tensor, step: Option<&TrainingStep>) -> Result<Tensor> {
        let [tokens, _] = x.matrix("x")?;
        x.expect_shape("x", &[tokens, self.base.in_features()])?;
        let Workspace { output, h, dropped, .. } = self.activations(tokens)?;
        rec.all_or_nothing(|| {
            self.base.forward(rec, x, &output)?;
            if self.enabled.get() {
                let x = self.drop_out(rec, x, step, dropped.as_ref())?;
                rec.lora_forward_fused(&self.weight, &x, &h, &output, self.scaling)?;
            }
            Ok(())
        })?;
        if let Some(workspace) = self.workspace.borrow_mut().as_mut() {
            workspace.tokens = tokens;
        }
        Ok(output)
    }

    /// Records the backward pass after a [`forward`](LoraLinear::forward) of the same `x`: adds to the gradients, and
    /// overwrites `d_input [tokens, in_features]` where it is given. With the adapter off only `d_input` is computed.
    pub fn backward(&self, rec: &Recording, x: &Tensor, d_output: &Tensor, d_input: Option<&Tensor>) -> Result<()> {
        self.record_backward(rec, x, d_output, d_input, None)
    }

    /// The same in a training step: the forward pass's dropout once more, and the search for what is not finite.
    pub(crate) fn record_backward(
        &self,
        rec: &Recording,
        x: &Tensor,
        d_output: &Tensor,
        d_input: Option<&Tensor>,
        step: Option<&TrainingStep>,
    ) -> Result<()> {
        let [tokens, _] = x.matrix("x")?;
        x.expect_shape("x", &[tokens, self.base.in_features()])?;
        d_output.expect_shape("d_output", &[tokens, self.base.out_features()])?;
        let Workspace { output, h, dh, dropped, .. } = self.activations(tokens)?;
        let last = self.workspace.borrow().as_ref().map_or(0, |w| w.tokens);
        if last != tokens {
            let expected = format!("the layer's last forward pass to be of as many tokens, it was of {last}");
            return Err(Error::argument("x", &expected, format!("{tokens} tokens")));
        }
        rec.all_or_nothing(|| {
            if let Some(d_input) = d_input {
                self.base.backward_input(rec, d_output, d_input)?;
            }
            if !self.enabled.get() {
                return Ok(());
            }
            let mask = step.and_then(|step| self.mask(step));
            let dropped = dropped.as_ref().filter(|_| mask.is_some());
            let kept = self.drop_out(rec, x, step, dropped)?;
            let through = if mask.is_some() { None } else { d_input };
            rec.lora_backward(&self.weight, d_output, &kept, &h, &dh, &self.grad, through, self.scaling)?;
            if let (Some(step), Some(mask), Some(d_input), Some(dropped)) = (step, mask, d_input, dropped) {
                // d_input += mask⊙(scaling·dh·A)/(1−p)
                rec.zero(dropped)?;
                input_grad::record(rec, &self.weight.a, &dh, dropped, self.scaling)?;
                dropout::record(rec, dropped, &step.state, &step.window, d_input, mask, true)?;
            }
            match step {
                Some(step) => find_non_finite::record(rec, &output, &dh, &step.window, self.index()),
                None => Ok(()),
            }
        })
    }

    /// The mask of this layer in a step; None where nothing is dropped.
    fn mask(&self, step: &TrainingStep) -> Option<Mask> {
        (self.dropout > 0.0).then(|| Mask { p: self.dropout, seed: step.seed, layer: self.index() })
    }

    /// What `A` sees of `x`: in a step with dropout the rest, which is written to `dropped`.
    fn drop_out(
        &self,
        rec: &Recording,
        x: &Tensor,
        step: Option<&TrainingStep>,
        dropped: Option<&Tensor>,
    ) -> Result<Tensor> {
        match (step.and_then(|step| Some((step, self.mask(step)?))), dropped) {
            (Some((step, mask)), Some(dropped)) => {
                dropout::record(rec, x, &step.state, &step.window, dropped, mask, false)?;
                Ok(dropped.clone())
            }
            _ => Ok(x.clone()),
        }
    }

    /// Which of its optimiser's layers it is.
    fn index(&self) -> u32 {
        self.optimizer.borrow().1
    }

    /// `scaling·B·A [out_features, in_features]`, computed on the CPU from what is on the GPU now.
    pub fn delta_weight(&self) -> impl Future<Output = Result<Vec<f32>>> + use<> {
        let (a, b) = (self.weight.a.read(), self.weight.b.read());
        let (rank, in_features, scaling) = (self.weight.rank(), self.weight.in_features(), f64::from(self.scaling));
        async move {
            let (a, b) = (a.await?, b.await?);
            let mut delta = Vec::with_capacity(b.len() / rank * in_features);
            for b in b.chunks_exact(rank) {
                let element =
                    |i: usize| (0..rank).map(|r| f64::from(b[r]) * f64::from(a[r * in_features + i])).sum::<f64>();
                delta.extend((0..in_features).map(|i| (scaling * element(i)) as f32));
            }
            Ok(delta)
        }
    }

    /// What [`forward`](LoraLinear::forward) of this many tokens will return.
    pub(crate) fn output(&self, tokens: usize) -> Result<Tensor> {
        Ok(self.activations(tokens)?.output)
    }

    /// The workspace's first `tokens` rows.
    fn activations(&self, tokens: usize) -> Result<Workspace> {
        self.weight.a.place()?;
        let mut slot = self.workspace.borrow_mut();
        let failed = |w: &Workspace| w.tensors().any(Tensor::has_failed);
        if slot.as_ref().is_none_or(|w| w.output.shape()[0] < tokens || failed(w)) {
            let zeros = |label, columns| Tensor::zeros(&self.gpu, label, &[tokens, columns]);
            *slot = Some(Workspace {
                tokens: 0,
                output: zeros("output", self.base.out_features())?,
                h: zeros("h", self.weight.rank())?,
                dh: zeros("dh", self.weight.rank())?,
                dropped: match self.dropout > 0.0 {
                    true => Some(zeros("dropped input", self.base.in_features())?),
                    false => None,
                },
            });
        }
        match slot.as_ref() {
            Some(w) => Ok(Workspace {
                tokens,
                output: w.output.first_rows(tokens)?,
                h: w.h.first_rows(tokens)?,
                dh: w.dh.first_rows(tokens)?,
                dropped: w.dropped.as_ref().map(|t| t.first_rows(tokens)).transpose()?,
            }),
            None => Err(Error::Disposed(self.label().into())),
        }
    }

    /// Frees the GPU memory of base, adapter, gradients and activations.
    pub fn destroy(&self) {
        self.base.destroy();
        self.weight.destroy();
        self.grad.destroy();
        if let Some(workspace) = self.workspace.take() {
            workspace.tensors().for_each(Tensor::destroy_storage);
        }
    }
}
