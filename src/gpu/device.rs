//! A device and what belongs to it: caches, counters, the staging pool.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use super::pipeline::{Params, Pipelines};
use super::tensor::{Storage, Tensor};
use crate::error::{Error, Result};

/// What [`Gpu::request`] asks for.
#[derive(Debug, Clone, Copy, Default)]
pub struct GpuRequest {
    /// Take a software adapter even where there is hardware.
    pub force_fallback_adapter: bool,
    /// Prefer the discrete adapter of a machine with several.
    pub high_performance: bool,
    /// Ask for timestamp queries where the adapter has them (benchmarks).
    pub timestamps: bool,
    /// Choose kernels for this kind of device instead of what the adapter says it is.
    pub profile: Option<Profile>,
    /// Do without the adapter's features by which kernels are chosen, too (tests).
    pub plain: bool,
}

/// What kernels may use beyond what every WebGPU device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionalFeatures {
    /// Subgroups, the quads of which have four invocations.
    pub subgroups: bool,
    /// Besides, which of its workgroup a subgroup is: WGSL's `subgroup_id`.
    pub subgroup_ids: bool,
    /// Numbers in f16.
    pub f16: bool,
}

/// What kernels are chosen for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// A GPU: tiles in workgroup memory, large workgroups.
    Hardware,
    /// A CPU that emulates one: few barriers, small workgroups, work in registers.
    Software,
}

/// Live GPU memory of one [`Gpu`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Live buffers.
    pub buffers: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What one [`Gpu`] has done since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Command buffers submitted, read-backs included.
    pub submits: u64,
    /// Compute dispatches.
    pub dispatches: u64,
    /// Bytes written from the CPU into GPU buffers: data and kernel parameters.
    pub uploaded_bytes: u64,
    /// Pipelines compiled.
    pub pipelines: u64,
    /// Bind groups made.
    pub bind_groups: u64,
    /// Buffers made.
    pub buffers_created: u64,
}

/// A WebGPU device with its queue and caches. Clones share it; tensors keep it alive.
#[derive(Clone)]
pub struct Gpu(pub(crate) Rc<Inner>);

/// Reads under way in a browser, and what is done to have them answered soon.
#[cfg(target_arch = "wasm32")]
#[derive(Clone, Copy, Default)]
pub(crate) struct Reads {
    pub waiting: u32,
    /// Whether messages are being sent meanwhile, and how many more.
    pub hastened: bool,
    pub round_trips: u32,
}

pub(crate) struct Inner {
    pub id: u32,
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub limits: wgpu::Limits,
    /// The reason, once the device is lost.
    pub lost: Arc<OnceLock<String>>,
    pub pipelines: RefCell<Pipelines>,
    pub params: RefCell<Params>,
    /// Free read-back buffers, any size.
    pub staging: RefCell<Vec<super::read::Staging>>,
    /// Reads under way.
    #[cfg(target_arch = "wasm32")]
    pub reads: Cell<Reads>,
    /// Counts whatever makes looked-up buffers, bind groups or offsets stale.
    pub generation: Cell<u64>,
    /// Partial sums of reductions, one pair of totals and sums over parts of the tokens, shared by all recordings: the GPU
    /// runs them in order.
    pub scratch: RefCell<[Option<Rc<Storage>>; 3]>,
    /// What has been allocated, to be freed with the `Gpu` where the device outlives it; the dead are swept as it grows.
    pub allocated: RefCell<Vec<Weak<Storage>>>,
    pub memory: Cell<Memory>,
    /// Where tensors are made at the moment, if not in buffers of their own.
    pub room: RefCell<Option<Rc<super::tensor::Room>>>,
    pub stats: Cell<Stats>,
    /// While dispatches are timed.
    #[cfg(not(target_arch = "wasm32"))]
    pub profiler: RefCell<Option<super::profile::Profiler>>,
    /// What replaced shaders of tests count in, bound behind the parameters of every kernel.
    #[cfg(not(target_arch = "wasm32"))]
    pub counts: RefCell<Option<wgpu::Buffer>>,
    profile: Profile,
    optional: OptionalFeatures,
    /// False when the device is the page's own, which we must not destroy.
    owned: bool,
    disposed: Cell<bool>,
    /// Calls that still wait for the GPU; the device is destroyed after the last of them.
    pending: Cell<u32>,
}

/// One call that waits for the GPU.
pub(crate) struct Pending(Gpu);

impl Drop for Pending {
    fn drop(&mut self) {
        let inner = &self.0.0;
        inner.pending.set(inner.pending.get() - 1);
        self.0.destroy_when_idle();
    }
}

