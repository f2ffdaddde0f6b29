//! A recording: dispatches in order, checked when recorded, submitted together.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::device::{Gpu, Profile};
use super::pipeline::{Access, Kernel};
use super::tensor::{DType, Place, Tensor, expect_usage};
use crate::error::{Error, Result};

/// Dispatches to be run in order. It can be submitted again and again; tensors are looked up again where one has moved since.
pub struct Recording {
    gpu: Gpu,
    ops: RefCell<Vec<Op>>,
    resolved: RefCell<Option<Rc<ResolvedOps>>>,
    /// Of the operations those that must stay: where what is being recorded now, all or nothing, began.
    kept: Cell<usize>,
    in_parts: bool,
}

/// Dispatches of one part of a recording that is submitted in parts.
const PART: usize = 500;

enum Op {
    Dispatch {
        kernel: &'static Kernel,
        tensors: Vec<Tensor>,
        params: Box<[u8]>,
        workgroups: [u32; 2],
    },
    Zero(Tensor),
    /// From the first to the second.
    Copy([Tensor; 2]),
}

/// The kernels of all their dispatches.
fn kernels(recordings: &[&Recording]) -> impl Iterator<Item = &'static Kernel> {
    let of = |rec: &&Recording| rec.ops.borrow().iter().filter_map(Op::kernel).collect::<Vec<_>>();
    recordings.iter().flat_map(of).collect::<Vec<_>>().into_iter()
}

impl Op {
    fn kernel(&self) -> Option<&'static Kernel> {
        if let Op::Dispatch { kernel, .. } = self { Some(*kernel) } else { None }
    }
}

/// What the operations are for WebGPU.
struct ResolvedOps {
    /// The device's when they were looked up.
    generation: u64,
    ops: Vec<Resolved>,
    /// Of the buffers in them.
    failures: Vec<Rc<RefCell<Option<Error>>>>,
}

enum Resolved {
    Dispatch {
        #[cfg(not(target_arch = "wasm32"))]
        kernel: &'static str,
        pipeline: wgpu::ComputePipeline,
        bind_group: wgpu::BindGroup,
        offset: u32,
        workgroups: [u32; 2],
    },
    Zero {
        buffer: wgpu::Buffer,
        offset: u64,
        size: u64,
    },
    Copy {
        from: (wgpu::Buffer, u64),
        to: (wgpu::Buffer, u64),
        size: u64,
    },
}

/// Work that was submitted; as a future, whether the GPU accepted it. It runs whether or not this is awaited.
#[must_use = "errors of the submitted work are reported only here"]
pub struct Submission(Pin<Box<dyn Future<Output = Result<()>>>>);

impl Submission {
    /// Nothing was submitted.
    pub(crate) fn failed(error: Error) -> Submission {
        Submission(Box::pin(std::future::ready(Err(error))))
    }

    /// There was nothing to submit.
    fn done() -> Submission {
        Submission(Box::pin(std::future::ready(Ok(()))))
    }

    /// Does `work` where the submit fails.
    pub(crate) fn or_else(self, work: impl FnOnce() + 'static) -> Submission {
        Submission(Box::pin(async move { self.await.inspect_err(|_| work()) }))
    }

    /// Does `work` where it does not.
    pub(crate) fn and_then(self, work: impl FnOnce() + 'static) -> Submission {
        Submission(Box::pin(async move { self.await.inspect(|()| work()) }))
    }

    /// Several submits as one; the first error counts.
    pub(crate) fn all(submissions: Vec<Submission>) -> Submission {
        Submission(Box::pin(async move {
            let mut outcome = Ok(());
            for submission in submissions {
                outcome = outcome.and(submission.await);
            }
            outcome
        }))
    }
}

impl Future for Submission {
    type Output = Result<()>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.as_mut().poll(context)
    }
}

/// Workgroups for `n` items at `per_group` each, folded into two dimensions: a kernel's linear workgroup index is
/// `workgroup_id.x + workgroup_id.y · num_workgroups.x`.
pub(crate) fn workgroups(n: usize, per_group: usize) -> [u32; 2] {
    fold(n.div_ceil(per_group))
}

