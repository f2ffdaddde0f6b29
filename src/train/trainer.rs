//! The trainer: one recording for each number of tokens, submitted again for every step.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use super::network::{Activations, Network};
use crate::error::{Error, Result};
use crate::gpu::{DType, Gpu, Recording, Submission, Tensor};
use crate::loss::Loss;
use crate::optim::{LOG_ROWS, Optimizer, OptimizerOptions};

/// Inputs and targets of one micro-batch.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// `[tokens, in_features]`
    pub x: &'a [f32],
    /// What the loss compares with.
    pub targets: Targets<'a>,
}

/// Targets of a loss.
#[derive(Clone, Copy)]
pub enum Targets<'a> {
    /// `[tokens, out_features]`
    Values(&'a [f32]),
    /// `[tokens]`
    Labels(&'a [i32]),
}

/// What one step did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepRecord {
    /// Attempts before it, from 0.
    pub attempt: u64,
    /// Mean loss over all that the step counted.
    pub loss: f32,
    /// Norm of the gradients before clipping.
    pub grad_norm: f32,
    /// The learning rate that it used.
    pub lr: f32,
    /// What became of it.
    pub outcome: Outcome,
}

impl StepRecord {
    /// Whether loss or gradients were not finite, so that nothing was updated.
    pub fn skipped(&self) -> bool {
        matches!(self.outcome, Outcome::NotFinite(_))
    }
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The adapters were updated.
    Updated,
    /// No element or label counted: nothing to learn from, and no update.
    NothingCounted,
    /// Loss or gradients were not finite, so that nothing was updated; with where that began, as far as it shows.
    NotFinite(Option<Origin>),
}

/// Where something that is not finite began: the layer by its number in [`Network::layers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// In what this layer gave: the first with such an output.
    Output(usize),
    /// In the gradient of what this layer gave: the last with such a gradient.
    Gradient(usize),
}

impl Outcome {
    /// Its number in the log.
    #[cfg(target_arch = "wasm32")]
    pub(crate) fn to_log(self) -> f32 {
        match self {
            Outcome::Updated => 0.0,
            Outcome::NothingCounted => 1.0,
            Outcome::NotFinite(None) => 2.0,
            Outcome::NotFinite(Some(Origin::Output(layer))) => 3.0 + 2.0 * layer as f32,
            Outcome::NotFinite(Some(Origin::Gradient(layer))) => 4.0 + 2.0 * layer as f32,
        }
    }

    /// From its number in the log (`begin_step.wgsl`).
    fn from_log(number: f32) -> Outcome {
        match number as usize {
            0 => Outcome::Updated,
            1 => Outcome::NothingCounted,
            2 => Outcome::NotFinite(None),
            n if n % 2 == 1 => Outcome::NotFinite(Some(Origin::Output((n - 3) / 2))),
            n => Outcome::NotFinite(Some(Origin::Gradient((n - 4) / 2))),
        }
    }
}

/// Trains the adapters of a network.
pub struct Trainer {
    gpu: Gpu,
    network: Network,
    loss: Loss,
    /// Of the dropout.
    seed: u64,
    optimizer: Optimizer,
    /// By tokens; the newest last.
    plans: Rc<RefCell<Vec<Rc<Plan>>>>,
    attempts: Rc<Cell<u64>>,
    /// Around the micro-batches of one step: zeros into gradients and totals; the update.
    window: [Recording; 2],
}

/// Tensors and recordings for one number of tokens.
pub(crate) struct Plan {
    tokens: usize,
    /// Of each layer, which adapters took part when it was recorded, and their scalings.
    adapters: Vec<Vec<(String, u32)>>,
    /// `[tokens, in_features]`
    pub x: Tensor,
    /// `[tokens, out_features]`, or labels `[tokens]`
    pub targets: Tensor,
    activations: Activations,
    /// Forward, loss and backward, adding to what is there.
    micro_step: Recording,
    /// The whole step of one micro-batch.
    step: Recording,
    /// Forward and loss, into zeroed totals.
    evaluate: Recording,
}

/// Plans kept: shapes that come round are not recorded again.
const MAX_PLANS: usize = 8;

impl Trainer {
    /// # Errors
    /// As [`Optimizer::new`].
    pub fn new(gpu: &Gpu, network: Network, loss: Loss, options: OptimizerOptions) -> Result<Trainer> {
        let optimizer = Optimizer::new(gpu, &network.layers(), options)?;
        let window = [Recording::new(gpu), Recording::new(gpu)];
        zero(&optimizer, &window[0])?;
        optimizer.step(&window[1])?;
        Ok(Trainer {
            window,
            gpu: gpu.clone(),
            network,
            loss,
            seed: 0,
            optimizer,
            plans: Rc::default(),
            attempts: Rc::default(),
        })
    }

