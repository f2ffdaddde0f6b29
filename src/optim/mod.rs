//! Optimisers over the adapters of any number of layers: one arena each of parameters, gradients and moments.

mod schedule;

use std::cell::RefCell;
use std::rc::Rc;

use crate::error::{Error, Result, show_number};
use crate::gpu::{Gpu, Recording, Tensor};
use crate::kernels::lora::save_activation;
pub use crate::kernels::optim::AdamW;
use crate::kernels::optim::{
    LrRatio, STATE_LEN, WINDOW_LEN, adamw, begin_step, end_micro_batch, grad_norm, sgd, sgd_momentum,
};
use crate::lora::{Adapter, LoraLinear, Trained, TrainingStep};
pub use schedule::Schedule;

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

/// How an [`Optimizer`] updates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerOptions {
    /// The update rule.
    pub kind: OptimizerKind,
    /// The learning rate that the schedule starts from.
    pub lr: f64,
    /// How it changes.
    pub schedule: Schedule,
    /// Scale the gradients down to this norm where it is larger, as `clip_grad_norm_` does.
    pub max_grad_norm: Option<f64>,
    /// LoRA+ (Hayou et al. 2024): B, and what is a vector, learns this many times as fast as A.
    pub lr_ratio_b: f64,
}

impl OptimizerOptions {
    /// A constant learning rate, no clipping, one rate for A and B.
    pub fn new(kind: OptimizerKind, lr: f64) -> OptimizerOptions {
        OptimizerOptions { kind, lr, schedule: Schedule::Constant, max_grad_norm: None, lr_ratio_b: 1.0 }
    }
}

/// Rows of the log of steps, a ring.
pub const LOG_ROWS: usize = 1024;

/// Updates the adapters of its layers. The step counter, the guard against what is not finite and the log of steps live
/// on the GPU.
pub struct Optimizer {
    options: OptimizerOptions,
    param: Tensor,
    grad: Tensor,
    /// First element of what LoRA+ has learn faster.
    first_fast: usize,
    /// AdamW: `[2, len]`; SGD with momentum: as `param`.
    moments: Option<Tensor>,
    state: Tensor,
    lr: Tensor,
    bias: Tensor,
    log: Tensor,
    /// `[2]`: sum of the loss and of what it counts since the last step. `[0, 1]` unless a trainer adds to it.
    totals: Tensor,
    /// The same of an evaluation, which may come between a step's micro-batches and its update.
    evaluation: Tensor,
    /// `[4]`: micro-batches done since the last step, and where something that is not finite began.
    window: Tensor,
    /// All of them.
    sums: Tensor,
    /// The layers hold weak copies: a layer has one optimiser at a time.
    ownership: RefCell<Option<Rc<()>>>,
    /// How many adapters hold one.
    adapters: usize,
}

impl Optimizer {
    /// Moves the active adapters and gradients of `layers` into arenas of their own and makes zero moments.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a learning rate or hyper-parameter out of range, no layers, a layer given twice or
    /// owned by another live optimiser; [`ForeignTensor`](crate::error::ErrorKind::ForeignTensor) for a layer of another [`Gpu`].
    pub fn new(gpu: &Gpu, layers: &[&LoraLinear], options: OptimizerOptions) -> Result<Optimizer> {
        Optimizer::with_modules(gpu, layers, &[], options)
    }