/// Workgroups of `lanes` that go over `n` items together, at about `each` for an invocation: 8 times as many on software
/// adapters, where to begin a workgroup costs as much as many items.
pub(crate) fn shared_workgroups(gpu: &Gpu, n: usize, lanes: usize, each: usize, most: usize) -> usize {
    let each = if gpu.profile() == Profile::Software { 8 * each } else { each };
    n.div_ceil(each * lanes).min(most)
}

/// Workgroups that go over `n` elements together, `each` at a time; in one dimension.
pub(crate) fn elementwise(n: usize, each: usize) -> [u32; 2] {
    [n.div_ceil(each).min(4096) as u32, 1]
}

/// A number of workgroups, folded into two dimensions of at most 65,535 (WebGPU's default limit).
pub(crate) fn fold(groups: usize) -> [u32; 2] {
    const MAX: usize = 65_535;
    let rows = groups.div_ceil(MAX);
    [groups.div_ceil(rows) as u32, rows as u32]
}

impl Recording {
    /// An empty recording.
    pub fn new(gpu: &Gpu) -> Recording {
        Recording {
            gpu: gpu.clone(),
            ops: RefCell::default(),
            resolved: RefCell::default(),
            kept: Cell::default(),
            in_parts: false,
        }
    }

    /// One of which more than 500 dispatches are submitted in parts, so that a page goes on drawing while they run and no
    /// watchdog takes the device. Order and bits are the same; but where the GPU refuses one part, others may have run.
    pub fn in_parts(gpu: &Gpu) -> Recording {
        Recording { in_parts: true, ..Recording::new(gpu) }
    }

    /// The device that it runs on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Forgets what was recorded.
    pub(crate) fn clear(&self) {
        self.ops.borrow_mut().clear();
        *self.resolved.borrow_mut() = None;
    }

    /// Number of dispatches recorded.
    pub fn dispatches(&self) -> usize {
        self.ops.borrow().iter().filter(|op| matches!(op, Op::Dispatch { .. })).count()
    }

    /// Records `tensor = 0`.
    pub fn zero(&self, tensor: &Tensor) -> Result<()> {
        tensor.expect_gpu(&self.gpu)?;
        let Place { storage, .. } = tensor.place()?;
        expect_usage(&storage.buffer, tensor.label(), "to be zeroed", wgpu::BufferUsages::COPY_DST)?;
        self.ops.borrow_mut().push(Op::Zero(tensor.clone()));
        Ok(())
    }

    /// Records `to = from` to the bit, of one shape and in different buffers.
    pub(crate) fn copy(&self, from: &Tensor, to: &Tensor) -> Result<()> {
        to.expect_shape("to", from.shape())?;
        to.expect_dtype(from.dtype())?;
        for (tensor, usage) in [(from, wgpu::BufferUsages::COPY_SRC), (to, wgpu::BufferUsages::COPY_DST)] {
            self.check(tensor)?;
            expect_usage(&tensor.place()?.storage.buffer, tensor.label(), "to be copied", usage)?;
        }
        self.ops.borrow_mut().push(Op::Copy([from.clone(), to.clone()]));
        Ok(())
    }

    /// Records one dispatch of `kernel` over its storage buffers in binding order.
    ///
    /// # Errors
    /// [`ForeignTensor`](crate::error::ErrorKind::ForeignTensor), [`Disposed`](crate::error::ErrorKind::Disposed), [`AliasedBuffer`](crate::error::ErrorKind::AliasedBuffer); shapes are the caller's to check.
    pub(crate) fn dispatch<P: bytemuck::Pod>(
        &self,
        kernel: &'static Kernel,
        tensors: &[&Tensor],
        params: P,
        workgroups: [u32; 2],
    ) -> Result<()> {
        self.dispatch_bytes(kernel, tensors, bytemuck::bytes_of(&params), workgroups)
    }

