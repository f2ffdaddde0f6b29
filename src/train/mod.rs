//! Training: a network of layers, a loss and an optimiser, a step at a time.

mod network;
mod trainer;

pub use network::{Module, Network};
pub use trainer::{Batch, StepRecord, Targets, Trainer};
