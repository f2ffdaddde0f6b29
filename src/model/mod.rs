//! Decoder-only language models of Hugging Face's form.

mod adapters;
mod block;
mod causal_lm;
mod config;
mod estimate;
mod generate;
mod gguf;
mod linear;
mod loader;
mod rope;
mod sequences;

pub use causal_lm::{CausalLM, Parameter};
pub use config::{Family, ModelConfig, RopeScaling, Ternary};
pub use estimate::Estimate;
pub use generate::{Generation, Sampling};
pub use linear::Linear;
pub use loader::{ModelLoader, SourceTensor, Store, gguf_sources, safetensors_sources};
pub use sequences::{Input, Sequences, SequencesOptions, shift_labels};
