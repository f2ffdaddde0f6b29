//! The GPU layer: a device, tensors on it, recordings of dispatches that are submitted once.

mod device;
mod pipeline;
mod read;
mod recording;
mod tensor;

pub use device::{Gpu, GpuRequest, Memory, Stats};
pub use pipeline::{Access, Kernel};
pub use recording::{Recording, Submission};
pub(crate) use recording::{fold, workgroups};
pub use tensor::Tensor;
pub(crate) use tensor::show;
