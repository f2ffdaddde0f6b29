//! Files: bytes in, bytes out, no GPU.
//!
//! [`safetensors`] reads and writes the container, [`Adapter`] is what PEFT's two files hold.

mod adapter;
mod combine;
mod config;
mod formats;
pub mod gguf;
mod init;
pub(crate) mod json;
mod linalg;
mod merge;
mod pattern;
pub mod safetensors;

pub use adapter::{Adapter, AdapterKind, AdapterModule, OtherTensor, Report};
pub use combine::Combination;
pub use config::{AdapterConfig, InitLoraWeights, ModelModule, ModuleConfig, ModuleKind, NewConfig, Targets};
pub use formats::{Format, HesperWidths};
pub use gguf::GgufModel;
pub use init::{Start, initialize};
