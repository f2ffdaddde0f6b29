//! Language models: PyTorch's logits, gradients and losses, and what must be the same whichever way it is computed.

mod common;
mod reference;

use std::rc::Rc;

use common::files::{File, bytes, list};
use common::{Rng, bits, fresh_gpu, gpu, refused, say};
use lora_webgpu::io::safetensors::{Dtype, Header};
use lora_webgpu::io::{Adapter, AdapterConfig, AdapterKind, AdapterModule, NewConfig, OtherTensor};
use lora_webgpu::kernels::nn::Gate;
use lora_webgpu::{
    AdamW, CausalLM, Family, Generation, Gpu, Input, LanguageTrainer, LoraConfig, ModelConfig, ModelLoader,
    OptimizerKind, OptimizerOptions, RopeScaling, Sampling, SequencesOptions, Store, Tensor, TokenBatch,
    safetensors_sources, shift_labels,
};
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

/// The folders of models.
async fn models() -> Vec<String> {
    let end = "/trace.safetensors";
    let is_trace = |path: &&String| path.starts_with("models/") && path.ends_with(end);
    list().await.iter().filter(is_trace).map(|path| path.trim_end_matches(end).to_string()).collect()
}

/// A model of a folder, frozen.
async fn load(gpu: &Gpu, folder: &str) -> Rc<CausalLM> {
    let config = ModelConfig::parse(&bytes(&format!("{folder}/config.json")).await).unwrap();
    let file = bytes(&format!("{folder}/model.safetensors")).await;
    let header = Header::parse(folder, &file, file.len() as u64).unwrap();
    let mut loader = ModelLoader::new(gpu, config, safetensors_sources(0, &header), Store::AsIs).unwrap();
    for i in 0..loader.sources().len() {
        let range = loader.sources()[i].range.clone();
        loader.write(i, &file[range.start as usize..range.end as usize]).unwrap();
    }
    let model = loader.finish().unwrap();
    Rc::new(model)
}

/// All that is trained, with its gradient, by PEFT's keys.
fn all_trained(model: &CausalLM) -> Vec<(String, Tensor, Tensor)> {
    let mut all = Vec::new();
    for lora in model.loras() {
        let (name, weight, grad) = (lora.name().unwrap().to_string(), lora.weight(), lora.grad());
        let [a, b] = match lora.is_embedding() {
            true => ["lora_embedding_A", "lora_embedding_B"],
            false => ["lora_A.weight", "lora_B.weight"],
        };
        all.push((format!("{name}.{a}"), weight.a, grad.a));
        all.push((format!("{name}.{b}"), weight.b, grad.b));
        let own = &lora.active()[0];
        for (end, more) in [("lora_magnitude_vector", own.magnitude()), ("lora_B.bias", own.lora_bias())] {
            all.extend(more.map(|more| (format!("{name}.{end}"), more.value.clone(), more.grad.clone())));
        }
    }
    all.extend(model.trained_whole().into_iter().map(|(name, trained)| (name, trained.value, trained.grad)));
    all
}

/// Puts the adapter of a folder on a model.
async fn add_adapter(model: &CausalLM, folder: &str) {
    let config = bytes(&format!("{folder}/adapter_config.json")).await;
    let weights = bytes(&format!("{folder}/adapter_model.safetensors")).await;
    let adapter = Adapter::read(&config, &weights, true).unwrap();
    assert_eq!(model.load_adapter(&adapter).unwrap().len(), adapter.modules.len());
}

/// The ids, masks and labels of a trace.
struct Tokens {
    batch: usize,
    input_ids: Vec<i32>,
    attention_mask: Option<Vec<i32>>,
    position_ids: Option<Vec<i32>>,
    labels: Vec<i32>,
}

impl Tokens {
    fn of(trace: &File) -> Tokens {
        let optional = |name: &str| trace.has(name).then(|| trace.labels(name));
        let [batch, tokens] = <[usize; 2]>::try_from(trace.shape("input_ids")).unwrap();
        Tokens {
            batch,
            input_ids: trace.labels("input_ids"),
            attention_mask: optional("attention_mask"),
            position_ids: optional("position_ids"),
            labels: shift_labels(tokens, &trace.labels("labels")),
        }
    }

    fn input(&self) -> Input<'_> {
        Input {
            input_ids: &self.input_ids,
            attention_mask: self.attention_mask.as_deref(),
            position_ids: self.position_ids.as_deref(),
            labels: Some(&self.labels),
        }
    }

    fn as_batch(&self) -> TokenBatch<'_> {
        TokenBatch { batch: self.batch, input: self.input() }
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, v| most.max(v.abs()))
}

/// The largest difference as a share of `bound`.
#[track_caller]
fn assert_within(name: &str, got: &[f32], expected: &[f32], bound: f32) -> f32 {
    assert_eq!(got.len(), expected.len(), "{name}");
    let worst = got.iter().zip(expected).map(|(a, b)| if a.is_finite() { (a - b).abs() } else { f32::INFINITY });
    let worst = worst.fold(0.0, f32::max);
    assert!(worst <= bound && largest(expected) > bound, "{name}: off by {worst:e}, {bound:e} allowed");
    worst / bound
}