    /// With another seed of its dropout than 0; the same one gives the same masks on every device.
    pub fn with_seed(self, seed: u64) -> Trainer {
        Trainer { seed, ..self }
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The optimiser.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(crate) fn loss(&self) -> Loss {
        self.loss
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn set_attempts(&self, attempts: u64) {
        self.attempts.set(attempts);
    }

    /// Steps submitted so far, skipped ones included.
    pub fn attempts(&self) -> u64 {
        self.attempts.get()
    }

    /// Submits one step over the micro-batches as one mean over all that they count. The update of several is submitted
    /// when the future is awaited and the GPU has accepted them all.
    ///
    /// # Errors
    /// Through the future: [`Shape`](crate::error::ErrorKind::Shape) where a length differs, before anything is submitted;
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a label out of range or no micro-batch; what the GPU refused, which updates nothing.
    pub fn step<'a>(&'a self, batches: &[Batch]) -> impl Future<Output = Result<()>> + use<'a> {
        let (submitted, several) = (self.start_step(batches), batches.len() > 1);
        async move {
            submitted?.await?;
            if several { self.end_window().await } else { Ok(()) }
        }
    }

    fn start_step(&self, batches: &[Batch]) -> Result<Submission> {
        if let [batch] = batches {
            let plan = self.check(batch)?;
            plan.load(batch)?;
            return Ok(self.submit_step(&plan));
        }
        if batches.is_empty() {
            return Err(Error::argument("batches", "at least one batch", "none"));
        }
        batches.iter().try_for_each(|batch| self.check(batch).map(drop))?;
        let mut submissions = vec![self.begin_window()];
        for batch in batches {
            let plan = self.check(batch)?; // a window of many lengths drops plans as it goes
            plan.load(batch)?;
            submissions.push(plan.submit_micro_step());
        }
        Ok(Submission::all(submissions))
    }

    /// Submits the whole step of a plan whose tensors are loaded.
    pub(crate) fn submit_step(&self, plan: &Plan) -> Submission {
        self.attempt(&plan.step)
    }

    /// Submits zeros into gradients and totals, before the first micro-batch of a step.
    pub(crate) fn begin_window(&self) -> Submission {
        self.window[0].submit()
    }

    /// Submits the update, after the last micro-batch of a step.
    pub(crate) fn end_window(&self) -> Submission {
        self.attempt(&self.window[1])
    }

    /// Submits an update, counted unless it could not be submitted: the GPU counts it, too.
    fn attempt(&self, rec: &Recording) -> Submission {
        match rec.try_submit() {
            Ok(submission) => {
                self.attempts.set(self.attempts.get() + 1);
                let (attempts, plans) = (self.attempts.clone(), self.plans.clone());
                // What the GPU refused it did not run; a plan whose buffers could not be made is made anew.
                submission.or_else(move || {
                    attempts.set(attempts.get().saturating_sub(1));
                    plans.take().iter().for_each(|plan| plan.destroy());
                })
            }
            Err(error) => Submission::failed(error),
        }
    }

    /// The mean loss of a batch with the adapter as it is, without an update.
    pub fn evaluate(&self, batch: &Batch) -> impl Future<Output = Result<f32>> + use<> {
        let started = self.check(batch).and_then(|plan| {
            plan.load(batch)?;
            Ok(self.evaluate_plan(&plan))
        });
        async move {
            let (sum, count) = started?.await?;
            Ok(if count > 0.0 { sum / count } else { 0.0 })
        }
    }

    /// The sum of the loss over what was loaded, and what it counts.
    pub(crate) fn evaluate_plan(&self, plan: &Plan) -> impl Future<Output = Result<(f32, f32)>> + use<> {
        let submitted = plan.evaluate.submit();
        let totals = self.optimizer.evaluation().read();
        async move {
            submitted.await?;
            let totals = totals.await?;
            Ok((totals[0], totals[1]))
        }
    }

    /// What the attempts from `from` on did, as far back as the log reaches.
    pub fn records(&self, from: u64) -> impl Future<Output = Result<Vec<StepRecord>>> + use<> {
        records(self.optimizer.log(), from, self.attempts.get())
    }

    fn check(&self, batch: &Batch) -> Result<Rc<Plan>> {
        let width = self.network.in_features();
        if batch.x.is_empty() || !batch.x.len().is_multiple_of(width) {
            let expected = format!("rows of {width} elements, at least one");
            return Err(Error::shape("x", expected, format!("{} elements", batch.x.len())));
        }
        let plan = self.plan(batch.x.len() / width)?;
        let length = match batch.targets {
            Targets::Values(values) => {
                plan.targets.expect_dtype(DType::F32)?;
                values.len()
            }
            Targets::Labels(labels) => {
                self.check_labels(labels)?;
                labels.len()
            }
        };
        crate::gpu::check_length("targets", plan.targets.len() as u64, length)?;
        Ok(plan)
    }

