//! The adapter: its configuration, its weights, and a linear layer with one.

mod config;
mod layer;
mod recording;
mod weight;

pub use config::{Init, LoraConfig};
pub use layer::LoraLinear;
pub(crate) use layer::TrainingStep;
pub use weight::{LoraGrad, LoraWeight};
