//! Models from files: weights kept as they come or packed, GGUF, ternary weights, and what is refused.

mod common;
mod reference;

use std::rc::Rc;

use common::files::{File, bytes, list};
use common::gguf::{KINDS, Tensor, Value, dequantize, file, quantize};
use common::{Rng, bits, gpu, refused, say};
use lora_webgpu::io::gguf::GgufHeader;
use lora_webgpu::io::safetensors::{Dtype, Entry, Header, from_f32, write};
use lora_webgpu::io::{Adapter, AdapterConfig, NewConfig};
use lora_webgpu::{
    AdamW, CausalLM, Family, Gpu, Input, LanguageTrainer, ModelConfig, ModelLoader, OptimizerKind, OptimizerOptions,
    Result, RopeScaling, SequencesOptions, Store, Ternary, TokenBatch, gguf_sources, safetensors_sources, shift_labels,
};
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

/// A tensor of a model: name, shape, numbers.
type Numbers = (String, Vec<usize>, Vec<f32>);

/// A golden model.
struct Golden {
    folder: String,
    config: Vec<u8>,
    tensors: Vec<Numbers>,
    trace: File,
}

impl Golden {
    async fn read(folder: &str) -> Golden {
        let weights = File::read(&format!("{folder}/model.safetensors")).await;
        let tensor = |name: &str| (name.to_string(), weights.shape(name).to_vec(), weights.tensor(name).to_vec());
        let mut tensors: Vec<Numbers> = weights.names().map(tensor).collect();
        tensors.sort_by(|a, b| a.0.cmp(&b.0));
        Golden {
            config: bytes(&format!("{folder}/config.json")).await,
            trace: File::read(&format!("{folder}/trace.safetensors")).await,
            folder: folder.into(),
            tensors,
        }
    }

    /// One of each kind of model: the first folder of each type, with embeddings tied and not. In the browser, where each takes
    /// ten times as long, a llama and a qwen2.
    async fn some() -> Vec<Golden> {
        let mut found: Vec<Golden> = Vec::new();
        let mut kinds = Vec::new();
        for path in list().await {
            let Some(folder) = path.strip_suffix("/trace.safetensors").filter(|path| path.starts_with("models/"))
            else {
                continue;
            };
            let golden = Golden::read(folder).await;
            let config = golden.parsed();
            let kind = (config.family, config.tie_word_embeddings, config.rope_scaling.clone());
            let family = |other: &(Family, bool, RopeScaling)| other.0 == kind.0;
            if cfg!(target_arch = "wasm32")
                && (!matches!(kind.0, Family::Llama | Family::Qwen2) || kinds.iter().any(family))
            {
                continue;
            }
            if !kinds.contains(&kind) {
                kinds.push(kind);
                found.push(golden);
            }
        }
        assert!(!found.is_empty());
        found
    }

    fn parsed(&self) -> ModelConfig {
        ModelConfig::parse(&self.config).unwrap()
    }

    fn ids(&self) -> (usize, Vec<i32>) {
        (self.trace.shape("input_ids")[0], self.trace.labels("input_ids"))
    }

    async fn adapter(&self) -> Adapter {
        let config = bytes(&format!("{}/adapter_start/adapter_config.json", self.folder)).await;
        let weights = bytes(&format!("{}/adapter_start/adapter_model.safetensors", self.folder)).await;
        Adapter::read(&config, &weights, true).unwrap()
    }
}

/// A safetensors file of these numbers.
fn safetensors(tensors: &[Numbers], dtype: Dtype) -> Vec<u8> {
    let data: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(name, _, values)| from_f32(name, dtype, &mut values.iter().map(|v| f64::from(*v))).unwrap())
        .collect();
    let mut entries = Vec::new();
    for ((name, shape, _), data) in tensors.iter().zip(&data) {
        entries.push(Entry { name, dtype, shape, data });
    }
    write(&entries, &[])
}

/// Gives a loader all bytes of a file, in pieces of an odd size.
fn fill(loader: &mut ModelLoader, file: &[u8]) -> Result<()> {
    let ranges: Vec<_> = loader.sources().iter().map(|source| source.range.clone()).collect();
    for (i, range) in ranges.into_iter().enumerate() {
        for piece in file[range.start as usize..range.end as usize].chunks(5003) {
            loader.write(i, piece)?;
        }
    }
    Ok(())
}