/// Fails unless the limits are those that every WebGPU device but one of the compatibility mode has; `tests/contract.rs`
/// holds the kernels to them.
fn check_limits(limits: &wgpu::Limits) -> Result<()> {
    let needs = [
        ("maxBindGroups", 1, limits.max_bind_groups),
        ("maxDynamicUniformBuffersPerPipelineLayout", 1, limits.max_dynamic_uniform_buffers_per_pipeline_layout),
        ("maxStorageBuffersPerShaderStage", 8, limits.max_storage_buffers_per_shader_stage),
        ("maxComputeWorkgroupStorageSize", 16_384, limits.max_compute_workgroup_storage_size),
        ("maxComputeInvocationsPerWorkgroup", 256, limits.max_compute_invocations_per_workgroup),
        ("maxComputeWorkgroupSizeX", 256, limits.max_compute_workgroup_size_x),
        ("maxComputeWorkgroupSizeY", 256, limits.max_compute_workgroup_size_y),
        ("maxComputeWorkgroupsPerDimension", 65_535, limits.max_compute_workgroups_per_dimension),
    ];
    match needs.into_iter().find(|(_, needed, limit)| limit < needed) {
        None => Ok(()),
        Some((which, needed, limit)) => Err(Error::limit("device", needed.into(), limit.into(), which)),
    }
}

/// What the device has of it: in a browser by its own word, since wgpu knows of no subgroups there.
#[cfg(target_arch = "wasm32")]
fn optional(device: &wgpu::Device) -> OptionalFeatures {
    use wasm_bindgen::{JsCast, JsValue};
    let get = |object: &JsValue, name: &str| js_sys::Reflect::get(object, &name.into()).unwrap_or_default();
    let has = |name| device.as_webgpu().is_some_and(|device| device.features().has(name));
    let webgpu = get(&get(&js_sys::global(), "navigator"), "gpu");
    let language = get(&webgpu, "wgslLanguageFeatures");
    let says = |name: &str| !language.is_undefined() && language.unchecked_ref::<js_sys::Set>().has(&name.into());
    let subgroups = has("subgroups");
    OptionalFeatures { subgroups, subgroup_ids: subgroups && says("subgroup_id"), f16: has("shader-f16") }
}

#[cfg(not(target_arch = "wasm32"))]
fn optional(device: &wgpu::Device) -> OptionalFeatures {
    let subgroups = device.features().contains(wgpu::Features::SUBGROUP);
    OptionalFeatures { subgroups, subgroup_ids: subgroups, f16: device.features().contains(wgpu::Features::SHADER_F16) }
}

/// Elements of the shared scratch tensor: no reduction leaves more partial sums.
pub(crate) const SCRATCH_LEN: usize = 1024;

impl Gpu {
    /// Requests a device with the adapter's own limits.
    ///
    /// # Errors
    /// [`NoAdapter`](crate::error::ErrorKind::NoAdapter) when there is no adapter or it refuses a device.
    pub async fn request(request: GpuRequest) -> Result<Gpu> {
        Gpu::open(request, true).await
    }

