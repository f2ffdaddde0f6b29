//! Training: a network of layers, a loss and an optimiser, a step at a time.

mod checkpoint;
mod language;
mod network;
mod stepper;
mod trainer;

pub use checkpoint::{Position, Resumed};
pub use language::{LanguageTrainer, TokenBatch};
pub use network::{Module, Network};
#[cfg(target_arch = "wasm32")]
pub(crate) use trainer::TrainerPlan;
pub use trainer::{Batch, Inputs, Origin, Outcome, StepRecord, Targets, Trainer};
