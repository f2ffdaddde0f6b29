//! Devices and buffers that others own: used in place, refused by name where they do not fit, and left alive.

mod common;
mod reference;

use common::{Rng, fresh_gpu, refused};
use lora_webgpu::{DType, FrozenLinear, Gpu, LoraConfig, LoraLinear, Memory, Profile, Recording, Result, Tensor};
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};
use wgpu::BufferUsages as Usage;

wasm_bindgen_test_configure!(run_in_browser);

const ALL: Usage = Usage::STORAGE.union(Usage::COPY_SRC).union(Usage::COPY_DST);

/// What the application has before it knows of this package.
struct Owner {
    device: wgpu::Device,
    queue: wgpu::Queue,
}

impl Owner {
    async fn new(change: impl FnOnce(&mut wgpu::Limits)) -> Owner {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        Owner::of(&instance, change).await
    }

    /// Two devices that wgpu can tell apart: its own ids of different instances natively are not.
    async fn pair() -> [Owner; 2] {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        [Owner::of(&instance, |_| {}).await, Owner::of(&instance, |_| {}).await]
    }

    async fn of(instance: &wgpu::Instance, change: impl FnOnce(&mut wgpu::Limits)) -> Owner {
        let adapter = instance.request_adapter(&Default::default()).await.expect("the tests need a GPU adapter");
        let mut required_limits = adapter.limits();
        change(&mut required_limits);
        let descriptor = wgpu::DeviceDescriptor { required_limits, ..Default::default() };
        let (device, queue) = adapter.request_device(&descriptor).await.unwrap();
        Owner { device, queue }
    }

    fn lend(&self) -> Result<Gpu> {
        Gpu::from_device(self.device.clone(), self.queue.clone(), Profile::Software)
    }

    fn buffer(&self, elements: u64, usage: Usage) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("the owner's"),
            size: 4 * elements,
            usage,
            mapped_at_creation: false,
        })
    }
}

