//! Language models: training and generation, in tokens a second.

use std::rc::Rc;

use lora_webgpu::io::safetensors::{SafetensorsFile, to_f32};
use lora_webgpu::io::{AdapterConfig, ModuleKind, NewConfig};
use lora_webgpu::{
    AdamW, CausalLM, Input, LanguageTrainer, LoraConfig, ModelConfig, OptimizerKind, OptimizerOptions, Sampling,
    Schedule, SequencesOptions, TokenBatch, shift_labels,
};
use serde_json::json;

use crate::clock::Time;
use crate::{Bench, Counted};

/// SmolLM2-135M's shape.
const SMOLLM2: &str = r#"{"model_type":"llama","vocab_size":49152,"hidden_size":576,"intermediate_size":1536,
    "num_hidden_layers":30,"num_attention_heads":9,"num_key_value_heads":3,"max_position_embeddings":8192,
    "rope_theta":100000,"rms_norm_eps":1e-5,"tie_word_embeddings":true}"#;
const QWEN: &str = r#"{"model_type":"qwen2","vocab_size":151936,"hidden_size":896,"intermediate_size":4864,
    "num_hidden_layers":24,"num_attention_heads":14,"num_key_value_heads":2,"max_position_embeddings":32768,
    "rope_theta":1000000,"rms_norm_eps":1e-6,"tie_word_embeddings":true}"#;
const TINY: &str = r#"{"model_type":"llama","vocab_size":512,"hidden_size":64,"intermediate_size":128,
    "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":256,
    "tie_word_embeddings":true}"#;
const RANK: usize = 8;

impl Bench {
    pub fn models(&self) {
        if let Some(folder) = &self.model {
            let read = |name: &str| std::fs::read(format!("{folder}/{name}")).unwrap_or_else(|e| panic!("{name}: {e}"));
            let (config, weights) = (read("config.json"), read("model.safetensors"));
            let file = SafetensorsFile::parse("model.safetensors", &weights).unwrap_or_else(|e| panic!("{e}"));
            let model = self.empty_model(&config);
            for parameter in model.parameters() {
                let info = file.header.find(&parameter.name).unwrap_or_else(|| panic!("no {}", parameter.name));
                parameter.tensor.write(&to_f32(&info.name, info.dtype, file.data(info)).unwrap()).unwrap();
            }
            if !self.small {
                self.overfit(&model);
            }
            self.model("given model", &model, if self.small { (1, 32) } else { (8, 256) });
        }
        let shapes: &[(&str, &str, usize, usize)] = match self.small {
            true => &[("tiny", TINY, 2, 32)],
            false => &[("SmolLM2-135M's shape", SMOLLM2, 4, 512), ("Qwen2.5-0.5B's shape", QWEN, 4, 512)],
        };
        for (name, config, batch, tokens) in shapes {
            let model = self.empty_model(config.as_bytes());
            for parameter in model.parameters() {
                let len = parameter.tensor.len();
                let values = match parameter.name.contains("norm") {
                    true => vec![1.0; len],
                    false => self.random_floats(len, 0.035), // a deviation of 0.02
                };
                parameter.tensor.write(&values).unwrap();
            }
            self.model(name, &model, (*batch, *tokens));
        }
    }

    /// Learns one batch of eight sequences of 16 tokens by heart, which the model wrote at a high temperature: many of all the
    /// tokens that there are no text has, and the frozen head never says them.
    fn overfit(&self, model: &Rc<CausalLM>) {
        const ENOUGH: f32 = 0.05;
        let (batch, tokens) = (8, 16);
        let sampling = Sampling { temperature: 1.5, ..Sampling::default() };
        let mut ids: Vec<i32> = Vec::new();
        for first in 0..batch as i32 {
            ids.push(model.config().vocab_size as i32 / 2 + first);
            let prompt = *ids.last().unwrap();
            let generation =
                model.generate(&[prompt], tokens - 1, &Sampling { seed: first as u64, ..sampling }).unwrap();
            ids.extend((1..tokens).map(|_| pollster::block_on(generation.next()).unwrap().unwrap_or(prompt)));
            generation.destroy();
        }
        let labels = shift_labels(tokens, &ids);
        let input = Input { input_ids: &ids, labels: Some(&labels), ..Input::default() };
        add_adapters(model);
        const STEPS: usize = 600; // down to 0: a constant rate ends in noise
        let schedule = Schedule::Linear { warmup: 20, total: STEPS };
        let options =
            OptimizerOptions { schedule, ..OptimizerOptions::new(OptimizerKind::AdamW(AdamW::default()), 3e-3) };
        let trainer = LanguageTrainer::new(model, options, SequencesOptions::default(), 0).unwrap();
        let mut losses = Vec::new();
        let start = std::time::Instant::now();
        while losses.len() < STEPS && losses.last().is_none_or(|loss| *loss >= ENOUGH) {
            let from = trainer.attempts();
            pollster::block_on(trainer.step(&[TokenBatch { batch, input }])).unwrap();
            losses.push(pollster::block_on(trainer.records(from)).unwrap()[0].loss);
        }
        let time = start.elapsed().as_secs_f64();
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        let more = json!({ "steps": losses.len(), "first_loss": first, "last_loss": last });
        let name = format!("given model, {batch} × {tokens} tokens to a loss below {ENOUGH}");
        self.row(&name, Time::of(vec![time]), Counted::default(), more);
        if last.is_nan() || last >= ENOUGH {
            self.fail(&format!("{name}: {last} after {} steps", losses.len()));
        }
        trainer.destroy();
        model.loras().iter().for_each(|lora| model.remove_lora(lora));
    }

