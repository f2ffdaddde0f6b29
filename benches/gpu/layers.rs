//! Bandwidth and products of the device, every kernel of adapters and bases, and layers of both.

use std::rc::Rc;

use lora_webgpu::kernels::optim::{STATE_LEN, WINDOW_LEN};
use lora_webgpu::kernels::{base, lora};
use lora_webgpu::{
    Activation, AdamW, Batch, FrozenLinear, FrozenLoader, Inputs, LoraConfig, LoraLinear, Loss, Module, Network,
    OptimizerKind, OptimizerOptions, Packing, Recording, Result, Targets, Tensor, Trainer, WeightKind,
};
use serde_json::{Value, json};

use crate::clock::submit;
use crate::{Bench, Counted};

const I2_S: WeightKind = WeightKind::BitLinear { packing: Packing::I2S, int8_activations: false };
const TRANSFORMERS: WeightKind = WeightKind::BitLinear { packing: Packing::Transformers, int8_activations: false };
type Kind = (&'static str, WeightKind);
const KINDS: [Kind; 8] = [
    ("f32", WeightKind::F32),
    ("f16", WeightKind::F16),
    ("bf16", WeightKind::Bf16),
    ("bitlinear i2_s", I2_S),
    ("bitlinear transformers", TRANSFORMERS),
    ("q8_0", WeightKind::Q8_0),
    ("q4_0", WeightKind::Q4_0),
    ("q4_1", WeightKind::Q4_1),
];

/// Results of one kernel, each dispatch's its own.
const RESULTS_BYTES: usize = 4 << 30;

type Record<'a> = Box<dyn Fn(&Recording, &Tensor) -> Result<()> + 'a>;

/// One kernel: its name, the shape of its result, floats that it must move, operations.
struct Work<'a>(&'a str, Vec<usize>, f64, f64, Record<'a>);

impl Bench {
    pub fn device(&self) {
        self.copy_rate();
        let n = if self.small { 256 } else { 4096 };
        let (w, x) = (self.floats(&[n, n]), self.floats(&[n, n]));
        let weight = FrozenLinear::from_tensors(w.clone(), None).unwrap();
        let counted = Counted { bytes: 12.0 * (n * n) as f64, operations: 2.0 * (n as f64).powi(3) };
        let products: [(&str, Record); 3] = [
            ("x·Wᵀ", Box::new(|rec, y| weight.forward(rec, &x, y))),
            ("dY·W", Box::new(|rec, y| weight.backward_input(rec, &x, y))),
            ("dYᵀ·x", Box::new(|rec, y| lora::grad_a::record(rec, &w, &x, y, 1e-3))),
        ];
        for (name, record) in products {
            let (rec, y) = (Recording::new(&self.gpu), self.zeros(&[n, n]));
            let count = if self.small { 1 } else { 4 };
            (0..count).for_each(|_| record(&rec, &y).unwrap());
            let time = self.clock.time(&|| submit(&rec)).each(count);
            self.check(name, &y);
            self.product.set(self.product.get().max(counted.operations / time.median));
            self.row(&format!("product {name} {n}³"), time, counted, json!({ "n": n }));
        }
    }

    /// Bytes a second of a copy by four floats at a time, read and written ones both counted.
    fn copy_rate(&self) {
        const WGSL: &str = "
            @group(0) @binding(0) var<storage, read> a: array<vec4f>;
            @group(0) @binding(1) var<storage, read_write> b: array<vec4f>;
            @compute @workgroup_size(256)
            fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
                let i = id.x + id.y * groups.x * 256;
                if i < arrayLength(&a) {
                    b[i] = a[i];
                }
            }";
        let device = self.gpu.device();
        let source = wgpu::ShaderSource::Wgsl(WGSL.into());
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        });
        let wanted: u64 = if self.small { 8 << 20 } else { 1 << 30 };
        let size = wanted.min(device.limits().max_storage_buffer_binding_size) / 4096 * 4096;
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        let buffers = [(); 2].map(|()| device.create_buffer(&descriptor));
        let entry = |binding: u32| {
            let resource = buffers[binding as usize].as_entire_binding();
            wgpu::BindGroupEntry { binding, resource }
        };
        let (layout, entries) = (pipeline.get_bind_group_layout(0), [entry(0), entry(1)]);
        let group =
            device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout: &layout, entries: &entries });
        let groups = (size / 16).div_ceil(256) as u32;
        let rows = groups.div_ceil(65_535);
        let count = 4;
        let time = self.clock.time(&|| {
            let mut encoder = device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&pipeline);
            pass.set_bind_group(0, &group, &[]);
            (0..count).for_each(|_| pass.dispatch_workgroups(groups.div_ceil(rows), rows, 1));
            drop(pass);
            self.gpu.queue().submit([encoder.finish()]);
        });
        buffers.iter().for_each(wgpu::Buffer::destroy);
        let (time, bytes) = (time.each(count), 2.0 * size as f64);
        self.copy.set(bytes / time.median);
        self.product.set(f64::MIN_POSITIVE); // no operations to compare with yet
        self.row("copy", time, Counted { bytes, operations: 0.0 }, json!({ "megabytes": size >> 20 }));
    }

    pub fn kernels(&self) {
        let shapes: &[(usize, usize, usize)] = match self.small {
            true => &[(1, 256, 8), (64, 256, 8)],
            false => &[(1, 2560, 8), (128, 512, 8), (16_384, 4096, 8), (16_384, 4096, 16)],
        };
        for &(tokens, features, rank) in shapes {
            self.kernels_of(tokens, features, rank);
        }
    }

    /// LoRA's and the base's kernels at one shape, the layer being square.
    fn kernels_of(&self, tokens: usize, features: usize, rank: usize) {
        let (t, f, r) = (tokens as f64, features as f64, rank as f64);
        let (wide, weight, narrow, adapter) = (t * f, f * f, t * r, f * r);
        let [a, b] = [self.floats(&[rank, features]), self.floats(&[features, rank])];
        let (x, h) = (self.floats(&[tokens, features]), self.floats(&[tokens, rank]));
        let frozen = self.weight(WeightKind::F32, features, features);
        let row = &frozen.kernel_rows()[0];
        let (vector, factors) = (self.floats(&[features]), self.floats(&[tokens]));
        let ids: Vec<i32> = (0..tokens).map(|i| (i * 7919 % features) as i32).collect();
        let ids = Tensor::integers(&self.gpu, "ids", &[tokens], Some(&ids)).unwrap();
        let (state, window) = (self.zeros(&[STATE_LEN]), self.zeros(&[WINDOW_LEN]));
        let joined_d_b = self.zeros(&[features, rank]);
        let (u, d_magnitude) = (self.zeros(&[tokens, features]), self.zeros(&[features]));
        let dora = || lora::dora::Inputs { b: &b, h: &h, magnitude: &vector, norm: &vector, bias: None };
        let mask = || lora::dropout::Mask { p: 0.1, seed: 1, layer: 0 };
        let (w, n) = (vec![tokens, features], vec![tokens, rank]);
        let (d_a, d_b, v) = (vec![rank, features], vec![features, rank], vec![features]);
        let thin = 2.0 * t * f * r;
        let product = wide + adapter + narrow;
        let work: Vec<Work> = vec![
            Work("project_a", n.clone(), product, thin, Box::new(|rec, y| lora::project_a::record(rec, &a, &x, y))),
            Work("project_b", w.clone(), product, thin, Box::new(|rec, y| lora::project_b::record(rec, &b, &h, y))),
            Work("add_scaled", w.clone(), 3.0 * wide, 2.0 * wide, {
                Box::new(|rec, y| lora::add_scaled::record(rec, &x, y, 1e-3))
            }),
            Work("fused_b_add", w.clone(), product + wide, thin + 2.0 * wide, {
                Box::new(|rec, y| lora::fused_b_add::record(rec, &b, &h, y, 1e-3))
            }),
            Work("grad_b", d_b, product + adapter, thin, {
                Box::new(|rec, y| lora::grad_b::record(rec, &x, &h, y, 1e-3))
            }),
            Work("grad_dh", n.clone(), product, thin, Box::new(|rec, y| lora::grad_dh::record(rec, &b, &x, y))),
            Work("grad_b_dh", n.clone(), product + 2.0 * adapter + narrow, 2.0 * thin, {
                Box::new(|rec, y| lora::grad_b_dh::record(rec, &b, &x, &h, &joined_d_b, y, 1e-3))
            }),
            Work("grad_a", d_a, product + adapter, thin, {
                Box::new(|rec, y| lora::grad_a::record(rec, &h, &x, y, 1e-3))
            }),
            Work("input_grad", w.clone(), product + wide, thin + 2.0 * wide, {
                Box::new(|rec, y| lora::input_grad::record(rec, &a, &h, y, 1e-3))
            }),
            Work("save_activation", w.clone(), 2.0 * wide, 0.0, {
                Box::new(|rec, y| lora::save_activation::record(rec, &x, y))
            }),
            Work("bias_add", w.clone(), 2.0 * wide + f, 2.0 * wide, {
                Box::new(|rec, y| lora::bias_add::record(rec, &vector, y, 1e-3))
            }),
            Work("bias_grad", v.clone(), wide + 2.0 * f, wide, {
                Box::new(|rec, y| lora::bias_grad::record(rec, &x, y, 1e-3))
            }),
            Work("scale_rows", n, 2.0 * narrow + t, narrow, {
                Box::new(|rec, y| lora::scale_rows::record(rec, &factors, y))
            }),
            Work("dropout", w.clone(), 2.0 * wide, wide, {
                Box::new(|rec, y| lora::dropout::record(rec, &x, &state, &window, y, mask(), false))
            }),
            Work("dora", w.clone(), product + 2.0 * wide + 2.0 * f, thin + 3.0 * wide, {
                Box::new(|rec, y| lora::dora::record(rec, dora(), &u, y, 1e-3, false))
            }),
            Work("dora_grad", w.clone(), 3.0 * wide + 4.0 * f, 3.0 * wide, {
                Box::new(|rec, y| lora::dora_grad::record(rec, &vector, &vector, &x, &u, &d_magnitude, y))
            }),
            Work("find_non_finite", vec![WINDOW_LEN], wide + narrow, 0.0, {
                Box::new(|rec, y| lora::find_non_finite::record(rec, &x, &h, y, 0))
            }),
            Work("merge", vec![features, features], 2.0 * weight + 2.0 * adapter, 2.0 * f * f * r, {
                Box::new(|rec, y| lora::merge::record(rec, &a, &b, None, y, 1e-3, false))
            }),
            Work("linear f32", w.clone(), 2.0 * wide + weight, 2.0 * t * weight, {
                Box::new(|rec, y| frozen.forward(rec, &x, y))
            }),
            Work("linear_t f32", w.clone(), 2.0 * wide + weight, 2.0 * t * weight, {
                Box::new(|rec, y| frozen.backward_input(rec, &x, y))
            }),
            Work("rows f32", w.clone(), 2.0 * wide, 0.0, Box::new(|rec, y| frozen.embed(rec, &ids, y))),
            Work("row_squares f32", v, weight + f, 2.0 * weight, {
                Box::new(|rec, y| base::row_squares::record(rec, row, y, 0))
            }),
            Work("absmax_int8", w, 2.0 * wide, 4.0 * wide, {
                Box::new(|rec, y| base::absmax_int8::record(rec, &x, y))
            }),
        ];
        let joins = rank <= 8 && tokens >= 16 && self.gpu.optional_features().subgroup_ids;
        let work = work.into_iter().filter(|Work(kernel, ..)| joins || *kernel != "grad_b_dh");
        for Work(kernel, shape, floats, operations, record) in work {
            let counted = Counted { bytes: 4.0 * floats, operations };
            // About two milliseconds of dispatches that write a result each and may overlap; then all into the same, one
            // after another.
            let least = (counted.bytes / self.copy.get()).max(operations / self.product.get()).max(4e-6);
            let room = (RESULTS_BYTES / (4 * shape.iter().product::<usize>())).max(1);
            let count = if self.small { 2 } else { ((2e-3 / least) as usize).clamp(2, 256).min(room) };
            let results: Vec<Tensor> = (0..count).map(|_| self.zeros(&shape)).collect();
            let [independent, serial] = [count, 1].map(|results_used| {
                let rec = Recording::new(&self.gpu);
                for i in 0..count {
                    record(&rec, &results[i % results_used]).unwrap_or_else(|e| panic!("{kernel}: {e}"));
                }
                self.clock.time(&|| submit(&rec)).each(count)
            });
            if kernel != "find_non_finite" && kernel != "scale_rows" {
                self.check(kernel, &results[count - 1]);
            }
            let more = json!({
                "tokens": tokens,
                "features": features,
                "rank": rank,
                "serial_us": (serial.median * 1e8).round() / 100.0,
            });
            self.row(&format!("{kernel} {tokens} × {features}² r {rank}"), independent, counted, more);
        }
    }

    /// A weight of random bytes that are fine for its kind.
    fn weight(&self, kind: WeightKind, rows: usize, columns: usize) -> FrozenLinear {
        self.weights(kind, rows, columns, 1).remove(0)
    }

    /// The same bytes at `count` places.
    fn weights(&self, kind: WeightKind, rows: usize, columns: usize, count: usize) -> Vec<FrozenLinear> {
        let bytes = kind.source_bytes(rows, columns).unwrap() as usize;
        let mut bytes = self.random_bytes(bytes);
        // Small numbers or factors: the upper byte of each float is set.
        let mut set = |size: usize, at: &[usize], byte: u8| {
            bytes.chunks_exact_mut(size).for_each(|b| at.iter().for_each(|i| b[*i] = byte));
        };
        match kind {
            WeightKind::F32 => set(4, &[3], 0x3b),
            WeightKind::F16 => set(2, &[1], 0x20),
            WeightKind::Bf16 => set(2, &[1], 0x3b),
            WeightKind::Q8_0 => set(34, &[1], 0x0c),
            WeightKind::Q4_0 => set(18, &[1], 0x1c),
            WeightKind::Q4_1 => set(20, &[1, 3], 0x14),
            WeightKind::BitLinear { packing, .. } => {
                // No code 3: of two set bits the lower one goes.
                bytes.iter_mut().for_each(|b| *b &= !(*b >> 1 & 0x55));
                if packing == Packing::I2S {
                    let end = bytes.len() - 4;
                    bytes[end..].copy_from_slice(&0.05f32.to_le_bytes());
                }
            }
        }
        let load = || {
            let mut loader = FrozenLoader::new(&self.gpu, kind, rows, columns).unwrap_or_else(|e| panic!("{e}"));
            loader.write(0, &bytes).unwrap();
            if kind == TRANSFORMERS {
                loader.set_scale(0.05).unwrap();
            }
            let weight = loader.finish().unwrap();
            self.clock.finish_uploads(); // or the staging of all of them is kept
            weight
        };
        (0..count).map(|_| load()).collect()
    }

    /// Every kind: one token over distinct weights in one pass, each dispatch independent of the others; many tokens.
    pub fn bases(&self) {
        let shapes: &[(usize, usize, usize)] = match self.small {
            true => &[(1, 512, 512), (1, 512, 1024), (32, 512, 512)],
            false => &[(1, 2560, 2560), (1, 2560, 6912), (256, 2560, 2560)],
        };
        for &(tokens, columns, rows) in shapes {
            for (name, kind) in KINDS {
                let least = if tokens == 1 { self.bytes } else { 1 };
                let first = self.weight(kind, rows, columns);
                let bytes = first.bytes() as usize;
                first.destroy();
                let weights = self.weights(kind, rows, columns, least.div_ceil(bytes).max(1));
                let count = if tokens == 1 {
                    weights.len()
                } else if self.small {
                    1
                } else {
                    16
                };
                let (x, d_output) = (self.floats(&[tokens, columns]), self.floats(&[tokens, rows]));
                let (forward, transpose) = (Recording::new(&self.gpu), Recording::new(&self.gpu));
                let mut results = Vec::new();
                for i in 0..count {
                    let weight = &weights[i % weights.len()];
                    let (output, d_input) = (self.zeros(&[tokens, rows]), self.zeros(&[tokens, columns]));
                    weight.forward(&forward, &x, &output).unwrap();
                    weight.backward_input(&transpose, &d_output, &d_input).unwrap();
                    results.push([output, d_input]);
                }
                for (i, (way, rec)) in [("forward", &forward), ("transpose", &transpose)].into_iter().enumerate() {
                    let time = self.clock.time(&|| submit(rec)).each(count);
                    let name = format!("{name} {way} ({tokens}, {columns}, {rows})");
                    self.check(&name, &results[count - 1][i]);
                    let counted = Counted {
                        bytes: (bytes + 4 * tokens * (rows + columns)) as f64,
                        operations: 2.0 * (tokens * rows * columns) as f64,
                    };
                    let rate = bytes as f64 / time.median;
                    let share = (1000.0 * rate / self.copy.get()).round() / 1000.0;
                    let more = match tokens {
                        1 => json!({ "packed_gb_s": (rate / 1e8).round() / 10.0, "of_copy": share, "weights": count }),
                        _ => json!({ "packed_gb_s": (rate / 1e8).round() / 10.0 }),
                    };
                    self.row(&name, time, counted, more);
                }
                weights.iter().for_each(FrozenLinear::destroy);
            }
        }
    }

    fn lora(&self, kind: WeightKind, features: usize, rank: usize) -> LoraLinear {
        let base = self.weight(kind, features, features);
        let layer = LoraLinear::new(&self.gpu, None, base, &LoraConfig::new(rank, 16.0)).unwrap();
        layer.weight().b.write(&self.random_floats(features * rank, 0.01)).unwrap(); // it starts from zeros
        layer
    }

    /// What an adapter costs on top of its base: `over_base` is the time of both over that of the base alone.
    pub fn adapters(&self) {
        let shapes: &[(usize, usize, usize, usize, &[Kind])] = match self.small {
            true => &[(64, 256, 8, 8, &KINDS[..2])],
            false => &[(256, 2560, 8, 8, &KINDS), (2048, 4096, 16, 4, &KINDS[..2])],
        };
        for &(tokens, features, rank, count, kinds) in shapes {
            for (name, kind) in kinds {
                let layers: Vec<LoraLinear> = (0..count).map(|_| self.lora(*kind, features, rank)).collect();
                let (x, d_output) = (self.floats(&[tokens, features]), self.floats(&[tokens, features]));
                let recordings = [(); 6].map(|()| Recording::new(&self.gpu));
                let [base, base_back, base_both, with, with_back, with_both] = &recordings;
                // As in a network: each layer takes what the one before it gave.
                let results = |n: usize| (0..n).map(|_| self.zeros(&[tokens, features])).collect::<Vec<_>>();
                let (outputs, gradients) = (results(count), results(count));
                let mut inputs = vec![x.clone()];
                for (i, layer) in layers.iter().enumerate() {
                    for rec in [base, base_both] {
                        layer.base().forward(rec, if i == 0 { &x } else { &outputs[i - 1] }, &outputs[i]).unwrap();
                    }
                    layer.forward(with, &inputs[i]).unwrap();
                    inputs.push(layer.forward(with_both, &inputs[i]).unwrap());
                }
                for (i, layer) in layers.iter().enumerate().rev() {
                    let d = if i == count - 1 { &d_output } else { &gradients[i + 1] };
                    for rec in [base_back, base_both] {
                        layer.base().backward_input(rec, d, &gradients[i]).unwrap();
                    }
                    for rec in [with_back, with_both] {
                        layer.backward(rec, &inputs[i], d, Some(&gradients[i])).unwrap();
                    }
                }
                let (t, f, r) = (tokens as f64, features as f64, rank as f64);
                let bytes = layers[0].base().bytes() as f64 + 8.0 * t * f;
                let (product, thin) = (2.0 * t * f * f, 2.0 * t * f * r);
                for (way, alone, both, products, thins) in [
                    ("forward", base, with, 1.0, 2.0),
                    ("backward", base_back, with_back, 1.0, 4.0),
                    ("forward + backward", base_both, with_both, 2.0, 6.0),
                ] {
                    // In turns, since the clock may drift.
                    let [a, b, c, d] =
                        [alone, both, alone, both].map(|rec| self.clock.time(&|| submit(rec)).each(count));
                    let ratio = (b.median + d.median) / (a.median + c.median);
                    let name = format!("{name} {way} {tokens} × {features}²");
                    let counted = |thins: f64| Counted {
                        bytes: products * bytes + thins * 4.0 * f * r,
                        operations: products * product + thins * thin,
                    };
                    self.row(&format!("{name} base"), a, counted(0.0), json!({}));
                    let ratio = (1000.0 * ratio).round() / 1000.0;
                    self.row(&format!("{name} r {rank}"), b, counted(thins), json!({ "over_base": ratio }));
                }
                self.check(name, &inputs[count]);
                self.check(name, &gradients[0]);
                layers.iter().for_each(LoraLinear::destroy);
            }
        }
    }

    /// How the time of a LoRA layer's step grows with tokens, width and rank, each doubled again and again.
    pub fn growth(&self) {
        let (tokens, width, rank) = if self.small { (16, 64, 4) } else { (1024, 2048, 16) };
        let doubled = |from: usize, times: usize| (0..times).map(move |i| from << i);
        let times = if self.small { [2, 2, 2] } else { [9, 6, 6] };
        let shapes = doubled(tokens / 32, times[0]).map(|tokens| ("tokens", tokens.max(1), width, rank));
        let shapes = shapes.chain(doubled(width / 8, times[1]).map(|width| ("width", tokens, width, rank)));
        for (by, tokens, width, rank) in
            shapes.chain(doubled(rank / 4, times[2]).map(|rank| ("rank", tokens, width, rank)))
        {
            // About as much work in each submit.
            let steps = if self.small { 1 } else { ((1 << 33) / (tokens * width * width)).clamp(1, 50) };
            self.lora_step(
                tokens,
                width,
                rank,
                steps,
                json!({ "by": by, "tokens": tokens, "features": width, "rank": rank }),
            );
        }
    }

    fn lora_step(&self, tokens: usize, features: usize, rank: usize, steps: usize, mut more: Value) {
        let layer = self.lora(WeightKind::F32, features, rank);
        let (x, d_output) = (self.floats(&[tokens, features]), self.floats(&[tokens, features]));
        let d_input = self.zeros(&[tokens, features]);
        let rec = Recording::new(&self.gpu);
        for _ in 0..steps {
            layer.forward(&rec, &x).unwrap();
            layer.backward(&rec, &x, &d_output, Some(&d_input)).unwrap();
        }
        let time = self.clock.time(&|| submit(&rec)).each(steps);
        self.check("d_input", &d_input);
        let (t, f, r) = (tokens as f64, features as f64, rank as f64);
        let counted = Counted {
            bytes: 4.0 * (2.0 * f * f + 5.0 * t * f + 8.0 * f * r),
            operations: 4.0 * t * f * f + 12.0 * t * f * r,
        };
        more["dispatches"] = json!(rec.dispatches() / steps);
        more["steps_a_submit"] = json!(steps);
        self.row(&format!("LoRA forward + backward {tokens} × {features}² r {rank}"), time, counted, more);
        layer.destroy();
    }

    /// Forward and backward of a LoRA layer, and whole training steps.
    pub fn steps(&self) {
        let shapes: &[(usize, usize, usize, usize)] = match self.small {
            true => &[(1, 256, 8, 10), (64, 256, 8, 1)],
            false => &[(1, 2560, 8, 100), (128, 512, 8, 20), (2048, 4096, 16, 2)],
        };
        for &(tokens, features, rank, steps) in shapes {
            self.lora_step(tokens, features, rank, steps, json!({}));
        }
        let shapes: &[(usize, usize, usize)] = match self.small {
            true => &[(32, 128, 8)],
            false => &[(128, 512, 8), (512, 2048, 8), (512, 2048, 16)],
        };
        for &(tokens, features, rank) in shapes {
            let layers = [(); 2].map(|()| Rc::new(self.lora(WeightKind::F32, features, rank)));
            let [first, second] = layers.clone();
            let modules = vec![Module::Linear(first), Module::Activation(Activation::Tanh), Module::Linear(second)];
            let options = OptimizerOptions::new(OptimizerKind::AdamW(AdamW::default()), 1e-3);
            let trainer = Trainer::new(&self.gpu, Network::new(modules).unwrap(), Loss::Mse, options).unwrap();
            let [x, target] = [(); 2].map(|()| self.floats(&[tokens, features]));
            let step = || {
                let batch = Batch { x: Inputs::Tensor(&x), targets: Targets::Tensor(&target) };
                pollster::block_on(trainer.step(&[batch])).unwrap();
            };
            let read = || {
                let from = trainer.attempts();
                step();
                let records = pollster::block_on(trainer.records(from)).unwrap();
                assert!(records[0].loss.is_finite(), "{tokens} × {features}: loss {}", records[0].loss);
            };
            (0..3).for_each(|_| read());
            let before = self.gpu.stats();
            step();
            let after = self.gpu.stats();
            let more = json!({
                "dispatches": after.dispatches - before.dispatches,
                "submits": after.submits - before.submits,
            });
            let (t, f, r) = (tokens as f64, features as f64, rank as f64);
            let operations = 2.0 * (4.0 * t * f * f + 12.0 * t * f * r) - 2.0 * t * f * (f + r);
            let counted = Counted { bytes: 0.0, operations };
            let name = |how: &str| format!("training step {tokens} × {features}² r {rank}, {how}");
            let count = if self.small { 3 } else { 50 };
            self.clock.wake(0.8);
            let walls: Vec<f64> =
                (0..self.clock.repeats()).map(|_| self.clock.wall(&|| (0..count).for_each(|_| step()))).collect();
            self.row(&name("queued"), crate::clock::Time::of(walls).each(count), counted, more.clone());
            self.clock.wake(0.8);
            let walls: Vec<f64> = (0..count).map(|_| self.clock.wall(&read)).collect();
            self.row(&name("loss read"), crate::clock::Time::of(walls), counted, more);
            trainer.destroy();
            layers.iter().for_each(|layer| layer.destroy());
        }
    }
}