    /// The same with tensors of modules that are trained whole, which learn as fast as A.
    pub(crate) fn with_modules(
        gpu: &Gpu,
        layers: &[&LoraLinear],
        whole: &[(String, Trained)],
        options: OptimizerOptions,
    ) -> Result<Optimizer> {
        check(&options)?;
        if layers.is_empty() {
            return Err(Error::argument("layers", "at least one layer", "none"));
        }
        let adapters: Vec<(u32, Rc<Adapter>)> =
            layers.iter().zip(0..).flat_map(|(layer, i)| layer.active().into_iter().map(move |a| (i, a))).collect();
        for (i, layer) in layers.iter().enumerate() {
            layer.refuse_merged()?;
            let taken = layer.active().iter().any(|adapter| adapter.is_owned());
            if taken || layers[..i].iter().any(|other| std::ptr::eq(*other, *layer)) {
                return Err(Error::argument("layers", "layers that no other optimiser updates", layer.label()));
            }
        }
        if adapters.is_empty() {
            return Err(Error::argument("layers", "a layer with an active adapter", "none"));
        }
        // All that learns at the one rate first, then what LoRA+ has learn faster, so that the groups are two ranges.
        let [mut slow, fast] =
            [0, 1].map(|i| adapters.iter().flat_map(|(_, a)| a.trained()[i].clone()).collect::<Vec<_>>());
        for (_, trained) in whole {
            slow.push(trained.clone());
        }
        let first_fast = slow.len();
        let trained: Vec<Trained> = slow.into_iter().chain(fast).collect();
        let labelled = |label| trained.iter().map(|t| (label, t.value.shape())).collect::<Vec<_>>();
        let (param, params) = Tensor::arena(gpu, "parameters", &labelled("parameter"))?;
        let (grad, grads) = Tensor::arena(gpu, "gradients", &labelled("gradient"))?;
        let moments = match options.kind {
            OptimizerKind::AdamW(_) => Some(Tensor::zeros(gpu, "moments", &[2, param.len()])?),
            OptimizerKind::Sgd(Sgd { momentum, .. }) if momentum != 0.0 => {
                Some(Tensor::zeros(gpu, "velocity", &[param.len()])?)
            }
            OptimizerKind::Sgd(_) => None,
        };
        let rows = bias_table(options.kind);
        let parts: [(&str, &[usize]); 3] = [("totals", &[2]), ("evaluation", &[2]), ("window", &[WINDOW_LEN])];
        let (sums, parts) = Tensor::arena(gpu, "sums of a step", &parts)?;
        let [totals, evaluation, window] = [0, 1, 2].map(|i| parts[i].clone());
        totals.write(&[0.0, 1.0])?;
        let lr = options.schedule.table(options.lr)?;
        let optimizer = Optimizer {
            first_fast: params[first_fast].place()?.offset as usize / 4,
            moments,
            state: Tensor::zeros(gpu, "optimizer state", &[STATE_LEN])?,
            lr: Tensor::from_slice(gpu, "learning rate", &[lr.len()], &lr)?,
            bias: Tensor::from_slice(gpu, "bias corrections", &[rows.len() / 2, 2], &rows)?,
            log: Tensor::zeros(gpu, "log", &[LOG_ROWS, 4])?,
            sums,
            totals,
            evaluation,
            window,
            options,
            param,
            grad,
            ownership: RefCell::new(Some(Rc::new(()))),
            adapters: adapters.len(),
        };
        let rec = Recording::new(gpu);
        for (from, (param, grad)) in trained.iter().zip(params.iter().zip(&grads)) {
            save_activation::record(&rec, &from.value, param)?;
            save_activation::record(&rec, &from.grad, grad)?;
        }
        let moved = rec.try_submit()?;
        let mut before = Vec::new();
        for (from, (param, grad)) in trained.iter().zip(params.iter().zip(&grads)) {
            for (tensor, to) in [(&from.value, param), (&from.grad, grad)] {
                before.push((tensor.clone(), tensor.rebase(to.place()?)));
            }
        }
        // The numbers stay where they were if the arenas could not be made, which the first step then says.
        crate::gpu::detach(async move {
            if moved.await.is_err() {
                before.into_iter().for_each(|(tensor, place)| drop(place.map(|place| tensor.rebase(place))));
            }
        });
        if let Some(token) = optimizer.ownership.borrow().as_ref() {
            adapters.iter().zip(0..).for_each(|((layer, adapter), i)| adapter.own(token, *layer, i));
        }
        Ok(optimizer)
    }

