//! Language models: PyTorch's logits, gradients and losses, and what must be the same whichever way it is computed.

mod common;
mod reference;

use std::rc::Rc;

use common::files::{File, json, list};
use common::{gpu, say};
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