/// The logits that a trace has: of all positions that are no padding, or the last ones.
fn compare_logits(name: &str, trace: &File, key: &str, tokens: &Tokens, got: &[f32]) -> f32 {
    let golden = trace.tensor(key);
    let [_, kept, classes] = <[usize; 3]>::try_from(trace.shape(key)).unwrap();
    let length = tokens.input_ids.len() / tokens.batch;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for row in 0..tokens.batch * kept {
        let at = row / kept * length + length - kept + row % kept;
        if tokens.attention_mask.as_ref().is_none_or(|mask| mask[at] != 0) {
            ours.extend(&got[at * classes..(at + 1) * classes]);
            theirs.extend(&golden[row * classes..(row + 1) * classes]);
        }
    }
    assert_within(name, &ours, &theirs, 2e-5 * largest(&theirs))
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn golden_models() {
    let gpu = gpu().await;
    let mut compared = 0;
    for folder in models().await {
        let trace = File::read(&format!("{folder}/trace.safetensors")).await;
        let tokens = Tokens::of(&trace);
        let model = load(&gpu, &folder).await;
        let logits_base = model.logits(tokens.batch, &tokens.input()).await.unwrap();
        let base = compare_logits(&format!("{folder} base logits"), &trace, "logits_base", &tokens, &logits_base);
        add_adapter(&model, &format!("{folder}/adapter_start")).await;
        let logits = model.logits(tokens.batch, &tokens.input()).await.unwrap();
        let start = compare_logits(&format!("{folder} start logits"), &trace, "logits_start", &tokens, &logits);

        let adam = AdamW { weight_decay: trace.number("weight_decay"), ..AdamW::default() };
        let options = OptimizerOptions::new(OptimizerKind::AdamW(adam), trace.number("lr"));
        let trainer = LanguageTrainer::new(&model, options, SequencesOptions::default(), 0).unwrap();
        let losses = trace.meta("losses").as_array().unwrap();
        let losses: Vec<f32> = losses.iter().map(|loss| loss.as_f64().unwrap() as f32).collect();
        let (mut gradients, mut count) = (0.0f32, 0);
        for step in 0..losses.len() {
            trainer.step(&[tokens.as_batch()]).await.unwrap();
            if step > 0 {
                continue;
            }
            // The sum over all labels that count.
            let counted = tokens.labels.iter().filter(|label| **label != -100).count() as f32;
            for (name, _, tensor) in all_trained(&model) {
                let prefix = format!("grad.base_model.model.{name}");
                // Of a module that has an adapter PEFT calls the bias its base_layer's.
                let other = prefix.replace("_proj.bias", "_proj.base_layer.bias");
                let found = |prefix: &str| trace.names().find(|key| key.starts_with(prefix));
                let key = found(&prefix).or(found(&other)).unwrap_or_else(|| panic!("{prefix}"));
                let got: Vec<f32> = tensor.read().await.unwrap().iter().map(|g| g / counted).collect();
                let golden = trace.tensor(key);
                let share = assert_within(&format!("{folder} {key}"), &got, golden, 1e-4 * largest(golden));
                gradients = gradients.max(share);
                count += 1;
            }
        }
        assert_eq!(count, trace.names().filter(|name| name.starts_with("grad.")).count(), "{folder}");
        let got: Vec<f32> = trainer.records(0).await.unwrap().iter().map(|record| record.loss).collect();
        assert_within(&format!("{folder} first loss"), &got[..1], &losses[..1], 2e-5);
        let worst = assert_within(&format!("{folder} losses"), &got, &losses, 2e-4);
        for (name, tensor, _) in all_trained(&model) {
            let key = format!("final.base_model.model.{name}");
            if !trace.has(&key) {
                continue;
            }
            let (got, golden) = (tensor.read().await.unwrap(), trace.tensor(&key));
            let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
            let off = norm(&mut got.iter().zip(golden).map(|(a, b)| a - b)) / norm(&mut golden.iter().copied());
            assert!(off <= 1e-4, "{folder} {key}: off by {off:e} of its length at the end");
        }
        trainer.destroy();
        if trace.has("logits_end") {
            model.remove_adapters().unwrap();
            assert_eq!(model.logits(tokens.batch, &tokens.input()).await.unwrap(), logits_base, "{folder} without");
            add_adapter(&model, &format!("{folder}/adapter_end")).await;
            let logits = model.logits(tokens.batch, &tokens.input()).await.unwrap();
            compare_logits(&format!("{folder} end logits"), &trace, "logits_end", &tokens, &logits);
            model.set_adapter_enabled(false);
            assert_eq!(
                model.logits(tokens.batch, &tokens.input()).await.unwrap(),
                logits_base,
                "{folder} switched off"
            );
        }
        model.destroy();
        compared += 1;
        say(&format!(
            "golden {folder}: base logits {base:.2}, start logits {start:.2}, {count} gradients {gradients:.2}, {} losses {worst:.2} of their bounds",
            losses.len()
        ));
    }
    assert!(compared > 0);
}

/// PEFT's own files, of every option that models have; those that sit on another base are refused by name.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn golden_files_of_peft() {
    let gpu = gpu().await;
    let end = "/adapter_model.safetensors";
    let folders: Vec<String> =
        list().await.iter().filter_map(|path| Some(path.strip_suffix(end)?.to_string())).collect();
    let mut compared = 0;
    for folder in folders.iter().filter(|folder| folder.starts_with("peft_files/")) {
        if !list().await.contains(&format!("{folder}/logits.safetensors")) {
            continue; // of several together
        }
        let golden = File::read(&format!("{folder}/logits.safetensors")).await;
        let model = load(&gpu, &format!("peft_files/base_{}", golden.meta("base").as_str().unwrap())).await;
        let [config, weights] = [
            bytes(&format!("{folder}/adapter_config.json")).await,
            bytes(&format!("{folder}/adapter_model.safetensors")).await,
        ];
        let adapter = Adapter::read(&config, &weights, true).unwrap();
        let ids = golden.labels("input_ids");
        let input = Input { input_ids: &ids, ..Input::default() };
        let batch = golden.shape("input_ids")[0];
        let base = model.logits(batch, &input).await.unwrap();
        if adapter.config.init_lora_weights().changes_base() {
            refused(folder, model.load_adapter(&adapter), "unsupported", &["init_lora_weights"]);
            model.destroy();
            continue;
        }
        model.load_adapter(&adapter).unwrap();
        let logits = model.logits(batch, &input).await.unwrap();
        let expected = golden.tensor("logits");
        let share = assert_within(folder, &logits, expected, 2e-5 * largest(expected));
        let saved = model.save_adapter(&adapter.config).await.unwrap();
        assert_eq!(saved.parameters(), adapter.parameters() - copies(&adapter), "{folder}");
        model.set_adapter_enabled(false);
        assert!(bits(&model.logits(batch, &input).await.unwrap()) == bits(&base), "{folder} switched off");
        model.remove_adapters().unwrap();
        model.load_adapter(&saved).unwrap();
        assert!(bits(&model.logits(batch, &input).await.unwrap()) == bits(&logits), "{folder} saved and loaded");
        model.destroy();
        compared += 1;
        say(&format!("golden {folder}: logits {share:.2} of their bound"));
    }
    assert!(compared > 0);
}

/// Numbers that PEFT saves beside an adapter though they are frozen.
fn copies(adapter: &Adapter) -> usize {
    let copies = adapter.others.iter().filter(|other| other.name.ends_with(".base_layer.weight"));
    copies.map(|other| other.shape.iter().product::<usize>()).sum()
}

// ── what must be the same ──

/// A model of random weights: `layers` layers, 6 heads of 10 over 2 of keys, 131 tokens.
fn random_model(gpu: &Gpu, family: Family, tied: bool) -> Rc<CausalLM> {
    let config = ModelConfig {
        family,
        vocab_size: 131,
        hidden_size: 36,
        intermediate_size: 50,
        layers: 3,
        heads: 6,
        kv_heads: 2,
        head_dim: 10,
        rms_norm_eps: 1e-5,
        max_positions: 64,
        rope_theta: 1e4,
        rope_scaling: RopeScaling::None,
        tie_word_embeddings: tied,
        qkv_bias: family == Family::Qwen2,
        o_bias: false,
        mlp_bias: false,
        gate: if family == Family::Bitnet { Gate::Relu2 } else { Gate::Silu },
        ternary: None,
        eos_token_ids: vec![],
    };
    let model = CausalLM::new(gpu, config).unwrap();
    let rng = &mut Rng(5);
    for parameter in model.parameters() {
        let norm = parameter.name.contains("norm");
        let scale = if parameter.tensor.shape().len() == 2 { 0.3 } else { 0.2 };
        let numbers = rng.numbers(parameter.tensor.len());
        let values: Vec<f32> = numbers.iter().map(|v| v * scale + f32::from(u8::from(norm))).collect();
        parameter.tensor.write(&values).unwrap();
    }
    Rc::new(model)
}

/// Adapters of different ranks on every third module and the head, or all, with B of numbers.
fn random_adapters(model: &CausalLM, all: bool, dropout: f64) {
    let rng = &mut Rng(6);
    let names: Vec<String> = model.modules().into_iter().map(|module| module.name).collect();
    for (i, name) in names.iter().enumerate().filter(|(i, name)| all || i % 3 == 0 || *name == "lm_head") {
        let options = LoraConfig { dropout, seed: i as u64, ..LoraConfig::new(1 + i % 4, 3.0) };
        let lora = model.add_lora(name, &options).unwrap();
        let b = lora.weight().b;
        b.write(&rng.numbers(b.len()).iter().map(|v| 0.2 * v).collect::<Vec<_>>()).unwrap();
    }
}

/// Sequences of random ids.
fn random_ids(rng: &mut Rng, len: usize) -> Vec<i32> {
    rng.numbers(len).iter().map(|v| ((v.abs() * 131.0) as i32).min(130)).collect()
}

fn sgd() -> OptimizerOptions {
    OptimizerOptions::new(OptimizerKind::AdamW(AdamW::default()), 1e-2)
}

