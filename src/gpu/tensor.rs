//! A tensor: a shape, a label and a range of a GPU buffer.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};

use super::device::{Gpu, Inner};
use super::read;
use crate::error::{Error, Result};

/// Ranges inside an arena start at multiples of this many bytes (`minStorageBufferOffsetAlignment`'s default).
pub(crate) const ALIGN: u64 = 256;

/// What a tensor's elements are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DType {
    /// 32-bit floats.
    #[default]
    F32,
    /// 32-bit signed integers: class labels, token ids.
    I32,
    /// 32-bit words in which narrower numbers are packed.
    U32,
}

/// A row-major tensor of 32-bit elements in GPU memory. Clones are the same tensor.
#[derive(Clone)]
pub struct Tensor(Rc<TensorInner>);

struct TensorInner {
    gpu: Gpu,
    label: String,
    dtype: DType,
    shape: Box<[usize]>,
    /// None once destroyed.
    place: RefCell<Option<Place>>,
}

/// Where a tensor's data lies.
#[derive(Clone)]
pub(crate) struct Place {
    pub storage: Rc<Storage>,
    /// In bytes, a multiple of [`ALIGN`].
    pub offset: u64,
}

/// One GPU buffer, destroyed with its last user: dropping a web buffer would free nothing.
pub(crate) struct Storage {
    /// The same for the same buffer.
    pub id: u64,
    pub buffer: wgpu::Buffer,
    /// False where the buffer is the page's own, which we must not destroy.
    owned: bool,
    gpu: Weak<Inner>,
    destroyed: Cell<bool>,
    /// Whether the GPU process has said that it could be made.
    confirmed: Rc<Cell<bool>>,
    /// What it said, if that failed.
    pub failure: Rc<RefCell<Option<Error>>>,
}

