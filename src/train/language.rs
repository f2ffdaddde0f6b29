//! Training a language model's adapters: recordings by the shape of a batch, submitted again for every step.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use super::trainer::{StepRecord, records};
use crate::error::{Error, Result};
use crate::gpu::{Recording, Submission};
use crate::lora::LoraLinear;
use crate::model::{CausalLM, Input, Sequences, SequencesOptions};
use crate::optim::{Optimizer, OptimizerOptions};

/// Trains the adapters of a language model.
pub struct LanguageTrainer {
    model: Rc<CausalLM>,
    optimizer: Optimizer,
    options: SequencesOptions,
    /// Of the dropout.
    seed: u64,
    /// By shape; the newest last.
    plans: Rc<RefCell<Vec<Rc<Plan>>>>,
    attempts: Rc<Cell<u64>>,
    /// Around the micro-batches of one step: zeros into gradients and totals; the update.
    window: [Recording; 2],
}

/// Sequences of one shape with the recordings over them.
struct Plan {
    sequences: Sequences,
    /// Of each layer, which adapters took part when it was recorded, and their scalings.
    adapters: Vec<Vec<(String, u32)>>,
    /// Forward, loss and backward, adding to gradients and totals.
    micro_step: Recording,
    /// Forward and loss, into zeroed totals.
    evaluate: Recording,
}

/// One micro-batch.
#[derive(Clone, Copy)]
pub struct TokenBatch<'a> {
    /// Sequences in it.
    pub batch: usize,
    /// Its ids, masks and labels.
    pub input: Input<'a>,
}

/// Plans kept: they hold the activations of their shape.
const MAX_PLANS: usize = 4;

impl LanguageTrainer {
    /// # Errors
    /// As [`Optimizer::new`].
    pub fn new(
        model: &Rc<CausalLM>,
        optimizer: OptimizerOptions,
        options: SequencesOptions,
        seed: u64,
    ) -> Result<LanguageTrainer> {
        let layers = model.loras();
        let layers: Vec<&LoraLinear> = layers.iter().map(Rc::as_ref).collect();
        let optimizer = Optimizer::new(model.gpu(), &layers, optimizer)?;
        let window = [Recording::new(model.gpu()), Recording::new(model.gpu())];
        optimizer.zero_grad(&window[0])?;
        optimizer.zero_sums(&window[0])?;
        optimizer.step(&window[1])?;
        Ok(LanguageTrainer {
            model: model.clone(),
            optimizer,
            options: SequencesOptions { training: true, ..options },
            seed,
            plans: Rc::default(),
            attempts: Rc::default(),
            window,
        })
    }

    /// The model.
    pub fn model(&self) -> &Rc<CausalLM> {
        &self.model
    }

    /// The optimiser.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Steps submitted so far, skipped ones included.
    pub fn attempts(&self) -> u64 {
        self.attempts.get()
    }

