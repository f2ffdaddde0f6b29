//! Kernels, their compiled pipelines, bind groups and parameters, each made once.

use super::device::{Gpu, Profile};
use super::tensor::{ALIGN, Place};

/// How a kernel uses a storage buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// `var<storage, read>` of floats
    Read,
    /// `var<storage, read>` of `i32`
    ReadInt,
    /// `var<storage, read>` of `u32` or `f16`: packed weights
    ReadWords,
    /// `var<storage, read_write>` of floats
    Write,
    /// `var<storage, read_write>` of `i32`
    WriteInt,
    /// `var<storage, read_write>` of `u32`
    WriteWords,
}

impl Access {
    /// Whether the kernel writes.
    pub fn is_write(self) -> bool {
        matches!(self, Access::Write | Access::WriteInt | Access::WriteWords)
    }
}

/// One WGSL compute shader: storage buffers at bindings `0..n`, its `Params` uniform at binding `n`, entry point `main`.
#[derive(Debug)]
pub struct Kernel {
    /// `group/name`, as its file under `shaders/`.
    pub name: &'static str,
    /// The WGSL text, in pieces that follow one another: its own file, where other kernels share a part of it after theirs.
    pub source: &'static [&'static str],
    /// Name and access of each storage buffer, in binding order.
    pub buffers: &'static [(&'static str, Access)],
    /// Pipeline-overridable constants, workgroup sizes and tiles: name, value on hardware, value on a software adapter,
    /// where compiling costs about 0.4 ms for each word of workgroup memory: the zeros in it are unrolled.
    pub constants: &'static [(&'static str, u32, u32)],
    /// Size of the `Params` struct in bytes.
    pub params_size: usize,
}

impl Kernel {
    /// The whole WGSL text.
    pub fn text(&self) -> String {
        self.source.concat()
    }

    /// The value of an overridable constant on this device.
    pub(crate) fn constant(&self, gpu: &Gpu, name: &str) -> usize {
        let found = self.constants.iter().find(|c| c.0 == name);
        debug_assert!(found.is_some(), "{} has no constant {name}", self.name);
        found.map_or(1, |&(_, hardware, software)| match gpu.profile() {
            Profile::Hardware => hardware as usize,
            Profile::Software => software as usize,
        })
    }
}

/// What a kernel became on this device.
pub(crate) struct Pipeline {
    layout: wgpu::BindGroupLayout,
    pub pipeline: wgpu::ComputePipeline,
    /// By the ranges that they bind, in order: where one is added seldom, a search costs less than hashing, also of the wasm.
    bind_groups: Vec<(Vec<Range>, wgpu::BindGroup)>,
}

type Range = (u64, u64, u64); // storage id, offset, size

/// Compiled pipelines by kernel: a hundred at most.
#[derive(Default)]
pub(crate) struct Pipelines {
    compiled: Vec<(&'static Kernel, Pipeline)>,
    /// Other sources to compile, by kernel name: how the tests prove that they catch a wrong shader.
    pub replaced: Vec<(String, String)>,
}

impl Pipelines {
    /// The kernel's pipeline, compiled on first use.
    pub fn compile(&mut self, gpu: &Gpu, kernel: &'static Kernel) -> &mut Pipeline {
        let known = self.place(kernel).unwrap_or_else(|| {
            gpu.count(|s| s.pipelines += 1);
            self.compiled.push((kernel, self.make(gpu, kernel)));
            self.compiled.len() - 1
        });
        &mut self.compiled[known].1
    }

    fn place(&self, kernel: &Kernel) -> Option<usize> {
        self.compiled.iter().position(|(known, _)| std::ptr::eq(*known, kernel))
    }

    fn make(&self, gpu: &Gpu, kernel: &'static Kernel) -> Pipeline {
        let replaced = self.replaced.iter().rev().find(|(name, _)| name == kernel.name);
        compile(gpu, kernel, replaced.map(|(_, text)| text.clone()))
    }

