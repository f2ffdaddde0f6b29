//! The adapter: its configuration, its weights, and a linear layer with one.

mod adapter;
mod config;
mod dora;
mod layer;
mod merge;
pub(crate) mod products;
mod recording;
mod vocabulary;
mod weight;

pub use adapter::{Adapter, Trained};
pub use config::{Init, LoraConfig};
pub use layer::LoraLinear;
pub(crate) use layer::{Pool, TrainingStep};
pub use weight::{LoraGrad, LoraWeight};
