//! Times of submitted work, measured on the GPU while its queue is full: a card that waits lowers its clock within seconds.

use std::cell::Cell;
use std::time::{Duration, Instant};

use lora_webgpu::{FrozenLinear, Gpu, Profile, Recording, Tensor};

/// Measurements of each piece of work; the median counts.
const REPEATS: usize = 7;

/// Seconds of one piece of work.
#[derive(Clone, Copy)]
pub struct Time {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Time {
    pub fn of(mut seconds: Vec<f64>) -> Time {
        seconds.sort_by(f64::total_cmp);
        Time { median: seconds[seconds.len() / 2], min: seconds[0], max: seconds[seconds.len() - 1] }
    }

    /// Of each of `count` equal parts.
    pub fn each(self, count: usize) -> Time {
        let n = count as f64;
        Time { median: self.median / n, min: self.min / n, max: self.max / n }
    }
}

pub struct Clock {
    gpu: Gpu,
    /// None without timestamp queries: then it is the wall clock, the wait for the GPU included.
    queries: Option<Queries>,
    /// Arithmetic to keep the GPU busy with, and the seconds it takes; none in software, which has no clock to wake.
    filler: Option<(Recording, f64)>,
    busy: Cell<Instant>,
    repeats: usize,
}

struct Queries {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    read: wgpu::Buffer,
}

impl Clock {
    pub fn new(gpu: &Gpu, small: bool) -> Clock {
        let device = gpu.device();
        let software = gpu.profile() == Profile::Software;
        let repeats = if software { 3 } else { REPEATS };
        let queries = device.features().contains(wgpu::Features::TIMESTAMP_QUERY).then(|| {
            let (ty, count) = (wgpu::QueryType::Timestamp, 2 * repeats as u32);
            let size = 8 * u64::from(count);
            let buffer = |usage| {
                device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
            };
            Queries {
                set: device.create_query_set(&wgpu::QuerySetDescriptor { label: None, ty, count }),
                resolved: buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC),
                read: buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST),
            }
        });
        let mut clock = Clock { gpu: gpu.clone(), queries, filler: None, busy: Cell::new(Instant::now()), repeats };
        if !software {
            clock.filler = Some((filler(gpu, if small { 64 } else { 1024 }), 1e-3));
            clock.wake(if small { 0.1 } else { 2.0 });
            let start = Instant::now();
            (0..50).for_each(|_| clock.fill(1e-3));
            clock.finish();
            clock.filler.as_mut().unwrap().1 = start.elapsed().as_secs_f64() / 50.0;
        }
        clock
    }

    /// How it measures.
    pub fn name(&self) -> &'static str {
        if self.queries.is_some() { "timestamp queries" } else { "wall clock" }
    }

    pub fn repeats(&self) -> usize {
        self.repeats
    }

    /// Waits until all submitted work is done.
    pub fn finish(&self) {
        self.finish_uploads();
        self.busy.set(Instant::now());
    }

    /// Waits for what keeps no clock up.
    pub fn finish_uploads(&self) {
        pollster::block_on(self.gpu.finished()).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Submits about as many seconds of arithmetic, without waiting.
    fn fill(&self, seconds: f64) {
        if let Some((recording, each)) = &self.filler {
            (0..(seconds / each).ceil() as usize).for_each(|_| submit(recording));
        }
    }

    /// Works for as many seconds.
    pub fn wake(&self, seconds: f64) {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        while self.filler.is_some() && Instant::now() < end {
            self.fill(0.01);
            self.finish();
        }
    }

    /// Seconds of what `work` submits, once it has been submitted before.
    pub fn time(&self, work: &dyn Fn()) -> Time {
        let idle = self.busy.get().elapsed().as_secs_f64();
        work();
        self.finish();
        let start = Instant::now();
        work();
        let encoding = start.elapsed().as_secs_f64(); // what is put in front of it lasts longer
        self.finish();
        // After two seconds of nothing its clock takes as long to come back.
        self.wake(if idle > 2.0 {
            2.5
        } else if idle > 0.2 {
            0.8
        } else {
            0.1
        });
        let Some(queries) = &self.queries else {
            return Time::of((0..self.repeats).map(|_| self.wall(work)).collect());
        };
        for i in 0..self.repeats as u32 {
            self.fill(2.0 * encoding + 1e-3);
            self.stamp(queries, 2 * i);
            work();
            self.stamp(queries, 2 * i + 1);
        }
        let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
        encoder.resolve_query_set(&queries.set, 0..2 * self.repeats as u32, &queries.resolved, 0);
        encoder.copy_buffer_to_buffer(&queries.resolved, 0, &queries.read, 0, queries.read.size());
        self.gpu.queue().submit([encoder.finish()]);
        queries.read.slice(..).map_async(wgpu::MapMode::Read, |_| {});
        self.finish();
        let view = queries.read.slice(..).get_mapped_range().expect("mapped by now");
        let stamps: Vec<u64> = view.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap())).collect();
        drop(view);
        queries.read.unmap();
        let period = f64::from(self.gpu.queue().get_timestamp_period()) * 1e-9;
        Time::of(stamps.chunks_exact(2).map(|s| s[1].saturating_sub(s[0]).max(1) as f64 * period).collect())
    }

    /// Seconds from the first submit to the end of the work.
    pub fn wall(&self, work: &dyn Fn()) -> f64 {
        let start = Instant::now();
        work();
        self.finish();
        start.elapsed().as_secs_f64()
    }

    /// Writes the time when all that was submitted before is done.
    fn stamp(&self, queries: &Queries, index: u32) {
        let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
        drop(encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: None,
            timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                query_set: &queries.set,
                beginning_of_pass_write_index: None,
                end_of_pass_write_index: Some(index),
            }),
        }));
        self.gpu.queue().submit([encoder.finish()]);
    }
}

pub fn submit(recording: &Recording) {
    pollster::block_on(recording.submit()).unwrap_or_else(|e| panic!("{e}"));
}

/// Eight products of n³: of 1,024³ about a millisecond of a large GPU.
fn filler(gpu: &Gpu, n: usize) -> Recording {
    let zeros = |label| Tensor::zeros(gpu, label, &[n, n]).unwrap();
    let recording = Recording::new(gpu);
    let weight = FrozenLinear::from_tensors(zeros("filler"), None).unwrap();
    let x = zeros("filler");
    (0..8).for_each(|_| weight.forward(&recording, &x, &zeros("filler")).unwrap());
    recording
}