    /// Those of `kernels` that are not compiled, each once.
    pub fn missing(&self, kernels: impl Iterator<Item = &'static Kernel>) -> Vec<&'static Kernel> {
        let mut missing: Vec<&Kernel> = Vec::new();
        for kernel in kernels {
            if self.place(kernel).is_none() && !missing.iter().any(|&known| std::ptr::eq(known, kernel)) {
                missing.push(kernel);
            }
        }
        missing
    }

    /// Compiles what of `kernels` is not yet, and keeps it or, with the browser asked for pipelines ahead of their use, drops it
    /// again: then the page's own call has what the browser made of it. Returns how many there were.
    pub fn compile_missing(&mut self, gpu: &Gpu, kernels: impl Iterator<Item = &'static Kernel>, keep: bool) -> usize {
        let missing = self.missing(kernels);
        for kernel in &missing {
            if keep {
                self.compile(gpu, kernel);
            } else {
                self.make(gpu, kernel);
            }
        }
        missing.len()
    }

    /// The bind group of a compiled kernel over these ranges, each of `size` bytes.
    pub fn bind_group(
        &mut self,
        gpu: &Gpu,
        kernel: &'static Kernel,
        ranges: &[(Place, u64)],
        params: &wgpu::Buffer,
    ) -> wgpu::BindGroup {
        let key: Vec<Range> = ranges.iter().map(|(p, size)| (p.storage.id, p.offset, *size)).collect();
        let Pipeline { layout, bind_groups, .. } = self.compile(gpu, kernel);
        let place = match bind_groups.binary_search_by(|(known, _)| known.cmp(&key)) {
            Ok(place) => return bind_groups[place].1.clone(),
            Err(place) => place,
        };
        gpu.count(|s| s.bind_groups += 1);
        let bind = |buffer, offset, size| {
            wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size: wgpu::BufferSize::new(size) })
        };
        let mut resources: Vec<_> = ranges.iter().map(|(p, size)| bind(&p.storage.buffer, p.offset, *size)).collect();
        resources.push(bind(params, 0, ALIGN));
        #[cfg(not(target_arch = "wasm32"))]
        let counts = gpu.0.counts.borrow();
        #[cfg(not(target_arch = "wasm32"))]
        resources.extend(counts.as_ref().map(wgpu::Buffer::as_entire_binding));
        let entries: Vec<_> =
            (0..).zip(resources).map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource }).collect();
        let descriptor = wgpu::BindGroupDescriptor { label: Some(kernel.name), layout, entries: &entries };
        let bind_group = gpu.device().create_bind_group(&descriptor);
        bind_groups.insert(place, (key, bind_group.clone()));
        bind_group
    }

    /// Drops the bind groups of a destroyed buffer.
    pub fn forget(&mut self, storage_id: u64) {
        for (_, pipeline) in &mut self.compiled {
            pipeline.bind_groups.retain(|(ranges, _)| ranges.iter().all(|r| r.0 != storage_id));
        }
    }

    fn forget_all_bind_groups(&mut self) {
        self.compiled.iter_mut().for_each(|(_, pipeline)| pipeline.bind_groups.clear());
    }
}