    /// Where the time of the last row goes, by kernel.
    fn shares(&self, kernels: &[(&str, f64, usize)]) {
        let sum: f64 = kernels.iter().map(|(_, seconds, _)| seconds).sum();
        for (kernel, seconds, count) in kernels.iter().take(12) {
            let share = 100.0 * seconds / sum;
            println!("    {kernel:<54}{:>12.2}{:>18} × {share:>8.1} %", seconds * 1e6, count);
        }
        let rows =
            kernels.iter().map(|(kernel, seconds, count)| json!([kernel, (seconds * 1e8).round() / 100.0, count]));
        self.add_to_last_row("kernels", rows.collect());
    }

    fn empty_model(&self, config: &[u8]) -> Rc<CausalLM> {
        let config = ModelConfig::parse(config).unwrap_or_else(|e| panic!("{e}"));
        Rc::new(CausalLM::new(&self.gpu, config).unwrap_or_else(|e| panic!("{e}")))
    }

    fn model(&self, name: &str, model: &Rc<CausalLM>, (batch, tokens): (usize, usize)) {
        self.clock.finish();
        let config = model.config();
        let vocabulary = config.vocab_size as u64;
        let ids: Vec<i32> = (0..batch * tokens).map(|i| ((i as u64 * 7919) % vocabulary) as i32).collect();
        add_adapters(model);
        let labels = shift_labels(tokens, &ids);
        let input = Input { input_ids: &ids, labels: Some(&labels), ..Input::default() };
        let modules = model.modules();
        let linears = modules.iter().filter(|module| module.kind == ModuleKind::Linear);
        let linears = linears.map(|module| module.in_features * module.out_features).sum::<usize>() as f64;
        let rows = (batch * tokens) as f64;
        for checkpointing in [true, false] {
            let options = OptimizerOptions::new(OptimizerKind::AdamW(AdamW::default()), 1e-4);
            let how = SequencesOptions { checkpointing, ..SequencesOptions::default() };
            let trainer = LanguageTrainer::new(model, options, how, 0).unwrap();
            let step = || pollster::block_on(trainer.step(&[TokenBatch { batch, input }])).unwrap();
            step();
            self.clock.finish();
            let before = self.gpu.stats();
            step();
            let after = self.gpu.stats();
            let gpu = self.clock.time(&step);
            self.clock.wake(0.8);
            let steps = if self.small { 2 } else { 5 };
            let walls = (0..self.clock.repeats()).map(|_| self.clock.wall(&|| (0..steps).for_each(|_| step())));
            let wall = Time::of(walls.collect()).each(steps);
            let records = pollster::block_on(trainer.records(0)).unwrap();
            let losses: Vec<f32> = records.iter().map(|record| record.loss).collect();
            assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
            // Forward, and the gradient of what goes into each layer; checkpointing's second forward is not counted.
            let counted = Counted { bytes: 0.0, operations: 4.0 * rows * linears };
            self.clock.wake(0.8);
            let kernels = self.gpu.kernel_times(step);
            let more = json!({
                "tokens_s": (rows / wall.median).round(),
                "gpu_us": (gpu.median * 1e6).round(),
                "dispatches": after.dispatches - before.dispatches,
                "submits": after.submits - before.submits,
                "gpu_megabytes": self.gpu.memory().bytes >> 20,
                "estimated_megabytes": estimate(model, batch, tokens, checkpointing) >> 20,
                "first_loss": losses[0],
                "last_loss": losses[losses.len() - 1],
            });
            let kept = if checkpointing { "checkpointing" } else { "all kept" };
            self.row(&format!("{name}, training {batch} × {tokens}, {kept}"), wall, counted, more);
            self.shares(&kernels);
            trainer.destroy();
        }
        for adapters in [false, true] {
            model.loras().iter().for_each(|lora| lora.set_enabled(adapters));
            let count = if self.small { 8 } else { 100 };
            let generation = model.generate(&ids[..16], count + 1, &Sampling::default()).unwrap();
            let next = || pollster::block_on(generation.next()).unwrap().expect("as many as were asked for");
            next();
            self.clock.wake(0.8);
            let before = self.gpu.stats();
            let times: Vec<f64> = (0..count)
                .map(|_| {
                    self.clock.wall(&|| {
                        next();
                    })
                })
                .collect();
            let after = self.gpu.stats();
            let time = Time::of(times);
            let more = json!({
                "tokens_s": (1.0 / time.median).round(),
                "dispatches": (after.dispatches - before.dispatches) / count as u64,
                "submits": (after.submits - before.submits) / count as u64,
            });
            let counted = Counted { bytes: 4.0 * linears, operations: 2.0 * linears };
            let with = if adapters { "with adapters" } else { "without adapters" };
            self.row(&format!("{name}, generation {with}"), time, counted, more);
            generation.destroy();
        }
        model.destroy();
    }
}

/// Bytes that a training of such adapters is said to hold.
fn estimate(model: &CausalLM, batch: usize, tokens: usize, checkpointing: bool) -> u64 {
    let new = NewConfig { rank: RANK, alpha: 16.0, target_modules: &[], ranks: &[], alphas: &[], base_model: None };
    let config = AdapterConfig::new(&new).and_then(|mut config| {
        config.set("target_modules", "\"all-linear\"")?;
        model.estimate(&config, batch, tokens, checkpointing)
    });
    config.unwrap_or_else(|e| panic!("{e}")).total()
}

/// On all linear layers.
fn add_adapters(model: &CausalLM) {
    let names: Vec<String> = model.linears().iter().map(|linear| linear.name().to_string()).collect();
    for name in &names {
        model.add_lora(name, &LoraConfig::new(RANK, 16.0)).unwrap();
    }
}