    pub(crate) fn set_attempts(&self, attempts: u64) {
        self.attempts.set(attempts);
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Submits one step over the micro-batches: the gradient of the mean loss over all labels that they count. The update is
    /// submitted when the future is awaited and the GPU has accepted them all.
    ///
    /// # Errors
    /// Through the future: as [`Sequences::load`] and [`CausalLM::sequences`] before anything is submitted;
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) without a micro-batch; what the GPU refused, which updates nothing.
    pub fn step<'a>(&'a self, batches: &[TokenBatch]) -> impl Future<Output = Result<()>> + use<'a> {
        let submitted = self.start_step(batches);
        async move {
            submitted?.await?;
            match self.window[1].try_submit() {
                Ok(submission) => {
                    self.attempts.set(self.attempts.get() + 1);
                    let attempts = self.attempts.clone();
                    // What the GPU refused it did not run.
                    submission.or_else(move || attempts.set(attempts.get().saturating_sub(1))).await
                }
                Err(error) => Err(error),
            }
        }
    }

    fn start_step(&self, batches: &[TokenBatch]) -> Result<Submission> {
        if batches.is_empty() {
            return Err(Error::argument("batches", "at least one batch", "none"));
        }
        let mut submissions = vec![self.window[0].submit()];
        for batch in batches {
            let plan = self.plan(batch)?;
            plan.sequences.load(&self.model, &batch.input)?;
            submissions.push(plan.micro_step.submit());
        }
        Ok(Submission::all(submissions))
    }

    /// The mean loss of a batch and the number of labels that count in it, without an update. The perplexity is its
    /// exponential.
    pub fn evaluate(&self, batch: &TokenBatch) -> impl Future<Output = Result<(f32, f32)>> + use<> {
        let started = self.plan(batch).and_then(|plan| {
            plan.sequences.load(&self.model, &batch.input)?;
            Ok((plan.evaluate.submit(), self.optimizer.evaluation().read()))
        });
        async move {
            let (submitted, totals) = started?;
            submitted.await?;
            let totals = totals.await?;
            Ok((if totals[1] > 0.0 { totals[0] / totals[1] } else { 0.0 }, totals[1]))
        }
    }

    /// What the attempts from `from` on did, as far back as the log reaches.
    pub fn records(&self, from: u64) -> impl Future<Output = Result<Vec<StepRecord>>> + use<> {
        records(self.optimizer.log(), from, self.attempts.get())
    }

    /// The plan for a batch's shape, made on first use.
    fn plan(&self, batch: &TokenBatch) -> Result<Rc<Plan>> {
        let len = batch.input.input_ids.len();
        if batch.batch == 0 || len == 0 || !len.is_multiple_of(batch.batch) {
            let expected = format!("sequences of one length, at least one token each, for a batch of {}", batch.batch);
            return Err(Error::shape("inputIds", expected, format!("{len} elements")));
        }
        if batch.input.labels.is_none() {
            return Err(Error::argument("labels", "one for each token", "none"));
        }
        let (count, tokens) = (batch.batch, len / batch.batch);
        let mut plans = self.plans.borrow_mut();
        let adapters: Vec<_> = self.model.loras().iter().map(|lora| lora.recorded_state()).collect();
        let fits = |plan: &Rc<Plan>| {
            plan.sequences.batch() == count && plan.sequences.tokens() == tokens && plan.adapters == adapters
        };
        if let Some(i) = plans.iter().position(fits) {
            let plan = plans.remove(i);
            plans.push(plan.clone());
            return Ok(plan);
        }
        let (model, totals) = (self.model.as_ref(), self.optimizer.totals());
        let sequences = model.sequences(count, tokens, self.options)?;
        let training = self.optimizer.training_step(self.seed);
        let [micro_step, evaluate] = [(); 2].map(|()| Recording::new(model.gpu()));
        sequences.record_forward(&micro_step, model, Some(&training))?;
        sequences.record_loss(&micro_step, model, totals)?;
        sequences.record_backward(&micro_step, model, Some(&training))?;
        let drops = |lora: &Rc<LoraLinear>| lora.active().iter().any(|adapter| adapter.dropout() > 0.0);
        if model.loras().iter().any(drops) {
            self.optimizer.end_micro_batch(&micro_step)?;
        }
        evaluate.zero(self.optimizer.evaluation())?;
        sequences.record_forward(&evaluate, model, None)?;
        sequences.record_loss(&evaluate, model, self.optimizer.evaluation())?;
        let plan = Rc::new(Plan { sequences, adapters, micro_step, evaluate });
        if plans.len() >= MAX_PLANS {
            plans.remove(0).sequences.destroy();
        }
        plans.push(plan.clone());
        Ok(plan)
    }

    /// Frees the optimiser and the activations; the layers keep their adapters.
    pub fn destroy(&self) {
        self.plans.take().iter().for_each(|plan| plan.sequences.destroy());
        self.optimizer.destroy();
    }
}
