//! Decoder-only language models of Hugging Face's form.

mod adapters;
mod block;
mod causal_lm;
mod config;
mod generate;
mod rope;
mod sequences;

pub use block::Linear;
pub use causal_lm::{CausalLM, Parameter};
pub use config::{Family, ModelConfig, RopeScaling};
pub use generate::{Generation, Sampling};
pub use sequences::{Input, Sequences, SequencesOptions, shift_labels};