    /// Labels are class indices or what the loss ignores.
    pub(crate) fn check_labels(&self, labels: &[i32]) -> Result<()> {
        let Loss::CrossEntropy { ignore_index, .. } = self.loss else {
            return Err(Error::argument("targets", "floats, as this loss compares", "integers"));
        };
        let classes = self.network.out_features();
        match labels.iter().find(|&&l| l != ignore_index && !(0..classes as i64).contains(&i64::from(l))) {
            Some(label) => Err(Error::argument(
                "targets",
                &format!("labels from 0 to {} or {ignore_index}", classes - 1),
                label.to_string(),
            )),
            None => Ok(()),
        }
    }

    /// The plan for this many tokens, made on first use.
    pub(crate) fn plan(&self, tokens: usize) -> Result<Rc<Plan>> {
        let mut plans = self.plans.borrow_mut();
        let adapters: Vec<_> = self.network.layers().iter().map(|layer| layer.recorded_state()).collect();
        if let Some(i) = plans.iter().position(|plan| plan.tokens == tokens && plan.adapters == adapters) {
            let plan = plans.remove(i);
            plans.push(plan.clone());
            return Ok(plan);
        }
        let gpu = &self.gpu;
        let x = Tensor::zeros(gpu, "x", &[tokens, self.network.in_features()])?;
        let targets = match self.loss {
            Loss::CrossEntropy { .. } => Tensor::integers(gpu, "targets", &[tokens], None)?,
            Loss::Mse | Loss::BceWithLogits => Tensor::zeros(gpu, "targets", &[tokens, self.network.out_features()])?,
        };
        let activations = self.network.activations(gpu, &x)?;
        let training = self.optimizer.training_step(self.seed);
        let forward = |rec: &Recording, step, totals| {
            self.network.forward(rec, &activations, step)?;
            let (output, d_output) = (activations.output(), activations.d_output()?);
            self.loss.record_sum(rec, output, &targets, d_output, totals, true)
        };
        let totals = self.optimizer.totals();
        let [micro_step, step, evaluate] = [(); 3].map(|()| Recording::new(gpu));
        forward(&micro_step, Some(&training), totals)?;
        self.network.backward(&micro_step, &activations, &training)?;
        if self.network.layers().iter().flat_map(|layer| layer.active()).any(|adapter| adapter.dropout() > 0.0) {
            self.optimizer.end_micro_batch(&micro_step)?;
        }
        zero(&self.optimizer, &step)?;
        forward(&step, Some(&training), totals)?;
        self.network.backward(&step, &activations, &training)?;
        self.optimizer.step(&step)?;
        evaluate.zero(self.optimizer.evaluation())?;
        forward(&evaluate, None, self.optimizer.evaluation())?;
        let plan = Rc::new(Plan { tokens, adapters, x, targets, activations, micro_step, step, evaluate });
        if plans.len() >= MAX_PLANS {
            plans.remove(0).destroy();
        }
        plans.push(plan.clone());
        Ok(plan)
    }

    /// Frees the optimiser and the activations; the layers keep their adapters.
    pub fn destroy(&self) {
        self.plans.take().iter().for_each(|plan| plan.destroy());
        self.optimizer.destroy();
    }
}

/// The rows of an optimiser's log for the attempts `from .. end`, as far back as it reaches.
pub(super) fn records(log: &Tensor, from: u64, end: u64) -> impl Future<Output = Result<Vec<StepRecord>>> + use<> {
    let log = log.read();
    async move {
        let log = log.await?;
        let start = from.max(end.saturating_sub(LOG_ROWS as u64));
        let record = |attempt: u64| {
            let row = &log[4 * (attempt as usize % LOG_ROWS)..];
            StepRecord { attempt, loss: row[0], grad_norm: row[1], lr: row[2], outcome: Outcome::from_log(row[3]) }
        };
        Ok((start..end).map(record).collect())
    }
}

fn zero(optimizer: &Optimizer, rec: &Recording) -> Result<()> {
    optimizer.zero_grad(rec)?;
    optimizer.zero_sums(rec)
}

impl Plan {
    fn load(&self, batch: &Batch) -> Result<()> {
        self.x.write(batch.x)?;
        match batch.targets {
            Targets::Values(values) => self.targets.write(values),
            Targets::Labels(labels) => self.targets.write_integers(labels),
        }
    }

    /// Frees its tensors; the layers' own stay.
    fn destroy(&self) {
        self.x.destroy_storage();
        self.targets.destroy_storage();
        self.activations.destroy();
    }

    /// How many kernels its steps need that are not compiled yet.
    #[cfg(target_arch = "wasm32")]
    pub fn missing_kernels(&self) -> usize {
        Recording::missing_kernels(&[&self.step, &self.micro_step])
    }

    /// Compiles what its steps need; returns how many kernels.
    #[cfg(target_arch = "wasm32")]
    pub fn compile_missing(&self, keep: bool) -> Result<usize> {
        Recording::compile_all(&[&self.step, &self.micro_step], keep)
    }

    /// Submits forward, loss and backward of what was loaded, adding to gradients and totals.
    pub fn submit_micro_step(&self) -> Submission {
        self.micro_step.submit()
    }
}