    /// As [`Gpu::request`]; a device that is not `owned` is never destroyed.
    pub(crate) async fn open(request: GpuRequest, owned: bool) -> Result<Gpu> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::PRIMARY;
        let instance = wgpu::Instance::new(descriptor);
        let adapter = instance
            .request_adapter(&wgpu::RequestAdapterOptions {
                power_preference: if request.high_performance {
                    wgpu::PowerPreference::HighPerformance
                } else {
                    wgpu::PowerPreference::None
                },
                force_fallback_adapter: request.force_fallback_adapter,
                ..Default::default()
            })
            .await
            .map_err(|e| Error::no_adapter(e.to_string()))?;
        let timestamps = if request.timestamps { wgpu::Features::TIMESTAMP_QUERY } else { wgpu::Features::empty() };
        let optional = wgpu::Features::SUBGROUP | wgpu::Features::SHADER_F16;
        let wanted = timestamps | if request.plain { wgpu::Features::empty() } else { optional };
        let (device, queue) = adapter
            .request_device(&wgpu::DeviceDescriptor {
                label: Some("lora-webgpu"),
                required_features: adapter.features() & wanted,
                required_limits: adapter.limits(),
                ..Default::default()
            })
            .await
            .map_err(|e| Error::no_adapter(e.to_string()))?;
        let by_type = match adapter.get_info().device_type {
            wgpu::DeviceType::Cpu => Profile::Software,
            _ => Profile::Hardware,
        };
        Gpu::new(device, queue, request.profile.unwrap_or(by_type), owned)
    }

    /// Adopts a device that others use too. It is never destroyed here, and its owner's error handlers stay: natively
    /// also the only callback that wgpu has for a lost device, so that such a loss is the owner's to tell.
    ///
    /// # Errors
    /// [`Limit`](crate::error::ErrorKind::Limit) for a device with lower limits than the kernels need.
    pub fn from_device(device: wgpu::Device, queue: wgpu::Queue, profile: Profile) -> Result<Gpu> {
        Gpu::new(device, queue, profile, false)
    }

    fn new(device: wgpu::Device, queue: wgpu::Queue, profile: Profile, owned: bool) -> Result<Gpu> {
        static NEXT_ID: AtomicU32 = AtomicU32::new(1);
        let limits = device.limits();
        check_limits(&limits)?;
        let lost = Arc::new(OnceLock::new());
        if owned || cfg!(target_arch = "wasm32") {
            let slot = lost.clone();
            device.set_device_lost_callback(move |reason, message| {
                let _ = slot.set(if message.is_empty() { format!("{reason:?}") } else { message });
            });
        }
        // Natively wgpu panics on an error that no scope catches; nearly all calls here are scoped; this is for the rest.
        #[cfg(not(target_arch = "wasm32"))]
        if owned {
            device.on_uncaptured_error(Arc::new(|error| eprintln!("lora-webgpu: {error}")));
        }
        let gpu = Gpu(Rc::new(Inner {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            params: RefCell::new(Params::new(&device)),
            optional: optional(&device),
            device,
            queue,
            limits,
            lost,
            pipelines: RefCell::default(),
            staging: RefCell::default(),
            #[cfg(target_arch = "wasm32")]
            reads: Cell::default(),
            generation: Cell::default(),
            scratch: RefCell::default(),
            allocated: RefCell::default(),
            memory: Cell::default(),
            room: RefCell::default(),
            stats: Cell::default(),
            #[cfg(not(target_arch = "wasm32"))]
            profiler: RefCell::default(),
            #[cfg(not(target_arch = "wasm32"))]
            counts: RefCell::default(),
            profile,
            owned,
            disposed: Cell::new(false),
            pending: Cell::new(0),
        }));
        // Made here, so that no later step is the one that makes them.
        gpu.scratch()?;
        gpu.scratch_totals()?;
        Ok(gpu)
    }

    /// The wgpu device.
    pub fn device(&self) -> &wgpu::Device {
        &self.0.device
    }

    /// The wgpu queue.
    pub fn queue(&self) -> &wgpu::Queue {
        &self.0.queue
    }

    /// Limits of the device.
    pub fn limits(&self) -> &wgpu::Limits {
        &self.0.limits
    }

    /// What kernels are chosen for.
    pub fn profile(&self) -> Profile {
        self.0.profile
    }

    /// What kernels may use here beyond what every device has.
    pub fn optional_features(&self) -> OptionalFeatures {
        self.0.optional
    }

    /// Whether kernels whose quads of invocations share what they load are the ones to choose.
    pub(crate) fn has_quads(&self) -> bool {
        self.0.profile == Profile::Software && self.0.optional.subgroups
    }

    /// Whether kernels whose subgroups add up are the ones to choose.
    pub(crate) fn has_subgroups(&self) -> bool {
        self.0.profile == Profile::Hardware && self.0.optional.subgroup_ids
    }

    /// Whether kernels that read f16 as such are the ones to choose.
    pub(crate) fn has_f16(&self) -> bool {
        self.0.profile == Profile::Hardware && self.0.optional.f16
    }

    /// Live buffers and bytes, [`kept_to_read`](Gpu::kept_to_read) among them.
    pub fn memory(&self) -> Memory {
        self.0.memory.get()
    }

    /// Free buffers that are kept to be read into, and their bytes.
    pub fn kept_to_read(&self) -> Memory {
        super::read::kept(&self.0.staging.borrow())
    }

    /// Counters since this `Gpu` was made.
    pub fn stats(&self) -> Stats {
        self.0.stats.get()
    }

    /// Fails when the device is lost or was destroyed.
    pub fn check_alive(&self) -> Result<()> {
        if self.0.disposed.get() {
            return Err(Error::disposed("Gpu".into()));
        }
        self.check_not_lost()
    }

    fn check_not_lost(&self) -> Result<()> {
        match self.0.lost.get() {
            Some(reason) => Err(Error::device_lost(reason.clone())),
            None => Ok(()),
        }
    }

    /// Frees all that was allocated here and destroys the device, after the calls that wait for it; an adopted device
    /// and adopted buffers are left alone. Idempotent.
    pub fn destroy(&self) {
        if !self.0.disposed.replace(true) {
            self.0.scratch.take();
            self.0.pipelines.take();
            self.destroy_when_idle();
        }
    }

    fn destroy_when_idle(&self) {
        if self.0.disposed.get() && self.0.pending.get() == 0 {
            self.0.staging.take();
            self.0.params.borrow().buffer.destroy();
            self.0.allocated.take().iter().filter_map(Weak::upgrade).for_each(|storage| storage.destroy());
            if self.0.owned {
                self.0.device.destroy();
            }
        }
    }

    /// Keeps the device until it is dropped.
    pub(crate) fn pending(&self) -> Pending {
        self.0.pending.set(self.0.pending.get() + 1);
        Pending(self.clone())
    }

    /// Compiles `source` in place of the kernel's own on its first use: for tests that a wrong shader is caught.
    #[doc(hidden)]
    pub fn replace_shader(&self, kernel: &str, source: String) {
        self.0.pipelines.borrow_mut().replaced.push((kernel.into(), source));
    }

    /// Binds `counts`, to be read and written, behind the parameters of all kernels that are compiled from now on: for tests
    /// whose shaders, given by [`Gpu::replace_shader`], count what they do.
    #[cfg(not(target_arch = "wasm32"))]
    #[doc(hidden)]
    pub fn count_in(&self, counts: wgpu::Buffer) {
        *self.0.counts.borrow_mut() = Some(counts);
    }

    /// Resolves when all work submitted so far is done.
    pub fn finished(&self) -> impl Future<Output = Result<()>> + use<> {
        let (sender, receiver) = futures_channel::oneshot::channel();
        self.0.queue.on_submitted_work_done(move || {
            let _ = sender.send(());
        });
        let (gpu, alive, pending) = (self.clone(), self.check_alive(), self.pending());
        async move {
            let _pending = pending;
            alive?;
            gpu.wait();
            let _ = receiver.await;
            gpu.check_not_lost()
        }
    }

    /// Natively nothing happens to callbacks without a poll; in the browser the event loop does it.
    pub(crate) fn wait(&self) {
        #[cfg(not(target_arch = "wasm32"))]
        let _ = self.0.device.poll(wgpu::PollType::wait_indefinitely());
    }

    /// Opens error scopes. Close them in the same turn: a page may share the device and its one stack of scopes.
    pub(crate) fn scope(&self) -> Scope {
        let device = &self.0.device;
        let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
        let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
        Scope { gpu: self.clone(), validation, memory, internal }
    }

    /// Whatever was looked up before is to be looked up again.
    pub(crate) fn moved(&self) {
        self.0.generation.set(self.0.generation.get() + 1);
    }

    pub(crate) fn generation(&self) -> u64 {
        self.0.generation.get()
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Stats)) {
        let mut stats = self.0.stats.get();
        change(&mut stats);
        self.0.stats.set(stats);
    }

    /// The shared partial sums `[SCRATCH_LEN]`.
    pub(crate) fn scratch(&self) -> Result<Tensor> {
        self.shared(0, "partial sums", &[SCRATCH_LEN])
    }

    /// The shared `totals [2]`.
    pub(crate) fn scratch_totals(&self) -> Result<Tensor> {
        self.shared(1, "totals", &[2])
    }

    /// Shared sums over parts of the tokens, in a buffer that grows.
    pub(crate) fn scratch_sums(&self, shape: [usize; 2]) -> Result<Tensor> {
        self.shared(2, "sums of parts", &shape)
    }

    fn shared(&self, index: usize, label: &str, shape: &[usize]) -> Result<Tensor> {
        let bytes = 4 * shape.iter().product::<usize>() as u64;
        let mut slots = self.0.scratch.borrow_mut();
        let storage = match &slots[index] {
            Some(storage) if storage.buffer.size() >= bytes => storage.clone(),
            _ => Storage::new(self, label, bytes)?,
        };
        slots[index] = Some(storage.clone());
        Ok(Tensor::view(self, label, shape, &storage, 0))
    }
}

/// Open error scopes; the fields close in this order.
pub(crate) struct Scope {
    gpu: Gpu,
    validation: wgpu::ErrorScopeGuard,
    memory: wgpu::ErrorScopeGuard,
    internal: wgpu::ErrorScopeGuard,
}

impl Scope {
    /// Closes the scopes now; the future resolves to the first error that the GPU process found in them.
    pub fn close(self, what: &str) -> impl Future<Output = Result<()>> + use<> {
        let Scope { gpu, validation, memory, internal } = self;
        let (validation, memory, internal) = (validation.pop(), memory.pop(), internal.pop());
        let (what, pending) = (what.to_string(), gpu.pending());
        async move {
            let _pending = pending;
            let errors = [memory.await, validation.await, internal.await];
            gpu.check_not_lost()?;
            match errors.into_iter().flatten().next() {
                None => Ok(()),
                Some(wgpu::Error::OutOfMemory { .. }) => Err(Error::out_of_memory(what)),
                Some(wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. }) => {
                    Err(Error::validation(format!("{what}: {description}")))
                }
            }
        }
    }
}