fn load_safetensors(gpu: &Gpu, config: &[u8], file: &[u8], store: Store) -> Result<Rc<CausalLM>> {
    let header = Header::parse("model.safetensors", file, file.len() as u64)?;
    let mut loader = ModelLoader::new(gpu, ModelConfig::parse(config)?, safetensors_sources(0, &header), store)?;
    fill(&mut loader, file)?;
    loader.finish().map(Rc::new)
}

fn load_gguf(gpu: &Gpu, file: &[u8], store: Store) -> Result<Rc<CausalLM>> {
    let header = GgufHeader::parse("model.gguf", file, file.len() as u64)?;
    let mut loader = ModelLoader::new(gpu, ModelConfig::from_gguf(&header)?, gguf_sources(0, &header), store)?;
    fill(&mut loader, file)?;
    loader.finish().map(Rc::new)
}

/// Two-dimensional tensors as this type keeps them, the others as they are.
fn rounded(tensors: &[Numbers], kind: u32) -> Vec<Numbers> {
    let round = |(name, shape, values): &Numbers| {
        let values = if shape.len() == 2 { dequantize(kind, &quantize(kind, values)) } else { values.clone() };
        (name.clone(), shape.clone(), values)
    };
    tensors.iter().map(round).collect()
}

#[track_caller]
fn assert_within(name: &str, got: &[f32], expected: &[f32], share: f32) -> f32 {
    assert_eq!(got.len(), expected.len(), "{name}");
    let largest = expected.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    let worst = got.iter().zip(expected).map(|(a, b)| if a.is_finite() { (a - b).abs() } else { f32::INFINITY });
    let worst = worst.fold(0.0, f32::max) / largest;
    assert!(largest > 0.0 && worst <= share, "{name}: off by {worst:e} of the largest, {share:e} allowed");
    worst / share
}

/// Logits with an adapter, and loss and gradients of its first step.
async fn results(model: &Rc<CausalLM>, golden: &Golden) -> [Vec<f32>; 3] {
    let (batch, ids) = golden.ids();
    let mask = golden.trace.has("attention_mask").then(|| golden.trace.labels("attention_mask"));
    model.load_adapter(&golden.adapter().await).unwrap();
    let labels = shift_labels(ids.len() / batch, &golden.trace.labels("labels"));
    let input = Input { input_ids: &ids, attention_mask: mask.as_deref(), labels: Some(&labels), position_ids: None };
    let logits = model.logits(batch, &input).await.unwrap();
    let adam = OptimizerOptions::new(OptimizerKind::AdamW(AdamW::default()), 1e-3);
    let trainer = LanguageTrainer::new(model, adam, SequencesOptions::default(), 0).unwrap();
    trainer.step(&[TokenBatch { batch, input }]).await.unwrap();
    let mut gradients = Vec::new();
    for lora in model.loras() {
        gradients.extend(lora.grad().a.read().await.unwrap());
        gradients.extend(lora.grad().b.read().await.unwrap());
    }
    let loss = trainer.records(0).await.unwrap()[0].loss;
    trainer.destroy();
    model.destroy();
    [logits, vec![loss], gradients]
}