pub(crate) fn next_id() -> u64 {
    static NEXT_ID: AtomicU64 = AtomicU64::new(1);
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// That a tensor of so many bytes fits into a buffer and a binding of the device.
pub(crate) fn check_size(gpu: &Gpu, label: &str, size: u64) -> Result<()> {
    let limits = gpu.limits();
    for (limit, which) in [
        (limits.max_buffer_size, "maxBufferSize"),
        (limits.max_storage_buffer_binding_size, "maxStorageBufferBindingSize"),
    ] {
        if size > limit {
            return Err(Error::limit(label, size, limit, which));
        }
    }
    Ok(())
}

/// Fails where the buffer was made without a usage that `purpose` needs.
pub(crate) fn expect_usage(buffer: &wgpu::Buffer, label: &str, purpose: &str, usage: wgpu::BufferUsages) -> Result<()> {
    if buffer.usage().contains(usage) {
        return Ok(());
    }
    let expected = format!("a buffer with usage {} {purpose}", show_usage(usage));
    Err(Error::argument(&format!("tensor `{label}`"), &expected, show_usage(buffer.usage())))
}

/// Usages by their WebGPU names.
fn show_usage(usage: wgpu::BufferUsages) -> String {
    const NAMES: &[&str] = &[
        "MAP_READ",
        "MAP_WRITE",
        "COPY_SRC",
        "COPY_DST",
        "INDEX",
        "VERTEX",
        "UNIFORM",
        "STORAGE",
        "INDIRECT",
        "QUERY_RESOLVE",
    ];
    let set: Vec<&str> =
        (0..).zip(NAMES).filter(|(bit, _)| usage.bits() >> bit & 1 == 1).map(|(_, name)| *name).collect();
    set.join(" | ")
}

impl Storage {
    pub fn new(gpu: &Gpu, label: &str, size: u64) -> Result<Rc<Storage>> {
        gpu.check_alive()?;
        let size = size.next_multiple_of(4).max(4);
        check_size(gpu, label, size)?;
        let room = gpu.0.room.borrow().clone();
        if let Some(storage) = room.as_ref().and_then(|room| room.next(size)) {
            return Ok(storage);
        }
        let scope = gpu.scope();
        let buffer = gpu.device().create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let outcome = scope.close(label);
        let mut memory = gpu.memory();
        memory.buffers += 1;
        memory.bytes += size;
        gpu.0.memory.set(memory);
        gpu.count(|s| s.buffers_created += 1);
        let storage = Storage::confirm(gpu, buffer, next_id(), true, outcome);
        let mut allocated = gpu.0.allocated.borrow_mut();
        if allocated.len() == allocated.capacity() {
            allocated.retain(|storage| storage.strong_count() > 0);
        }
        allocated.push(Rc::downgrade(&storage));
        drop(allocated);
        if let Some(room) = room {
            room.put(storage.clone());
        }
        Ok(storage)
    }

    /// A buffer that others made and will destroy. Whether it can be bound on this device is known later, as a failure to
    /// make a buffer is.
    fn adopt(gpu: &Gpu, label: &str, buffer: wgpu::Buffer, id: u64) -> Result<Rc<Storage>> {
        gpu.check_alive()?;
        let device = gpu.device();
        let scope = gpu.scope();
        let entry = wgpu::BindGroupLayoutEntry {
            binding: 0,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only: true },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let descriptor = wgpu::BindGroupLayoutDescriptor { label: Some("adopt"), entries: &[entry] };
        let size = wgpu::BufferSize::new(4); // the buffer may be larger than a binding
        let resource = wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer: &buffer, offset: 0, size });
        let _ = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("adopt"),
            layout: &device.create_bind_group_layout(&descriptor),
            entries: &[wgpu::BindGroupEntry { binding: 0, resource }],
        });
        let (outcome, label) = (scope.close(""), label.to_string());
        let outcome = async move {
            outcome.await.map_err(|error| match error.kind() {
                crate::error::ErrorKind::Validation(_) => {
                    Error::foreign_buffer(format!("tensor `{label}` cannot be bound on this device"))
                }
                _ => error,
            })
        };
        Ok(Storage::confirm(gpu, buffer, id, false, outcome))
    }

    fn confirm(
        gpu: &Gpu,
        buffer: wgpu::Buffer,
        id: u64,
        owned: bool,
        outcome: impl Future<Output = Result<()>> + 'static,
    ) -> Rc<Storage> {
        let failure = Rc::new(RefCell::new(None));
        let confirmed = Rc::new(Cell::new(false));
        let (slot, done) = (failure.clone(), confirmed.clone());
        detach(async move {
            match outcome.await {
                Ok(()) => done.set(true),
                Err(error) => *slot.borrow_mut() = Some(error),
            }
        });
        let gpu = Rc::downgrade(&gpu.0);
        Rc::new(Storage { id, buffer, owned, gpu, destroyed: Cell::new(false), confirmed, failure })
    }

    /// Frees the buffer, whoever still has a tensor in it; one that is not ours is only let go. Idempotent.
    pub fn destroy(&self) {
        if self.destroyed.replace(true) {
            return;
        }
        if self.owned {
            self.buffer.destroy();
        }
        if let Some(gpu) = self.gpu.upgrade() {
            if self.owned {
                let mut memory = gpu.memory.get();
                memory.buffers -= 1;
                memory.bytes -= self.buffer.size();
                gpu.memory.set(memory);
            }
            gpu.generation.set(gpu.generation.get() + 1);
            gpu.pipelines.borrow_mut().forget(self.id);
        }
    }
}

/// Buffers for tensors that are made in the same order again and again, of which only the last ones made are at work: each buffer is as
/// large as the largest tensor in its place so far. They hold what was there before.
#[derive(Default)]
pub(crate) struct Room {
    storages: RefCell<Vec<Rc<Storage>>>,
    taken: Cell<usize>,
}

impl Room {
    /// Makes what `work` makes in this room.
    pub fn within<T>(self: &Rc<Room>, gpu: &Gpu, work: impl FnOnce() -> T) -> T {
        self.taken.set(0);
        let before = gpu.0.room.replace(Some(self.clone()));
        let made = work();
        *gpu.0.room.borrow_mut() = before;
        made
    }

    /// The buffer of the next place, where it is large enough.
    fn next(&self, size: u64) -> Option<Rc<Storage>> {
        let i = self.taken.replace(self.taken.get() + 1);
        let storage = self.storages.borrow().get(i).cloned()?;
        let fits = storage.buffer.size() >= size && !storage.destroyed.get() && storage.failure.borrow().is_none();
        fits.then_some(storage)
    }

    /// In the place that was asked for last.
    fn put(&self, storage: Rc<Storage>) {
        let (mut storages, i) = (self.storages.borrow_mut(), self.taken.get() - 1);
        match storages.get_mut(i) {
            Some(slot) => *slot = storage,
            None => storages.push(storage),
        }
    }

