//! What the trainers share: plans by the shape of a batch, steps over them, and their count.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use super::trainer::{StepRecord, records};
use crate::error::{Error, Result};
use crate::gpu::{Gpu, Recording, Room, Submission};
use crate::lora::{LoraLinear, TrainingStep};
use crate::optim::Optimizer;

/// The tensors of a plan.
pub(crate) trait Tensors {
    /// Frees those that are neither a layer's nor in the stepper's room.
    fn destroy(&self);
}

/// Tensors for one shape of batches, and the recordings over them.
pub(crate) struct Plan<T> {
    pub tensors: T,
    /// Of the parts of a batch that are on the GPU, to the plan's tensors: before all else of the next submit.
    pub copies: Recording,
    /// Forward, loss and backward, adding to gradients and totals.
    micro_step: Recording,
    /// Forward and loss, into zeroed totals.
    evaluate: Recording,
    key: Key,
    /// How often the layers had dropped activations when it was recorded.
    dropped: u64,
    /// Why it can only evaluate.
    refused: Option<Error>,
    /// Whether the GPU has run a micro-step of it: its buffers are there, and its kernels.
    accepted: Rc<Cell<bool>>,
}

/// What a plan is for.
#[derive(PartialEq)]
struct Key {
    /// Sequences, tokens of each, and 1 where modules that are trained whole take part; or 1, rows and 0.
    shape: [usize; 3],
    /// Of each layer, which adapters take part, and their scalings.
    adapters: Vec<Vec<(String, u32)>>,
}

/// Where a plan is recorded.
pub(crate) struct Draft<'a> {
    /// Of the training step that the micro-step is part of.
    pub training: &'a TrainingStep,
    /// None where the plan can only evaluate.
    pub micro_step: Option<&'a Recording>,
    pub evaluate: &'a Recording,
    pub room: &'a Rc<Room>,
}

type Plans<T> = Rc<RefCell<Vec<Rc<Plan<T>>>>>;

/// Plans kept: shapes that come round are not recorded again.
const MAX_PLANS: usize = 16;

/// Steps of an optimiser over plans.
pub(crate) struct Stepper<T> {
    pub optimizer: Optimizer,
    /// Of the dropout.
    pub seed: u64,
    /// Whether plans hold much and do much: their tensors are in one room, and they are submitted in parts.
    large: bool,
    /// The newest last.
    plans: Plans<T>,
    /// The rows that the room is for.
    rows: Cell<usize>,
    room: Rc<Room>,
    attempts: Rc<Cell<u64>>,
    /// Around the micro-batches of one step: zeros into gradients and totals; the update.
    window: [Recording; 2],
    /// Whether a step's micro-batches are under way, whose update comes later: until then gradients and sums are its own.
    pending: Rc<Cell<bool>>,
}