fn compare(name: &str, got: &[Vec<f32>; 3], expected: &[Vec<f32>; 3]) {
    let shares = [2e-5, 2e-5, 1e-4];
    let worst = [0, 1, 2].map(|i| assert_within(name, &got[i], &expected[i], shares[i]));
    say(&format!("{name}: logits {:.2}, loss {:.2}, gradients {:.2} of their bounds", worst[0], worst[1], worst[2]));
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn weights_kept_small_are_the_rounded_ones() {
    let gpu = gpu().await;
    for golden in Golden::some().await {
        let whole =
            load_safetensors(&gpu, &golden.config, &safetensors(&golden.tensors, Dtype::F32), Store::AsIs).unwrap();
        let bytes = whole.bytes();
        whole.destroy();
        for (kind, dtype, store) in [
            (1, Dtype::F16, Store::AsIs),
            (30, Dtype::BF16, Store::AsIs),
            (8, Dtype::F32, Store::Q8_0),
            (8, Dtype::F64, Store::Q8_0),
        ] {
            let name = format!("{} in {dtype:?} stored {store:?}", golden.folder);
            // Norms go through the file too.
            let tensors = match dtype {
                Dtype::F16 | Dtype::BF16 => {
                    let flat = |(name, shape, values): &Numbers| {
                        (name.clone(), shape.clone(), dequantize(kind, &quantize(kind, values)))
                    };
                    golden.tensors.iter().map(flat).collect()
                }
                _ => rounded(&golden.tensors, kind),
            };
            let reference = safetensors(&tensors, Dtype::F32);
            let expected = load_safetensors(&gpu, &golden.config, &reference, Store::F32).unwrap();
            let given = safetensors(if store == Store::Q8_0 { &golden.tensors } else { &tensors }, dtype);
            let model = load_safetensors(&gpu, &golden.config, &given, store).unwrap();
            let share = model.bytes() as f64 / bytes as f64;
            assert!(share < if store == Store::Q8_0 { 0.35 } else { 0.6 }, "{name}: {share} of the bytes");
            compare(&name, &results(&model, &golden).await, &results(&expected, &golden).await);
        }
    }
}

/// llama.cpp's name of a tensor.
fn gguf_name(name: &str) -> String {
    let (base, part) = name.rsplit_once('.').unwrap();
    let pairs = [
        ("model.embed_tokens", "token_embd"),
        ("lm_head", "output"),
        ("model.norm", "output_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.attn_sub_norm", "attn_sub_norm"),
        ("mlp.ffn_sub_norm", "ffn_sub_norm"),
    ];
    let rest = base.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let own = rest.map_or(base, |(_, own)| own);
    let short = pairs.iter().find(|(long, _)| *long == own).unwrap().1;
    rest.map_or(format!("{short}.{part}"), |(layer, _)| format!("blk.{layer}.{short}.{part}"))
}

/// What llama.cpp's converter says of a model.
fn metadata(c: &ModelConfig, architecture: &str) -> Vec<(String, Value)> {
    let mut metadata = vec![("general.architecture".to_string(), Value::Text(architecture.into()))];
    let sizes = [
        ("context_length", c.max_positions),
        ("embedding_length", c.hidden_size),
        ("block_count", c.layers),
        ("feed_forward_length", c.intermediate_size),
        ("attention.head_count", c.heads),
        ("attention.head_count_kv", c.kv_heads),
        ("attention.key_length", c.head_dim),
        ("attention.value_length", c.head_dim),
    ];
    for (key, value) in sizes {
        metadata.push((format!("{architecture}.{key}"), Value::U32(value as u32)));
    }
    metadata.push((format!("{architecture}.attention.layer_norm_rms_epsilon"), Value::F32(c.rms_norm_eps as f32)));
    metadata.push((format!("{architecture}.rope.freq_base"), Value::F32(c.rope_theta as f32)));
    metadata.push(("tokenizer.ggml.tokens".into(), Value::Texts(vec!["a".into(), "b".into()])));
    metadata
}

/// The file that llama.cpp's converter makes of a model, weights of this type.
fn as_gguf(golden: &Golden, kind: u32) -> Vec<u8> {
    let c = golden.parsed();
    let architecture = match c.family {
        Family::Qwen2 => "qwen2",
        Family::Qwen3 => "qwen3",
        Family::Bitnet if kind == 1 => "bitnet-b1.58",
        Family::Bitnet => "bitnet",
        Family::Llama | Family::Mistral => "llama",
    };
    let metadata = metadata(&c, architecture);
    let mut tensors: Vec<Tensor> = golden
        .tensors
        .iter()
        .map(|(name, shape, values)| {
            let mut values = values.clone();
            let paired = architecture == "llama" && (name.contains("q_proj") || name.contains("k_proj"));
            if paired {
                // As its converter does: [heads, 2, head_dim/2] with the two last turned.
                let columns = values.len() / shape[0];
                let old = values.clone();
                for row in 0..shape[0] {
                    let (head, within) = (row / c.head_dim, row % c.head_dim);
                    let (half, pair) = (within / (c.head_dim / 2), within % (c.head_dim / 2));
                    let to = head * c.head_dim + pair * 2 + half;
                    values[to * columns..][..columns].copy_from_slice(&old[row * columns..][..columns]);
                }
            }
            let kind = if shape.len() == 2 { kind } else { 0 };
            Tensor { name: gguf_name(name), shape: shape.clone(), kind, bytes: quantize(kind, &values) }
        })
        .collect();
    if let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions } = c.rope_scaling {
        let factors = (0..c.head_dim / 2).map(|i| {
            let frequency = c.rope_theta.powf(-2.0 * i as f64 / c.head_dim as f64);
            let wavelength = 2.0 * std::f64::consts::PI / frequency;
            if wavelength < original_positions / high_freq_factor {
                1.0
            } else if wavelength > original_positions / low_freq_factor {
                factor as f32
            } else {
                let smooth = (original_positions / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            }
        });
        let factors: Vec<f32> = factors.collect();
        let (name, shape) = ("rope_freqs.weight".into(), vec![factors.len()]);
        tensors.push(Tensor { name, shape, kind: 0, bytes: quantize(0, &factors) });
    }
    file(&metadata, &tensors)
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_gguf_file_is_the_model_it_was_made_of() {
    let gpu = gpu().await;
    for golden in Golden::some().await {
        let config = golden.parsed();
        let whole = safetensors(&golden.tensors, Dtype::F32);
        let plain = load_safetensors(&gpu, &golden.config, &whole, Store::AsIs).unwrap();
        let expected = results(&plain, &golden).await;
        let from_gguf = load_gguf(&gpu, &as_gguf(&golden, 0), Store::AsIs).unwrap();
        let read = from_gguf.config();
        assert_eq!(
            (read.layers, read.heads, read.kv_heads, read.head_dim, read.tie_word_embeddings, read.qkv_bias),
            (
                config.layers,
                config.heads,
                config.kv_heads,
                config.head_dim,
                config.tie_word_embeddings,
                config.qkv_bias
            )
        );
        let got = results(&from_gguf, &golden).await;
        compare(&format!("{} by GGUF F32", golden.folder), &got, &expected);
        for (name, kind) in KINDS.into_iter().skip(1) {
            let tensors = rounded(&golden.tensors, kind);
            let reference =
                load_safetensors(&gpu, &golden.config, &safetensors(&tensors, Dtype::F32), Store::F32).unwrap();
            let model = load_gguf(&gpu, &as_gguf(&golden, kind), Store::AsIs).unwrap();
            let name = format!("{} by GGUF {name}", golden.folder);
            assert!(model.bytes() * 10 < reference.bytes() * 6, "{name}: {} bytes", model.bytes());
            compare(&name, &results(&model, &golden).await, &results(&reference, &golden).await);
        }
    }
}

/// bitnet.cpp's file of a model whose linear modules are ternary, in I2_S, beside transformers' file of the same.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_ternary_gguf_file_is_the_model_it_was_made_of() {
    let gpu = gpu().await;
    let golden = Golden::read("models/bitnet_ternary").await;
    let mut config = golden.parsed();
    // I2_S has whole blocks of 128.
    (config.hidden_size, config.intermediate_size, config.heads) = (128, 256, 8);
    (config.layers, config.ternary) = (1, Some(Ternary::Multiply));
    let rng = &mut Rng(21);
    let (mut own, mut theirs) = (Vec::new(), Vec::new());
    let kv = config.kv_heads * config.head_dim;
    let linears = [
        ("self_attn.q_proj", 128, 128),
        ("self_attn.k_proj", kv, 128),
        ("self_attn.v_proj", kv, 128),
        ("self_attn.o_proj", 128, 128),
        ("mlp.gate_proj", 256, 128),
        ("mlp.up_proj", 256, 128),
        ("mlp.down_proj", 128, 256),
    ];
    for (name, rows, columns) in linears {
        let name = format!("model.layers.0.{name}");
        let codes: Vec<u8> = rng.numbers(rows * columns).iter().map(|v| ((v.abs() * 3.0) as u8).min(2)).collect();
        let scale = 0.02 + 0.01 * rng.number().abs();
        let quarter = rows / 4;
        let packed = (0..quarter * columns).map(|i| (0..4).map(|k| codes[i + k * quarter * columns] << (2 * k)).sum());
        own.push((format!("{name}.weight"), Dtype::U8, vec![quarter, columns], packed.collect()));
        own.push((format!("{name}.weight_scale"), Dtype::F32, vec![1], scale.to_le_bytes().to_vec()));
        let mut bytes: Vec<u8> = Vec::new();
        for block in codes.chunks(128) {
            bytes.extend((0..32).map(|j| block[j] << 6 | block[32 + j] << 4 | block[64 + j] << 2 | block[96 + j]));
        }
        bytes.extend(scale.to_le_bytes());
        bytes.extend([7; 28]);
        theirs.push(Tensor { name: gguf_name(&format!("{name}.weight")), shape: vec![rows, columns], kind: 36, bytes });
    }
    let mut floats = vec![
        ("model.embed_tokens.weight".to_string(), vec![config.vocab_size, 128]),
        ("model.norm.weight".into(), vec![128]),
    ];
    for (name, width) in [
        ("input_layernorm", 128),
        ("post_attention_layernorm", 128),
        ("self_attn.attn_sub_norm", 128),
        ("mlp.ffn_sub_norm", 256),
    ] {
        floats.push((format!("model.layers.0.{name}.weight"), vec![width]));
    }
    for (name, shape) in floats {
        let values: Vec<f32> = rng.numbers(shape.iter().product()).iter().map(|v| 0.5 + 0.3 * v).collect();
        let bytes = quantize(0, &values);
        theirs.push(Tensor { name: gguf_name(&name), shape: shape.clone(), kind: 0, bytes: bytes.clone() });
        own.push((name, Dtype::F32, shape, bytes));
    }
    let mut entries = Vec::new();
    for (name, dtype, shape, data) in &own {
        entries.push(Entry { name, dtype: *dtype, shape, data });
    }
    let written = write(&entries, &[]);
    let header = Header::parse("model.safetensors", &written, written.len() as u64).unwrap();
    let mut loader = ModelLoader::new(&gpu, config.clone(), safetensors_sources(0, &header), Store::AsIs).unwrap();
    fill(&mut loader, &written).unwrap();
    let expected = Rc::new(loader.finish().unwrap());
    let model = load_gguf(&gpu, &file(&metadata(&config, "bitnet-b1.58"), &theirs), Store::AsIs).unwrap();
    assert_eq!(model.bytes(), expected.bytes());
    let ids: Vec<i32> = (0..40).map(|i| i * 7 % config.vocab_size as i32).collect();
    let input = Input { input_ids: &ids, ..Input::default() };
    let [got, expected] = [model.logits(2, &input).await.unwrap(), expected.logits(2, &input).await.unwrap()];
    assert!(got == expected && got.iter().any(|v| v.abs() > 0.1), "other logits");
    // Of a table and of another kind of ternary blocks it is not done.
    for (kind, name, at) in [(36, "I2_S", "token_embd.weight"), (35, "TQ2_0", "blk.0.ffn_down.weight")] {
        let i = theirs.iter().position(|tensor| tensor.name == at).unwrap();
        let (before, bytes) = (theirs[i].kind, theirs[i].bytes.clone());
        theirs[i].kind = kind;
        let len = bytes.len().max(1 << 15);
        theirs[i].bytes.resize(len, 0);
        let other = file(&metadata(&config, "bitnet"), &theirs);
        refused(name, load_gguf(&gpu, &other, Store::AsIs), "unsupported", &[name, "Q8_0", "I2_S"]);
        (theirs[i].kind, theirs[i].bytes) = (before, bytes);
    }
    model.destroy();
}

/// Each tensor says which of the files it is in.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn tensors_of_a_gguf_file_know_their_file() {
    let golden = Golden::some().await.into_iter().find(|golden| golden.parsed().family == Family::Llama).unwrap();
    let file = as_gguf(&golden, 8);
    let header = GgufHeader::parse("model.gguf", &file, file.len() as u64).unwrap();
    let mut config = ModelConfig::from_gguf(&header).unwrap();
    config.tie_word_embeddings = false;
    // The head beside it, in a file of safetensors.
    let shape = [config.vocab_size, config.hidden_size];
    let values = vec![0.0; shape[0] * shape[1]];
    let head = safetensors(&[("lm_head.weight".into(), shape.to_vec(), values)], Dtype::F32);
    let first = Header::parse("model.safetensors", &head, head.len() as u64).unwrap();
    let mut sources = safetensors_sources(0, &first);
    sources.extend(gguf_sources(1, &header).into_iter().filter(|source| source.name != "lm_head.weight"));
    let loader = ModelLoader::new(&gpu().await, config, sources, Store::AsIs).unwrap();
    assert!(loader.sources().len() > 5);
    for source in loader.sources() {
        assert_eq!(source.file, usize::from(source.name != "lm_head.weight"), "{}", source.name);
    }
}