    /// Bytes that AdamW at a constant rate holds, however many parameters there are.
    pub(crate) fn fixed_bytes() -> u64 {
        4 * (4 * LOG_ROWS + 2 * bias_rows(AdamW::default()) + STATE_LEN + 1 + 2 * 64 + WINDOW_LEN) as u64
    }

    /// Records one update of all parameters from the gradients as they then are, divided by what the loss
    /// counted, where a trainer adds it up. Gradients or a loss that are not finite leave the parameters as they are.
    pub fn step(&self, rec: &Recording) -> Result<()> {
        let options = self.options;
        let group = LrRatio { from: self.first_fast, ratio: options.lr_ratio_b as f32 };
        let partial_sums = rec.gpu().scratch()?;
        rec.all_or_nothing(|| {
            let partials = grad_norm::record(rec, &self.grad, &partial_sums)?;
            let inputs = begin_step::Inputs {
                lr: &self.lr,
                bias: &self.bias,
                partial_sums: &partial_sums,
                partials,
                totals: &self.totals,
                window: &self.window,
                max_norm: options.max_grad_norm.unwrap_or(0.0) as f32,
            };
            begin_step::record(rec, inputs, &self.state, &self.log)?;
            match (options.kind, &self.moments) {
                (OptimizerKind::AdamW(adam), Some(moments)) => {
                    adamw::record(rec, &self.grad, &self.state, &self.param, moments, &adam, group)
                }
                (OptimizerKind::Sgd(Sgd { momentum, weight_decay }), Some(velocity)) => {
                    let (decay, momentum) = (weight_decay as f32, momentum as f32);
                    sgd_momentum::record(rec, &self.grad, &self.state, &self.param, velocity, decay, momentum, group)
                }
                (OptimizerKind::Sgd(sgd), None) => {
                    sgd::record(rec, &self.grad, &self.state, &self.param, sgd.weight_decay as f32, group)
                }
                (OptimizerKind::AdamW(_), None) => Err(Error::disposed("optimizer".into())),
            }
        })
    }

    /// Fails unless just the adapters that it updates take part in what is recorded of `layers`: others would get gradients that
    /// nobody applies, and one that takes no part would decay.
    pub(crate) fn expect_its_own(&self, layers: &[&LoraLinear]) -> Result<()> {
        let ownership = self.ownership.borrow();
        let Some(token) = ownership.as_ref() else { return Err(Error::disposed("the optimizer".into())) };
        let mut own = 0;
        for layer in layers {
            for adapter in layer.outside() {
                if !adapter.is_owned_by(token) {
                    let got = format!("`{}` of {}", adapter.name(), layer.label());
                    return Err(Error::argument("active", "the adapters that the trainer was made with", got));
                }
                own += 1;
            }
        }
        match own == self.adapters {
            true => Ok(()),
            false => Err(Error::argument(
                "active",
                &format!("all {} adapters that the trainer was made with", self.adapters),
                format!("{own} of them"),
            )),
        }
    }

    /// Records zeros into the gradients of all layers.
    pub fn zero_grad(&self, rec: &Recording) -> Result<()> {
        rec.zero(&self.grad)
    }

    /// Sets a constant learning rate for the steps that are submitted from now on, in place of the schedule.
    pub fn set_lr(&self, lr: f64) -> Result<()> {
        check_lr(lr)?;
        self.lr.write(&vec![lr as f32; self.lr.len()])
    }

    /// All gradients in their arena, padding included.
    pub fn gradients(&self) -> &Tensor {
        &self.grad
    }

    /// `[2]`: the sum of the loss since the last step and of what it counts, by which the step divides the gradients.
    pub(crate) fn totals(&self) -> &Tensor {
        &self.totals
    }

    /// [`Self::totals`] for an evaluation.
    pub(crate) fn evaluation(&self) -> &Tensor {
        &self.evaluation
    }

    /// Records zeros into [`Self::totals`] and the counts beside it.
    pub(crate) fn zero_sums(&self, rec: &Recording) -> Result<()> {
        rec.zero(&self.sums)
    }