/// Losses and all adapters after two steps of two micro-batches.
async fn trained(gpu: &Gpu, family: Family, dropout: f64, options: SequencesOptions) -> (Vec<f32>, Vec<Vec<f32>>) {
    let model = random_model(gpu, family, true);
    random_adapters(&model, true, dropout);
    let rng = &mut Rng(8);
    let trainer = LanguageTrainer::new(&model, sgd(), options, 3).unwrap();
    for _ in 0..2 {
        let ids = [random_ids(rng, 33), random_ids(rng, 10)];
        let labels = [shift_labels(11, &ids[0]), shift_labels(10, &ids[1])];
        let batches = [3, 1].map(|batch| {
            let i = usize::from(batch == 1);
            let input = Input { input_ids: &ids[i], labels: Some(&labels[i]), ..Input::default() };
            TokenBatch { batch, input }
        });
        trainer.step(&batches).await.unwrap();
    }
    let losses = trainer.records(0).await.unwrap().iter().map(|record| record.loss).collect();
    let mut values = Vec::new();
    for lora in model.loras() {
        values.push(lora.weight().a.read().await.unwrap());
        values.push(lora.weight().b.read().await.unwrap());
    }
    trainer.destroy();
    model.destroy();
    (losses, values)
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn checkpointing_changes_no_bit() {
    let gpu = gpu().await;
    for (family, dropout) in [(Family::Llama, 0.0), (Family::Qwen3, 0.25), (Family::Bitnet, 0.0)] {
        let with = |checkpointing| SequencesOptions { checkpointing, ..SequencesOptions::default() };
        let (on, off) =
            (trained(&gpu, family, dropout, with(true)).await, trained(&gpu, family, dropout, with(false)).await);
        assert!(on.0.iter().all(|loss| loss.is_finite() && *loss > 0.0), "{:?}", on.0);
        assert_eq!(bits(&on.0), bits(&off.0), "{family:?} losses");
        for (a, b) in on.1.iter().zip(&off.1) {
            assert!(bits(a) == bits(b), "{family:?}: an adapter has other bits");
        }
    }
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_head_in_chunks_is_the_whole_head() {
    let gpu = gpu().await;
    let whole = trained(&gpu, Family::Llama, 0.0, SequencesOptions::default()).await;
    for chunk in [1, 64, 128] {
        let options = SequencesOptions { head_chunk: Some(chunk), ..SequencesOptions::default() };
        let chunked = trained(&gpu, Family::Llama, 0.0, options).await;
        assert_within("losses", &chunked.0, &whole.0, 1e-5);
        for (a, b) in chunked.1.iter().zip(&whole.1) {
            assert_within("an adapter", a, b, 2e-4);
        }
    }
}

/// Gradients, as sums over what counts, of one batch.
async fn gradients(model: &Rc<CausalLM>, batch: &TokenBatch<'_>) -> (f32, Vec<Vec<f32>>) {
    let trainer = LanguageTrainer::new(model, sgd(), SequencesOptions::default(), 0).unwrap();
    let (loss, count) = trainer.evaluate(batch).await.unwrap();
    trainer.step(&[*batch]).await.unwrap();
    let mut values = Vec::new();
    for lora in model.loras() {
        values.push(lora.grad().a.read().await.unwrap());
        values.push(lora.grad().b.read().await.unwrap());
    }
    trainer.destroy();
    (loss * count, values)
}

fn assert_same_gradients(name: &str, got: &[Vec<f32>], expected: &[Vec<f32>]) {
    assert_eq!(got.len(), expected.len());
    for (a, b) in got.iter().zip(expected) {
        assert_within(name, a, b, 2e-5 * largest(b));
    }
}

/// Three sequences of 4, 9 and 6 tokens: by themselves, padded left, padded right, with a sequence of padding alone, and
/// packed into one row of segments.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn padding_and_packing_change_nothing() {
    let gpu = gpu().await;
    for family in [Family::Llama, Family::Bitnet] {
        let rng = &mut Rng(9);
        let sequences = [4, 9, 6].map(|len| random_ids(rng, len));
        let fresh = || {
            let model = random_model(&gpu, family, false);
            random_adapters(&model, false, 0.0);
            model
        };
        let (mut loss, mut sums): (f32, Vec<Vec<f32>>) = (0.0, Vec::new());
        for ids in &sequences {
            let model = fresh();
            let labels = shift_labels(ids.len(), ids);
            let input = Input { input_ids: ids, labels: Some(&labels), ..Input::default() };
            let (one, gradients) = gradients(&model, &TokenBatch { batch: 1, input }).await;
            loss += one;
            match sums.is_empty() {
                true => sums = gradients,
                false => sums.iter_mut().flatten().zip(gradients.iter().flatten()).for_each(|(sum, g)| *sum += g),
            }
            model.destroy();
        }
        for (name, batch, length) in [("left", 4, 12), ("right", 4, 12), ("packed", 1, 19)] {
            let rows = batch * length;
            let (mut ids, mut mask, mut labels) = (vec![7; rows], vec![0; rows], vec![-100; rows]);
            let mut first = 0;
            for (i, sequence) in sequences.iter().enumerate() {
                let at = match name {
                    "left" => (i + 1) * length - sequence.len(),
                    "right" => i * length,
                    _ => first,
                };
                let range = at..at + sequence.len();
                ids[range.clone()].copy_from_slice(sequence);
                mask[range.clone()].fill(if name == "packed" { i as i32 + 1 } else { 1 });
                labels[range].copy_from_slice(&shift_labels(sequence.len(), sequence));
                first += sequence.len();
            }
            let input =
                Input { input_ids: &ids, attention_mask: Some(&mask), labels: Some(&labels), ..Input::default() };
            let model = fresh();
            let (together, gradients) = gradients(&model, &TokenBatch { batch, input }).await;
            assert!((together - loss).abs() <= 1e-5 * loss, "{family:?} {name}: loss {together}, not {loss}");
            assert_same_gradients(&format!("{family:?} {name}"), &gradients, &sums);
            model.destroy();
        }
    }
}

/// Gradients by differences of the loss along a direction, in f32.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn directional_derivatives_hold_the_gradients_of_a_model_to_1e_3() {
    let gpu = gpu().await;
    for family in [Family::Qwen2, Family::Qwen3, Family::Bitnet] {
        let model = random_model(&gpu, family, true);
        random_adapters(&model, true, 0.0);
        let rng = &mut Rng(12);
        let ids = random_ids(rng, 22);
        let labels = shift_labels(11, &ids);
        let input = Input { input_ids: &ids, labels: Some(&labels), ..Input::default() };
        let batch = TokenBatch { batch: 2, input };
        let (_, gradients) = gradients(&model, &batch).await;
        // Away from where the step left the adapters: new ones, and the gradient there.
        let norm = gradients.iter().flatten().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        let start: Vec<Vec<f32>> = {
            let fresh = random_model(&gpu, family, true);
            random_adapters(&fresh, true, 0.0);
            let mut values = Vec::new();
            for lora in fresh.loras() {
                values.push(lora.weight().a.read().await.unwrap());
                values.push(lora.weight().b.read().await.unwrap());
            }
            fresh.destroy();
            values
        };
        let trainer = LanguageTrainer::new(&model, sgd(), SequencesOptions::default(), 0).unwrap();
        let mut losses = Vec::new();
        for step in [-1.0, 1.0] {
            for (i, lora) in model.loras().iter().enumerate() {
                for (j, tensor) in [lora.weight().a, lora.weight().b].iter().enumerate() {
                    let (from, along) = (&start[2 * i + j], &gradients[2 * i + j]);
                    let moved = from.iter().zip(along).map(|(v, g)| v + step * 0.005 * (f64::from(*g) / norm) as f32);
                    tensor.write(&moved.collect::<Vec<_>>()).unwrap();
                }
            }
            let (loss, count) = trainer.evaluate(&batch).await.unwrap();
            losses.push(f64::from(loss) * f64::from(count));
        }
        let difference = (losses[1] - losses[0]) / 0.01;
        assert!((difference - norm).abs() <= 1e-3 * norm, "{family:?}: {difference} by differences, not {norm}");
        trainer.destroy();
        model.destroy();
    }
}

/// Eight sequences of 16 tokens are learned by heart.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_batch_of_eight_sequences_is_overfitted() {
    let gpu = gpu().await;
    let folder = models().await.into_iter().find(|folder| folder.contains("llama")).unwrap();
    let model = load(&gpu, &folder).await;
    for linear in model.linears() {
        model.add_lora(linear.name(), &LoraConfig::new(16, 32.0)).unwrap();
    }
    // The first of each is another one, so that all that follows can be known.
    let mut ids = random_ids(&mut Rng(10), 128);
    ids.iter_mut().step_by(16).enumerate().for_each(|(i, id)| *id = i as i32);
    let labels = shift_labels(16, &ids);
    let input = Input { input_ids: &ids, labels: Some(&labels), ..Input::default() };
    let batch = TokenBatch { batch: 8, input };
    let trainer = LanguageTrainer::new(&model, sgd(), SequencesOptions::default(), 0).unwrap();
    let (start, count) = trainer.evaluate(&batch).await.unwrap();
    assert_eq!(count, 120.0);
    for _ in 0..150 {
        trainer.step(&[batch]).await.unwrap();
    }
    let (end, _) = trainer.evaluate(&batch).await.unwrap();
    say(&format!("overfitting: loss {start:.2} at first, {end:.4} after 150 steps"));
    assert!(start > 4.0 && end < 0.05, "{start} to {end}");
    trainer.destroy();
    model.destroy();
}

