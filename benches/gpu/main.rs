//! npm run bench:gpu: what the kernels reach of a GPU's bandwidth and arithmetic, natively, and whole steps.
//!
//! The program needs nothing but a Vulkan, Metal or DirectX 12 driver: copy it to the machine to be measured. Options:
//! `--json FILE` writes all rows; `--only WORD[,WORD…]` runs the sections of those names (kernels, bases, adapters, steps, growth, model);
//! `--small` takes small shapes, as on a software adapter; `--hardware` a GPU's kernels there, too; `--megabytes N` of distinct weights are read a pass (512);
//! `--model FOLDER` trains and runs the language model of a folder with config.json and model.safetensors, too.

#[cfg(not(target_arch = "wasm32"))]
mod clock;
#[cfg(not(target_arch = "wasm32"))]
mod layers;
#[cfg(not(target_arch = "wasm32"))]
mod model;

#[cfg(target_arch = "wasm32")]
fn main() {}

#[cfg(not(target_arch = "wasm32"))]
fn main() {
    native::main();
}

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use std::cell::{Cell, RefCell};
    use std::time::Instant;

    use lora_webgpu::{Gpu, GpuRequest, Profile, Tensor};
    use serde_json::{Value, json};

    use crate::clock::{Clock, Time};

    pub struct Bench {
        pub gpu: Gpu,
        pub clock: Clock,
        pub small: bool,
        /// Of distinct weights in a pass.
        pub bytes: usize,
        /// A folder of a language model.
        pub model: Option<String>,
        only: Option<String>,
        /// Bytes a second of the best copy, and operations a second of the best product: what shares are of.
        pub copy: Cell<f64>,
        pub product: Cell<f64>,
        section: Cell<&'static str>,
        rows: RefCell<Vec<Value>>,
        failures: RefCell<Vec<String>>,
        seed: Cell<u64>,
    }

    type Section = (&'static str, fn(&Bench));

    /// What one piece of work must at least move and do.
    #[derive(Clone, Copy, Default)]
    pub struct Counted {
        pub bytes: f64,
        pub operations: f64,
    }

    pub fn main() {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let known = ["--json", "--only", "--small", "--megabytes", "--model", "--hardware", "--bench"];
        if let Some(unknown) = arguments.iter().find(|a| a.starts_with("--") && !known.contains(&a.as_str())) {
            eprintln!("unknown option {unknown}; known: {}", known[..6].join(" "));
            std::process::exit(2);
        }
        let after = |name: &str| arguments.iter().position(|a| a == name).and_then(|i| arguments.get(i + 1)).cloned();
        let mut options = arguments.clone();
        if let Some(at) = options.iter().position(|a| a == "--json") {
            options.drain(at..(at + 2).min(options.len())); // where it is written is nobody else's matter
        }
        let start = Instant::now();
        let given = |name: &str| arguments.iter().any(|a| a == name);
        let profile = given("--hardware").then_some(Profile::Hardware);
        let request = GpuRequest { timestamps: true, high_performance: true, profile, ..Default::default() };
        let gpu = pollster::block_on(Gpu::request(request)).unwrap_or_else(|e| panic!("{e}"));
        let software = gpu.device().adapter_info().device_type == wgpu::DeviceType::Cpu;
        let small = software || given("--small");
        let megabytes = after("--megabytes").map(|n| n.parse().expect("--megabytes needs a number"));
        let bench = Bench {
            clock: Clock::new(&gpu, small),
            small,
            bytes: megabytes.unwrap_or(if small { 4 } else { 512 }) << 20,
            model: after("--model"),
            only: after("--only"),
            copy: Cell::new(0.0),
            product: Cell::new(0.0),
            section: Cell::new(""),
            rows: RefCell::default(),
            failures: RefCell::default(),
            seed: Cell::new(0x9e37_79b9_7f4a_7c15),
            gpu,
        };
        let adapter = bench.gpu.device().adapter_info();
        let driver = format!("{} {}", adapter.driver, adapter.driver_info);
        println!("{}, {driver}, {:?} ({:?})", adapter.name, adapter.backend, bench.gpu.profile());
        let (timer, repeats) = (bench.clock.name(), bench.clock.repeats());
        println!("options: {}", if options.is_empty() { "none".into() } else { options.join(" ") });
        println!("{timer}, median of {repeats}; shares are of max(bytes / best copy, operations / best f32 product)");
        let save = || {
            let Some(path) = after("--json") else { return };
            let report = json!({
                "adapter": adapter.name,
                "driver": driver,
                "backend": format!("{:?}", adapter.backend),
                "options": options,
                "timer": timer,
                "repeats": repeats,
                "small": small,
                "seconds": start.elapsed().as_secs_f64().round(),
                "copy_gb_s": bench.copy.get() / 1e9,
                "product_tflop_s": bench.product.get() / 1e12,
                "failures": *bench.failures.borrow(),
                "rows": *bench.rows.borrow(),
            });
            std::fs::write(&path, format!("{report}\n")).unwrap_or_else(|e| panic!("{path}: {e}"));
        };
        let sections: [Section; 7] = [
            ("device", Bench::device),
            ("kernels", Bench::kernels),
            ("bases", Bench::bases),
            ("adapters", Bench::adapters),
            ("steps", Bench::steps),
            ("growth", Bench::growth),
            ("model", Bench::models),
        ];
        for (name, run) in sections {
            let wanted = |words: &String| words.split(',').any(|word| word == name);
            if name == "device" || bench.only.as_ref().is_none_or(wanted) {
                let title = format!("{name} ({:.0} s)", start.elapsed().as_secs_f64());
                println!("\n{title:<58}{:>12}{:>10}{:>10}{:>8}", "µs", "GB/s", "TFLOP/s", "share");
                bench.section.set(name);
                run(&bench);
                save(); // what came before is kept if the next one fails
            }
        }
        println!("\n{:.0} s in all", start.elapsed().as_secs_f64());
        if !bench.failures.borrow().is_empty() {
            std::process::exit(1);
        }
    }

    impl Bench {
        /// One line, with what else is to be in its JSON.
        pub fn row(&self, name: &str, time: Time, counted: Counted, more: Value) {
            let Counted { bytes, operations } = counted;
            let (rate, flops) = (bytes / time.median, operations / time.median);
            let least = (bytes / self.copy.get()).max(operations / self.product.get());
            let share = least / time.median;
            let counts = bytes > 0.0 && self.copy.get() > 0.0;
            let share_text = if counts { format!("{:.0} %", 100.0 * share) } else { String::new() };
            let notes: Vec<String> = more.as_object().into_iter().flatten().map(|(k, v)| format!("{k} {v}")).collect();
            println!(
                "{name:<58}{:>12.2}{:>10.1}{:>10.3}{share_text:>8}  {}",
                time.median * 1e6,
                rate / 1e9,
                flops / 1e12,
                notes.join(", ")
            );
            let mut row = json!({
                "section": self.section.get(),
                "name": name,
                "us": time.median * 1e6,
                "min_us": time.min * 1e6,
                "max_us": time.max * 1e6,
                "bytes": bytes,
                "operations": operations,
                "share": if counts { share.into() } else { Value::Null },
            });
            row.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
            self.rows.borrow_mut().push(row);
        }

        /// The program goes on, and ends with an error.
        pub fn fail(&self, sentence: &str) {
            println!("✗ {sentence}");
            self.failures.borrow_mut().push(sentence.to_string());
        }

        pub fn add_to_last_row(&self, key: &str, value: Value) {
            if let Some(row) = self.rows.borrow_mut().last_mut() {
                row[key] = value;
            }
        }

        fn next(&self) -> u64 {
            let mut seed = self.seed.get();
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            self.seed.set(seed);
            seed
        }

        pub fn random_bytes(&self, len: usize) -> Vec<u8> {
            let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
            bytes.truncate(len);
            bytes
        }

        /// Uniform in ±`scale`.
        pub fn random_floats(&self, len: usize, scale: f32) -> Vec<f32> {
            let float = |i: u64| ((i >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale;
            (0..len).map(|_| float(self.next())).collect()
        }

        pub fn floats(&self, shape: &[usize]) -> Tensor {
            let data = self.random_floats(shape.iter().product(), 1.0);
            Tensor::from_slice(&self.gpu, "given", shape, &data).unwrap_or_else(|e| panic!("{e}"))
        }

        pub fn zeros(&self, shape: &[usize]) -> Tensor {
            Tensor::zeros(&self.gpu, "result", shape).unwrap_or_else(|e| panic!("{e}"))
        }

        /// Notes where a result is not finite, or nothing was written: then no time of it counts.
        pub fn check(&self, name: &str, tensor: &Tensor) {
            const BYTES: u64 = 1 << 16; // of its beginning and of its end
            let (buffer, offset) = tensor.buffer().unwrap_or_else(|e| panic!("{name}: {e}"));
            let (bytes, device) = (4 * tensor.len() as u64, self.gpu.device());
            let part = bytes.min(BYTES);
            let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
            let descriptor = wgpu::BufferDescriptor { label: None, size: 2 * part, usage, mapped_at_creation: false };
            let read = device.create_buffer(&descriptor);
            let mut encoder = device.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(&buffer, offset, &read, 0, part);
            encoder.copy_buffer_to_buffer(&buffer, offset + bytes - part, &read, part, part);
            self.gpu.queue().submit([encoder.finish()]);
            read.slice(..).map_async(wgpu::MapMode::Read, |_| {});
            self.clock.finish();
            let view = read.slice(..).get_mapped_range().expect("mapped by now");
            let values: Vec<f32> = view.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            drop(view);
            read.destroy();
            let finite = values.iter().all(|v| v.is_finite());
            if !finite || values.iter().all(|v| *v == 0.0) {
                self.fail(&format!("{name}: the result is not finite, or all zeros"));
            }
        }
    }
}

#[cfg(not(target_arch = "wasm32"))]
use native::{Bench, Counted};