/// Of the kernel's own text or, in tests, of another.
fn compile(gpu: &Gpu, kernel: &'static Kernel, replaced: Option<String>) -> Pipeline {
    let own = replaced.is_none();
    let source = replaced.unwrap_or_else(|| kernel.text());
    let storage = |access: Access| wgpu::BindingType::Buffer {
        ty: wgpu::BufferBindingType::Storage { read_only: !access.is_write() },
        has_dynamic_offset: false,
        min_binding_size: None,
    };
    let uniform = wgpu::BindingType::Buffer {
        ty: wgpu::BufferBindingType::Uniform,
        has_dynamic_offset: true,
        min_binding_size: wgpu::BufferSize::new(kernel.params_size as u64),
    };
    let types = kernel.buffers.iter().map(|(_, access)| storage(*access)).chain([uniform]);
    #[cfg(not(target_arch = "wasm32"))]
    let types = types.chain(gpu.0.counts.borrow().is_some().then(|| storage(Access::Write)));
    let entries: Vec<_> = (0..)
        .zip(types)
        .map(|(binding, ty)| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty,
            count: None,
        })
        .collect();
    // Browsers want to be told of the extension; naga does not know the word.
    let source = match cfg!(target_arch = "wasm32") && source.as_bytes().windows(9).any(|word| word == b"subgroup_") {
        true => format!("enable subgroups;\n{source}"),
        false => source,
    };
    let label = Some(kernel.name);
    let device = gpu.device();
    let constants: Vec<_> = kernel.constants.iter().map(|c| (c.0, kernel.constant(gpu, c.0) as f64)).collect();
    let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries: &entries });
    let descriptor = wgpu::ShaderModuleDescriptor { label, source: wgpu::ShaderSource::Wgsl(source.into()) };
    let software = device.adapter_info().device_type == wgpu::DeviceType::Cpu; // whose compilers unroll for minutes
    let checks =
        wgpu::ShaderRuntimeChecks { force_loop_bounding: software || !own, ..wgpu::ShaderRuntimeChecks::checked() };
    // SAFETY: our own kernels' loops end, as their counters go up by constants, or by how many share the work, to sizes that
    // `record` checked. Counting them natively, as naga would, keeps GPUs' drivers from unrolling: an eighth of the speed of the
    // tiled products.
    let module = unsafe { device.create_shader_module_trusted(descriptor, checks) };
    let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label,
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label,
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions { constants: &constants, ..Default::default() },
        cache: None,
    });
    Pipeline { layout, pipeline, bind_groups: Vec::new() }
}

/// The uniform arena: one slot of 256 bytes for each distinct `Params` value, so that a steady step uploads none.
pub(crate) struct Params {
    pub buffer: wgpu::Buffer,
    /// By their bytes, in order.
    slots: Vec<(Box<[u8]>, u32)>,
}

/// 2 MiB from the first on, for to grow is to make all bind groups anew: a language model's batches of sixteen shapes need some
/// thousand.
const SLOTS: u64 = 8192;

impl Params {
    pub fn new(device: &wgpu::Device) -> Params {
        Params { buffer: Params::allocate(device, SLOTS), slots: Vec::new() }
    }

    fn allocate(device: &wgpu::Device, slots: u64) -> wgpu::Buffer {
        device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("params"),
            size: slots * ALIGN,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        })
    }

    /// Makes room for `dispatches` values that none of one submit's dispatches will lose.
    pub fn reserve(&mut self, gpu: &Gpu, pipelines: &mut Pipelines, dispatches: usize) {
        let capacity = self.buffer.size() / ALIGN;
        if (self.slots.len() + dispatches) as u64 <= capacity {
            return;
        }
        // Submits already made keep their values: writes are ordered after them.
        self.slots.clear();
        gpu.moved();
        if dispatches as u64 > capacity {
            self.buffer.destroy();
            self.buffer = Params::allocate(gpu.device(), (dispatches as u64).next_power_of_two());
            pipelines.forget_all_bind_groups();
        }
    }

    /// The dynamic offset of `value`, uploaded unless it is there already.
    pub fn offset(&mut self, gpu: &Gpu, value: &[u8]) -> u32 {
        let place = match self.slots.binary_search_by(|(known, _)| (**known).cmp(value)) {
            Ok(place) => return self.slots[place].1 * ALIGN as u32,
            Err(place) => place,
        };
        let slot = self.slots.len() as u32;
        gpu.queue().write_buffer(&self.buffer, u64::from(slot) * ALIGN, value);
        gpu.count(|s| s.uploaded_bytes += value.len() as u64);
        self.slots.insert(place, (value.into(), slot));
        slot * ALIGN as u32
    }
}