    /// Frees them, with all tensors in them.
    pub fn clear(&self) {
        self.storages.take().iter().for_each(|storage| storage.destroy());
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// Lets a future run by itself. Natively the futures given here are ready at once.
pub(crate) fn detach(future: impl Future<Output = ()> + 'static) {
    #[cfg(target_arch = "wasm32")]
    wasm_bindgen_futures::spawn_local(future);
    #[cfg(not(target_arch = "wasm32"))]
    pollster::block_on(future);
}

/// Number of elements of a shape, at least one dimension and none of them zero.
fn elements(label: &str, shape: &[usize]) -> Result<u64> {
    let count = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64)).filter(|&n| n <= u64::MAX / 4);
    match count {
        Some(n) if n > 0 && !shape.is_empty() => Ok(n),
        Some(_) => Err(Error::shape(label, "a shape of positive dimensions", show(shape))),
        None => Err(Error::limit(label, u64::MAX, u64::MAX / 4, "maxBufferSize")),
    }
}

impl Tensor {
    /// A tensor of zeros.
    ///
    /// # Errors
    /// [`Shape`](crate::error::ErrorKind::Shape) for an empty shape, [`Limit`](crate::error::ErrorKind::Limit) above the device's limits.
    pub fn zeros(gpu: &Gpu, label: &str, shape: &[usize]) -> Result<Tensor> {
        let storage = Storage::new(gpu, label, 4 * elements(label, shape)?)?;
        Ok(Tensor::view(gpu, label, shape, &storage, 0))
    }

    /// A tensor with `data`, row-major.
    ///
    /// # Errors
    /// As [`Tensor::zeros`], and [`Shape`](crate::error::ErrorKind::Shape) where `data` has another length.
    pub fn from_slice(gpu: &Gpu, label: &str, shape: &[usize], data: &[f32]) -> Result<Tensor> {
        check_length(label, elements(label, shape)?, data.len())?;
        let tensor = Tensor::zeros(gpu, label, shape)?;
        tensor.write(data)?;
        Ok(tensor)
    }

    /// A tensor of integers, zeros where there is no `data`.
    ///
    /// # Errors
    /// As [`Tensor::from_slice`].
    pub fn integers(gpu: &Gpu, label: &str, shape: &[usize], data: Option<&[i32]>) -> Result<Tensor> {
        let count = elements(label, shape)?;
        let storage = Storage::new(gpu, label, 4 * count)?;
        let tensor = Tensor::typed_view(gpu, label, DType::I32, shape, &storage, 0);
        if let Some(data) = data {
            tensor.write_integers(data)?;
        }
        Ok(tensor)
    }

    /// A tensor of packed words, zeros.
    pub(crate) fn words(gpu: &Gpu, label: &str, shape: &[usize]) -> Result<Tensor> {
        let storage = Storage::new(gpu, label, 4 * elements(label, shape)?)?;
        Ok(Tensor::typed_view(gpu, label, DType::U32, shape, &storage, 0))
    }

    /// Another one of the same shape and type, zeros.
    pub(crate) fn another(&self, label: &str) -> Result<Tensor> {
        let storage = Storage::new(self.gpu(), label, self.bytes())?;
        Ok(Tensor::typed_view(self.gpu(), label, self.dtype(), self.shape(), &storage, 0))
    }

    /// A tensor in a buffer of the same device that others made, from `byte_offset` on. It is used in place and never
    /// destroyed here. It needs the usage `STORAGE`, to be read `COPY_SRC`, to be written or zeroed `COPY_DST`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) where the usage lacks `STORAGE`, the offset is no multiple of the device's
    /// `minStorageBufferOffsetAlignment`, or the buffer ends too early; [`Shape`](crate::error::ErrorKind::Shape), [`Limit`](crate::error::ErrorKind::Limit). A buffer of
    /// another device is told later: what is awaited next fails with [`ForeignBuffer`](crate::error::ErrorKind::ForeignBuffer).
    pub fn from_buffer(
        gpu: &Gpu,
        label: &str,
        dtype: DType,
        shape: &[usize],
        buffer: wgpu::Buffer,
        byte_offset: u64,
    ) -> Result<Tensor> {
        Tensor::adopt(gpu, label, dtype, shape, buffer, byte_offset, next_id())
    }