/// An adapter on a GGUF model is saved in Hugging Face's row order: by the same bits as it came.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn an_adapter_on_a_gguf_model_keeps_its_rows() {
    let gpu = gpu().await;
    let golden = Golden::some().await.into_iter().find(|golden| golden.parsed().family == Family::Llama).unwrap();
    let model = load_gguf(&gpu, &as_gguf(&golden, 8), Store::AsIs).unwrap();
    let adapter = golden.adapter().await;
    model.load_adapter(&adapter).unwrap();
    let saved = model.save_adapter(&adapter.config).await.unwrap();
    for module in &adapter.modules {
        let own = saved.modules.iter().find(|own| own.name == module.name).unwrap();
        assert_eq!(bits(&own.b), bits(&module.b), "{}", module.name);
    }
    model.destroy();
}

/// Ternary weights: packed by transformers' rule, activations of 8 bits.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn ternary_weights_are_scaled_as_the_configuration_says() {
    let gpu = gpu().await;
    for path in list().await {
        let Some(folder) =
            path.strip_suffix("/trace.safetensors").filter(|path| path.contains("models/bitnet_ternary"))
        else {
            continue;
        };
        let golden = Golden::read(folder).await;
        let (batch, ids) = golden.ids();
        let input = Input { input_ids: &ids, ..Input::default() };
        let dense =
            load_safetensors(&gpu, &golden.config, &safetensors(&golden.tensors, Dtype::F32), Store::AsIs).unwrap();
        let expected = dense.logits(batch, &input).await.unwrap();
        let mut logits = Vec::new();
        // The last is the wrong one.
        for (class, divides) in [("autobitlinear", false), ("bitlinear", true), ("bitlinear", false)] {
            let mut entries: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
            for (name, shape, values) in &golden.tensors {
                let Some(module) = name.strip_suffix("_proj.weight") else {
                    entries.push((name.clone(), Dtype::F32, shape.clone(), quantize(0, values)));
                    continue;
                };
                let scale = values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
                let (rows, columns) = (shape[0] / 4, shape[1]);
                let code = |row: usize, column: usize| (values[row * columns + column] / scale + 1.0).round() as u8;
                let byte =
                    |i: usize| (0..4).fold(0, |byte, k| byte | code(i / columns + k * rows, i % columns) << (2 * k));
                entries.push((name.clone(), Dtype::U8, vec![rows, columns], (0..rows * columns).map(byte).collect()));
                let scale = if divides { 1.0 / scale } else { scale };
                entries.push((format!("{module}_proj.weight_scale"), Dtype::F32, vec![1], quantize(0, &[scale])));
            }
            let all: Vec<Entry> =
                entries.iter().map(|(name, dtype, shape, data)| Entry { name, dtype: *dtype, shape, data }).collect();
            let text = String::from_utf8(golden.config.clone()).unwrap();
            let quantization = format!(
                "{{\"quantization_config\": {{\"quant_method\": \"bitnet\", \"linear_class\": \"{class}\", \"modules_to_not_convert\": [\"lm_head\"]}}, {}",
                text.trim_start().strip_prefix('{').unwrap()
            );
            let model = load_safetensors(&gpu, quantization.as_bytes(), &write(&all, &[]), Store::AsIs).unwrap();
            assert!(model.bytes() * 2 < dense.bytes(), "{} bytes", model.bytes());
            logits.push(model.logits(batch, &input).await.unwrap());
            model.destroy();
        }
        // Eight bits of each activation: steps of 1/127 of a token's largest, in seven products of every layer.
        let largest = expected.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        let off = |logits: &[f32]| {
            logits.iter().zip(&expected).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / largest
        };
        let (right, wrong) = (off(&logits[0]), off(&logits[2]));
        say(&format!(
            "{folder}: 8-bit activations change the logits by {right:.4} of the largest, a wrong scale by {wrong:.4}"
        ));
        assert!(right > 1e-4 && right < 0.1 && wrong > 3.0 * right, "{right}, {wrong}");
        // 1/(1/s) is s but for a rounding, which can move an activation to the next of its 255 steps.
        assert_within("bitlinear", &logits[1], &logits[0], 0.02);
        dense.destroy();
        for (field, value) in [
            ("quant_method", "\"awq\""),
            ("linear_class", "\"other\""),
            ("quantization_mode", "\"online\""),
            ("use_rms_norm", "true"),
            ("modules_to_not_convert", "[\"lm_head\", \"q_proj\"]"),
        ] {
            let method = if field == "quant_method" { "" } else { "\"quant_method\": \"bitnet\", " };
            let text = String::from_utf8(golden.config.clone()).unwrap();
            let text = format!(
                "{{\"quantization_config\": {{{method}\"{field}\": {value}}}, {}",
                text.trim_start().strip_prefix('{').unwrap()
            );
            refused(field, ModelConfig::parse(text.as_bytes()), "unsupported", &[field]);
        }
    }
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn files_that_do_not_fit_are_refused_by_name() {
    let gpu = gpu().await;
    let golden = Golden::some().await.into_iter().find(|golden| golden.parsed().family == Family::Llama).unwrap();
    let load =
        |tensors: &[Numbers], dtype| load_safetensors(&gpu, &golden.config, &safetensors(tensors, dtype), Store::AsIs);
    let before = gpu.memory();
    let change = |change: &dyn Fn(&mut Vec<Numbers>)| {
        let mut tensors = golden.tensors.clone();
        change(&mut tensors);
        load(&tensors, Dtype::F32)
    };
    let lost = golden.tensors[3].0.clone();
    refused("missing", change(&|t| drop(t.remove(3))), "unmatched", &[&lost]);
    refused("extra", change(&|t| t.push(("model.extra".into(), vec![2], vec![1.0; 2]))), "unmatched", &["model.extra"]);
    let i = golden.tensors.iter().position(|(name, ..)| name.contains("up_proj")).unwrap();
    refused("shape", change(&|t| t[i].1.reverse()), "shape", &["up_proj"]);
    // A byte short.
    let file = safetensors(&golden.tensors, Dtype::F32);
    let header = Header::parse("model", &file, file.len() as u64).unwrap();
    let mut loader = ModelLoader::new(&gpu, golden.parsed(), safetensors_sources(0, &header), Store::AsIs).unwrap();
    for i in 0..loader.sources().len() {
        let range = loader.sources()[i].range.clone();
        let end = range.end as usize - if loader.sources()[i].name.contains("0.mlp.up_proj") { 1 } else { 0 };
        loader.write(i, &file[range.start as usize..end]).unwrap();
    }
    refused("short", loader.finish(), "shape", &["0.mlp.up_proj"]);
    // GGUF: types and architectures that are not done.
    let whole = as_gguf(&golden, 8);
    let cut = &whole[..whole.len() - 64];
    refused("cut", GgufHeader::parse("model.gguf", cut, cut.len() as u64), "file", &[]);
    let replaced = |from: &[u8], to: &[u8]| {
        let at = whole.windows(from.len()).position(|window| window == from).unwrap();
        let mut other = whole.clone();
        other[at..at + to.len()].copy_from_slice(to);
        other
    };
    let other = replaced(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0gpt99");
    refused("architecture", load_gguf(&gpu, &other, Store::AsIs), "unsupported", &["gpt99", "qwen2"]);
    let kind = |number: u8| {
        let end = b"token_embd.weight\x02\0\0\0";
        let at = whole.windows(end.len()).position(|window| window == end).unwrap() + end.len() + 16;
        let mut other = whole.clone();
        other[at] = number;
        other
    };
    // IQ4_NL's blocks are smaller.
    refused("type", load_gguf(&gpu, &kind(20), Store::AsIs), "unsupported", &["IQ4_NL", "Q8_0", "Q4_0", "Q4_1"]);
    assert_eq!(gpu.memory(), before, "what was allocated is freed");
    // An adapter's configuration is the model's as before.
    let model = load_gguf(&gpu, &whole, Store::AsIs).unwrap();
    let targets = ["q_proj".to_string()];
    let new = NewConfig { rank: 2, alpha: 4.0, target_modules: &targets, ranks: &[], alphas: &[], base_model: None };
    assert_eq!(model.new_adapter(&AdapterConfig::new(&new).unwrap(), 1).unwrap().len(), golden.parsed().layers);
    model.destroy();
}

/// Whatever stands in a header, it is read or refused.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn broken_headers_are_refused() {
    let gpu = gpu().await;
    let golden = Golden::some().await.into_iter().find(|golden| golden.parsed().family == Family::Llama).unwrap();
    let whole = as_gguf(&golden, 8);
    let start = GgufHeader::parse("model", &whole, whole.len() as u64).unwrap().data_start as usize;
    let mut rng = Rng(77);
    let mut refusals = 0;
    for _ in 0..2000 {
        let mut broken = whole[..start].to_vec();
        for number in rng.numbers(2) {
            let at = ((number.abs() * start as f32) as usize).min(start - 1);
            broken[at] = broken[at].wrapping_add(1 + (number.to_bits() >> 5) as u8 % 255);
        }
        let loader = GgufHeader::parse("model", &broken, whole.len() as u64)
            .and_then(|header| Ok((ModelConfig::from_gguf(&header)?, gguf_sources(0, &header))))
            .and_then(|(config, sources)| ModelLoader::new(&gpu, config, sources, Store::AsIs));
        refusals += usize::from(loader.is_err());
    }
    say(&format!("{refusals} of 2000 broken headers are refused"));
    assert!(refusals > 1000);
}