    /// The same for all parameters, once.
    fn dispatch_bytes(
        &self,
        kernel: &'static Kernel,
        tensors: &[&Tensor],
        params: &[u8],
        workgroups: [u32; 2],
    ) -> Result<()> {
        debug_assert_eq!(tensors.len(), kernel.buffers.len(), "{}", kernel.name);
        debug_assert_eq!(params.len(), kernel.params_size, "{}", kernel.name);
        for (tensor, (_, access)) in tensors.iter().zip(kernel.buffers) {
            self.check(tensor)?;
            tensor.expect_dtype(match access {
                Access::Read | Access::Write => DType::F32,
                Access::ReadInt | Access::WriteInt => DType::I32,
                Access::ReadWords | Access::WriteWords => DType::U32,
            })?;
        }
        check_aliases(kernel, tensors)?;
        self.ops.borrow_mut().push(Op::Dispatch {
            kernel,
            tensors: tensors.iter().map(|&t| t.clone()).collect(),
            params: params.into(),
            workgroups,
        });
        Ok(())
    }

    /// Records all that `work` records, or nothing when it fails.
    pub(crate) fn all_or_nothing<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = self.ops.borrow().len();
        let kept = self.kept.replace(before);
        let outcome = work();
        self.kept.set(kept);
        outcome.inspect_err(|_| self.ops.borrow_mut().truncate(before))
    }

    /// Tensors and parameters of what was recorded last, where that is a dispatch of `kernel` and may be dropped: an error of what
    /// is being recorded, all or nothing, must leave what was there before.
    pub(crate) fn last(&self, kernel: &'static Kernel) -> Option<(Vec<Tensor>, Box<[u8]>)> {
        match self.ops.borrow().get(self.kept.get()..)?.last()? {
            Op::Dispatch { kernel: last, tensors, params, .. } if std::ptr::eq(*last, kernel) => {
                Some((tensors.clone(), params.clone()))
            }
            _ => None,
        }
    }

    /// Drops what [`Recording::last`] gave, once one dispatch that stands for it, too, was recorded.
    pub(crate) fn drop_last_but_one(&self) {
        let mut ops = self.ops.borrow_mut();
        if let (Some(op), Some(last)) = (ops.pop(), ops.last_mut()) {
            *last = op;
        }
        // There are as many as before, but others.
        *self.resolved.borrow_mut() = None;
    }

    fn check(&self, tensor: &Tensor) -> Result<()> {
        tensor.expect_gpu(&self.gpu)?;
        tensor.place().map(drop)
    }

    /// Compiles the kernels that no recording has used yet, which the first submit would do otherwise; returns how many.
    ///
    /// # Errors
    /// [`DeviceLost`](crate::error::ErrorKind::DeviceLost) and [`Disposed`](crate::error::ErrorKind::Disposed); a kernel that the device refuses is the submit's to tell.
    pub fn compile(&self) -> Result<usize> {
        self.compile_missing(true)
    }

    /// How many of their kernels are not compiled yet.
    #[cfg(target_arch = "wasm32")]
    pub(crate) fn missing_kernels(recordings: &[&Recording]) -> usize {
        recordings.first().map_or(0, |rec| rec.gpu.0.pipelines.borrow().missing(kernels(recordings)).len())
    }

    /// As [`Recording::compile`]; without `keep` the pipelines are made and dropped, for a caller that answers in the browser's
    /// place, to have them made side by side.
    #[doc(hidden)]
    pub fn compile_missing(&self, keep: bool) -> Result<usize> {
        Recording::compile_all(&[self], keep)
    }

    /// The same for several recordings of one device; a kernel of more than one is made once.
    pub(crate) fn compile_all(recordings: &[&Recording], keep: bool) -> Result<usize> {
        let Some(gpu) = recordings.first().map(|rec| &rec.gpu) else { return Ok(0) };
        gpu.check_alive()?;
        let scope = gpu.scope();
        let count = gpu.0.pipelines.borrow_mut().compile_missing(gpu, kernels(recordings), keep);
        let outcome = scope.close("compile"); // in this turn
        super::tensor::detach(async move { drop(outcome.await) });
        Ok(count)
    }

    /// Submits everything now, as one command buffer unless it is to be in parts. The future resolves when the GPU process has
    /// checked it, and rejects with what failed in it; nothing runs when a tensor is gone.
    pub fn submit(&self) -> Submission {
        self.try_submit().unwrap_or_else(Submission::failed)
    }

    /// As [`Recording::submit`]; an error says that nothing was submitted.
    pub(crate) fn try_submit(&self) -> Result<Submission> {
        Recording::try_submit_all(&[self])
    }

    /// The same for several recordings of one device, one after another: as one command buffer unless one of them is submitted
    /// in parts.
    pub(crate) fn try_submit_all(recordings: &[&Recording]) -> Result<Submission> {
        let Some(gpu) = recordings.first().map(|rec| &rec.gpu) else { return Ok(Submission::done()) };
        Ok(Submission(Box::pin(encode(gpu, recordings)?)))
    }

    /// What was to be encoded for the last submit, unless a tensor or the parameters have moved since.
    fn last_resolved(&self) -> Option<Rc<ResolvedOps>> {
        let last = self.resolved.borrow().clone()?;
        (last.generation == self.gpu.generation() && last.ops.len() == self.ops.borrow().len()).then_some(last)
    }

    /// What is to be encoded; there is room for the parameters.
    fn resolve(&self) -> Result<Rc<ResolvedOps>> {
        if let Some(last) = self.last_resolved() {
            return Ok(last);
        }
        let gpu = &self.gpu;
        let ops = self.ops.borrow();
        // All places first, so that a destroyed tensor stops the submit before anything is made for it.
        let mut places: Vec<Vec<(Place, u64)>> = Vec::with_capacity(ops.len());
        for op in ops.iter() {
            let tensors = match op {
                Op::Dispatch { kernel, tensors, .. } => {
                    check_aliases(kernel, &tensors.iter().collect::<Vec<_>>())?;
                    tensors.as_slice()
                }
                Op::Zero(tensor) => std::slice::from_ref(tensor),
                Op::Copy(tensors) => tensors,
            };
            places.push(tensors.iter().map(|t| Ok((t.place()?, t.bytes()))).collect::<Result<_>>()?);
        }
        let mut failures = Vec::new();
        for (place, _) in places.iter().flatten() {
            if !failures.iter().any(|known| Rc::ptr_eq(known, &place.storage.failure)) {
                failures.push(place.storage.failure.clone());
            }
        }
        let mut pipelines = gpu.0.pipelines.borrow_mut();
        let mut params = gpu.0.params.borrow_mut();
        let resolve = |(op, places): (&Op, &Vec<(Place, u64)>)| match op {
            Op::Zero(_) => {
                let (place, size) = &places[0];
                Resolved::Zero { buffer: place.storage.buffer.clone(), offset: place.offset, size: *size }
            }
            Op::Copy(_) => {
                let end = |place: &Place| (place.storage.buffer.clone(), place.offset);
                Resolved::Copy { from: end(&places[0].0), to: end(&places[1].0), size: places[0].1 }
            }
            Op::Dispatch { kernel, params: value, workgroups, .. } => Resolved::Dispatch {
                #[cfg(not(target_arch = "wasm32"))]
                kernel: kernel.name,
                pipeline: pipelines.compile(gpu, kernel).pipeline.clone(),
                bind_group: pipelines.bind_group(gpu, kernel, places, &params.buffer),
                offset: params.offset(gpu, value),
                workgroups: *workgroups,
            },
        };
        let resolved = ops.iter().zip(&places).map(resolve).collect();
        let resolved = Rc::new(ResolvedOps { generation: gpu.generation(), ops: resolved, failures });
        *self.resolved.borrow_mut() = Some(resolved.clone());
        Ok(resolved)
    }
}

