//! Read-back through a pool of staging buffers.

use std::future::Future;
use std::rc::{Rc, Weak};

use super::device::{Gpu, Inner, Memory};
#[cfg(target_arch = "wasm32")]
use super::device::{Profile, Reads};
use super::tensor::{Tensor, expect_usage};
use crate::error::{Error, Result};

/// Copies the tensor into a staging buffer now, and gives its mapped bytes to `take` when they have arrived.
pub(crate) fn read<T, F: FnOnce(&wgpu::BufferView) -> T>(
    tensor: &Tensor,
    take: F,
) -> impl Future<Output = Result<T>> + use<T, F> {
    let started = start(tensor);
    let pending = tensor.gpu().pending();
    let (gpu, label, size) = (tensor.gpu().clone(), tensor.label().to_string(), tensor.bytes());
    async move {
        let _pending = pending;
        let (staging, copied, mapped, failure) = started?;
        gpu.wait();
        #[cfg(target_arch = "wasm32")]
        let _waiting = (gpu.profile() == Profile::Hardware).then(|| hasten(&gpu));
        let mapped = mapped.await;
        let outcome = copied.await;
        if let Some(error) = failure.borrow().clone() {
            return Err(error);
        }
        outcome?;
        let view = match mapped {
            Ok(Ok(())) => staging.buffer.slice(..size).get_mapped_range().map_err(|error| error.to_string()),
            _ => Err("could not be mapped for reading".into()),
        };
        match view {
            Ok(view) => {
                let value = take(&view);
                drop(view);
                staging.give_back(&gpu);
                Ok(value)
            }
            Err(error) => {
                gpu.finished().await?; // a device that is just being lost says so first
                Err(Error::validation(format!("tensor `{label}`: {error}")))
            }
        }
    }
}

/// Free staging buffers that are kept at most.
const MOST_FREE: Memory = Memory { buffers: 8, bytes: 16 << 20 };

/// A buffer that is read into; destroyed with its last user, dropped in the middle of a read or not.
pub(crate) struct Staging {
    gpu: Weak<Inner>,
    buffer: wgpu::Buffer,
}

impl Staging {
    fn new(gpu: &Gpu, size: u64) -> Staging {
        gpu.count(|s| s.buffers_created += 1);
        let buffer = gpu.device().create_buffer(&wgpu::BufferDescriptor {
            label: Some("staging"),
            size: size.next_multiple_of(4096).min(gpu.limits().max_buffer_size),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let memory = gpu.memory();
        gpu.0.memory.set(Memory { buffers: memory.buffers + 1, bytes: memory.bytes + buffer.size() });
        Staging { gpu: Rc::downgrade(&gpu.0), buffer }
    }

    /// Unmaps it for another read; of the free ones the newest few are kept, for a pool of other sizes would only grow.
    fn give_back(self, gpu: &Gpu) {
        self.buffer.unmap();
        let mut pool = gpu.0.staging.borrow_mut();
        pool.push(self);
        while kept(&pool).buffers > MOST_FREE.buffers || kept(&pool).bytes > MOST_FREE.bytes {
            pool.remove(0);
        }
    }
}

pub(crate) fn kept(pool: &[Staging]) -> Memory {
    Memory { buffers: pool.len() as _, bytes: pool.iter().map(|free| free.buffer.size()).sum() }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.buffer.destroy();
        if let Some(gpu) = self.gpu.upgrade() {
            let memory = gpu.memory.get();
            gpu.memory.set(Memory { buffers: memory.buffers - 1, bytes: memory.bytes - self.buffer.size() });
        }
    }
}

/// Round trips to the GPU process while a read waits: some 10 ms of them.
#[cfg(target_arch = "wasm32")]
const ROUND_TRIPS: u32 = 100;

/// Keeps the GPU process awake while reads wait. Chromium's looks for work that is done when a message comes, and else every
/// 2 ms, which is longer than a small step takes; an empty error scope is the smallest message that is answered. On a software
/// adapter the messages would take time from the cores that compute.
#[cfg(target_arch = "wasm32")]
fn hasten(gpu: &Gpu) -> Waiting {
    let reads = &gpu.0.reads;
    reads.set(Reads { waiting: reads.get().waiting + 1, round_trips: ROUND_TRIPS, ..reads.get() });
    if !reads.get().hastened {
        reads.set(Reads { hastened: true, ..reads.get() });
        let gpu = gpu.clone();
        super::tensor::detach(async move {
            let reads = &gpu.0.reads;
            while reads.get().waiting > 0 && reads.get().round_trips > 0 && gpu.check_alive().is_ok() {
                reads.set(Reads { round_trips: reads.get().round_trips - 1, ..reads.get() });
                gpu.device().push_error_scope(wgpu::ErrorFilter::Validation).pop().await;
            }
            reads.set(Reads { hastened: false, ..reads.get() });
        });
    }
    Waiting(gpu.clone())
}

/// One read, until it is dropped.
#[cfg(target_arch = "wasm32")]
struct Waiting(Gpu);

#[cfg(target_arch = "wasm32")]
impl Drop for Waiting {
    fn drop(&mut self) {
        let reads = &self.0.0.reads;
        reads.set(Reads { waiting: reads.get().waiting - 1, ..reads.get() });
    }
}

type Mapped = futures_channel::oneshot::Receiver<std::result::Result<(), wgpu::BufferAsyncError>>;
type Failure = std::rc::Rc<std::cell::RefCell<Option<Error>>>;

fn start(tensor: &Tensor) -> Result<(Staging, impl Future<Output = Result<()>> + use<>, Mapped, Failure)> {
    let gpu = tensor.gpu();
    let place = tensor.place()?;
    expect_usage(&place.storage.buffer, tensor.label(), "to be read", wgpu::BufferUsages::COPY_SRC)?;
    let size = tensor.bytes();
    let (sender, mapped) = futures_channel::oneshot::channel();
    let scope = gpu.scope();
    let staging = take_staging(gpu, size);
    let mut encoder = gpu.device().create_command_encoder(&Default::default());
    encoder.copy_buffer_to_buffer(&place.storage.buffer, place.offset, &staging.buffer, 0, size);
    gpu.queue().submit([encoder.finish()]);
    staging.buffer.slice(..size).map_async(wgpu::MapMode::Read, move |result| {
        let _ = sender.send(result);
    });
    let copied = scope.close(tensor.label());
    gpu.count(|s| s.submits += 1);
    Ok((staging, copied, mapped, place.storage.failure.clone()))
}

/// The smallest free staging buffer that holds `size` bytes but is not wasteful, or a new one.
fn take_staging(gpu: &Gpu, size: u64) -> Staging {
    let mut pool = gpu.0.staging.borrow_mut();
    let fits = |free: &Staging| free.buffer.size() >= size && free.buffer.size() <= 2 * size.max(4096);
    match (0..pool.len()).filter(|&i| fits(&pool[i])).min_by_key(|&i| pool[i].buffer.size()) {
        Some(i) => pool.remove(i),
        None => Staging::new(gpu, size),
    }
}