    /// As [`Tensor::from_buffer`]; `id` is the same for the same buffer.
    pub(crate) fn adopt(
        gpu: &Gpu,
        label: &str,
        dtype: DType,
        shape: &[usize],
        buffer: wgpu::Buffer,
        byte_offset: u64,
        id: u64,
    ) -> Result<Tensor> {
        let bytes = 4 * elements(label, shape)?;
        let limits = gpu.limits();
        let align = u64::from(limits.min_storage_buffer_offset_alignment);
        if !byte_offset.is_multiple_of(align) {
            let expected = format!("a multiple of {align} (minStorageBufferOffsetAlignment)");
            return Err(Error::argument("byte_offset", &expected, byte_offset.to_string()));
        }
        if byte_offset.checked_add(bytes).is_none_or(|end| end > buffer.size()) {
            let expected = format!("{bytes} bytes from offset {byte_offset} on for tensor `{label}` {}", show(shape));
            return Err(Error::argument("buffer", &expected, format!("a buffer of {} bytes", buffer.size())));
        }
        let limit = limits.max_storage_buffer_binding_size;
        if bytes > limit {
            return Err(Error::limit(label, bytes, limit, "maxStorageBufferBindingSize"));
        }
        expect_usage(&buffer, label, "to be bound", wgpu::BufferUsages::STORAGE)?;
        let storage = Storage::adopt(gpu, label, buffer, id)?;
        Ok(Tensor::typed_view(gpu, label, dtype, shape, &storage, byte_offset))
    }

    /// The buffer that it lies in and where it begins there, in bytes. Making an optimiser moves a layer's parameters
    /// and gradients to another buffer.
    ///
    /// # Errors
    /// [`Disposed`](crate::error::ErrorKind::Disposed), [`DeviceLost`](crate::error::ErrorKind::DeviceLost).
    pub fn buffer(&self) -> Result<(wgpu::Buffer, u64)> {
        let Place { storage, offset } = self.place()?;
        Ok((storage.buffer.clone(), offset))
    }

    /// Several tensors in one buffer of zeros, so that one dispatch updates them all.
    ///
    /// Returns the whole buffer as one tensor, padding included, and the parts at 256-byte boundaries.
    pub fn arena(gpu: &Gpu, label: &str, parts: &[(&str, &[usize])]) -> Result<(Tensor, Vec<Tensor>)> {
        let mut offsets = Vec::with_capacity(parts.len());
        let mut end = 0u64;
        for (name, shape) in parts {
            offsets.push(end);
            end = (4 * elements(name, shape)?)
                .checked_next_multiple_of(ALIGN)
                .and_then(|size| end.checked_add(size))
                .ok_or_else(|| Error::limit(label, u64::MAX, gpu.limits().max_buffer_size, "maxBufferSize"))?;
        }
        let storage = Storage::new(gpu, label, end)?;
        let views =
            parts.iter().zip(offsets).map(|((name, shape), offset)| Tensor::view(gpu, name, shape, &storage, offset));
        Ok((Tensor::view(gpu, label, &[(end / 4) as usize], &storage, 0), views.collect()))
    }

    pub(crate) fn view(gpu: &Gpu, label: &str, shape: &[usize], storage: &Rc<Storage>, offset: u64) -> Tensor {
        Tensor::typed_view(gpu, label, DType::F32, shape, storage, offset)
    }

    fn typed_view(gpu: &Gpu, label: &str, dtype: DType, shape: &[usize], storage: &Rc<Storage>, offset: u64) -> Tensor {
        let place = Place { storage: storage.clone(), offset };
        Tensor(Rc::new(TensorInner {
            gpu: gpu.clone(),
            label: label.into(),
            dtype,
            shape: shape.into(),
            place: RefCell::new(Some(place)),
        }))
    }