/// What a training holds is what was said before it.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn the_estimate_is_what_a_training_holds() {
    let gpu = gpu().await;
    // Without the buffers that the start of DoRA's magnitudes was read into.
    let bytes = async || {
        gpu.finished().await.unwrap();
        gpu.memory().bytes - gpu.kept_to_read().bytes
    };
    for golden in Golden::some().await {
        for (store, checkpointing, dora, dropout, batch, tokens) in [
            (Store::AsIs, true, false, "0.0", 1, 8),
            (Store::Q8_0, true, true, "0.1", 4, 31),
            (Store::AsIs, false, false, "0.1", 3, 16),
            (Store::AsIs, false, true, "0.0", 2, 12),
        ] {
            let file = safetensors(&golden.tensors, Dtype::F32);
            let before = bytes().await;
            let model = load_safetensors(&gpu, &golden.config, &file, store).unwrap();
            assert_eq!(bytes().await - before, model.bytes());
            let targets = ["q_proj", "v_proj", "down_proj"].map(String::from);
            let new =
                NewConfig { rank: 5, alpha: 4.0, target_modules: &targets, ranks: &[], alphas: &[], base_model: None };
            let mut config = AdapterConfig::new(&new).unwrap();
            config.set("use_dora", if dora { "true" } else { "false" }).unwrap();
            config.set("lora_dropout", dropout).unwrap();
            let estimate = model.estimate(&config, batch, tokens, checkpointing).unwrap();
            model.new_adapter(&config, 1).unwrap();
            let adam = OptimizerOptions::new(OptimizerKind::AdamW(AdamW::default()), 1e-3);
            let options = SequencesOptions { checkpointing, ..SequencesOptions::default() };
            let trainer = LanguageTrainer::new(&model, adam, options, 0).unwrap();
            let made = bytes().await;
            let ids = vec![3; batch * tokens];
            let input = Input { input_ids: &ids, labels: Some(&ids), ..Input::default() };
            trainer.step(&[TokenBatch { batch, input }]).await.unwrap();
            let held = bytes().await - before;
            let ratio = estimate.total() as f64 / held as f64;
            say(&format!(
                "{} {store:?} {batch}×{tokens}: {} bytes estimated, {held} held, {ratio:.3}",
                golden.folder,
                estimate.total()
            ));
            // Each part by itself: none hides behind a larger one. DoRA's vectors are rounded up to 256 bytes each.
            let off = |estimated: u64, held: u64| (estimated as f64 / held as f64 - 1.0).abs();
            assert_eq!(estimate.weights, model.bytes());
            let (adapter, activations) = (made - before - model.bytes(), before + held - made);
            assert!(off(estimate.adapter, adapter) < if dora { 0.05 } else { 0.01 }, "{estimate:?}: {adapter}");
            assert!(
                off(estimate.activations, activations) < if dora { 0.03 } else { 0.01 },
                "{estimate:?}: {activations}"
            );
            trainer.destroy();
            model.destroy();
        }
    }
}
