//! The GPU layer: a device, tensors on it, recordings of dispatches that are submitted once.

mod device;
mod pipeline;
#[cfg(not(target_arch = "wasm32"))]
mod profile;
mod read;
mod recording;
mod tensor;

pub use device::{Gpu, GpuRequest, Memory, OptionalFeatures, Profile, Stats};
pub use pipeline::{Access, Kernel};
#[cfg(target_arch = "wasm32")]
pub(crate) use read::read;
pub use recording::{Recording, Submission};
pub(crate) use recording::{elementwise, fold, shared_workgroups, workgroups};
#[cfg(target_arch = "wasm32")]
pub(crate) use tensor::check_size;
#[cfg(target_arch = "wasm32")]
pub(crate) use tensor::next_id;
pub use tensor::{DType, Tensor};
pub(crate) use tensor::{Room, check_length, detach, show};
