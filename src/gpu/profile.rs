//! Where the time of submitted work goes, by kernel: for benchmarks.

use std::collections::BTreeMap;

use super::device::Gpu;

/// Two timestamps around each dispatch, in sets of as many as wgpu allows.
#[derive(Default)]
pub(crate) struct Profiler(Vec<(wgpu::QuerySet, Vec<&'static str>)>);

impl Profiler {
    /// A pass for one dispatch of this kernel.
    pub fn begin(
        &mut self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        kernel: &'static str,
    ) -> wgpu::ComputePass<'static> {
        let count = wgpu::QUERY_SET_MAX_QUERIES;
        if self.0.last().is_none_or(|(_, kernels)| 2 * kernels.len() == count as usize) {
            let ty = wgpu::QueryType::Timestamp;
            let set = gpu.device().create_query_set(&wgpu::QuerySetDescriptor { label: None, ty, count });
            self.0.push((set, Vec::new()));
        }
        let (query_set, kernels) = self.0.last_mut().expect("one was pushed");
        let first = 2 * kernels.len() as u32;
        kernels.push(kernel);
        let timestamp_writes = Some(wgpu::ComputePassTimestampWrites {
            query_set,
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        });
        encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes }).forget_lifetime()
    }

    /// Waits for all of it: seconds and dispatches by kernel.
    fn finish(self, gpu: &Gpu) -> Vec<(&'static str, f64, usize)> {
        let mut sums: BTreeMap<&'static str, (f64, usize)> = BTreeMap::new();
        let period = f64::from(gpu.queue().get_timestamp_period()) * 1e-9;
        for (set, kernels) in self.0 {
            let size = 16 * kernels.len() as u64;
            let buffer = |usage| {
                gpu.device().create_buffer(&wgpu::BufferDescriptor {
                    label: None,
                    size,
                    usage,
                    mapped_at_creation: false,
                })
            };
            let resolved = buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC);
            let read = buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            encoder.resolve_query_set(&set, 0..2 * kernels.len() as u32, &resolved, 0);
            encoder.copy_buffer_to_buffer(&resolved, 0, &read, 0, size);
            gpu.queue().submit([encoder.finish()]);
            read.slice(..).map_async(wgpu::MapMode::Read, |_| {});
            gpu.wait();
            let Ok(view) = read.slice(..).get_mapped_range() else { continue };
            for (kernel, stamps) in kernels.iter().zip(view.as_chunks::<16>().0) {
                let [begin, end] = bytemuck::pod_read_unaligned::<[u64; 2]>(stamps);
                let sum = sums.entry(kernel).or_default();
                *sum = (sum.0 + end.saturating_sub(begin) as f64 * period, sum.1 + 1);
            }
        }
        let mut all: Vec<_> = sums.into_iter().map(|(kernel, (seconds, count))| (kernel, seconds, count)).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all
    }
}

impl Gpu {
    /// Seconds and dispatches of each kernel in what `work` submits, the longest first; a pass for each dispatch, so that
    /// none overlaps another. Empty without [`GpuRequest::timestamps`](super::GpuRequest::timestamps).
    #[doc(hidden)]
    pub fn kernel_times(&self, work: impl FnOnce()) -> Vec<(&'static str, f64, usize)> {
        let timestamps = self.device().features().contains(wgpu::Features::TIMESTAMP_QUERY);
        *self.0.profiler.borrow_mut() = timestamps.then(Profiler::default);
        work();
        let profiler = self.0.profiler.take();
        profiler.map(|profiler| profiler.finish(self)).unwrap_or_default()
    }
}