    /// Records that one more micro-batch of the step is done.
    pub(crate) fn end_micro_batch(&self, rec: &Recording) -> Result<()> {
        end_micro_batch::record(rec, &self.window)
    }

    /// What layers need to know of the step that they are part of.
    pub(crate) fn training_step(&self, seed: u64) -> TrainingStep {
        TrainingStep { state: self.state.clone(), window: self.window.clone(), seed }
    }

    /// All that an update depends on: what a checkpoint holds, by name.
    pub(crate) fn state_tensors(&self) -> Vec<(&'static str, &Tensor)> {
        let own = [("parameters", &self.param), ("state", &self.state), ("log", &self.log)];
        own.into_iter().chain(self.moments.as_ref().map(|moments| ("moments", moments))).collect()
    }

    /// Rule, schedule and hyper-parameters but for the base learning rate, which may be another one when training goes on.
    pub(crate) fn fingerprint(&self) -> String {
        let n = show_number;
        let OptimizerOptions { kind, schedule, max_grad_norm, lr_ratio_b, lr: _ } = self.options;
        let rule = match kind {
            OptimizerKind::Sgd(Sgd { momentum, weight_decay }) => format!("sgd {} {}", n(momentum), n(weight_decay)),
            OptimizerKind::AdamW(AdamW { beta1, beta2, eps, weight_decay }) => {
                format!("adamw {} {} {} {}", n(beta1), n(beta2), n(eps), n(weight_decay))
            }
        };
        let clip = max_grad_norm.map_or("none".into(), n);
        format!("{rule}, schedule {schedule:?}, maxGradNorm {clip}, lrRatioB {}", n(lr_ratio_b))
    }

    /// `[LOG_ROWS, 4]`, a ring by attempt: loss, norm of the gradients before clipping, learning rate, the
    /// outcome as `begin_step.wgsl` numbers it.
    pub fn log(&self) -> &Tensor {
        &self.log
    }

    /// Frees the moments; the layers keep their adapters and may join another optimiser.
    pub fn destroy(&self) {
        self.ownership.take();
        let all = [
            &self.param,
            &self.grad,
            &self.state,
            &self.lr,
            &self.bias,
            &self.log,
            &self.totals,
            &self.evaluation,
            &self.window,
            &self.sums,
        ];
        all.into_iter().chain(self.moments.as_ref()).for_each(Tensor::destroy);
    }
}

fn check_lr(lr: f64) -> Result<()> {
    if lr >= 0.0 && (lr as f32).is_finite() {
        Ok(())
    } else {
        Err(Error::argument("lr", "a finite number, at least 0", show_number(lr)))
    }
}

fn check(options: &OptimizerOptions) -> Result<()> {
    check_lr(options.lr)?;
    let fraction = |name, value: f64| match (0.0..1.0).contains(&value) {
        true => Ok(()),
        false => Err(Error::argument(name, "a number in [0, 1)", show_number(value))),
    };
    let not_negative = |name, value: f64| match value >= 0.0 && (value as f32).is_finite() {
        true => Ok(()),
        false => Err(Error::argument(name, "a finite number, at least 0", show_number(value))),
    };
    not_negative("lrRatioB", options.lr_ratio_b)?;
    if let Some(norm) = options.max_grad_norm
        && !(norm as f32 > 0.0 && (norm as f32).is_finite())
    {
        return Err(Error::argument("maxGradNorm", "a finite number above 0", show_number(norm)));
    }
    match options.kind {
        OptimizerKind::Sgd(options) => {
            fraction("momentum", options.momentum)?;
            not_negative("weightDecay", options.weight_decay)
        }
        OptimizerKind::AdamW(options) => {
            fraction("beta1", options.beta1)?;
            fraction("beta2", options.beta2)?;
            if !(options.eps as f32 > 0.0 && (options.eps as f32).is_finite()) {
                return Err(Error::argument("eps", "a finite number above 0 in float32", show_number(options.eps)));
            }
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
