//! The trainer: one recording for each number of tokens, submitted again for every step.

use std::future::Future;
use std::rc::Rc;

use super::network::{Activations, Network};
use super::stepper::{Draft, Plan, Stepper, Tensors};
use crate::error::{Error, Result};
use crate::gpu::{DType, Gpu, Recording, Submission, Tensor};
use crate::loss::Loss;
use crate::optim::{LOG_ROWS, Optimizer, OptimizerOptions};

/// Inputs and targets of one micro-batch.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// What goes into the network.
    pub x: Inputs<'a>,
    /// What the loss compares with.
    pub targets: Targets<'a>,
}

/// Inputs of a network.
#[derive(Clone, Copy)]
pub enum Inputs<'a> {
    /// `[tokens, in_features]`
    Values(&'a [f32]),
    /// The same on the GPU; copied by the submit.
    Tensor(&'a Tensor),
}

/// Targets of a loss.
#[derive(Clone, Copy)]
pub enum Targets<'a> {
    /// `[tokens, out_features]`
    Values(&'a [f32]),
    /// `[tokens]`
    Labels(&'a [i32]),
    /// Either on the GPU; copied by the submit. A label out of range makes the loss infinite, so that the step is skipped.
    Tensor(&'a Tensor),
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
    stepper: Stepper<Buffers>,
}

/// A plan of a [`Trainer`].
pub(crate) type TrainerPlan = Plan<Buffers>;

/// A network's tensors for one number of tokens.
pub(crate) struct Buffers {
    /// `[tokens, in_features]`
    pub x: Tensor,
    /// `[tokens, out_features]`, or labels `[tokens]`
    pub targets: Tensor,
    activations: Activations,
}

impl Trainer {
    /// # Errors
    /// As [`Optimizer::new`].
    pub fn new(gpu: &Gpu, network: Network, loss: Loss, options: OptimizerOptions) -> Result<Trainer> {
        let optimizer = Optimizer::new(gpu, &network.layers(), options)?;
        let stepper = Stepper::new(gpu, optimizer, 0, false)?;
        Ok(Trainer { gpu: gpu.clone(), network, loss, stepper })
    }

    /// With another seed of its dropout than 0; the same one gives the same masks on every device.
    pub fn with_seed(mut self, seed: u64) -> Trainer {
        self.stepper.seed = seed;
        self
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The optimiser.
    pub fn optimizer(&self) -> &Optimizer {
        &self.stepper.optimizer
    }

    pub(crate) fn stepper(&self) -> &Stepper<Buffers> {
        &self.stepper
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(crate) fn loss(&self) -> Loss {
        self.loss
    }

    /// Steps submitted so far, skipped ones included.
    pub fn attempts(&self) -> u64 {
        self.stepper.attempts()
    }

    /// Submits one step over the micro-batches as one mean over all that they count. The update of several is submitted
    /// when the future is awaited and the GPU has accepted them all.
    ///
    /// # Errors
    /// Through the future: [`Shape`](crate::error::ErrorKind::Shape) where a length differs, before anything is submitted;
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a label out of range, no micro-batch, or where other adapters take part than those that the
    /// trainer was made with; [`Busy`](crate::error::ErrorKind::Busy) while the future of a step of several is neither done nor dropped; what the
    /// GPU refused, which updates nothing.
    pub fn step<'a>(&'a self, batches: &[Batch]) -> impl Future<Output = Result<()>> + use<'a> {
        let started = self.stepper.begin().and_then(|pending| {
            // One alone is submitted with its update.
            Ok((self.start_step(batches)?, (batches.len() > 1).then_some(pending)))
        });
        async move {
            let (submitted, pending) = started?;
            submitted.await?;
            if pending.is_some() { self.stepper.end_window().await } else { Ok(()) }
        }
    }

    fn start_step(&self, batches: &[Batch]) -> Result<Submission> {
        if let [batch] = batches {
            let plan = self.check(batch)?;
            plan.load(batch)?;
            return Ok(self.stepper.step(&plan));
        }
        if batches.is_empty() {
            return Err(Error::argument("batches", "at least one batch", "none"));
        }
        batches.iter().try_for_each(|batch| self.check(batch).map(drop))?;
        let mut submissions = vec![self.stepper.begin_window()];
        for batch in batches {
            let plan = self.check(batch)?; // a window of many lengths drops plans as it goes
            plan.load(batch)?;
            submissions.push(self.stepper.micro_step(&plan));
        }
        Ok(Submission::all(submissions))
    }

    /// The mean loss of a batch with the adapter as it is, without an update.
    pub fn evaluate(&self, batch: &Batch) -> impl Future<Output = Result<f32>> + use<> {
        let started = self.check(batch).and_then(|plan| {
            plan.load(batch)?;
            Ok(self.stepper.evaluate(&plan))
        });
        async move {
            let (sum, count) = started?.await?;
            Ok(if count > 0.0 { sum / count } else { 0.0 })
        }
    }

    /// What the attempts from `from` on did, as far back as the log reaches.
    pub fn records(&self, from: u64) -> impl Future<Output = Result<Vec<StepRecord>>> + use<> {
        self.stepper.records(from)
    }

    fn check(&self, batch: &Batch) -> Result<Rc<TrainerPlan>> {
        let width = self.network.in_features();
        let len = match batch.x {
            Inputs::Values(values) => values.len(),
            Inputs::Tensor(tensor) => tensor.len(),
        };
        if len == 0 || !len.is_multiple_of(width) {
            let expected = format!("rows of {width} elements, at least one");
            return Err(Error::shape("x", expected, format!("{len} elements")));
        }
        let plan = self.plan(len / width)?;
        let Buffers { x, targets, .. } = &plan.tensors;
        if let Inputs::Tensor(tensor) = batch.x {
            expect_source("x", tensor, x)?;
        }
        let length = match batch.targets {
            Targets::Values(values) => {
                targets.expect_dtype(DType::F32)?;
                values.len()
            }
            Targets::Labels(labels) => {
                self.check_labels(labels)?;
                labels.len()
            }
            Targets::Tensor(tensor) => {
                expect_source("targets", tensor, targets)?;
                targets.len()
            }
        };
        crate::gpu::check_length("targets", targets.len() as u64, length)?;
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
    pub(crate) fn plan(&self, tokens: usize) -> Result<Rc<TrainerPlan>> {
        self.stepper.plan([1, tokens, 0], &self.network.layers(), |draft| self.record(tokens, draft))
    }

    fn record(&self, tokens: usize, Draft { training, micro_step, evaluate, .. }: Draft) -> Result<Buffers> {
        let gpu = &self.gpu;
        let x = Tensor::zeros(gpu, "x", &[tokens, self.network.in_features()])?;
        let targets = match self.loss {
            Loss::CrossEntropy { .. } => Tensor::integers(gpu, "targets", &[tokens], None)?,
            Loss::Mse | Loss::BceWithLogits => Tensor::zeros(gpu, "targets", &[tokens, self.network.out_features()])?,
        };
        let activations = self.network.activations(gpu, &x)?;
        let forward = |rec: &Recording, step, totals| {
            self.network.forward(rec, &activations, step)?;
            let (output, d_output) = (activations.output(), activations.d_output()?);
            self.loss.record_sum(rec, output, &targets, d_output, totals, true)
        };
        if let Some(rec) = micro_step {
            forward(rec, Some(training), self.optimizer().totals())?;
            self.network.backward(rec, &activations, training)?;
        }
        evaluate.zero(self.optimizer().evaluation())?;
        forward(evaluate, None, self.optimizer().evaluation())?;
        Ok(Buffers { x, targets, activations })
    }

    /// Frees the optimiser and the activations; the layers keep their adapters.
    pub fn destroy(&self) {
        self.stepper.destroy();
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

/// Whether a batch's `tensor` can be copied to a plan's.
fn expect_source(name: &str, tensor: &Tensor, to: &Tensor) -> Result<()> {
    tensor.expect_shape(name, to.shape())?;
    Recording::new(to.gpu()).copy(tensor, to)
}

impl Plan<Buffers> {
    /// Takes a batch that was checked: what is in memory is written now, what is on the GPU copied by the next submit.
    fn load(&self, batch: &Batch) -> Result<()> {
        let Buffers { x, targets, .. } = &self.tensors;
        self.copies.clear();
        match batch.x {
            Inputs::Values(values) => x.write(values)?,
            Inputs::Tensor(tensor) => self.copies.copy(tensor, x)?,
        }
        match batch.targets {
            Targets::Values(values) => targets.write(values),
            Targets::Labels(labels) => targets.write_integers(labels),
            Targets::Tensor(tensor) => self.copies.copy(tensor, targets),
        }
    }
}

impl Tensors for Buffers {
    fn destroy(&self) {
        self.x.destroy_storage();
        self.targets.destroy_storage();
        self.activations.destroy();
    }
}