/// Submits the recordings, now.
fn encode(gpu: &Gpu, recordings: &[&Recording]) -> Result<impl Future<Output = Result<()>> + use<>> {
    gpu.check_alive()?;
    let scope = gpu.scope();
    let resolved = resolve_all(gpu, recordings)?;
    let in_parts = recordings.iter().any(|rec| rec.in_parts);
    let begin = || gpu.device().create_command_encoder(&Default::default());
    let mut encoder = begin();
    let mut pass: Option<wgpu::ComputePass<'static>> = None;
    let (mut dispatches, mut submits) = (0, 1);
    for op in resolved.iter().flat_map(|resolved| &resolved.ops) {
        match op {
            Resolved::Zero { buffer, offset, size } => {
                pass = None;
                encoder.clear_buffer(buffer, *offset, Some(*size));
            }
            Resolved::Copy { from, to, size } => {
                pass = None;
                encoder.copy_buffer_to_buffer(&from.0, from.1, &to.0, to.1, Some(*size));
            }
            Resolved::Dispatch {
                #[cfg(not(target_arch = "wasm32"))]
                kernel,
                pipeline,
                bind_group,
                offset,
                workgroups: [x, y],
            } => {
                if in_parts && dispatches == submits * PART {
                    drop(pass.take());
                    gpu.queue().submit([std::mem::replace(&mut encoder, begin()).finish()]);
                    submits += 1;
                }
                dispatches += 1;
                #[cfg(not(target_arch = "wasm32"))]
                if let Some(profiler) = gpu.0.profiler.borrow_mut().as_mut() {
                    drop(pass.take()); // ends before the next begins
                    pass = Some(profiler.begin(gpu, &mut encoder, kernel));
                }
                let pass =
                    pass.get_or_insert_with(|| encoder.begin_compute_pass(&Default::default()).forget_lifetime());
                pass.set_pipeline(pipeline);
                pass.set_bind_group(0, bind_group, &[*offset]);
                pass.dispatch_workgroups(*x, *y, 1);
            }
        }
    }
    drop(pass);
    gpu.queue().submit([encoder.finish()]);
    let outcome = scope.close("submit");
    gpu.count(|s| {
        s.submits += submits as u64;
        s.dispatches += dispatches as u64;
    });
    Ok(async move {
        let outcome = outcome.await;
        // A buffer that could not be made is the cause of whatever the submit complained about.
        let mut failures = resolved.iter().flat_map(|resolved| &resolved.failures);
        match failures.find_map(|failure| failure.borrow().clone()) {
            Some(cause) => Err(cause),
            None => outcome,
        }
    })
}