fn tensor(gpu: &Gpu, shape: &[usize], buffer: &wgpu::Buffer, byte_offset: u64) -> Result<Tensor> {
    Tensor::from_buffer(gpu, "lent", DType::F32, shape, buffer.clone(), byte_offset)
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_lent_buffer_is_read_and_written_in_place() {
    let owner = Owner::new(|_| {}).await;
    let gpu = owner.lend().unwrap();
    let buffer = owner.buffer(128, ALL);
    let (first, second) = (tensor(&gpu, &[2, 3], &buffer, 0).unwrap(), tensor(&gpu, &[64], &buffer, 256).unwrap());
    let (a, b) = (Rng(1).numbers(6), Rng(2).numbers(64));
    first.write(&a).unwrap();
    owner.queue.write_buffer(&buffer, 256, bytemuck::cast_slice(&b)); // the owner's own write
    assert_eq!(first.read().await.unwrap(), a);
    assert_eq!(second.read().await.unwrap(), b);
    let (theirs, offset) = second.buffer().unwrap();
    assert_eq!(offset, 256);
    let labels = Tensor::from_buffer(&gpu, "labels", DType::I32, &[6], theirs, 0).unwrap();
    assert_eq!(labels.read().await.unwrap(), a, "integers are read by their bits");
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_layer_over_lent_weights_and_inputs_is_the_layer_over_its_own() {
    let owner = Owner::new(|_| {}).await;
    let gpu = owner.lend().unwrap();
    let (x, weight) = (Rng(1).numbers(3 * 4), Rng(2).numbers(5 * 4));
    let lent = |shape: &[usize], data: &[f32]| {
        let buffer = owner.buffer(data.len() as u64, ALL);
        owner.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(data));
        tensor(&gpu, shape, &buffer, 0).unwrap()
    };
    let run = async |x: Tensor, weight: Tensor| {
        let base = FrozenLinear::from_tensors(weight, None).unwrap();
        let layer = LoraLinear::new(&gpu, None, base, &LoraConfig::new(2, 4.0)).unwrap();
        layer.weight().b.write(&Rng(3).numbers(10)).unwrap();
        let rec = Recording::new(&gpu);
        let output = layer.forward(&rec, &x).unwrap();
        rec.submit().await.unwrap();
        output.read().await.unwrap()
    };
    let own = run(
        Tensor::from_slice(&gpu, "x", &[3, 4], &x).unwrap(),
        Tensor::from_slice(&gpu, "weight", &[5, 4], &weight).unwrap(),
    )
    .await;
    assert!(own.iter().all(|value| *value != 0.0));
    assert_eq!(run(lent(&[3, 4], &x), lent(&[5, 4], &weight)).await, own);
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn destroy_frees_what_is_ours_and_leaves_what_is_lent() {
    let owner = Owner::new(|_| {}).await;
    let gpu = owner.lend().unwrap();
    let buffer = owner.buffer(4, ALL);
    let before = gpu.memory();
    let lent = tensor(&gpu, &[4], &buffer, 0).unwrap();
    assert_eq!(gpu.memory(), before, "what is lent is not counted");
    lent.write(&[1.0, 2.0, 3.0, 4.0]).unwrap();
    gpu.finished().await.unwrap();
    let again = tensor(&gpu, &[4], &buffer, 0).unwrap();
    lent.destroy();
    refused("after destroy", lent.write(&[0.0; 4]), "disposed", &["lent"]);
    assert_eq!(again.read().await.unwrap(), [1.0, 2.0, 3.0, 4.0], "another tensor in the same buffer lives on");

    let ours = Tensor::from_slice(&gpu, "ours", &[4], &[5.0; 4]).unwrap();
    let (ours_buffer, _) = ours.buffer().unwrap();
    gpu.destroy();
    gpu.destroy();
    refused("a tensor after the Gpu's destroy()", ours.write(&[0.0; 4]), "disposed", &["Gpu"]);
    refused("a buffer after it", tensor(&gpu, &[4], &buffer, 0), "disposed", &["Gpu"]);

    // The owner goes on: its buffer is there with its values, ours is not.
    let next = owner.lend().unwrap();
    assert_eq!(tensor(&next, &[4], &buffer, 0).unwrap().read().await.unwrap(), [1.0, 2.0, 3.0, 4.0]);
    let gone = tensor(&next, &[4], &ours_buffer, 0).unwrap();
    let code = if cfg!(target_arch = "wasm32") { "validation" } else { "foreign-buffer" }; // known at the submit, or at once
    refused("a buffer that died with its Gpu", gone.read().await, code, &["lent"]);
    assert_eq!(gpu.memory(), Memory::default(), "freed once the last call that waited has gone");
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_buffer_that_does_not_fit_is_refused_by_name() {
    let owner = Owner::new(|_| {}).await;
    let gpu = owner.lend().unwrap();
    let buffer = owner.buffer(128, ALL);
    for offset in [4, 255] {
        refused(
            "an offset",
            tensor(&gpu, &[1], &buffer, offset),
            "invalid-argument",
            &["byte_offset", "Alignment", &offset.to_string()],
        );
    }
    let small = ["buffer", "lent", "512 bytes"];
    refused("too small", tensor(&gpu, &[129], &buffer, 0), "invalid-argument", &small);
    refused("too small from there on", tensor(&gpu, &[65], &buffer, 256), "invalid-argument", &small);
    refused("beyond", tensor(&gpu, &[1], &buffer, 1 << 40), "invalid-argument", &small);
    refused("overflow", tensor(&gpu, &[1], &buffer, u64::MAX - 255), "invalid-argument", &small);
    refused("an empty shape", tensor(&gpu, &[0], &buffer, 0), "shape", &["lent"]);

    let readable = owner.buffer(4, Usage::COPY_SRC | Usage::COPY_DST);
    refused(
        "no STORAGE",
        tensor(&gpu, &[4], &readable, 0),
        "invalid-argument",
        &["STORAGE", "lent", "COPY_SRC | COPY_DST"],
    );
    let bare = tensor(&gpu, &[4], &owner.buffer(4, Usage::STORAGE), 0).unwrap();
    refused("no COPY_SRC", bare.read().await, "invalid-argument", &["lent", "COPY_SRC", "read"]);
    refused("no COPY_DST", bare.write(&[0.0; 4]), "invalid-argument", &["lent", "COPY_DST", "written"]);
    let rec = Recording::new(&gpu);
    refused("no COPY_DST to zero", rec.zero(&bare), "invalid-argument", &["lent", "COPY_DST", "zeroed"]);
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn two_tensors_in_one_lent_buffer_are_not_read_and_written_at_once() {
    let owner = Owner::new(|_| {}).await;
    let gpu = owner.lend().unwrap();
    let buffer = owner.buffer(128, ALL);
    let (y, output) = (tensor(&gpu, &[4], &buffer, 0).unwrap(), tensor(&gpu, &[4], &buffer, 256).unwrap());
    let rec = Recording::new(&gpu);
    let record = lora_webgpu::kernels::lora::add_scaled::record;
    refused("one buffer", record(&rec, &y, &output, 1.0), "aliased-buffer", &["output"]);
    let ours = Tensor::zeros(&gpu, "ours", &[4]).unwrap();
    let twin = tensor(&gpu, &[4], &ours.buffer().unwrap().0, 0).unwrap();
    refused("a buffer of ours", record(&rec, &twin, &ours, 1.0), "aliased-buffer", &["output"]);
    assert_eq!(rec.dispatches(), 0);
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_buffer_of_another_device_fails_at_what_is_awaited_next() {
    let [owner, other] = Owner::pair().await;
    let gpu = owner.lend().unwrap();
    let words = ["lent", "device"];
    let foreign = || tensor(&gpu, &[4], &other.buffer(4, ALL), 0).unwrap();
    refused("read", foreign().read().await, "foreign-buffer", &words);
    let rec = Recording::new(&gpu);
    let (y, output) = (foreign(), Tensor::zeros(&gpu, "output", &[4]).unwrap());
    lora_webgpu::kernels::lora::add_scaled::record(&rec, &y, &output, 1.0).unwrap();
    refused("submit", rec.submit().await, "foreign-buffer", &words);
    let target = foreign();
    let _ = target.write(&[1.0; 4]);
    refused("read after a write", target.read().await, "foreign-buffer", &words);
    assert_eq!(output.read().await.unwrap(), [0.0; 4], "the Gpu goes on");
}

/// A web device has the default limits at least; `tests/e2e/device.test.mjs` tries one of the compatibility mode.
#[cfg(not(target_arch = "wasm32"))]
#[pollster::test]
async fn a_device_with_lower_limits_is_refused_by_the_limits_name() {
    type Lower = fn(&mut wgpu::Limits);
    let cases: [(&str, &str, &str, Lower); 3] = [
        ("maxComputeInvocationsPerWorkgroup", "256", "128", |l| l.max_compute_invocations_per_workgroup = 128),
        ("maxStorageBuffersPerShaderStage", "8", "4", |l| l.max_storage_buffers_per_shader_stage = 4),
        ("maxComputeWorkgroupStorageSize", "16384 bytes", "8192", |l| l.max_compute_workgroup_storage_size = 8192),
    ];
    for (name, needed, limit, lower) in cases {
        let owner = Owner::new(lower).await;
        refused(name, owner.lend().map(drop), "limit", &["device", name, needed, limit]);
    }
    let owner = Owner::new(|limits| limits.max_storage_buffer_binding_size = 1 << 20).await;
    let gpu = owner.lend().unwrap();
    let buffer = owner.buffer(1 << 19, ALL);
    let words = ["lent", "maxStorageBufferBindingSize", "1048576"];
    refused("more than a binding", tensor(&gpu, &[1 << 19], &buffer, 0), "limit", &words);
    assert!(tensor(&gpu, &[1 << 18], &buffer, 0).is_ok(), "a part of it");
}

/// What goes wrong in this package's own calls is no news for the owner.
#[cfg(not(target_arch = "wasm32"))]
#[pollster::test]
async fn the_owners_error_handler_stays_and_hears_only_the_owner() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    let [owner, other] = Owner::pair().await;
    let heard = Arc::new(AtomicU32::new(0));
    let count = heard.clone();
    owner.device.on_uncaptured_error(Arc::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    let gpu = owner.lend().unwrap();
    let foreign = tensor(&gpu, &[4], &other.buffer(4, ALL), 0).unwrap();
    assert_eq!(foreign.read().await.unwrap_err().code(), "foreign-buffer");
    assert_eq!(heard.load(Ordering::Relaxed), 0);
    owner.buffer(1, Usage::MAP_READ | Usage::STORAGE | Usage::MAP_WRITE);
    gpu.destroy();
    owner.buffer(1, Usage::MAP_READ | Usage::STORAGE | Usage::MAP_WRITE);
    assert_eq!(heard.load(Ordering::Relaxed), 2, "the owner's own errors, before and after our destroy()");
}

/// Buffers that are read into are counted, kept while they are small, and freed where a read is given up or is large.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn buffers_that_are_read_into_do_not_pile_up() {
    let gpu = fresh_gpu(None).await;
    let (small, large) =
        (Tensor::zeros(&gpu, "small", &[100]).unwrap(), Tensor::zeros(&gpu, "large", &[5 << 20]).unwrap());
    let start = gpu.memory();
    let held = || (gpu.memory().buffers - start.buffers, gpu.memory().bytes - start.bytes);
    let pending = large.read();
    assert_eq!(held(), (1, 20 << 20), "while it is read");
    assert_eq!(pending.await.unwrap().len(), 5 << 20);
    assert_eq!(held(), (0, 0), "too large to keep");
    drop(large.read());
    assert_eq!(held(), (0, 0), "given up");
    small.read().await.unwrap();
    small.read().await.unwrap();
    assert_eq!(held(), (1, 4096), "kept for the next read");
    let kept = gpu.kept_to_read();
    assert_eq!((kept.buffers, kept.bytes), (1, 4096));
}
