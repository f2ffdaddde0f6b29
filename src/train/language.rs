//! Training a language model's adapters: recordings by the shape of a batch, submitted again for every step.

use std::future::Future;
use std::rc::Rc;

use super::stepper::{Draft, Plan, Stepper, Tensors};
use super::trainer::StepRecord;
use crate::error::{Error, Result};
use crate::gpu::Submission;
use crate::lora::LoraLinear;
use crate::model::{CausalLM, Input, Sequences, SequencesOptions};
use crate::optim::{Optimizer, OptimizerOptions};

/// Trains the adapters of a language model.
pub struct LanguageTrainer {
    model: Rc<CausalLM>,
    options: SequencesOptions,
    stepper: Rc<Stepper<Sequences>>,
}

/// One micro-batch.
#[derive(Clone, Copy)]
pub struct TokenBatch<'a> {
    /// Sequences in it.
    pub batch: usize,
    /// Its ids, masks and labels.
    pub input: Input<'a>,
}

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
        let optimizer = Optimizer::with_modules(model.gpu(), &layers, &model.trained_whole(), optimizer)?;
        let stepper = Rc::new(Stepper::new(model.gpu(), optimizer, seed, true)?);
        Ok(LanguageTrainer { model: model.clone(), options: SequencesOptions { training: true, ..options }, stepper })
    }

    /// The model.
    pub fn model(&self) -> &Rc<CausalLM> {
        &self.model
    }

    /// The optimiser.
    pub fn optimizer(&self) -> &Optimizer {
        &self.stepper.optimizer
    }

    /// Steps submitted so far, skipped ones included.
    pub fn attempts(&self) -> u64 {
        self.stepper.attempts()
    }

    pub(crate) fn stepper(&self) -> &Stepper<Sequences> {
        &self.stepper
    }

    /// Submits one step over the micro-batches: the gradient of the mean loss over all labels that they count. The first time that
    /// a shape comes, the update is submitted when the future is awaited and the GPU has accepted all micro-batches.
    ///
    /// # Errors
    /// Through the future: as [`Sequences::load`] and [`CausalLM::sequences`], before anything is submitted;
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) without a micro-batch, or where other adapters take part than those that the trainer was made with;
    /// [`Busy`](crate::error::ErrorKind::Busy) while the future of a step of new shapes is neither done nor dropped; what the GPU refused, which
    /// updates nothing.
    pub fn step(&self, batches: &[TokenBatch]) -> impl Future<Output = Result<()>> + use<> {
        let stepper = self.stepper.clone();
        let started = stepper.begin().and_then(|pending| {
            let (submitted, ended) = self.start_step(batches)?;
            Ok((submitted, (!ended).then_some(pending)))
        });
        async move {
            let (submitted, pending) = started?;
            submitted.await?;
            if pending.is_some() { stepper.end_window().await } else { Ok(()) }
        }
    }

    /// What was submitted, and whether the update is among it.
    fn start_step(&self, batches: &[TokenBatch]) -> Result<(Submission, bool)> {
        if batches.is_empty() {
            return Err(Error::argument("batches", "at least one batch", "none"));
        }
        let mut accepted = true;
        for batch in batches {
            let plan = self.plan(batch)?;
            plan.tensors.check(&self.model, &batch.input)?;
            accepted &= self.stepper.accepts(&plan);
        }
        if let ([batch], true) = (batches, accepted) {
            let plan = self.plan(batch)?;
            plan.tensors.load(&self.model, &batch.input)?;
            return Ok((self.stepper.step(&plan), true));
        }
        let mut submissions = vec![self.stepper.begin_window()];
        for batch in batches {
            let plan = self.plan(batch)?; // a window of many shapes drops plans as it goes
            accepted &= self.stepper.accepts(&plan);
            plan.tensors.load(&self.model, &batch.input)?;
            submissions.push(self.stepper.micro_step(&plan));
        }
        if accepted {
            submissions.push(self.stepper.end_window());
        }
        Ok((Submission::all(submissions), accepted))
    }

    /// The mean loss of a batch and the number of labels that count in it, without an update. The perplexity is its
    /// exponential.
    pub fn evaluate(&self, batch: &TokenBatch) -> impl Future<Output = Result<(f32, f32)>> + use<> {
        let started = self.plan(batch).and_then(|plan| {
            plan.tensors.load(&self.model, &batch.input)?;
            Ok(self.stepper.evaluate(&plan))
        });
        async move {
            let (sum, count) = started?.await?;
            Ok((if count > 0.0 { sum / count } else { 0.0 }, count))
        }
    }

    /// What the attempts from `from` on did, as far back as the log reaches.
    pub fn records(&self, from: u64) -> impl Future<Output = Result<Vec<StepRecord>>> + use<> {
        self.stepper.records(from)
    }

    /// The plan for a batch's shape, made on first use.
    fn plan(&self, batch: &TokenBatch) -> Result<Rc<Plan<Sequences>>> {
        let len = batch.input.input_ids.len();
        if batch.batch == 0 || len == 0 || !len.is_multiple_of(batch.batch) {
            let expected = format!("sequences of one length, at least one token each, for a batch of {}", batch.batch);
            return Err(Error::shape("inputIds", expected, format!("{len} elements")));
        }
        if batch.input.labels.is_none() {
            return Err(Error::argument("labels", "one for each token", "none"));
        }
        self.plan_of(batch.batch, len / batch.batch)
    }

    fn plan_of(&self, count: usize, tokens: usize) -> Result<Rc<Plan<Sequences>>> {
        let loras = self.model.loras();
        let layers: Vec<&LoraLinear> = loras.iter().map(Rc::as_ref).collect();
        let shape = [count, tokens, self.model.whole_enabled().into()];
        self.stepper.plan(shape, &layers, |draft| self.record(count, tokens, draft))
    }

    /// How many kernels a step over batches of this shape needs that are not compiled yet.
    ///
    /// # Errors
    /// As [`CausalLM::sequences`].
    #[cfg(target_arch = "wasm32")]
    pub fn missing_kernels(&self, batch: usize, tokens: usize) -> Result<usize> {
        Ok(self.plan_of(batch, tokens)?.missing_kernels(&self.stepper))
    }

    /// Compiles them; returns how many.
    ///
    /// # Errors
    /// As [`CausalLM::sequences`].
    #[cfg(target_arch = "wasm32")]
    pub fn compile_missing(&self, batch: usize, tokens: usize, keep: bool) -> Result<usize> {
        self.plan_of(batch, tokens)?.compile_missing(&self.stepper, keep)
    }

    fn record(&self, count: usize, tokens: usize, draft: Draft) -> Result<Sequences> {
        let Draft { training, micro_step, evaluate, room } = draft;
        let (model, optimizer) = (self.model.as_ref(), &self.stepper.optimizer);
        let options = SequencesOptions { training: micro_step.is_some(), ..self.options };
        // The model's own are made before.
        model.tables(tokens)?;
        if options.training {
            model.reserve_norms(count.saturating_mul(tokens))?;
        }
        let sequences = room.within(model.gpu(), || model.sequences(count, tokens, options))?;
        if let Some(rec) = micro_step {
            sequences.record_forward(rec, model, Some(training))?;
            sequences.record_loss_and_backward(rec, model, optimizer.totals(), Some(training))?;
        }
        evaluate.zero(optimizer.evaluation())?;
        sequences.record_forward(evaluate, model, None)?;
        sequences.record_loss(evaluate, model, optimizer.evaluation())?;
        Ok(sequences)
    }

    /// Frees the optimiser and the activations; the layers keep their adapters.
    pub fn destroy(&self) {
        self.stepper.destroy();
    }
}

impl Tensors for Sequences {
    fn destroy(&self) {} // all are in the room
}