/// What is to be encoded of each.
fn resolve_all(gpu: &Gpu, recordings: &[&Recording]) -> Result<Vec<Rc<ResolvedOps>>> {
    if recordings.iter().any(|rec| rec.last_resolved().is_none() && rec.dispatches() > 0) {
        let dispatches = recordings.iter().map(|rec| rec.dispatches()).sum();
        gpu.0.params.borrow_mut().reserve(gpu, &mut gpu.0.pipelines.borrow_mut(), dispatches);
    }
    recordings.iter().map(|rec| rec.resolve()).collect()
}

/// WebGPU tracks usage by buffer, not by range: read and written in one dispatch is an error even at disjoint offsets,
/// and so are two written ranges that overlap.
fn check_aliases(kernel: &'static Kernel, tensors: &[&Tensor]) -> Result<()> {
    for (i, (_, written)) in kernel.buffers.iter().enumerate() {
        if !written.is_write() {
            continue;
        }
        let a = tensors[i].place()?;
        for (j, (_, access)) in kernel.buffers.iter().enumerate() {
            if i == j {
                continue;
            }
            let b = tensors[j].place()?;
            let overlap = a.offset < b.offset + tensors[j].bytes() && b.offset < a.offset + tensors[i].bytes();
            let same = a.storage.id == b.storage.id || a.storage.buffer == b.storage.buffer;
            if same && (!access.is_write() || overlap) {
                return Err(Error::aliased_buffer(kernel.name, kernel.buffers[j].0, kernel.buffers[i].0));
            }
        }
    }
    Ok(())
}
