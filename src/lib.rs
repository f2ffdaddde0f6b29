//! LoRA fine-tuning on WebGPU: the forward and backward of `output = base(x) + (alpha/rank)·B·(A·x)` as WGSL kernels.
#![warn(missing_docs)]

mod base;
mod error;
mod gpu;
pub mod io;
pub mod kernels;
mod lora;
mod loss;
mod model;
mod nn;
mod optim;
mod train;
#[cfg(target_arch = "wasm32")]
mod web;

pub use base::{FrozenLinear, FrozenLoader, Packing, WeightKind, pack};
pub use error::{Error, ErrorKind, Result};
pub use gpu::{DType, Gpu, GpuRequest, Memory, OptionalFeatures, Profile, Recording, Stats, Submission, Tensor};
pub use lora::{Adapter, Init, LoraConfig, LoraGrad, LoraLinear, LoraWeight, Trained};
pub use loss::Loss;
pub use model::{
    CausalLM, Estimate, Family, Generation, Input, Linear, ModelConfig, ModelLoader, Parameter, RopeScaling, Sampling,
    Sequences, SequencesOptions, SourceTensor, Store, Ternary, gguf_sources, safetensors_sources, shift_labels,
};
pub use nn::{Activation, Norm};
pub use optim::{AdamW, LOG_ROWS, Optimizer, OptimizerKind, OptimizerOptions, Schedule, Sgd};
pub use train::{
    Batch, Inputs, LanguageTrainer, Module, Network, Origin, Outcome, Position, Resumed, StepRecord, Targets,
    TokenBatch, Trainer,
};
