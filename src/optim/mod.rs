//! Optimisers over the adapters of any number of layers: one arena each of parameters, gradients and moments.

use std::rc::Rc;

use crate::error::{Error, Result, show_number};
use crate::gpu::{Gpu, Recording, Tensor};
use crate::kernels::lora::save_activation;
pub use crate::kernels::optim::AdamW;
use crate::kernels::optim::{STATE_LEN, adamw, begin_step, sgd, sgd_momentum};
use crate::lora::LoraLinear;

/// Hyper-parameters of SGD, as `torch.optim.SGD` names them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sgd {
    /// Share of the last step that goes on, in `[0, 1)`.
    pub momentum: f64,
    /// L2 penalty.
    pub weight_decay: f64,
}

/// Which update rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OptimizerKind {
    /// Stochastic gradient descent.
    Sgd(Sgd),
    /// Adam with decoupled weight decay.
    AdamW(AdamW),
}

/// Updates the adapters of its layers. The step counter lives on the GPU.
pub struct Optimizer {
    kind: OptimizerKind,
    param: Tensor,
    grad: Tensor,
    /// AdamW: `[2, len]`; SGD with momentum: as `param`.
    moments: Option<Tensor>,
    state: Tensor,
    lr: Tensor,
    bias: Tensor,
    /// The layers hold weak copies: a layer has one optimiser at a time.
    ownership: std::cell::RefCell<Option<Rc<()>>>,
}

impl Optimizer {
    /// Moves the adapters and gradients of `layers` into arenas of their own and makes zero moments.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a learning rate or hyper-parameter out of range, no layers, a layer given twice or
    /// owned by another live optimiser; [`Error::ForeignTensor`] for a layer of another [`Gpu`].
    pub fn new(gpu: &Gpu, layers: &[&LoraLinear], kind: OptimizerKind, lr: f64) -> Result<Optimizer> {
        check(kind, lr)?;
        if layers.is_empty() {
            return Err(Error::argument("layers", "at least one layer", "none"));
        }
        for (i, layer) in layers.iter().enumerate() {
            if layer.is_owned() || layers[..i].iter().any(|other| std::ptr::eq(*other, *layer)) {
                return Err(Error::argument("layers", "layers that no other optimiser updates", layer.label()));
            }
        }
        let shapes: Vec<Vec<usize>> =
            layers.iter().flat_map(|l| l.trainable()).map(|(p, _)| p.shape().to_vec()).collect();
        let labelled =
            |label: &'static str| shapes.iter().map(move |shape| (label, shape.as_slice())).collect::<Vec<_>>();
        let (param, params) = Tensor::arena(gpu, "parameters", &labelled("parameter"))?;
        let (grad, grads) = Tensor::arena(gpu, "gradients", &labelled("gradient"))?;
        let moments = match kind {
            OptimizerKind::AdamW(_) => Some(Tensor::zeros(gpu, "moments", &[2, param.len()])?),
            OptimizerKind::Sgd(Sgd { momentum, .. }) if momentum != 0.0 => {
                Some(Tensor::zeros(gpu, "velocity", &[param.len()])?)
            }
            OptimizerKind::Sgd(_) => None,
        };
        let rows = bias_table(kind);
        let optimizer = Optimizer {
            kind,
            moments,
            state: Tensor::zeros(gpu, "optimizer state", &[STATE_LEN])?,
            lr: Tensor::from_slice(gpu, "learning rate", &[1], &[lr as f32])?,
            bias: Tensor::from_slice(gpu, "bias corrections", &[rows.len() / 2, 2], &rows)?,
            param,
            grad,
            ownership: std::cell::RefCell::new(Some(Rc::new(()))),
        };
        let rec = Recording::new(gpu);
        for ((p, g), (to_p, to_g)) in layers.iter().flat_map(|l| l.trainable()).zip(params.iter().zip(&grads)) {
            save_activation::record(&rec, p, to_p)?;
            save_activation::record(&rec, g, to_g)?;
        }
        // What could fail in this submit fails in the first step again, whose promise reports it.
        drop(rec.submit());
        for ((p, g), (to_p, to_g)) in layers.iter().flat_map(|l| l.trainable()).zip(params.iter().zip(&grads)) {
            p.rebase(to_p)?;
            g.rebase(to_g)?;
        }
        if let Some(token) = optimizer.ownership.borrow().as_ref() {
            layers.iter().for_each(|layer| layer.own(token));
        }
        Ok(optimizer)
    }

