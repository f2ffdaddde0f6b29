//! Where the fuzzer starts: good files of every kind, as small as they come, and what hostile ones are made of.

use lora_webgpu::io::safetensors::{Dtype, Entry, write};
use lora_webgpu::io::{Adapter, AdapterKind, AdapterModule, GgufModel};

use super::gguf::{Tensor, Value, file, quantize};
use super::targets::join;

fn module(name: &str, kind: AdapterKind, rank: usize) -> AdapterModule {
    let numbers = |count: usize| (0..count).map(|i| (i % 7) as f32 / 4.0 - 0.5).collect();
    let (a, b) = (numbers(rank * 4), numbers(4 * rank));
    AdapterModule { name: name.into(), kind, rank, alpha: 4.0, scaling: 0.0, a, b, magnitude: None, lora_bias: None }
}

fn adapter(modules: Vec<AdapterModule>) -> Adapter {
    Adapter::new(modules, Some("base")).unwrap()
}

/// PEFT's configuration with a field more.
fn config(more: &str) -> Vec<u8> {
    format!(r#"{{"peft_type": "LORA", "r": 2, "lora_alpha": 4, {more}}}"#).into_bytes()
}

fn container(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data, 1);
    file
}

pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    let (q, v) = ("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj");
    let linear = |name| module(name, AdapterKind::Linear, 2);
    let text = |text: &str| text.as_bytes().to_vec();
    let peft = |adapter: &Adapter, dtype| join(adapter.config.to_json().as_bytes(), &adapter.weights(dtype).unwrap());
    match target {
        "safetensors" => vec![
            adapter(vec![linear("fc")]).weights(Dtype::F32).unwrap(),
            adapter(vec![linear(q), module("model.embed_tokens", AdapterKind::Embedding, 1)])
                .weights(Dtype::BF16)
                .unwrap(),
            container(
                r#"{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}}"#,
                8,
            ),
            container(
                r#"{"__metadata__":{"a":"é\u00e9\n"},"w.weight":{"dtype":"F16","shape":[1,2,1,1],"data_offsets":[0,4]}}"#,
                4,
            ),
            container(
                r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,18446744073709551615]}}"#,
                0,
            ),
        ],
        "adapter_config" => vec![
            config(r#""target_modules": ["fc", "q_proj"], "layers_to_transform": [0, 1], "layers_pattern": "layers""#),
            config(
                r#""target_modules": "all-linear", "exclude_modules": "^a{2,3}$", "use_rslora": true, "use_dora": true"#,
            ),
            config(
                r#""target_modules": ".*\\.(q|k)_proj|[^.]+?", "rank_pattern": {"q.*": 3}, "alpha_pattern": {"^fc": 1e2}"#,
            ),
            config(
                r#""init_lora_weights": "pissa_niter_4", "bias": "all", "modules_to_save": ["lm_head"], "lora_dropout": 0.5"#,
            ),
            config(r#""auto_mapping": {"a": [[1, -2.5e3, null, true], "\ud83d\ude00"]}, "revision": null"#),
            config(r#""__proto__": {"r": 1}, "target_modules": "(?P<n>\\d|\\w)*(?:x|y){1,4}""#),
        ],
        "adapter" => {
            let (mut dora, mut bias) = (linear("fc"), linear("fc"));
            dora.magnitude = Some(vec![1.0; 4]);
            bias.lora_bias = Some(vec![0.5; 4]);
            let conv = module("conv", AdapterKind::Conv1x1, 1);
            let all = adapter(vec![bias, conv, module("model.embed_tokens", AdapterKind::Embedding, 2)]);
            let biases = adapter(vec![linear("fc")]).with_biases(&[("fc".into(), vec![1.0; 4])]).unwrap();
            vec![
                peft(&adapter(vec![linear(q), linear(v)]), Dtype::F32),
                peft(&adapter(vec![linear(q), module(v, AdapterKind::Linear, 1)]), Dtype::F16),
                peft(&all, Dtype::F32),
                peft(&adapter(vec![dora]), Dtype::F32),
                peft(&biases, Dtype::BF16),
            ]
        }
        "model_config" => vec![
            text(
                r#"{"model_type":"llama","hidden_size":8,"num_attention_heads":2,"vocab_size":9,"intermediate_size":8,"num_hidden_layers":1,"rope_parameters":{"rope_type":"llama3","rope_theta":1e4,"factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":64}}"#,
            ),
            text(
                r#"{"model_type":"qwen3","hidden_size":8,"num_attention_heads":2,"num_key_value_heads":1,"vocab_size":9,"intermediate_size":8,"num_hidden_layers":1,"layer_types":["full_attention"],"eos_token_id":[1,2],"rope_scaling":{"type":"linear","factor":2.0}}"#,
            ),
            text(
                r#"{"model_type":"bitnet","hidden_act":"relu2","hidden_size":8,"num_attention_heads":2,"num_key_value_heads":2,"vocab_size":9,"intermediate_size":8,"num_hidden_layers":1,"tie_word_embeddings":true,"quantization_config":{"quant_method":"bitnet","linear_class":"autobitlinear","modules_to_not_convert":["lm_head"],"quantization_mode":"offline","use_rms_norm":false}}"#,
            ),
            text(
                r#"{"model_type":"mistral","sliding_window":null,"head_dim":4,"hidden_size":8,"num_attention_heads":2,"num_key_value_heads":1,"vocab_size":9,"intermediate_size":8,"num_hidden_layers":1,"attention_bias":false,"rms_norm_eps":1e-6,"hidden_act":"silu"}"#,
            ),
        ],
        "gguf" => {
            let model = GgufModel { architecture: "llama".into(), heads: 2, kv_heads: 2, tied: true };
            let key = |name: &str, value| (format!("llama.{name}"), value);
            let metadata = [
                ("general.architecture".into(), Value::Text("llama".into())),
                key("embedding_length", Value::U32(8)),
                key("attention.head_count", Value::U32(2)),
                key("context_length", Value::U32(16)),
                key("feed_forward_length", Value::U32(8)),
                key("block_count", Value::U32(1)),
                key("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
                ("tokenizer.ggml.tokens".into(), Value::Texts(vec!["a".into(), "b".into()])),
            ];
            let tensor = |name: &str, shape: &[usize], kind| {
                let values = vec![0.5; shape.iter().product()];
                Tensor { name: name.into(), shape: shape.into(), kind, bytes: quantize(kind, &values) }
            };
            let adapter = adapter(vec![linear(q), linear("model.layers.0.mlp.down_proj")]);
            vec![
                adapter.to_gguf(&model, Some("name")).unwrap(),
                file(&metadata, &[tensor("token_embd.weight", &[2, 8], 0), tensor("blk.0.attn_q.bias", &[8], 1)]),
                file(
                    &metadata[..1],
                    &[tensor("blk.0.ffn_up.weight", &[1, 32], 8), tensor("rope_freqs.weight", &[2], 0)],
                ),
                // Nested arrays.
                [
                    &b"GGUF\x03\0\0\0"[..],
                    &[0; 8],
                    &[
                        1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'a', 9, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0,
                        0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                    ],
                ]
                .concat(),
            ]
        }
        "kohya" => vec![
            adapter(vec![linear("fc"), linear(q)]).to_kohya("lora_unet").unwrap(),
            adapter(vec![module("fc", AdapterKind::Conv1x1, 1)]).to_kohya("lora_te1").unwrap(),
        ],
        "mlx" => {
            let bytes = [0u8; 32];
            let entry = |name, shape| Entry { name, dtype: Dtype::F32, shape, data: &bytes };
            let weights = write(&[entry("fc.lora_a", &[4, 2]), entry("fc.lora_b", &[2, 4])], &[]);
            vec![
                join(
                    br#"{"fine_tune_type": "lora", "lora_parameters": {"rank": 2, "scale": 20.0}, "num_layers": 1}"#,
                    &weights,
                ),
                join(br#"{"lora_parameters": {"scale": 2, "keys": ["fc"]}}"#, &weights),
            ]
        }
        "hesper" => vec![[&[4, 4, 4][..], &adapter(vec![linear(q), linear(v)]).to_hesper().unwrap()].concat()],
        _ => panic!("no target {target}"),
    }
}