// ── configurations ──

/// Key, and value as it is written.
type Field = (&'static str, &'static str);

/// A small model's configuration with these fields in place of others.
fn config_with(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut all = vec![
        ("model_type", "\"llama\""),
        ("hidden_size", "64"),
        ("intermediate_size", "160"),
        ("num_hidden_layers", "2"),
        ("num_attention_heads", "4"),
        ("vocab_size", "199"),
        ("torch_dtype", "\"bfloat16\""),
        ("num_key_value_heads", "2"),
    ];
    for (key, value) in fields {
        all.retain(|(other, _)| other != key);
        all.push((key, value));
    }
    let fields: Vec<String> = all.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
    format!("{{{}}}", fields.join(", ")).into_bytes()
}

#[wasm_bindgen_test(unsupported = test)]
fn rope_settings_are_read_in_both_forms() {
    let parse = |fields: &[(&str, &str)]| ModelConfig::parse(&config_with(fields)).unwrap();
    let llama3 =
        r#""factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192"#;
    let old = format!("{{{llama3}, \"rope_type\": \"llama3\"}}");
    let new = format!("{{{llama3}, \"rope_type\": \"llama3\", \"rope_theta\": 500000.0}}");
    let old = parse(&[("rope_theta", "500000.0"), ("rope_scaling", &old)]);
    assert_eq!(old, parse(&[("rope_parameters", &new)]));
    assert_eq!(old.rope_theta, 5e5);
    let expected =
        RopeScaling::Llama3 { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_positions: 8192.0 };
    assert_eq!(old.rope_scaling, expected);
    let linear = parse(&[("rope_scaling", r#"{"type": "linear", "factor": 2.5}"#)]);
    assert_eq!((linear.rope_theta, linear.rope_scaling), (1e4, RopeScaling::Linear { factor: 2.5 }));
    let plain = parse(&[("rope_scaling", "null"), ("eos_token_id", "[3, 7]"), ("head_dim", "null")]);
    assert_eq!((plain.rope_scaling, plain.head_dim, plain.kv_heads), (RopeScaling::None, 16, 2));
    assert_eq!(plain.eos_token_ids, [3, 7]);
    assert_eq!(parse(&[("eos_token_id", "5")]).eos_token_ids, [5]);
    assert_eq!(parse(&[("num_key_value_heads", "null")]).kv_heads, 4);
}

#[wasm_bindgen_test(unsupported = test)]
fn an_unsupported_configuration_names_field_and_value() {
    let unsupported: [(&[Field], [&str; 2]); 13] = [
        (&[("model_type", "\"gpt2\"")], ["model_type", "gpt2"]),
        (&[("model_type", "null")], ["model_type", "null"]),
        (&[("hidden_act", "\"gelu\"")], ["hidden_act", "gelu"]),
        (&[("model_type", "\"mistral\""), ("sliding_window", "4096")], ["sliding_window", "4096"]),
        (&[("model_type", "\"mistral\""), ("max_position_embeddings", "4097")], ["sliding_window", "4096"]),
        (&[("model_type", "\"qwen2\""), ("use_sliding_window", "true")], ["use_sliding_window", "true"]),
        (&[("layer_types", "[\"full_attention\", \"sliding_attention\"]")], ["layer_types", "sliding_attention"]),
        (&[("quantization_config", "{\"quant_method\": \"gptq\"}")], ["quantization_config", "gptq"]),
        (&[("rope_scaling", "{\"type\": \"yarn\", \"factor\": 2}")], ["rope_scaling.rope_type", "yarn"]),
        (&[("rope_parameters", "{\"rope_type\": \"longrope\"}")], ["rope_parameters.rope_type", "longrope"]),
        (&[("partial_rotary_factor", "0.5")], ["partial_rotary_factor", "0.5"]),
        (&[("model_type", "\"qwen3\""), ("mlp_bias", "true")], ["mlp_bias", "true"]),
        (
            &[("model_type", "\"mistral\""), ("sliding_window", "null"), ("attention_bias", "true")],
            ["attention_bias", "true"],
        ),
    ];
    for (fields, words) in unsupported {
        refused(words[0], ModelConfig::parse(&config_with(fields)), "unsupported", &words);
    }
    let broken: [(&[Field], [&str; 2]); 12] = [
        (&[("hidden_size", "null")], ["config.json", "hidden_size"]),
        (&[("hidden_size", "-64")], ["hidden_size", "-64"]),
        (&[("hidden_size", "\"64\"")], ["hidden_size", "64"]),
        (&[("vocab_size", "0")], ["vocab_size", "0"]),
        (&[("vocab_size", "99999999999999999999")], ["vocab_size", "99999999999999999999"]),
        (&[("num_key_value_heads", "3")], ["num_key_value_heads", "3"]),
        (&[("head_dim", "7")], ["head_dim", "7"]),
        (&[("rope_scaling", "{\"type\": \"linear\"}")], ["rope_scaling.factor", "above 0"]),
        (&[("rope_theta", "0")], ["rope_theta", "above 0"]),
        (&[("rms_norm_eps", "-1e-5")], ["rms_norm_eps", "above 0"]),
        (&[("rms_norm_eps", "0")], ["rms_norm_eps", "above 0"]),
        (&[("rms_norm_eps", "1e999")], ["rms_norm_eps", "above 0"]),
    ];
    for (fields, words) in broken {
        refused(words[1], ModelConfig::parse(&config_with(fields)), "file", &words);
    }
    for bytes in [&b""[..], b"[]", b"{\"model_type\": \"llama\"", b"\xff{}", b"{\"a\": 1, \"a\": 2}"] {
        refused("no configuration", ModelConfig::parse(bytes), "file", &["config.json"]);
    }
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn what_does_not_fit_a_model_is_refused() {
    let gpu = gpu().await;
    let model = random_model(&gpu, Family::Llama, false);
    let ids = random_ids(&mut Rng(1), 12);
    let input = Input { input_ids: &ids, labels: Some(&ids), ..Input::default() };
    refused("no adapter", LanguageTrainer::new(&model, sgd(), SequencesOptions::default(), 0), "invalid-argument", &[]);
    refused(
        "no such layer",
        model.add_lora("model.layers.7.mlp.up_proj", &LoraConfig::new(2, 2.0)),
        "invalid-argument",
        &["layers.7"],
    );
    let [dora, biased] = [(true, false), (false, true)].map(|(use_dora, lora_bias)| LoraConfig {
        use_dora,
        lora_bias,
        ..LoraConfig::new(2, 2.0)
    });
    refused("DoRA of the head", model.add_lora("lm_head", &dora), "unsupported", &["DoRA", "lm_head"]);
    refused("DoRA of the table", model.add_lora("model.embed_tokens", &dora), "unsupported", &["DoRA", "embed_tokens"]);
    refused("its bias", model.add_lora("model.embed_tokens", &biased), "unsupported", &["lora_bias", "embed_tokens"]);
    random_adapters(&model, false, 0.0);
    let twice = model.loras()[0].name().unwrap().to_string();
    refused("twice", model.add_lora(&twice, &LoraConfig::new(2, 2.0)), "invalid-argument", &[&twice]);

    let trainer = LanguageTrainer::new(&model, sgd(), SequencesOptions::default(), 0).unwrap();
    let outside = [&ids[..11], &[131]].concat();
    let negative = [&ids[..11], &[-1]].concat();
    let long = vec![1; 65];
    let cases: [(&str, usize, Input, &str, &[&str]); 10] = [
        ("an id outside", 2, Input { input_ids: &outside, ..input }, "invalid-argument", &["inputIds", "131"]),
        ("a negative id", 2, Input { input_ids: &negative, ..input }, "invalid-argument", &["inputIds", "-1"]),
        ("a label outside", 2, Input { labels: Some(&outside), ..input }, "invalid-argument", &["labels", "131"]),
        ("few labels", 2, Input { labels: Some(&ids[1..]), ..input }, "shape", &["labels", "12", "11"]),
        ("no labels", 2, Input { labels: None, ..input }, "invalid-argument", &["labels"]),
        ("a short mask", 2, Input { attention_mask: Some(&ids[1..]), ..input }, "shape", &["attentionMask"]),
        (
            "a negative mask",
            2,
            Input { attention_mask: Some(&negative), ..input },
            "invalid-argument",
            &["attentionMask"],
        ),
        ("a far position", 2, Input { position_ids: Some(&outside), ..input }, "invalid-argument", &["positionIds"]),
        ("a ragged batch", 5, input, "shape", &["inputIds", "5"]),
        (
            "more tokens than positions",
            1,
            Input { input_ids: &long, labels: Some(&long), ..Input::default() },
            "invalid-argument",
            &["64", "65"],
        ),
    ];
    for (what, batch, input, code, words) in cases {
        refused(what, trainer.step(&[TokenBatch { batch, input }]).await, code, words);
    }
    refused("no batch", trainer.step(&[]).await, "invalid-argument", &["batches"]);
    assert_eq!(trainer.attempts(), 0);
    trainer.step(&[TokenBatch { batch: 2, input }]).await.unwrap();
    assert!(trainer.records(0).await.unwrap()[0].loss.is_finite());
    trainer.destroy();
    model.destroy();
}

/// PEFT's own bytes.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_loaded_adapter_is_saved_as_it_was() {
    let gpu = gpu().await;
    for folder in models().await {
        let model = load(&gpu, &folder).await;
        let folder = format!("{folder}/adapter_start");
        let [config, weights] = [
            bytes(&format!("{folder}/adapter_config.json")).await,
            bytes(&format!("{folder}/adapter_model.safetensors")).await,
        ];
        let adapter = Adapter::read(&config, &weights, true).unwrap();
        model.load_adapter(&adapter).unwrap();
        let mut saved = model.save_adapter(&adapter.config).await.unwrap();
        // PEFT's copies of what is frozen are not kept.
        let copies = adapter.others.iter().filter(|other| other.name.ends_with(".base_layer.weight"));
        saved.others.extend(copies.cloned());
        assert!(saved.weights(Dtype::F32).unwrap() == weights, "{folder}: other weights");
        assert!(saved.config.to_json().as_bytes() == config, "{folder}: another configuration");
        model.remove_adapters().unwrap();
        let fresh = model.new_adapter(&adapter.config, 3).unwrap();
        assert_eq!(fresh.len(), adapter.modules.len(), "{folder}: the modules that PEFT chose");
        for (lora, module) in fresh.iter().zip(&saved.modules) {
            assert_eq!((lora.name().unwrap(), lora.weight().rank()), (module.name.as_str(), module.rank), "{folder}");
        }
        model.destroy();
    }
}

/// The configuration of an adapter with these fields.
fn adapter_config(targets: &[&str], fields: &[(&str, &str)]) -> AdapterConfig {
    let targets: Vec<String> = targets.iter().map(|name| name.to_string()).collect();
    let new = NewConfig { rank: 3, alpha: 6.0, target_modules: &targets, ranks: &[], alphas: &[], base_model: None };
    let mut config = AdapterConfig::new(&new).unwrap();
    fields.iter().for_each(|(key, value)| config.set(key, value).unwrap());
    config
}

/// New adapters at both ends and modules that are trained whole begin as the base does, hold what was estimated, and leave
/// nothing when they are taken away.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn adapters_at_the_ends_and_whole_modules_hold_what_was_estimated_and_leave_nothing() {
    let gpu = gpu().await;
    for (targets, saved) in [
        (&["embed_tokens", "q_proj"][..], r#"["lm_head", "norm", "layers.1.mlp"]"#),
        (&["lm_head"][..], r#"["embed_tokens", "q_norm"]"#),
        (&["embed_tokens", "lm_head", "v_proj"][..], "null"),
        (&["q_proj"][..], "null"), // with all biases
    ] {
        let family = if targets == ["q_proj"] { Family::Qwen2 } else { Family::Qwen3 };
        let model = random_model(&gpu, family, targets.len() > 1);
        let ids = random_ids(&mut Rng(3), 60);
        let labels = shift_labels(30, &ids);
        let input = Input { input_ids: &ids, labels: Some(&labels), ..Input::default() };
        let base = model.logits(2, &input).await.unwrap();
        let bias = if family == Family::Qwen2 { "\"all\"" } else { "\"none\"" };
        let config = adapter_config(targets, &[("modules_to_save", saved), ("bias", bias)]);
        let (mut left, mut last) = (Vec::new(), None);
        for _ in 0..2 {
            let estimate = model.estimate(&config, 2, 30, true).unwrap();
            model.new_adapter(&config, 4).unwrap();
            assert!(bits(&model.logits(2, &input).await.unwrap()) == bits(&base), "a new adapter changes nothing");
            let trainer = LanguageTrainer::new(&model, sgd(), SequencesOptions::default(), 0).unwrap();
            for _ in 0..3 {
                trainer.step(&[TokenBatch { batch: 2, input }]).await.unwrap();
            }
            let losses: Vec<f32> = trainer.records(0).await.unwrap().iter().map(|record| record.loss).collect();
            assert!(losses[2] < losses[1] && losses[1] < losses[0], "{targets:?} {saved}: {losses:?}");
            let held = gpu.memory().bytes - gpu.kept_to_read().bytes; // logits were read, not by the training
            let share = estimate.total() as f64 / held as f64;
            say(&format!("{targets:?}, whole {saved}: {} bytes estimated, {held} held", estimate.total()));
            assert!((share - 1.0).abs() < 0.1, "{share}");
            let saved = model.save_adapter(&config).await.unwrap();
            let learned = model.logits(2, &input).await.unwrap();
            trainer.destroy();
            last = Some((saved, learned));
            model.set_adapter_enabled(false);
            assert!(bits(&model.logits(2, &input).await.unwrap()) == bits(&base), "switched off");
            model.remove_adapters().unwrap();
            assert!(bits(&model.logits(2, &input).await.unwrap()) == bits(&base), "taken away");
            left.push(gpu.memory());
        }
        assert_eq!(left[1], left[0], "what was allocated is freed");
        let (saved, learned) = last.unwrap();
        model.load_adapter(&saved).unwrap();
        assert!(bits(&model.logits(2, &input).await.unwrap()) == bits(&learned), "loaded again");
        model.destroy();
    }
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn whole_modules_that_cannot_be_trained_are_refused_by_name() {
    let gpu = gpu().await;
    let model = random_model(&gpu, Family::Llama, true);
    let new = |targets: &[&str], fields: &[(&str, &str)]| model.new_adapter(&adapter_config(targets, fields), 0);
    let unknown = [("modules_to_save", r#"["lm_head", "score"]"#)];
    refused("no such module", new(&["q_proj"], &unknown), "unmatched", &["modules_to_save", "score"]);
    let both = [("modules_to_save", r#"["proj"]"#)];
    refused("both", new(&["q_proj"], &both), "unsupported", &["q_proj", "modules_to_save"]);
    refused("DoRA", new(&["lm_head"], &[("use_dora", "true")]), "unsupported", &["DoRA", "lm_head"]);
    refused("a bias", new(&["embed_tokens"], &[("lora_bias", "true")]), "unsupported", &["lora_bias", "embed_tokens"]);
    let tying = [("ensure_weight_tying", "true")];
    refused("tied adapters", new(&["lm_head"], &tying), "unsupported", &["ensure_weight_tying"]);
    let config = adapter_config(&["q_proj"], &[("modules_to_save", r#"["norm"]"#)]);
    model.new_adapter(&config, 0).unwrap();
    refused("a second one", model.new_adapter(&config, 0), "invalid-argument", &["adapter"]);
    let mut saved = model.save_adapter(&config).await.unwrap();
    model.remove_adapters().unwrap();
    let before = gpu.memory();
    let norm = saved.others.pop().unwrap();
    refused("a norm missing", model.load_adapter(&saved), "unmatched", &[norm.name.as_str()]);
    saved.others.push(OtherTensor { name: "model.norm.bias".into(), ..norm.clone() });
    refused("another part", model.load_adapter(&saved), "unmatched", &[norm.name.as_str()]);
    saved.others.pop();
    saved.others.push(OtherTensor { data: norm.data[4..].to_vec(), ..norm });
    refused("a short norm", model.load_adapter(&saved), "shape", &["36", "35"]);
    assert!(model.loras().is_empty() && model.trained_whole().is_empty());
    assert_eq!(gpu.memory(), before);
    model.destroy();
}

/// A tensor that has no place in the model would be left out without a word.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn every_tensor_of_an_adapter_finds_its_place() {
    let gpu = gpu().await;
    let (qwen2, llama) = (random_model(&gpu, Family::Qwen2, true), random_model(&gpu, Family::Llama, true));
    for bias in ["\"lora_only\"", "\"all\""] {
        let config = adapter_config(&["q_proj"], &[("bias", bias)]);
        qwen2.new_adapter(&config, 0).unwrap();
        let saved = qwen2.save_adapter(&config).await.unwrap();
        qwen2.remove_adapters().unwrap();
        let before = gpu.memory();
        refused(
            "biases of another",
            llama.load_adapter(&saved),
            "unmatched",
            &["model.layers.0.self_attn.q_proj", "bias"],
        );
        assert!(llama.loras().is_empty() && gpu.memory() == before);
        assert!(qwen2.load_adapter(&saved).is_ok());
        qwen2.remove_adapters().unwrap();
        // PEFT 0.7 to 0.19 left out the biases of lora_only, and those of the model are used by it; of all, it saved all.
        let mut without = saved.clone();
        without.others.clear();
        if bias.contains("lora_only") {
            qwen2.load_adapter(&without).unwrap();
            let again = qwen2.save_adapter(&config).await.unwrap();
            assert_eq!((again.others.len(), &again.others), (saved.others.len(), &saved.others), "the model's own");
            qwen2.remove_adapters().unwrap();
        } else {
            refused("no bias at all", qwen2.load_adapter(&without), "unmatched", &["bias", "lacks"]);
        }
        let mut fewer = saved.clone();
        let missing = fewer.others.pop().unwrap().name.replace(".base_layer", "");
        refused("one bias missing", qwen2.load_adapter(&fewer), "unmatched", &[missing.as_str()]);
        // One under both of its names.
        let mut twice = saved.clone();
        let own = twice.others.iter().find(|other| other.name.ends_with("q_proj.base_layer.bias")).unwrap().clone();
        twice.others.push(OtherTensor { name: own.name.replace(".base_layer", ""), ..own.clone() });
        refused("one bias twice", qwen2.load_adapter(&twice), "unmatched", &["q_proj.bias"]);
        // Of modules that are not trained.
        let mut more = saved;
        let name = own.name.replace("q_proj.base_layer", "o_proj");
        more.others.push(OtherTensor { name: name.clone(), ..own });
        refused("another module's", qwen2.load_adapter(&more), "unmatched", &[name.as_str()]);
    }
    let config = adapter_config(&["q_proj"], &[("modules_to_save", r#"["up_proj"]"#)]);
    llama.new_adapter(&config, 0).unwrap();
    let mut saved = llama.save_adapter(&config).await.unwrap();
    llama.remove_adapters().unwrap();
    saved.others[1].shape.reverse();
    refused("turned", llama.load_adapter(&saved), "shape", &["up_proj", "[50, 36]", "[36, 50]"]);
    qwen2.destroy();
    llama.destroy();
}

/// Whatever of a loaded adapter does not fit, the model is left as it was.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn an_adapter_that_does_not_fit_leaves_nothing() {
    let gpu = gpu().await;
    let model = random_model(&gpu, Family::Llama, true);
    let before = gpu.memory();
    let module = |name: &str, in_features: usize, out_features: usize| AdapterModule {
        name: name.into(),
        kind: AdapterKind::Linear,
        rank: 2,
        alpha: 2.0,
        scaling: 1.0,
        a: vec![1.0; 2 * in_features],
        b: vec![1.0; 2 * out_features],
        magnitude: None,
        lora_bias: None,
    };
    let (q, up) = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj");
    let fitting = Adapter::new(vec![module(q, 36, 60), module(up, 36, 50)], None).unwrap();
    let mut turned = Adapter::new(vec![module(q, 36, 60), module(up, 50, 36)], None).unwrap();
    turned.config.set("fan_in_fan_out", "true").unwrap();
    refused("turned", model.load_adapter(&turned), "shape", &[up, "[50, 36]", "[36, 50]"]);
    let mut ragged = fitting.clone();
    ragged.modules[1].a.push(1.0);
    refused("a ragged A", model.load_adapter(&ragged), "shape", &["72", "73"]);
    assert!(model.loras().is_empty());
    assert_eq!(gpu.memory(), before, "what was allocated is freed");
    assert_eq!(model.load_adapter(&fitting).unwrap().len(), 2);
    model.destroy();
}

/// Sizes that no device has are refused before anything of them is made.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn sizes_beyond_the_device_are_refused() {
    let gpu = gpu().await;
    let config = random_model(&gpu, Family::Llama, true).config().clone();
    let positions = (gpu.limits().max_buffer_size / 20 + 1) as usize; // tables of five floats each
    let model = CausalLM::new(&gpu, ModelConfig { max_positions: positions, ..config }).unwrap();
    let model = Rc::new(model);
    let before = gpu.memory();
    refused("positions", model.generate(&[1], positions - 1, &Sampling::default()), "limit", &["rope"]);
    assert_eq!(gpu.memory(), before);
    let targets = ["q_proj".to_string()];
    let new = NewConfig { rank: 2, alpha: 2.0, target_modules: &targets, ranks: &[], alphas: &[], base_model: None };
    let adapter = AdapterConfig::new(&new).unwrap();
    for (batch, tokens) in [(0, 5), (1 << 20, 1025), (usize::MAX, 2)] {
        let words = ["one token to 2^30", &format!("{batch}×{tokens}")];
        refused("tokens", model.estimate(&adapter, batch, tokens, true), "invalid-argument", &words);
    }
    assert!(model.estimate(&adapter, 1 << 20, 1024, true).is_ok());
    model.destroy();
}

/// An evaluation between a step's micro-batches and its update changes no bit of the step, and is right itself.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn an_evaluation_does_not_disturb_a_pending_step() {
    let gpu = gpu().await;
    let run = async |evaluate: bool| {
        let model = random_model(&gpu, Family::Llama, true);
        random_adapters(&model, true, 0.25);
        let trainer = LanguageTrainer::new(&model, sgd(), SequencesOptions::default(), 3).unwrap();
        let ids = random_ids(&mut Rng(8), 33);
        let labels = shift_labels(11, &ids);
        let input = Input { input_ids: &ids, labels: Some(&labels), ..Input::default() };
        let batch = TokenBatch { batch: 3, input };
        let alone = trainer.evaluate(&batch).await.unwrap();
        let step = trainer.step(&[batch, batch]);
        if evaluate {
            assert_eq!(trainer.evaluate(&batch).await.unwrap(), alone);
        }
        step.await.unwrap();
        let record = trainer.records(0).await.unwrap()[0];
        assert!(record.loss.is_finite() && alone.1 == 30.0, "{record:?} {alone:?}");
        let mut values = vec![vec![record.loss, record.grad_norm]];
        for lora in model.loras() {
            values.push(lora.weight().a.read().await.unwrap());
            values.push(lora.weight().b.read().await.unwrap());
        }
        trainer.destroy();
        model.destroy();
        values.concat()
    };
    let (plain, disturbed) = (run(false).await, run(true).await);
    assert!(bits(&disturbed) == bits(&plain), "other bits");
}

/// With all activations kept, text may be made between steps: showing a sample now and then changes no bit.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn text_between_steps_changes_no_bit() {
    let gpu = gpu().await;
    let run = async |samples: bool| {
        let model = random_model(&gpu, Family::Llama, true);
        random_adapters(&model, true, 0.25);
        let options = SequencesOptions { checkpointing: false, ..SequencesOptions::default() };
        let trainer = LanguageTrainer::new(&model, sgd(), options, 3).unwrap();
        let ids = random_ids(&mut Rng(8), 33);
        let labels = shift_labels(11, &ids);
        let input = Input { input_ids: &ids, labels: Some(&labels), ..Input::default() };
        let made = || gpu.stats().bind_groups;
        let mut between = 0;
        for step in 0..3 {
            let before = made();
            trainer.step(&[TokenBatch { batch: 3, input }]).await.unwrap();
            between = made() - before;
            if samples && step < 2 {
                model.logits(1, &Input { input_ids: &ids[..5], ..Input::default() }).await.unwrap();
                let generation = model.generate(&ids[..5], 2, &Sampling::default()).unwrap();
                assert!(generation.next().await.unwrap().is_some());
                assert!(generation.next().await.unwrap().is_some());
                generation.destroy();
            }
        }
        assert_eq!(between, 0, "a steady step makes nothing");
        let mut values = trainer.records(0).await.unwrap().iter().map(|record| record.loss).collect::<Vec<_>>();
        for lora in model.loras() {
            values.extend(lora.weight().b.read().await.unwrap());
        }
        trainer.destroy();
        model.destroy();
        values
    };
    let (plain, sampled) = (run(false).await, run(true).await);
    assert!(bits(&plain) == bits(&sampled), "other bits");
}

/// Parameters are uploaded once for each shape, also where shapes take turns: nothing is looked up again.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn shapes_that_take_turns_upload_their_inputs_alone() {
    let gpu = fresh_gpu(None).await;
    let model = random_model(&gpu, Family::Llama, true);
    random_adapters(&model, true, 0.0);
    let trainer = LanguageTrainer::new(&model, sgd(), SequencesOptions::default(), 3).unwrap();
    for round in 0..3 {
        for tokens in [40, 8, 16, 24, 32, 12] {
            let ids = random_ids(&mut Rng(8), tokens);
            let labels = shift_labels(tokens, &ids);
            let input = Input { input_ids: &ids, labels: Some(&labels), ..Input::default() };
            let before = gpu.stats();
            trainer.step(&[TokenBatch { batch: 1, input }]).await.unwrap();
            let after = gpu.stats();
            let inputs = 4 * 4 * tokens as u64; // ids, labels, positions, segments
            if round > 0 {
                assert_eq!(after.uploaded_bytes - before.uploaded_bytes, inputs, "{tokens} tokens");
                assert_eq!([after.bind_groups, after.buffers_created], [before.bind_groups, before.buffers_created]);
            }
        }
    }
    trainer.destroy();
    model.destroy();
}

/// Batches of all shapes lie in the memory of the largest, whose leavings change no bit.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn all_shapes_share_the_memory_of_the_largest() {
    let gpu = gpu().await;
    let run = async |largest_first: bool, checkpointing: bool| {
        let model = random_model(&gpu, Family::Qwen3, true);
        if checkpointing {
            random_adapters(&model, true, 0.25);
        } else {
            let targets = ["q_proj".to_string(), "down_proj".to_string()];
            let new =
                NewConfig { rank: 2, alpha: 4.0, target_modules: &targets, ranks: &[], alphas: &[], base_model: None };
            let mut config = AdapterConfig::new(&new).unwrap();
            config.set("modules_to_save", "[\"norm\"]").unwrap();
            model.new_adapter(&config, 1).unwrap();
        }
        let options = SequencesOptions { checkpointing, ..SequencesOptions::default() };
        let trainer = LanguageTrainer::new(&model, sgd(), options, 3).unwrap();
        let ids = random_ids(&mut Rng(8), 120);
        let labels = shift_labels(20, &ids);
        let of = |batch: usize, tokens: usize| {
            let (ids, labels) = (&ids[..batch * tokens], &labels[..batch * tokens]);
            TokenBatch { batch, input: Input { input_ids: ids, labels: Some(labels), ..Input::default() } }
        };
        if largest_first {
            trainer.evaluate(&of(6, 20)).await.unwrap();
        }
        let mut held = Vec::new();
        for (batch, tokens) in [(2, 7), (6, 20), (3, 20), (1, 3), (6, 11), (2, 7), (6, 20)] {
            trainer.step(&[of(batch, tokens)]).await.unwrap();
            held.push(gpu.memory().bytes);
        }
        let records = trainer.records(0).await.unwrap();
        let mut values: Vec<f32> = records.iter().flat_map(|record| [record.loss, record.grad_norm]).collect();
        for lora in model.loras() {
            values.extend(lora.weight().b.read().await.unwrap());
        }
        trainer.destroy();
        let again = LanguageTrainer::new(&model, sgd(), options, 3).unwrap();
        again.step(&[of(2, 7)]).await.unwrap();
        again.destroy();
        model.destroy();
        assert!(held[1..].iter().all(|bytes| *bytes == held[1]), "{held:?}");
        values
    };
    for checkpointing in [true, false] {
        let (grown, large) = (run(false, checkpointing).await, run(true, checkpointing).await);
        assert!(grown.iter().all(|value| value.is_finite()) && bits(&grown) == bits(&large), "other bits");
    }
}

/// A step whose kernels the GPU refuses updates nothing, and is made anew: nothing of it is held.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_refused_step_updates_nothing_and_holds_nothing() {
    let gpu = fresh_gpu(None).await;
    gpu.replace_shader("loss/lm_head_loss", "not a shader".into());
    let model = random_model(&gpu, Family::Llama, true);
    random_adapters(&model, true, 0.0);
    let trainer = LanguageTrainer::new(&model, sgd(), SequencesOptions::default(), 3).unwrap();
    let ids = random_ids(&mut Rng(8), 33);
    let labels = shift_labels(11, &ids);
    let input = Input { input_ids: &ids, labels: Some(&labels), ..Input::default() };
    let before = model.loras()[0].weight().b.read().await.unwrap();
    let mut held = Vec::new();
    for _ in 0..2 {
        refused("a step", trainer.step(&[TokenBatch { batch: 3, input }]).await, "validation", &[]);
        held.push(gpu.memory().bytes);
        refused("an evaluation", trainer.evaluate(&TokenBatch { batch: 1, input }).await, "validation", &[]);
        held.push(gpu.memory().bytes);
    }
    assert!(held.iter().all(|bytes| *bytes <= held[0]) && held[1] == held[3], "{held:?}");
    assert_eq!(trainer.attempts(), 0);
    assert!(model.loras()[0].weight().b.read().await.unwrap() == before);
    trainer.destroy();
    model.destroy();
}

/// Nothing that a training keeps has tokens² elements.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn memory_grows_with_the_tokens_and_not_with_their_square() {
    let gpu = gpu().await;
    let config = random_model(&gpu, Family::Qwen3, true).config().clone();
    let mut held = Vec::new();
    for tokens in [256, 512, 1024] {
        let config = ModelConfig { max_positions: 1024, ..config.clone() };
        let model = Rc::new(CausalLM::new(&gpu, config).unwrap());
        random_adapters(&model, true, 0.25);
        let trainer = LanguageTrainer::new(&model, sgd(), SequencesOptions::default(), 0).unwrap();
        let ids = random_ids(&mut Rng(3), tokens);
        let input = Input { input_ids: &ids, labels: Some(&ids), ..Input::default() };
        let before = gpu.memory().bytes;
        // Its plan has all that a step of this length needs.
        drop(trainer.evaluate(&TokenBatch { batch: 1, input }));
        held.push((gpu.memory().bytes - before) as f64);
        trainer.destroy();
        model.destroy();
    }
    let growth = (held[2] - held[1]) / (held[1] - held[0]);
    say(&format!("bytes of 256, 512 and 1024 tokens: {held:?}"));
    assert!((growth - 2.0).abs() < 0.05, "{held:?}");
}

/// Two steps at once would share gradients and sums: the second is refused, and the first is as if there had been none.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_second_pending_step_is_refused() {
    let gpu = gpu().await;
    let run = async |twice: bool| {
        let model = random_model(&gpu, Family::Llama, true);
        random_adapters(&model, false, 0.0);
        let trainer = LanguageTrainer::new(&model, sgd(), SequencesOptions::default(), 0).unwrap();
        let ids = [random_ids(&mut Rng(8), 33), random_ids(&mut Rng(9), 33)];
        let labels = [shift_labels(11, &ids[0]), shift_labels(11, &ids[1])];
        let batch = |i: usize| TokenBatch {
            batch: 3,
            input: Input { input_ids: &ids[i], labels: Some(&labels[i]), ..Input::default() },
        };
        // One that nobody waits for is forgotten.
        drop(trainer.step(&[batch(1)]));
        let first = trainer.step(&[batch(0)]);
        if twice {
            refused("a second step", trainer.step(&[batch(1)]).await, "busy", &["step", "one"]);
        }
        first.await.unwrap();
        trainer.step(&[batch(1)]).await.unwrap();
        let records = trainer.records(0).await.unwrap();
        assert_eq!((records.len(), trainer.attempts()), (2, 2));
        let mut values: Vec<f32> = records.iter().flat_map(|record| [record.loss, record.grad_norm]).collect();
        for lora in model.loras() {
            values.extend(lora.weight().b.read().await.unwrap());
        }
        trainer.destroy();
        model.destroy();
        values
    };
    let (once, twice) = (run(false).await, run(true).await);
    assert!(bits(&once) == bits(&twice), "other bits");
}

// ── generation ──

/// Tokens until there are no more, and the logits that each was chosen from.
async fn generated(generation: &Generation) -> (Vec<i32>, Vec<Vec<f32>>) {
    let (mut ids, mut logits) = (Vec::new(), Vec::new());
    while let Some(id) = generation.next().await.unwrap() {
        ids.push(id);
        logits.push(generation.logits().await.unwrap());
    }
    generation.destroy();
    (ids, logits)
}

/// The cache's logits are those of the whole text without a cache.
async fn compare_cached(name: &str, model: &CausalLM, prompt: &[i32], ids: &[i32], cached: &[Vec<f32>]) -> f32 {
    let text = [prompt, ids].concat();
    let whole = model.logits(1, &Input { input_ids: &text, ..Input::default() }).await.unwrap();
    let classes = model.config().vocab_size;
    let mut worst = 0.0f32;
    for (i, cached) in cached.iter().enumerate() {
        let at = (prompt.len() - 1 + i) * classes;
        let whole = &whole[at..at + classes];
        worst = worst.max(assert_within(&format!("{name}, token {i}"), cached, whole, 2e-5 * largest(whole)));
    }
    worst
}

/// A generation is of the adapters as they are when it is begun, prompt and tokens alike.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn switches_after_its_begin_do_not_change_a_generation() {
    let gpu = gpu().await;
    let model = random_model(&gpu, Family::Llama, true);
    random_adapters(&model, true, 0.0);
    let prompt = random_ids(&mut Rng(8), 9);
    let begin = || model.generate(&prompt, 6, &Sampling::default()).unwrap();
    let enable = |on| model.loras().iter().for_each(|lora| lora.set_enabled(on));
    let (_, with) = generated(&begin()).await;
    let begun = begin();
    enable(false);
    let (_, switched) = generated(&begun).await;
    let (_, without) = generated(&begin()).await;
    assert!(bits(&with.concat()) == bits(&switched.concat()), "a mixture of both");
    assert!(bits(&with[0]) != bits(&without[0]));
    let unread = begin();
    unread.destroy();
    refused("destroyed", unread.next().await, "disposed", &[]);
    model.destroy();
}

/// transformers' own greedy tokens, with the base and no adapter, and with an adapter that is off.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn golden_greedy_tokens() {
    let gpu = gpu().await;
    let mut compared = 0;
    for folder in models().await {
        let trace = File::read(&format!("{folder}/trace.safetensors")).await;
        if !trace.has("greedy_ids") {
            continue;
        }
        let golden = trace.labels("greedy_ids");
        let (prompt, expected) = golden.split_at(trace.number("greedy_prompt_len") as usize);
        let model = load(&gpu, &folder).await;
        let begin = || model.generate(prompt, expected.len(), &Sampling::default()).unwrap();
        let (base, logits) = generated(&begin()).await;
        assert_eq!(base, expected, "{folder}");
        let worst = compare_cached(&folder, &model, prompt, &base, &logits).await;

        add_adapter(&model, &format!("{folder}/adapter_end")).await;
        let (adapted, logits) = generated(&begin()).await;
        let adapted_worst = compare_cached(&format!("{folder} adapted"), &model, prompt, &adapted, &logits).await;
        model.set_adapter_enabled(false);
        assert_eq!(generated(&begin()).await.0, expected, "{folder} with its adapter off");
        model.set_adapter_enabled(true);
        assert_eq!(generated(&begin()).await.0, adapted, "{folder} with its adapter on again");
        model.destroy();
        compared += 1;
        say(&format!(
            "golden {folder}: {} greedy tokens; cached logits {worst:.2}, with the adapter {adapted_worst:.2} of their bounds",
            expected.len()
        ));
    }
    assert!(compared > 0);
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn sampled_tokens_follow_their_settings() {
    let gpu = gpu().await;
    let model = random_model(&gpu, Family::Qwen3, true);
    random_adapters(&model, true, 0.0);
    let text = |sampling: Sampling| {
        let model = model.clone();
        async move { generated(&model.generate(&[5], 40, &sampling).unwrap()).await }
    };
    let warm = Sampling { temperature: 1.0, seed: 1, ..Sampling::default() };
    let (first, logits) = text(warm).await;
    compare_cached("sampled", &model, &[5], &first, &logits).await;
    assert_eq!(first.len(), 40);
    assert_eq!(text(warm).await.0, first, "the same seed");
    assert_ne!(text(Sampling { seed: 2, ..warm }).await.0, first, "another seed");
    let greedy = text(Sampling::default()).await.0;
    assert_eq!(text(Sampling { top_k: 1, ..warm }).await.0, greedy, "one token to choose from");
    assert_eq!(text(Sampling { top_p: 1e-6, ..warm }).await.0, greedy, "a share that one token has");
    for cold in [1e-6, 1e-30, 1.2e-38] {
        assert_eq!(text(Sampling { temperature: cold, ..warm }).await.0, greedy, "next to no temperature");
        let few = Sampling { temperature: cold, top_k: 3, top_p: 0.9, ..warm };
        assert_eq!(text(few).await.0, greedy, "next to no temperature, of few");
    }
    let penalized = text(Sampling { repetition_penalty: 1e6, ..Sampling::default() }).await.0;
    let mut once = penalized.clone();
    once.sort_unstable();
    once.dedup();
    assert!(once.len() == 40 && !once.contains(&5), "a token came twice: {penalized:?}");

    for (what, sampling, name) in [
        ("negative", Sampling { temperature: -1.0, ..warm }, "temperature"),
        ("NaN", Sampling { temperature: f64::NAN, ..warm }, "temperature"),
        ("tiny", Sampling { temperature: 1e-60, ..warm }, "temperature"),
        ("none", Sampling { top_p: 0.0, ..warm }, "topP"),
        ("more than all", Sampling { top_p: 1.5, ..warm }, "topP"),
        ("zero", Sampling { repetition_penalty: 0.0, ..warm }, "repetitionPenalty"),
    ] {
        refused(what, model.generate(&[5], 4, &sampling), "invalid-argument", &[name]);
    }
    refused("no prompt", model.generate(&[], 4, &warm), "invalid-argument", &["prompt"]);
    refused("a token outside", model.generate(&[5, 131], 4, &warm), "invalid-argument", &["prompt", "131"]);
    refused("too long", model.generate(&[5], 64, &warm), "invalid-argument", &["64", "65"]);
    refused("far too long", model.generate(&[5], usize::MAX, &warm), "invalid-argument", &["64"]);
    assert!(generated(&model.generate(&[5], 0, &warm).unwrap()).await.0.is_empty());

    let b = model.loras()[2].weight().b;
    b.write(&vec![f32::NAN; b.len()]).unwrap();
    let generation = model.generate(&[5, 6, 7], 4, &warm).unwrap();
    refused("a diverged adapter", generation.next().await, "invalid-argument", &["logits", "finite"]);
    generation.destroy();
    model.destroy();
}