/// Such a step, until it is dropped.
pub(crate) struct Pending(Rc<Cell<bool>>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl<T: Tensors + 'static> Stepper<T> {
    /// With `large` plans are made in one room of the largest one's size, and submitted as [`Recording::in_parts`] says.
    pub fn new(gpu: &Gpu, optimizer: Optimizer, seed: u64, large: bool) -> Result<Stepper<T>> {
        let window = [Recording::new(gpu), Recording::new(gpu)];
        optimizer.zero_grad(&window[0])?;
        optimizer.zero_sums(&window[0])?;
        optimizer.step(&window[1])?;
        let (plans, attempts, pending) = (Rc::default(), Rc::default(), Rc::default());
        let (rows, room) = (Cell::new(0), Rc::default());
        Ok(Stepper { optimizer, seed, large, plans, rows, room, attempts, window, pending })
    }

    /// Begins a step whose update may come later.
    ///
    /// # Errors
    /// [`Busy`](crate::error::ErrorKind::Busy) while there is another.
    pub fn begin(&self) -> Result<Pending> {
        match self.pending.replace(true) {
            true => Err(Error::busy("a step whose future is neither done nor dropped")),
            false => Ok(Pending(self.pending.clone())),
        }
    }

    /// The plan of this shape for the adapters that take part now, which `make` records on first use.
    pub fn plan(
        &self,
        shape: [usize; 3],
        layers: &[&LoraLinear],
        make: impl FnOnce(Draft) -> Result<T>,
    ) -> Result<Rc<Plan<T>>> {
        let key = Key { shape, adapters: layers.iter().map(|layer| layer.recorded_state()).collect() };
        let dropped = || layers.iter().map(|layer| layer.times_dropped()).sum();
        let mut plans = self.plans.borrow_mut();
        plans.retain(|plan| {
            let live = plan.dropped == dropped();
            if !live {
                plan.tensors.destroy();
            }
            live
        });
        if let Some(i) = plans.iter().position(|plan| plan.key == key) {
            let plan = plans.remove(i);
            plans.push(plan.clone());
            return Ok(plan);
        }
        let rows = shape[0].saturating_mul(shape[1]);
        if self.large && rows > self.rows.get() {
            // Before the larger ones are made.
            plans.clear();
            self.room.clear();
            self.rows.set(rows);
        }
        if plans.len() >= MAX_PLANS {
            plans.remove(0).tensors.destroy();
        }
        let gpu = self.window[0].gpu();
        let recording = || if self.large { Recording::in_parts(gpu) } else { Recording::new(gpu) };
        let (micro_step, evaluate) = (recording(), recording());
        let training = self.optimizer.training_step(self.seed);
        let refused = self.optimizer.expect_its_own(layers).err();
        let draft = Draft {
            training: &training,
            micro_step: refused.is_none().then_some(&micro_step),
            evaluate: &evaluate,
            room: &self.room,
        };
        let tensors = make(draft)?;
        let drops = |layer: &&LoraLinear| layer.active().iter().any(|adapter| adapter.dropout() > 0.0);
        if layers.iter().any(drops) {
            self.optimizer.end_micro_batch(&micro_step)?;
        }
        let (copies, accepted) = (Recording::new(gpu), Rc::default());
        let plan = Rc::new(Plan { tensors, copies, micro_step, evaluate, key, dropped: dropped(), refused, accepted });
        plans.push(plan.clone());
        Ok(plan)
    }

    /// Submits zeros into gradients and totals, before the first micro-batch of a step.
    pub fn begin_window(&self) -> Submission {
        self.window[0].submit()
    }

    /// Submits forward, loss and backward of what was loaded, adding to gradients and totals.
    pub fn micro_step(&self, plan: &Plan<T>) -> Submission {
        let accepted = plan.accepted.clone();
        match &plan.refused {
            Some(error) => Submission::failed(error.clone()),
            None => self.or_make_anew(plan.try_submit(&[&plan.micro_step])).and_then(move || accepted.set(true)),
        }
    }

    /// Submits the update, after the last micro-batch of a step.
    pub fn end_window(&self) -> Submission {
        self.attempt(Recording::try_submit_all(&[&self.window[1]]))
    }

    /// Submits the whole step of a plan whose tensors are loaded. In parts it is to be accepted, see [`Stepper::accepts`].
    pub fn step(&self, plan: &Plan<T>) -> Submission {
        match &plan.refused {
            Some(error) => Submission::failed(error.clone()),
            None => self.attempt(plan.try_submit(&[&self.window[0], &plan.micro_step, &self.window[1]])),
        }
    }

    /// Whether the update of a step over the plan need not wait for its micro-steps: they can no longer be refused.
    pub fn accepts(&self, plan: &Plan<T>) -> bool {
        plan.accepted.get()
    }

    /// Submits forward and loss of what was loaded; the sum of the loss and what it counts.
    pub fn evaluate(&self, plan: &Plan<T>) -> impl Future<Output = Result<(f32, f32)>> + use<T> {
        let submitted = self.or_make_anew(plan.try_submit(&[&plan.evaluate]));
        let totals = self.optimizer.evaluation().read();
        async move {
            submitted.await?;
            let totals = totals.await?;
            Ok((totals[0], totals[1]))
        }
    }

    /// Submits an update, counted unless it could not be submitted: the GPU counts it, too.
    fn attempt(&self, submitted: Result<Submission>) -> Submission {
        if submitted.is_err() {
            return self.or_make_anew(submitted);
        }
        self.attempts.set(self.attempts.get() + 1);
        let attempts = self.attempts.clone();
        // What the GPU refused it did not run.
        self.or_make_anew(submitted).or_else(move || attempts.set(attempts.get().saturating_sub(1)))
    }

    /// Drops the plans where the submit fails: one whose buffers could not be made is made anew.
    fn or_make_anew(&self, submitted: Result<Submission>) -> Submission {
        let (plans, room) = (self.plans.clone(), self.room.clone());
        submitted.unwrap_or_else(Submission::failed).or_else(move || clear(&plans, &room))
    }

    /// What the attempts from `from` on did, as far back as the log reaches.
    pub fn records(&self, from: u64) -> impl Future<Output = Result<Vec<StepRecord>>> + use<T> {
        records(self.optimizer.log(), from, self.attempts.get())
    }

    /// Steps submitted so far, skipped ones included.
    pub fn attempts(&self) -> u64 {
        self.attempts.get()
    }

    pub fn set_attempts(&self, attempts: u64) {
        self.attempts.set(attempts);
    }

    /// Frees the optimiser and the plans.
    pub fn destroy(&self) {
        clear(&self.plans, &self.room);
        self.optimizer.destroy();
    }
}

fn clear<T: Tensors>(plans: &Plans<T>, room: &Room) {
    plans.take().iter().for_each(|plan| plan.tensors.destroy());
    room.clear();
}

impl<T> Plan<T> {
    /// Submits the copies, once, and the recordings.
    fn try_submit(&self, recordings: &[&Recording]) -> Result<Submission> {
        let submitted = Recording::try_submit_all(&[&[&self.copies], recordings].concat());
        self.copies.clear();
        submitted
    }

    /// How many kernels its steps need that are not compiled yet.
    #[cfg(target_arch = "wasm32")]
    pub fn missing_kernels(&self, stepper: &Stepper<T>) -> usize {
        Recording::missing_kernels(&[&self.micro_step, &stepper.window[1]])
    }

    /// Compiles what its steps need; returns how many kernels.
    #[cfg(target_arch = "wasm32")]
    pub fn compile_missing(&self, stepper: &Stepper<T>, keep: bool) -> Result<usize> {
        Recording::compile_all(&[&self.micro_step, &stepper.window[1]], keep)
    }
}
