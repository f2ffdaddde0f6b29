//! Language models: PyTorch's logits, gradients and losses, and what must be the same whichever way it is computed.

mod common;
mod reference;

use std::rc::Rc;

use common::files::{File, json, list};
use common::{Rng, bits, gpu, say};
use lora_webgpu::kernels::nn::Gate;
use lora_webgpu::{
    AdamW, CausalLM, Family, Gpu, Input, LanguageTrainer, LoraConfig, ModelConfig, OptimizerKind, OptimizerOptions,
    RopeScaling, SequencesOptions, TokenBatch, shift_labels,
};
use serde_json::Value;
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

/// The folders of models.
async fn models() -> Vec<String> {
    let end = "/trace.safetensors";
    let is_trace = |path: &&String| path.starts_with("models/") && path.ends_with(end);
    list().await.iter().filter(is_trace).map(|path| path.trim_end_matches(end).to_string()).collect()
}

fn config(json: &Value) -> ModelConfig {
    let size = |key: &str| json[key].as_u64().map(|v| v as usize);
    let family = match json["model_type"].as_str().unwrap() {
        "llama" => Family::Llama,
        "mistral" => Family::Mistral,
        "qwen2" => Family::Qwen2,
        "qwen3" => Family::Qwen3,
        "bitnet" => Family::Bitnet,
        other => panic!("{other}"),
    };
    let rope = &json["rope_parameters"];
    let number = |key: &str| rope[key].as_f64().unwrap();
    let heads = size("num_attention_heads").unwrap();
    let hidden_size = size("hidden_size").unwrap();
    ModelConfig {
        family,
        vocab_size: size("vocab_size").unwrap(),
        hidden_size,
        intermediate_size: size("intermediate_size").unwrap(),
        layers: size("num_hidden_layers").unwrap(),
        heads,
        kv_heads: size("num_key_value_heads").unwrap_or(heads),
        head_dim: size("head_dim").unwrap_or(hidden_size / heads),
        rms_norm_eps: json["rms_norm_eps"].as_f64().unwrap(),
        max_positions: size("max_position_embeddings").unwrap(),
        rope_theta: number("rope_theta"),
        rope_scaling: match rope["rope_type"].as_str().unwrap() {
            "llama3" => RopeScaling::Llama3 {
                factor: number("factor"),
                low_freq_factor: number("low_freq_factor"),
                high_freq_factor: number("high_freq_factor"),
                original_positions: number("original_max_position_embeddings"),
            },
            _ => RopeScaling::None,
        },
        tie_word_embeddings: json["tie_word_embeddings"].as_bool().unwrap(),
        qkv_bias: family == Family::Qwen2 || json["attention_bias"].as_bool().unwrap_or(false),
        o_bias: json["attention_bias"].as_bool().unwrap_or(false),
        mlp_bias: json["mlp_bias"].as_bool().unwrap_or(false),
        gate: if family == Family::Bitnet { Gate::Relu2 } else { Gate::Silu },
    }
}

/// A model of a folder, frozen.
async fn load(gpu: &Gpu, folder: &str) -> Rc<CausalLM> {
    let model = CausalLM::new(gpu, config(&json(&format!("{folder}/config.json")).await)).unwrap();
    let weights = File::read(&format!("{folder}/model.safetensors")).await;
    let parameters = model.parameters();
    assert_eq!(parameters.len(), weights.names().count(), "{folder}");
    for parameter in parameters {
        assert_eq!(parameter.tensor.shape(), weights.shape(&parameter.name), "{folder} {}", parameter.name);
        parameter.tensor.write(weights.tensor(&parameter.name)).unwrap();
    }
    Rc::new(model)
}

/// Puts the adapter of a folder on a model.
async fn add_adapter(model: &CausalLM, folder: &str) -> bool {
    let config = json(&format!("{folder}/adapter_config.json")).await;
    let weights = File::read(&format!("{folder}/adapter_model.safetensors")).await;
    let patterns = config["alpha_pattern"].as_object().unwrap();
    if patterns.keys().any(|key| key.contains('\\')) {
        return false;
    }
    let start = "base_model.model.";
    let names: Vec<String> = model.linears().iter().map(|linear| linear.name().to_string()).collect();
    for name in names {
        let key = |matrix: &str| format!("{start}{name}.lora_{matrix}.weight");
        if !weights.has(&key("A")) {
            continue;
        }
        let alpha = patterns.iter().find(|(key, _)| name.ends_with(&format!(".{key}")));
        let alpha = alpha.map_or(&config["lora_alpha"], |(_, value)| value).as_f64().unwrap();
        let options = LoraConfig {
            use_rslora: config["use_rslora"].as_bool().unwrap(),
            use_dora: config["use_dora"].as_bool().unwrap(),
            ..LoraConfig::new(weights.shape(&key("A"))[0], alpha)
        };
        let lora = model.add_lora(&name, &options).unwrap();
        lora.weight().a.write(weights.tensor(&key("A"))).unwrap();
        lora.weight().b.write(weights.tensor(&key("B"))).unwrap();
        if let Some(magnitude) = lora.active()[0].magnitude() {
            let found = weights.tensor(&format!("{start}{name}.lora_magnitude_vector"));
            magnitude.value.write(found).unwrap();
        }
    }
    true
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
        let logits = model.logits(tokens.batch, &tokens.input()).await.unwrap();
        let base = compare_logits(&format!("{folder} base logits"), &trace, "logits_base", &tokens, &logits);
        if !add_adapter(&model, &format!("{folder}/adapter_start")).await {
            say(&format!("golden {folder}: patterns"));
            continue;
        }
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
            for lora in model.loras() {
                let name = format!("grad.base_model.model.{}", lora.name().unwrap());
                let mut parts = vec![
                    (format!("{name}.lora_A.weight"), lora.grad().a.clone()),
                    (format!("{name}.lora_B.weight"), lora.grad().b.clone()),
                ];
                if let Some(magnitude) = lora.active()[0].magnitude() {
                    let key = trace.names().find(|key| key.starts_with(&format!("{name}.lora_magnitude"))).unwrap();
                    parts.push((key.to_string(), magnitude.grad.clone()));
                }
                for (key, tensor) in parts {
                    let got: Vec<f32> = tensor.read().await.unwrap().iter().map(|g| g / counted).collect();
                    let golden = trace.tensor(&key);
                    let share = assert_within(&format!("{folder} {key}"), &got, golden, 1e-4 * largest(golden));
                    gradients = gradients.max(share);
                    count += 1;
                }
            }
        }
        assert_eq!(count, trace.names().filter(|name| name.starts_with("grad.")).count(), "{folder}");
        let got: Vec<f32> = trainer.records(0).await.unwrap().iter().map(|record| record.loss).collect();
        assert_within(&format!("{folder} first loss"), &got[..1], &losses[..1], 2e-5);
        let worst = assert_within(&format!("{folder} losses"), &got, &losses, 2e-4);
        trainer.destroy();
        model.destroy();
        compared += 1;
        say(&format!(
            "golden {folder}: base logits {base:.2}, start logits {start:.2}, {count} gradients {gradients:.2}, {} losses {worst:.2} of their bounds",
            losses.len()
        ));
    }
    assert!(compared > 0);
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

/// Adapters of different ranks on every third linear layer, or all, with B of numbers.
fn random_adapters(model: &CausalLM, all: bool, dropout: f64) {
    let rng = &mut Rng(6);
    let names: Vec<String> = model.linears().iter().map(|linear| linear.name().to_string()).collect();
    for (i, name) in names.iter().enumerate().filter(|(i, _)| all || i % 3 == 1) {
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