    /// Records one update of all parameters from the gradients as they then are.
    pub fn step(&self, rec: &Recording) -> Result<()> {
        rec.all_or_nothing(|| {
            begin_step::record(rec, &self.lr, &self.bias, &self.state)?;
            match (self.kind, &self.moments) {
                (OptimizerKind::AdamW(options), Some(moments)) => {
                    adamw::record(rec, &self.grad, &self.state, &self.param, moments, &options)
                }
                (OptimizerKind::Sgd(options), Some(velocity)) => {
                    let (decay, momentum) = (options.weight_decay as f32, options.momentum as f32);
                    sgd_momentum::record(rec, &self.grad, &self.state, &self.param, velocity, decay, momentum)
                }
                (OptimizerKind::Sgd(options), None) => {
                    sgd::record(rec, &self.grad, &self.state, &self.param, options.weight_decay as f32)
                }
                (OptimizerKind::AdamW(_), None) => unreachable!("made with moments"),
            }
        })
    }

    /// Records zeros into the gradients of all layers.
    pub fn zero_grad(&self, rec: &Recording) -> Result<()> {
        rec.zero(&self.grad)
    }

    /// Sets the learning rate of the steps that are submitted from now on.
    pub fn set_lr(&self, lr: f64) -> Result<()> {
        check_lr(lr)?;
        self.lr.write(&[lr as f32])
    }

    /// All gradients in their arena, padding included.
    pub fn gradients(&self) -> &Tensor {
        &self.grad
    }

    /// Frees the moments; the layers keep their adapters and may join another optimiser.
    pub fn destroy(&self) {
        self.ownership.take();
        for tensor in [
            Some(&self.param),
            Some(&self.grad),
            self.moments.as_ref(),
            Some(&self.state),
            Some(&self.lr),
            Some(&self.bias),
        ] {
            tensor.into_iter().for_each(Tensor::destroy);
        }
    }
}

fn check_lr(lr: f64) -> Result<()> {
    if lr >= 0.0 && (lr as f32).is_finite() {
        Ok(())
    } else {
        Err(Error::argument("lr", "a finite number, at least 0", show_number(lr)))
    }
}

fn check(kind: OptimizerKind, lr: f64) -> Result<()> {
    check_lr(lr)?;
    let fraction = |name, value: f64| match (0.0..1.0).contains(&value) {
        true => Ok(()),
        false => Err(Error::argument(name, "a number in [0, 1)", show_number(value))),
    };
    let not_negative = |name, value: f64| match value >= 0.0 && (value as f32).is_finite() {
        true => Ok(()),
        false => Err(Error::argument(name, "a finite number, at least 0", show_number(value))),
    };
    match kind {
        OptimizerKind::Sgd(options) => {
            fraction("momentum", options.momentum)?;
            not_negative("weightDecay", options.weight_decay)
        }
        OptimizerKind::AdamW(options) => {
            fraction("beta1", options.beta1)?;
            fraction("beta2", options.beta2)?;
            not_negative("eps", options.eps)?;
            not_negative("weightDecay", options.weight_decay)?;
            if bias_rows(options) > MAX_BIAS_ROWS {
                return Err(Error::argument(
                    "beta1 and beta2",
                    "at most 0.99999",
                    show_number(options.beta1.max(options.beta2)),
                ));
            }
            Ok(())
        }
    }
}

/// At β = 0.99999 the table has 1.9 million rows, 15 MB.
const MAX_BIAS_ROWS: usize = 2_000_000;

/// Steps after which `1 − βᵗ` is 1 in f32: βᵗ ≤ 2⁻²⁶.
fn bias_rows(options: AdamW) -> usize {
    let beta = options.beta1.max(options.beta2);
    if beta == 0.0 { 1 } else { (26.0 * std::f64::consts::LN_2 / -beta.ln()).ceil().max(1.0) as usize }
}

/// Rows of 1/(1−β₁ᵗ) and 1/√(1−β₂ᵗ) for t = 1, 2, …, in f64 until the last rounding.
fn bias_table(kind: OptimizerKind) -> Vec<f32> {
    match kind {
        OptimizerKind::Sgd(_) => vec![1.0, 1.0],
        OptimizerKind::AdamW(options) => {
            let AdamW { beta1, beta2, .. } = options;
            let mut powers = (1.0, 1.0);
            let row = |_| {
                powers = (powers.0 * beta1, powers.1 * beta2);
                [(1.0 / (1.0 - powers.0)) as f32, (1.0 / (1.0 - powers.1).sqrt()) as f32]
            };
            (1..=bias_rows(options)).flat_map(row).collect()
        }
    }
}