    /// Whether it is a clone of the other, or the other way round.
    pub(crate) fn is(&self, other: &Tensor) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// The device that it lies on.
    pub fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }

    /// Its name in messages and GPU debuggers.
    pub fn label(&self) -> &str {
        &self.0.label
    }

    /// What its elements are.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Its dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// Number of elements.
    #[allow(clippy::len_without_is_empty)] // no dimension is ever zero
    pub fn len(&self) -> usize {
        self.0.shape.iter().product()
    }

    /// Bytes of its elements.
    pub(crate) fn bytes(&self) -> u64 {
        4 * self.len() as u64
    }

    /// Whether [`Tensor::destroy`] was called.
    pub fn is_destroyed(&self) -> bool {
        self.0.place.borrow().as_ref().is_none_or(|place| place.storage.destroyed.get())
    }

    /// Frees the memory (of an arena with the last of its tensors). Idempotent; work already submitted still runs.
    pub fn destroy(&self) {
        if self.0.place.take().is_some() {
            self.0.gpu.moved();
        }
    }

    /// Whether its buffer could not be made, as far as is known by now.
    pub(crate) fn has_failed(&self) -> bool {
        self.0.place.borrow().as_ref().is_some_and(|place| place.storage.failure.borrow().is_some())
    }

    /// The error of a buffer that could not be made, as far as is known by now.
    pub(crate) fn check_made(&self) -> Result<()> {
        let failure = self.0.place.borrow().as_ref().and_then(|place| place.storage.failure.borrow().clone());
        failure.map_or(Ok(()), Err)
    }

    /// Frees the whole buffer that it lies in, also for other tensors there.
    pub(crate) fn destroy_storage(&self) {
        if let Some(place) = self.0.place.take() {
            place.storage.destroy();
        }
    }

    pub(crate) fn place(&self) -> Result<Place> {
        self.0.gpu.check_alive()?;
        let place = self.0.place.borrow().clone().filter(|place| !place.storage.destroyed.get());
        place.ok_or_else(|| Error::disposed(format!("tensor `{}`", self.0.label)))
    }

    /// Moves the tensor, all its clones with it, to another place, whose data the caller has copied; gives the one before.
    pub(crate) fn rebase(&self, to: Place) -> Option<Place> {
        self.0.gpu.moved();
        let before = self.0.place.take()?; // a destroyed one stays so
        self.0.place.replace(Some(to));
        Some(before)
    }

    /// The first `rows` rows of a matrix, in the same place.
    pub(crate) fn first_rows(&self, rows: usize) -> Result<Tensor> {
        let [_, columns] = self.matrix("tensor")?;
        let place = self.place()?;
        Ok(Tensor::view(self.gpu(), self.label(), &[rows, columns], &place.storage, place.offset))
    }

    /// The first elements as another shape, in the same place.
    pub(crate) fn prefix(&self, shape: &[usize]) -> Result<Tensor> {
        if shape.iter().product::<usize>() > self.len() {
            return Err(Error::shape(self.label(), format!("room for {}", show(shape)), show(self.shape())));
        }
        let place = self.place()?;
        Ok(Tensor::typed_view(self.gpu(), self.label(), self.dtype(), shape, &place.storage, place.offset))
    }

    /// Rows of a matrix or elements of a vector, in the same place.
    ///
    /// # Errors
    /// [`Shape`](crate::error::ErrorKind::Shape) where there are none of them, or they do not begin at a multiple of 256 bytes.
    pub(crate) fn rows(&self, range: &Range<usize>) -> Result<Tensor> {
        let row: usize = self.shape()[1..].iter().product();
        let place = self.place()?;
        let offset = 4 * (range.start * row) as u64;
        if range.is_empty() || range.end > self.shape()[0] || !offset.is_multiple_of(ALIGN) {
            let expected = format!("a range of rows of {} that begins at 256 bytes", show(self.shape()));
            return Err(Error::shape(self.label(), expected, format!("{}..{}", range.start, range.end)));
        }
        let shape: Vec<usize> = [range.len()].iter().chain(&self.shape()[1..]).copied().collect();
        let offset = place.offset + offset;
        Ok(Tensor::typed_view(self.gpu(), self.label(), self.dtype(), &shape, &place.storage, offset))
    }

    /// All elements as rows of `columns`, in the same place.
    pub(crate) fn split_rows(&self, columns: usize) -> Result<Tensor> {
        self.prefix(&[self.len() / columns, columns])
    }

    /// A vector as a matrix of one column, in the same place.
    pub(crate) fn as_column(&self) -> Result<Tensor> {
        let place = self.place()?;
        Ok(Tensor::view(self.gpu(), self.label(), &[self.len(), 1], &place.storage, place.offset))
    }

    /// A vector as a matrix of one row, in the same place.
    pub(crate) fn as_row(&self) -> Result<Tensor> {
        let place = self.place()?;
        Ok(Tensor::view(self.gpu(), self.label(), &[1, self.len()], &place.storage, place.offset))
    }

    /// Fails unless the shape is `expected`; `name` is the argument's.
    pub(crate) fn expect_shape(&self, name: &str, expected: &[usize]) -> Result<()> {
        if self.shape() == expected {
            return Ok(());
        }
        Err(Error::shape(name, show(expected), format!("{} (tensor `{}`)", show(self.shape()), self.label())))
    }

    pub(crate) fn expect_gpu(&self, gpu: &Gpu) -> Result<()> {
        if self.gpu().0.id == gpu.0.id {
            return Ok(());
        }
        Err(Error::foreign_tensor(format!("tensor `{}`", self.label())))
    }

    pub(crate) fn expect_dtype(&self, expected: DType) -> Result<()> {
        if self.dtype() == expected {
            return Ok(());
        }
        let name = |dtype| match dtype {
            DType::F32 => "float32",
            DType::I32 => "int32",
            DType::U32 => "packed words",
        };
        Err(Error::argument(self.label(), name(expected), name(self.dtype())))
    }

    /// The two dimensions of a matrix.
    pub(crate) fn matrix(&self, name: &str) -> Result<[usize; 2]> {
        <[usize; 2]>::try_from(self.shape()).map_err(|_| {
            Error::shape(name, "two dimensions", format!("{} (tensor `{}`)", show(self.shape()), self.label()))
        })
    }

    /// Overwrites all elements, before whatever is submitted next.
    ///
    /// # Errors
    /// [`Shape`](crate::error::ErrorKind::Shape) where the length differs, [`Disposed`](crate::error::ErrorKind::Disposed) after [`Tensor::destroy`].
    pub fn write(&self, data: &[f32]) -> Result<()> {
        self.write_bytes(DType::F32, data.len(), bytemuck::cast_slice(data))
    }

    /// Overwrites all elements of a tensor of integers.
    pub fn write_integers(&self, data: &[i32]) -> Result<()> {
        self.write_bytes(DType::I32, data.len(), bytemuck::cast_slice(data))
    }

    /// Overwrites what lies from `byte_offset` on; both it and the length are multiples of 4 and within the tensor.
    pub(crate) fn write_at(&self, byte_offset: u64, data: &[u8]) -> Result<()> {
        debug_assert!(byte_offset.is_multiple_of(4) && byte_offset + data.len() as u64 <= self.bytes());
        self.upload_some(data.len() as u64, |buffer, offset| {
            self.gpu().queue().write_buffer(buffer, offset + byte_offset, data);
        })
    }

    fn write_bytes(&self, dtype: DType, len: usize, data: &[u8]) -> Result<()> {
        self.upload(dtype, len, |buffer, offset| self.gpu().queue().write_buffer(buffer, offset, data))
    }

    /// Checks and counts a write of all elements, and lets `work` do it at an offset of a buffer. A write into a buffer
    /// that turns out not to have been made fails with it, at whatever is awaited next.
    pub(crate) fn upload<T>(&self, dtype: DType, len: usize, work: impl FnOnce(&wgpu::Buffer, u64) -> T) -> Result<T> {
        self.expect_dtype(dtype)?;
        check_length(self.label(), self.len() as u64, len)?;
        self.upload_some(self.bytes(), work)
    }

    fn upload_some<T>(&self, bytes: u64, work: impl FnOnce(&wgpu::Buffer, u64) -> T) -> Result<T> {
        let Place { storage, offset } = self.place()?;
        expect_usage(&storage.buffer, self.label(), "to be written", wgpu::BufferUsages::COPY_DST)?;
        self.gpu().count(|s| s.uploaded_bytes += bytes);
        if storage.confirmed.get() {
            return Ok(work(&storage.buffer, offset));
        }
        let scope = self.gpu().scope();
        let result = work(&storage.buffer, offset);
        let outcome = scope.close(self.label());
        detach(async move { drop(outcome.await) });
        Ok(result)
    }

    /// Reads all elements, as they are after the work submitted so far; integers by their bits.
    pub fn read(&self) -> impl Future<Output = Result<Vec<f32>>> + use<> {
        read::read(self, |view| bytemuck::pod_collect_to_vec(view))
    }
}

pub(crate) fn check_length(name: &str, expected: u64, got: usize) -> Result<()> {
    if expected == got as u64 {
        return Ok(());
    }
    Err(Error::shape(name, format!("{expected} elements"), format!("{got}")))
}

/// A shape as people write it: `[2, 3]`.
pub(crate) fn show(shape: &[usize]) -> String {
    format!("{shape:?}")
}
