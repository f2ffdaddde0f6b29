//! LoRA fine-tuning on WebGPU: the forward and backward of `output = base(x) + (alpha/rank)·B·(A·x)` as WGSL kernels.
#![warn(missing_docs)]

mod base;
mod error;
mod gpu;
pub mod kernels;
mod lora;
mod optim;
#[cfg(target_arch = "wasm32")]
mod web;

pub use base::FrozenLinear;
pub use error::{Error, Result};
pub use gpu::{Gpu, GpuRequest, Memory, Profile, Recording, Stats, Submission, Tensor};
pub use lora::{Init, LoraConfig, LoraGrad, LoraLinear, LoraWeight};
pub use optim::{AdamW, Optimizer, OptimizerKind, Sgd};
