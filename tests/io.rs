//! Adapter files: PEFT's own read and written back byte for byte, what they make of models, other formats, and hostile bytes.

mod common;
#[path = "io/llama.rs"]
mod llama;
mod reference;

use common::files::{bytes, given, json, list};
use common::{Rng, refused, say};
use llama::Llama;
use lora_webgpu::ErrorKind;
use lora_webgpu::io::gguf::{GgufHeader, Value as GgufValue};
use lora_webgpu::io::safetensors::{Dtype, Entry, Header, SafetensorsFile, TensorInfo, from_f32, to_f32, write};
use lora_webgpu::io::{
    Adapter, AdapterConfig, AdapterKind, AdapterModule, Combination, Format, GgufModel, HesperWidths, InitLoraWeights,
    ModelModule, ModuleKind, OtherTensor, initialize,
};
use serde_json::Value;
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

/// What is said of tensors of terabytes: in a page their dimensions are already more than it can count.
const HUGE: [&str; 2] = match cfg!(target_arch = "wasm32") {
    true => ["beyond this machine's"; 2],
    false => ["cut off", "beyond the file"],
};

/// What a thread has allocated, natively.
#[cfg(not(target_arch = "wasm32"))]
#[path = "fuzz/counting.rs"]
mod counting;
#[cfg(target_arch = "wasm32")]
mod counting {
    pub fn most(body: impl FnOnce()) -> usize {
        body();
        0
    }
}

/// Paths of the folders below `start` that hold an adapter.
async fn adapters(start: &str) -> Vec<String> {
    let end = "/adapter_config.json";
    let folders = list().await.into_iter().filter_map(|path| Some(path.strip_suffix(end)?.to_string()));
    folders.filter(|folder| folder.starts_with(start)).collect()
}

async fn read(folder: &str) -> Adapter {
    let (config, weights) = files(folder).await;
    Adapter::read(&config, &weights, true).unwrap_or_else(|e| panic!("{folder}: {e}"))
}

async fn files(folder: &str) -> (Vec<u8>, Vec<u8>) {
    (bytes(&format!("{folder}/adapter_config.json")).await, bytes(&format!("{folder}/adapter_model.safetensors")).await)
}

/// The linear modules and embeddings of a model's file.
fn modules(model: &[u8]) -> Vec<ModelModule> {
    ModelModule::list(&Header::parse("model", model, model.len() as u64).unwrap())
}

/// A tensor of a safetensors file, as f32; whole numbers too.
fn tensor(file: &[u8], name: &str) -> Vec<f32> {
    let file = SafetensorsFile::parse("file", file).unwrap();
    let info = file.header.find(name).unwrap_or_else(|| panic!("there is no {name}"));
    match info.dtype {
        Dtype::I32 => file.data(info).chunks(4).map(|b| i32::from_le_bytes(b.try_into().unwrap()) as f32).collect(),
        dtype => to_f32(name, dtype, file.data(info)).unwrap(),
    }
}

fn shape_of(file: &[u8], name: &str) -> Vec<usize> {
    SafetensorsFile::parse("file", file).unwrap().header.find(name).unwrap().shape.clone()
}

fn metadata(file: &[u8], key: &str) -> Value {
    let header = Header::parse("file", file, file.len() as u64).unwrap();
    let text = &header.metadata.iter().find(|(name, _)| name == key).unwrap_or_else(|| panic!("no {key}")).1;
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone()))
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn peft_files_are_written_back_byte_for_byte() {
    let (mut folders, mut tensors) = (0, 0);
    for start in ["peft_mlp/", "peft_files/", "models/"] {
        if !given(start).await {
            continue;
        }
        for folder in adapters(start).await {
            let (config, weights) = files(&folder).await;
            let adapter = read(&folder).await;
            assert_eq!(adapter.config.to_json().as_bytes(), config, "{folder}: adapter_config.json");
            assert_eq!(adapter.notes, Vec::<String>::new(), "{folder}");
            // Each value of every tensor is that of the format's own library, and the file is written back.
            let theirs = safetensors::SafeTensors::deserialize(&weights).unwrap();
            let own = SafetensorsFile::parse("weights", &weights).unwrap();
            assert_eq!(theirs.len(), own.header.tensors.len(), "{folder}");
            for info in &own.header.tensors {
                let view = theirs.tensor(&info.name).unwrap();
                assert_eq!((view.shape(), view.data()), (&info.shape[..], own.data(info)), "{folder}: {}", info.name);
            }
            let dtype = own.header.tensors[0].dtype;
            if dtype != Dtype::F64 {
                // Numbers in f64 were rounded to f32.
                assert_eq!(adapter.weights(dtype).unwrap(), weights, "{folder}: adapter_model.safetensors");
            }
            // As f32 it holds the same numbers, whatever the file was.
            let again = Adapter::read(&config, &adapter.weights(Dtype::F32).unwrap(), true).unwrap();
            assert_eq!(again.modules, adapter.modules, "{folder}");
            let count = |m: &AdapterModule| 2 + usize::from(m.magnitude.is_some()) + usize::from(m.lora_bias.is_some());
            let known = adapter.modules.iter().map(count).sum::<usize>() + adapter.others.len();
            assert_eq!(known, own.header.tensors.len(), "{folder}: every key is somewhere");
            (folders, tensors) = (folders + 1, tensors + known);
        }
    }
    say(&format!("golden adapters: {folders} folders, {tensors} tensors read and written back"));
    assert!(folders > 0);
}

/// Logits of all sequences of a file, one after another.
fn logits(config: &Value, model: &[u8], ids: &[f32], sequences: usize) -> Vec<f64> {
    let llama = Llama::new(config, model);
    let run = |ids: &[f32]| llama.logits(&ids.iter().map(|id| *id as usize).collect::<Vec<_>>());
    ids.chunks(ids.len() / sequences).flat_map(run).flatten().collect()
}

#[track_caller]
fn same_logits(what: &str, got: &[f64], expected: &[f32], base: &[f64], bound: f64) {
    let most = expected.iter().map(|v| f64::from(v.abs())).fold(0.0, f64::max);
    let far = |got: &[f64]| got.iter().zip(expected).map(|(g, e)| (g - f64::from(*e)).abs()).fold(0.0, f64::max) / most;
    assert_eq!(got.len(), expected.len(), "{what}");
    assert!(far(got) <= bound, "{what}: {:e} of the largest logit", far(got));
    assert!(far(base) > 10.0 * bound, "{what}: the base alone would pass");
    say(&format!("golden {what}: logits within {:.1e} of the largest", far(got)));
}

async fn base(name: &str) -> (Value, Vec<u8>) {
    let folder = format!("peft_files/base_{name}");
    (json(&format!("{folder}/config.json")).await, bytes(&format!("{folder}/model.safetensors")).await)
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn merged_models_give_pefts_logits() {
    if !given("peft_files/").await {
        return;
    }
    let mut compared = 0;
    for folder in adapters("peft_files/").await {
        if folder.contains("/weighted") {
            continue; // the next test
        }
        let golden = bytes(&format!("{folder}/logits.safetensors")).await;
        let (config, model) = base(metadata(&golden, "base").as_str().unwrap()).await;
        let (ids, expected) = (tensor(&golden, "input_ids"), tensor(&golden, "logits"));
        let sequences = shape_of(&golden, "input_ids")[0];
        let plain = logits(&config, &model, &ids, sequences);
        let adapter = read(&folder).await;
        let report = adapter.report(&modules(&model), true).unwrap_or_else(|e| panic!("{folder}: {e}"));
        assert_eq!((report.matched.len(), report.missing.len()), (adapter.modules.len(), 0), "{folder}");
        let merged = match adapter.merge(&model) {
            Ok(merged) => merged,
            // llama's modules have no biases, so PEFT cannot merge it either.
            Err(error) if error.code() == "unmatched" && error.to_string().contains(".bias") => {
                say(&format!("golden {folder}: not merged: {error}"));
                continue;
            }
            Err(error) => panic!("{folder}: {error}"),
        };
        assert_eq!(merged.len(), model.len());
        // PEFT decomposes in f32: it is itself 2.2e-5 off its own file on another machine, and 1.6e-5, as here, in f64.
        let bound = if adapter.config.init_lora_weights().changes_base() { 1e-4 } else { 2e-5 };
        same_logits(&folder, &logits(&config, &merged, &ids, sequences), &expected, &plain, bound);
        if adapter.config.init_lora_weights().changes_base() {
            // The plain adapter of twice the rank does the same on the model's own weights.
            let mut weight = |name: &str| Ok(tensor(&model, &format!("{name}.weight")));
            let twice = adapter.to_plain(&mut weight).unwrap();
            assert!(twice.modules.iter().zip(&adapter.modules).all(|(t, a)| t.rank == 2 * a.rank));
            assert!(twice.config.init_lora_weights() == InitLoraWeights::Default);
            let merged = twice.merge(&model).unwrap();
            same_logits(
                &format!("{folder}, plain"),
                &logits(&config, &merged, &ids, sequences),
                &expected,
                &plain,
                bound,
            );
        }
        compared += 1;
    }
    assert!(compared > 0);
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn combinations_give_pefts_logits() {
    if !given("peft_files/weighted/").await {
        return;
    }
    let golden = bytes("peft_files/weighted/logits.safetensors").await;
    let (config, model) = base(metadata(&golden, "base").as_str().unwrap()).await;
    let weights: Vec<f64> = serde_json::from_value(metadata(&golden, "weights")).unwrap();
    let ids = tensor(&golden, "input_ids");
    let (a, b) = (read("peft_files/weighted/a").await, read("peft_files/weighted/b").await);
    let pairs = [(&a, weights[0]), (&b, weights[1])];
    let rank = a.modules[0].rank.max(b.modules[0].rank);
    let plain = logits(&config, &model, &ids, 2);
    for (name, adapter) in [
        ("a", a.clone()),
        ("b", b.clone()),
        ("linear", Adapter::combine(&pairs, Combination::Linear).unwrap()),
        ("cat", Adapter::combine(&pairs, Combination::Cat).unwrap()),
        ("svd", Adapter::combine(&pairs, Combination::Svd { rank: None }).unwrap()),
    ] {
        let merged = adapter.merge(&model).unwrap();
        let expected = tensor(&golden, &format!("logits_{name}"));
        same_logits(&format!("weighted {name}"), &logits(&config, &merged, &ids, 2), &expected, &plain, 2e-5);
        // A combination is an adapter like any other.
        let again =
            Adapter::read(adapter.config.to_json().as_bytes(), &adapter.weights(Dtype::F32).unwrap(), true).unwrap();
        assert_eq!(again.modules, adapter.modules, "{name}");
        assert_eq!(again.notes, Vec::<String>::new());
        if name != "a" && name != "b" {
            assert!(adapter.modules.iter().all(|m| m.scaling == 1.0));
            let expected = if name == "cat" { a.modules[0].rank + b.modules[0].rank } else { rank };
            assert!(adapter.modules.iter().all(|m| m.rank == expected));
        }
    }
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn merged_weights_are_pefts() {
    if !given("peft_mlp/").await {
        return;
    }
    let mut compared = 0;
    for folder in adapters("peft_mlp/").await.iter().filter(|folder| folder.ends_with("/end")) {
        let trace = bytes(&folder.replace("/end", "/trace.safetensors")).await;
        let adapter = read(folder).await;
        let names: Vec<String> = adapter.modules.iter().map(|m| format!("{}.weight", m.name)).collect();
        let (mut shapes, mut data) = (Vec::new(), Vec::new());
        for (m, name) in adapter.modules.iter().zip(&names) {
            shapes.push([m.out_features(), m.in_features()]);
            let values = tensor(&trace, &format!("base.{name}"));
            data.push(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
        }
        let entry = |i: usize| Entry { name: &names[i], dtype: Dtype::F32, shape: &shapes[i], data: &data[i] };
        let model = write(&(0..names.len()).map(entry).collect::<Vec<_>>(), &[]);
        let merged = adapter.merge(&model).unwrap();
        for (m, name) in adapter.modules.iter().zip(&names) {
            let (got, expected) = (tensor(&merged, name), tensor(&trace, &format!("merged.{name}")));
            let base = tensor(&model, name);
            // PEFT merges A, B and magnitudes in f64 that stand in the file as f32: each is within 2⁻²⁴ of itself, the sum's
            // parts within 2·2⁻²⁴, a row's length and magnitude as much again, and both results round once.
            let columns = m.in_features();
            let parts = |i: usize| {
                let (row, column) = (i / columns, i % columns);
                let product = |r: usize| f64::from(m.b[row * m.rank + r] * m.a[r * columns + column]);
                let products = (0..m.rank).map(|r| m.scaling * product(r));
                products.fold((f64::from(base[i]), f64::from(base[i].abs())), |(sum, abs), p| (sum + p, abs + p.abs()))
            };
            let factor = |i: usize| {
                let row = i / columns;
                let norm = (row * columns..(row + 1) * columns).map(|i| parts(i).0.powi(2)).sum::<f64>().sqrt();
                m.magnitude.as_ref().map_or(1.0, |magnitude| f64::from(magnitude[row]) / norm)
            };
            let bound = |i: usize| {
                factor(i) * 4.0 * parts(i).1 / (1u64 << 24) as f64 + 2f64.powi(-23) * f64::from(expected[i].abs())
            };
            let fits =
                |values: &[f32]| (0..expected.len()).all(|i| f64::from((values[i] - expected[i]).abs()) <= bound(i));
            assert!(fits(&got), "{folder}: {name}");
            assert!(!fits(&base), "{folder}: {name}: the base alone would pass");
            if m.magnitude.is_none() {
                let delta = m.delta_weight().unwrap();
                let sum = base.iter().zip(&delta).map(|(w, d)| (f64::from(*w) + f64::from(*d)) as f32);
                let near =
                    |(sum, merged): (f32, &f32)| (sum - merged).abs() <= 2.0 * f32::EPSILON * merged.abs().max(0.1);
                assert!(sum.zip(&got).all(near), "{folder}: {name}: W + ΔW");
            }
            compared += 1;
        }
    }
    say(&format!("golden peft_mlp: {compared} merged weights compared"));
    assert!(compared > 0);
}

/// The tensors of a GGUF file by name.
fn gguf_tensors(file: &[u8]) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let header = GgufHeader::parse("file", file, file.len() as u64).unwrap();
    let values = |range: &std::ops::Range<u64>| {
        file[range.start as usize..range.end as usize]
            .chunks(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    };
    header.tensors.iter().map(|t| (t.name.clone(), t.shape.clone(), values(&t.range))).collect()
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn gguf_is_what_llama_cpp_writes() {
    if !given("/adapter_end.gguf").await {
        return;
    }
    let mut compared = 0;
    for path in list().await.iter().filter(|path| path.ends_with("/adapter_end.gguf")) {
        let folder = path.strip_suffix("/adapter_end.gguf").unwrap();
        let golden = bytes(path).await;
        let model = GgufModel::from_config(&bytes(&format!("{folder}/config.json")).await).unwrap();
        let adapter = read(&format!("{folder}/adapter_end")).await;
        assert_eq!(adapter.can_export(Format::Gguf, Some(&model)), Vec::<String>::new(), "{folder}");
        let header = GgufHeader::parse("golden", &golden, golden.len() as u64).unwrap();
        let name = header.get("general.name").and_then(GgufValue::as_str);
        let own = adapter.to_gguf(&model, name).unwrap();
        let alpha = header.get("adapter.lora.alpha").and_then(GgufValue::as_f64).unwrap();
        // llama.cpp's converter ignores alphas and roots of single modules.
        let folded = |m: &AdapterModule| m.scaling != alpha / m.rank as f64;
        if adapter.modules.iter().any(folded) {
            let (own, golden) = (gguf_tensors(&own), gguf_tensors(&golden));
            assert_eq!(own.len(), golden.len());
            for ((name, shape, values), (golden_name, golden_shape, golden_values)) in own.iter().zip(&golden) {
                assert_eq!((name, shape), (golden_name, golden_shape), "{folder}");
                let module = &adapter.modules[own.iter().position(|(n, _, _)| n == name).unwrap() / 2];
                // What llama.cpp multiplies with is alpha/rank; what PEFT does is the module's scaling.
                let factor = if name.ends_with("lora_b") { module.scaling * module.rank as f64 / alpha } else { 1.0 };
                let fits = |(own, golden): (&f32, &f32)| *own == (f64::from(*golden) * factor) as f32;
                assert!(values.iter().zip(golden_values).all(fits), "{folder}: {name}");
                compared += 1;
            }
        } else {
            assert_eq!(own, golden, "{folder}: byte for byte");
            compared += header.tensors.len();
        }
        // And in again: the same products, put back into the model's own order of rows.
        let again = Adapter::from_gguf(&own, Some(&model)).unwrap();
        assert_eq!(again.modules.len(), adapter.modules.len());
        for module in &adapter.modules {
            let back = again.modules.iter().find(|m| m.name == module.name).unwrap();
            assert_eq!(back.a, module.a, "{folder}: {}", module.name);
            let (one, other) = (back.delta_weight().unwrap(), module.delta_weight().unwrap());
            let most = other.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            assert!(one.iter().zip(&other).all(|(a, b)| (a - b).abs() <= 1e-6 * most), "{folder}: {}", module.name);
        }
        assert_eq!(again.to_gguf(&model, name).unwrap(), own, "{folder}");
        if model.architecture == "llama" {
            refused("without heads", Adapter::from_gguf(&own, None), "unmatched", &["config.json"]);
            let odd = GgufModel { heads: 3, ..model.clone() };
            refused("three heads", adapter.to_gguf(&odd, None), "unmatched", &["3 heads"]);
        }
        let other = GgufModel { architecture: "gemma".into(), ..model };
        refused("another architecture", Adapter::from_gguf(&own, Some(&other)), "unmatched", &["gemma"]);
    }
    say(&format!("golden GGUF: {compared} tensors compared"));
    assert!(compared > 0);
}

fn model_modules(names: &[String]) -> Vec<ModelModule> {
    let module = |name: &String| ModelModule {
        name: name.clone(),
        kind: ModuleKind::Linear,
        in_features: 4,
        out_features: 4,
        is_output_head: name == "lm_head",
    };
    names.iter().map(module).collect()
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn modules_ranks_and_alphas_are_those_that_peft_chooses() {
    if !given("peft_targets.json").await {
        return;
    }
    let golden = json("peft_targets.json").await;
    let names: Vec<String> = serde_json::from_value(golden["names"].clone()).unwrap();
    let model = model_modules(&names);
    let mut found = 0;
    for case in golden["cases"].as_array().unwrap() {
        // serde_json sorts keys and PEFT's order counts, so patterns are put back as they stand in the text.
        let config = AdapterConfig::parse(case["config"].as_str().unwrap().as_bytes()).unwrap();
        let expected: Vec<(usize, usize, f64)> = serde_json::from_value(case["found"].clone()).unwrap();
        let own = match config.resolve(&model) {
            Ok(own) => own,
            Err(error) if error.code() == "unmatched" => Vec::new(),
            Err(error) => panic!("{case}: {error}"),
        };
        let own: Vec<_> = own.iter().map(|m| (m.module, m.rank, m.alpha)).collect();
        assert_eq!(own, expected, "{case}");
        found += own.len();
    }
    let words: Vec<String> = serde_json::from_value(golden["words"].clone()).unwrap();
    let model = model_modules(&words);
    let patterns = golden["patterns"].as_array().unwrap();
    for pattern in patterns {
        let text = pattern[0].as_str().unwrap();
        let config = format!("{{\"peft_type\": \"LORA\", \"target_modules\": {}}}", pattern[0]);
        let own = AdapterConfig::parse(config.as_bytes()).unwrap().resolve(&model).unwrap_or_default();
        let mut bits = vec![b'0'; words.len()];
        own.iter().for_each(|m| bits[m.module] = b'1');
        assert_eq!(std::str::from_utf8(&bits).unwrap(), pattern[1].as_str().unwrap(), "{text}");
    }
    let cases = golden["cases"].as_array().unwrap().len();
    say(&format!("golden peft_targets: {cases} configurations ({found} modules), {} patterns", patterns.len()));
    assert!(found > 0);
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn all_linear_leaves_out_the_head_and_embeddings() {
    let mut model = model_modules(&["model.embed_tokens", "a.q_proj", "a.fc", "lm_head"].map(String::from));
    model[0].kind = ModuleKind::Embedding;
    for word in ["all-linear", "ALL-linear"] {
        let config = format!("{{\"peft_type\": \"LORA\", \"r\": 3, \"target_modules\": \"{word}\"}}");
        let found = AdapterConfig::parse(config.as_bytes()).unwrap().resolve(&model).unwrap();
        assert_eq!(found.iter().map(|m| m.module).collect::<Vec<_>>(), [1, 2]);
        assert_eq!((found[0].rank, found[0].alpha, found[0].scaling), (3, 8.0, 8.0 / 3.0));
    }
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn patterns_beyond_the_dialect_are_refused_by_name() {
    let config = |pattern: &str| {
        let text = format!("{{\"peft_type\": \"LORA\", \"target_modules\": {}}}", Value::String(pattern.into()));
        AdapterConfig::parse(text.as_bytes())
    };
    let resolved = |pattern: &str| config(pattern).unwrap().resolve(&model_modules(&["ab".to_string()]));
    for pattern in ["(?=a)b", "(?!a)b", "(?<=a)b", "(?<!a)b"] {
        refused(pattern, resolved(pattern), "unsupported", &["target_modules", "look-around", pattern]);
    }
    for pattern in [r"(a)\1", "(?P<n>a)(?P=n)", "(?(1)a|b)"] {
        refused(pattern, resolved(pattern), "unsupported", &["back-reference"]);
    }
    for (pattern, word) in
        [("(?i)a", "flags"), ("a++", "possessive"), (r"\ha", r"\h"), ("((((a{50}){50}){50}){50})", "repeats")]
    {
        refused(pattern, resolved(pattern), "unsupported", &[word]);
    }
    for pattern in ["(a", "a)", "[a", "*a", "a**", "a{3,2}", "[b-a]", "\\"] {
        refused(pattern, config(pattern), "file", &["the pattern"]);
    }
    refused("deep", resolved(&"(".repeat(100)), "unsupported", &["nested"]);
    // Time linear in the name, where a backtracking engine would need 2⁶⁰ steps; a repeat of nothing ends.
    let name = model_modules(&[format!("{}b", "a".repeat(60))]);
    for pattern in ["(a*)*c", "(a|a)*c", "(){0,1000000000}c", "((){1000000000})*c"] {
        refused(pattern, config(pattern).unwrap().resolve(&name), "unmatched", &[]);
    }
}

/// Ends of words, as Python's `re.fullmatch` finds them; the first pattern is of the form that Unsloth writes.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn patterns_know_where_words_end() {
    let names = [
        "model.layers.0.self_attn.q_proj",
        "model.layers.12.mlp.up_proj",
        "language_model.layers.0.self_attn.q_proj",
        "my-model.layers.3.mlp.up_proj",
        "model.layers.x.mlp.up_proj",
        "xmodel.layers.0.mlp.up_proj",
        "model.vision.layers.0.mlp.up_proj",
        "a_b",
        "a.b",
        "ab",
        "a-b",
    ];
    let modules = model_modules(&names.map(String::from));
    for (pattern, expected) in [
        (
            r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|up_proj))|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:(?:q_proj|up_proj)))",
            "11100000000",
        ),
        (r".*\bb", "00000000101"),
        (r"a\Bb", "00000000010"),
        (r".*\Bb\b", "00000001010"),
        (r"\ba\b.\bb\b", "00000000101"),
        (r"a\b\W\bb", "00000000101"),
        (r".*\bmodel\b.*up_proj", "01011010000"),
        (r"(?:.*\b)?q_proj", "10100000000"),
        (r"(?:\b|a)*.b", "00000001111"),
    ] {
        let text = format!("{{\"peft_type\": \"LORA\", \"target_modules\": {}}}", Value::String(pattern.into()));
        let found = AdapterConfig::parse(text.as_bytes()).unwrap().resolve(&modules).unwrap();
        let mut bits = vec![b'0'; names.len()];
        found.iter().for_each(|m| bits[m.module] = b'1');
        assert_eq!(std::str::from_utf8(&bits).unwrap(), expected, "{pattern}");
    }
}

/// The keys of the weights name the modules and their shapes the ranks: an adapter is read, merged and written whatever its
/// patterns are. Those of LLaMA-Factory and ms-swift look ahead.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn adapters_are_read_whatever_their_patterns() {
    use Dtype::F32;
    let weights =
        tiny(&[("model.fc.lora_A.weight", F32, &[2, 3], ones(6)), ("model.fc.lora_B.weight", F32, &[4, 2], ones(8))]);
    let model = of_ones(&[("model.fc.weight", &[4, 3]), ("model.other.weight", &[4, 3])]);
    let with = |key: &str, value: &str| {
        let targets = if key == "target_modules" { "" } else { r#""target_modules": ["fc"], "# };
        format!(r#"{{"peft_type": "LORA", "r": 2, "lora_alpha": 4, {targets}"{key}": {value}}}"#)
    };
    for (key, value) in [
        ("target_modules", r#""^(?!.*visual)(?:.*fc).*""#),
        ("target_modules", r#""^(model(?=\\.).*\\.(fc))$""#),
        ("exclude_modules", r#"".*visual.*(?<!fc)""#),
        ("rank_pattern", r#"{"^(?!.*visual).*fc": 2}"#),
    ] {
        for strict in [true, false] {
            let config = with(key, value);
            let adapter = Adapter::read(config.as_bytes(), &weights, strict).unwrap_or_else(|e| panic!("{value}: {e}"));
            assert_eq!(adapter.modules.len(), 1);
            let [note] = &adapter.notes[..] else { panic!("{value}: {:?}", adapter.notes) };
            assert!([key, "look-around"].iter().all(|word| note.contains(word)), "{note}");
            assert_eq!(adapter.config.get(key), Some(value), "as it stands in the file");
            assert_eq!(adapter.weights(F32).unwrap(), weights);
            let report = adapter.report(&modules(&model), strict).unwrap();
            assert_eq!((report.matched, report.missing), (vec![0], vec![]));
            assert_eq!(tensor(&adapter.merge(&model).unwrap(), "model.fc.weight"), [5.0; 12]);
            refused(value, adapter.config.resolve(&modules(&model)), "unsupported", &[key, "look-around"]);
        }
    }
    // Alphas are nowhere but there.
    let config = with("alpha_pattern", r#"{"^(?!.*visual).*fc": 2}"#);
    refused("alphas", Adapter::read(config.as_bytes(), &weights, false), "unsupported", &["look-around", "visual"]);
}

/// A module with random values.
fn random_module(rng: &mut Rng, name: &str, rank: usize, in_features: usize, out_features: usize) -> AdapterModule {
    AdapterModule {
        name: name.into(),
        kind: AdapterKind::Linear,
        rank,
        alpha: rank as f64,
        scaling: 1.0,
        a: rng.numbers(rank * in_features),
        b: rng.numbers(out_features * rank),
        magnitude: None,
        lora_bias: None,
    }
}

/// From 0 to `end` − 1.
fn below(rng: &mut Rng, end: usize) -> usize {
    ((rng.number() + 1.0) / 2.0 * end as f32) as usize % end
}

/// An adapter of random modules and a random configuration.
fn random_adapter(rng: &mut Rng) -> Adapter {
    const NAMES: [&str; 8] =
        ["fc1", "block.fc1", "a.0.q_proj", "a.1.q_proj", "a-b.c_d", "model.embed_tokens", "x[0].(y)", "größe.π"];
    let dora = below(rng, 3) == 0;
    let mut modules = Vec::new();
    for name in NAMES {
        if below(rng, 3) == 0 && !modules.is_empty() {
            continue;
        }
        let [rank, columns, rows] = [8, 12, 9].map(|end| 1 + below(rng, end));
        let mut module = random_module(rng, name, rank, columns, rows);
        module.alpha = [16.0, rank as f64, 0.125, 3e-7, -2.5][below(rng, 5)];
        if name.ends_with("embed_tokens") {
            module.kind = AdapterKind::Embedding;
        } else if below(rng, 4) == 0 {
            module.kind = AdapterKind::Conv1x1;
        }
        module.magnitude = dora.then(|| rng.numbers(rows));
        module.lora_bias = (below(rng, 4) == 0).then(|| rng.numbers(rows));
        modules.push(module);
    }
    let base = ["models/x", "a \"quoted\" \\ name\n", "größe 🦀"][below(rng, 3)];
    let mut adapter = Adapter::new(modules, Some(base)).unwrap();
    adapter.config.set("lora_dropout", "0.05").unwrap();
    adapter.config.set("a_future_field", "{\"z\": [1e-05, 2.50, null], \"a\": \"\\u00e9\"}").unwrap();
    adapter
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn random_adapters_round_trip() {
    let mut rng = Rng(9);
    for case in 0..300 {
        let mut adapter = random_adapter(&mut rng);
        if case % 3 == 0 {
            adapter.set("use_rslora", "true").unwrap();
        }
        let with_same = adapter.with_modules(adapter.modules.clone()).unwrap();
        assert_eq!(
            (with_same.modules, with_same.config.to_json()),
            (adapter.modules.clone(), adapter.config.to_json())
        );
        let (config, weights) = (adapter.config.to_json(), adapter.weights(Dtype::F32).unwrap());
        let again =
            Adapter::read(config.as_bytes(), &weights, true).unwrap_or_else(|e| panic!("{case}: {e}\n{config}"));
        let mut expected = adapter.modules.clone();
        expected.sort_by(|a, b| format!("{}.", a.name).cmp(&format!("{}.", b.name)));
        assert_eq!(again.modules, expected, "{case}: {config}");
        assert_eq!(again.notes, Vec::<String>::new(), "{case}: {config}");
        assert_eq!((again.config.to_json(), again.weights(Dtype::F32).unwrap()), (config.clone(), weights.clone()));
        assert_eq!(again.config.get("a_future_field"), adapter.config.get("a_future_field"));
        let parsed: Value = serde_json::from_str(&config).unwrap();
        assert_eq!(parsed["lora_dropout"], 0.05);
        // The configuration targets exactly its modules.
        let module = |m: &AdapterModule| ModelModule {
            name: m.name.clone(),
            kind: if m.kind == AdapterKind::Embedding { ModuleKind::Embedding } else { ModuleKind::Linear },
            in_features: m.in_features(),
            out_features: m.out_features(),
            is_output_head: false,
        };
        let model: Vec<ModelModule> = adapter.modules.iter().map(module).collect();
        let found = adapter.config.resolve(&model).unwrap();
        assert_eq!(found.len(), model.len());
        for (m, found) in adapter.modules.iter().zip(found) {
            assert_eq!((found.rank, found.alpha, found.scaling), (m.rank, m.alpha, m.scaling), "{}", m.name);
        }
        // The format's own library reads the same, and writes the same.
        let theirs = safetensors::SafeTensors::deserialize(&weights).unwrap();
        let metadata = [("format".to_string(), "pt".to_string())].into();
        assert_eq!(safetensors::serialize(theirs.tensors(), Some(metadata)).unwrap(), weights);
        // In half precision the numbers are the nearest.
        for (dtype, bits) in [(Dtype::F16, 11), (Dtype::BF16, 8)] {
            let half = Adapter::read(config.as_bytes(), &adapter.weights(dtype).unwrap(), true).unwrap();
            for (half, full) in half.modules.iter().zip(&expected) {
                let near = |(h, f): (&f32, &f32)| (h - f).abs() <= f.abs().max(6e-5) / (1 << bits) as f32;
                assert!(half.a.iter().zip(&full.a).all(near), "{dtype:?}");
            }
        }
    }
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn halves_are_exact_and_round_to_the_nearest() {
    for bits in 0..=u16::MAX {
        for dtype in [Dtype::F16, Dtype::BF16] {
            let value = to_f32("x", dtype, &bits.to_le_bytes()).unwrap()[0];
            let back = from_f32("x", dtype, &mut [f64::from(value)].into_iter()).unwrap();
            let again = to_f32("x", dtype, &back).unwrap()[0];
            assert!(again.to_bits() == value.to_bits() || (again.is_nan() && value.is_nan()), "{dtype:?} {bits:04x}");
            // Halfway to the next goes to the even one, a bit more or less to the nearer.
            let next = to_f32("x", dtype, &(bits.wrapping_add(1)).to_le_bytes()).unwrap()[0];
            if value.is_finite() && next.is_finite() && bits & 0x7fff != 0x7fff {
                let (one, other) = (f64::from(value), f64::from(next));
                let even = if bits & 1 == 0 { value } else { next };
                for (share, expected) in [(0.5, even), (0.5 - 1e-9, value), (0.5 + 1e-9, next)] {
                    let between = one + (other - one) * share;
                    let rounded = from_f32("x", dtype, &mut [between].into_iter()).unwrap();
                    assert_eq!(to_f32("x", dtype, &rounded).unwrap()[0], expected, "{dtype:?} {bits:04x} {share}");
                }
            }
        }
    }
    // The largest numbers, and what is beyond them.
    for (dtype, largest, infinite) in [(Dtype::F16, 65519.9, 65520.0), (Dtype::BF16, 3.3961e38, 3.3962e38)] {
        let round = |v: f64| to_f32("x", dtype, &from_f32("x", dtype, &mut [v].into_iter()).unwrap()).unwrap()[0];
        assert!(round(largest).is_finite() && round(-f64::INFINITY) == f32::NEG_INFINITY);
        for beyond in [infinite, -1e300] {
            refused(
                "too large",
                from_f32("x", dtype, &mut [beyond].into_iter()),
                "file",
                &["x", "too large", dtype.name()],
            );
        }
        assert!(round(f64::NAN).is_nan() && round(-0.0).to_bits() == 1 << 31);
    }
    refused("integers", to_f32("x", Dtype::I32, &[0; 4]), "file", &["x", "I32"]);
}

/// A file of this header, with so many bytes behind it.
fn container(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data, 0);
    file
}

const PLAIN: &str = r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["fc"]}"#;

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn hostile_headers_are_errors() {
    let parse = |file: &[u8]| SafetensorsFile::parse("f", file).map(|f| f.header);
    let entry = |name: &str, shape: &str, from: u64, to: u64| {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let one = |entries: &[String], data: usize| parse(&container(&format!("{{{}}}", entries.join(",")), data));
    assert_eq!(one(&[entry("a", "[2]", 0, 8)], 8).unwrap().tensors[0].shape, [2]);
    assert_eq!(one(&[entry("b", "[1]", 4, 8), entry("a", "[1]", 0, 4)], 8).unwrap().tensors[1].name, "a");
    let tera = 1u64 << 42;
    for (what, result, word) in [
        ("terabytes", one(&[entry("a", &format!("[{}]", tera / 4), 0, tera)], 8), HUGE[0]),
        ("an overflowing shape", one(&[entry("a", "[4294967296,4294967296,4]", 0, 0)], 0), "bytes"),
        ("an overflowing offset", one(&[entry("a", "[0]", u64::MAX, u64::MAX)], 0), "beyond"),
        (
            "an offset beyond u64",
            parse(&container(r#"{"a":{"dtype":"F32","shape":[],"data_offsets":[0,18446744073709551616]}}"#, 4)),
            "whole number",
        ),
        ("an overlap", one(&[entry("a", "[2]", 0, 8), entry("b", "[2]", 4, 12)], 12), "overlaps"),
        ("one tensor twice", one(&[entry("a", "[2]", 0, 8), entry("b", "[2]", 0, 8)], 8), "overlaps"),
        ("a hole", one(&[entry("a", "[1]", 0, 4), entry("b", "[1]", 8, 12)], 12), "hole"),
        ("equal keys", one(&[entry("a", "[1]", 0, 4), entry("a", "[1]", 4, 8)], 8), "two entries"),
        ("a short end", one(&[entry("a", "[2]", 0, 8)], 4), "cut off"),
        ("a long end", one(&[entry("a", "[2]", 0, 8)], 12), "no tensor"),
        ("backwards", one(&[entry("a", "[2]", 8, 0)], 8), "bytes"),
        ("too few bytes for its shape", one(&[entry("a", "[3]", 0, 8)], 8), "bytes"),
        ("a negative dimension", one(&[entry("a", "[-2]", 0, 8)], 8), "whole number"),
        ("a fraction", one(&[entry("a", "[2.0]", 0, 8)], 8), "whole number"),
        ("nine dimensions", one(&[entry("a", "[1,1,1,1,1,1,1,1,1]", 0, 4)], 4), "fewer"),
        ("an unknown type", parse(&container(r#"{"a":{"dtype":"Q4","shape":[],"data_offsets":[0,4]}}"#, 4)), "Q4"),
        ("no type", parse(&container(r#"{"a":{"shape":[],"data_offsets":[0,4]}}"#, 4)), "dtype"),
        ("no JSON", parse(&container("{,}", 0)), "a string"),
        ("an open object", parse(&container(r#"{"a":"#, 0)), "an object"),
        ("something behind", parse(&container("{}{}", 0)), "the end"),
        ("no UTF-8", parse(&[8, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 0, 0, 0, 0]), "UTF-8"),
        ("a header of terabytes", parse(&[0xff; 16]), "header"),
        ("a header beyond the file", parse(&[100, 0, 0, 0, 0, 0, 0, 0, b'{', b'}']), "cut off"),
        ("seven bytes", parse(&[0; 7]), "cut off"),
        ("nothing", parse(&[]), "cut off"),
    ] {
        refused(what, result, "file", &[word]);
    }
    // Of a longer file the beginning suffices, and it says how much that is.
    let file = container(&format!("{{{}}}", entry("a", "[1000]", 0, 4000)), 4000);
    let whole = parse(&file).unwrap();
    let start = whole.data_start as usize;
    for known in [file.len() as u64, u64::MAX] {
        assert_eq!(Header::parse("f", &file[..start], known).unwrap(), whole);
        let error = refused("half a header", Header::parse("f", &file[..start - 1], known), "incomplete", &[]);
        assert_eq!(error.kind(), &ErrorKind::Incomplete { name: "f".into(), needed: whole.data_start });
        let error = refused("no header", Header::parse("f", &file[..3], known), "incomplete", &[]);
        assert_eq!(error.kind(), &ErrorKind::Incomplete { name: "f".into(), needed: 8 });
    }
}

/// PEFT's two files for one module `fc` with these tensors.
fn tiny(tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) -> Vec<u8> {
    let names: Vec<String> = tensors.iter().map(|t| format!("base_model.model.{}", t.0)).collect();
    let entry = |i: usize| Entry { name: &names[i], dtype: tensors[i].1, shape: tensors[i].2, data: &tensors[i].3 };
    write(&(0..names.len()).map(entry).collect::<Vec<_>>(), &[("format".into(), "pt".into())])
}

fn ones(count: usize) -> Vec<u8> {
    (0..count).flat_map(|_| 1f32.to_le_bytes()).collect()
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn adapters_that_contradict_themselves_are_errors_or_notes() {
    use Dtype::{F32, F64, I32};
    let read = |config: &str, weights: &[u8], strict| Adapter::read(config.as_bytes(), weights, strict);
    let a = ("fc.lora_A.weight", F32, &[2usize, 3][..], ones(6));
    let b = ("fc.lora_B.weight", F32, &[4usize, 2][..], ones(8));
    let good = tiny(&[a.clone(), b.clone()]);
    let adapter = read(PLAIN, &good, true).unwrap();
    assert_eq!((adapter.modules[0].rank, adapter.modules[0].scaling, adapter.parameters()), (2, 2.0, 14));

    let refuse = |what: &str, tensors: &[(&str, Dtype, &[usize], Vec<u8>)], code: &str, words: &[&str]| {
        refused(what, read(PLAIN, &tiny(tensors), true), code, words);
    };
    refuse("A alone", std::slice::from_ref(&a), "file", &["fc", "one of lora_A and lora_B"]);
    refuse("two ranks", &[a.clone(), ("fc.lora_B.weight", F32, &[4, 3], ones(12))], "file", &["one rank", "[4, 3]"]);
    refuse("integers", &[("fc.lora_A.weight", I32, &[2, 3], ones(6)), b.clone()], "file", &["fc.lora_A.weight", "I32"]);
    refuse("no matrix", &[("fc.lora_A.weight", F32, &[6], ones(6)), b.clone()], "file", &["[6]"]);
    refuse("nothing", &[], "file", &["no tensors"]);
    refuse("another thing", &[("fc.weight", F32, &[2], ones(2))], "file", &["fc.weight"]);
    let kernel =
        [("fc.lora_A.weight", F32, &[2, 3, 3, 3][..], ones(54)), ("fc.lora_B.weight", F32, &[4, 2, 1, 1], ones(8))];
    refuse("a kernel of 3×3", &kernel, "unsupported", &["fc", "1×1"]);
    let kernel =
        [("fc.lora_A.weight", F32, &[2, 3, 1, 1][..], ones(6)), ("fc.lora_B.weight", F32, &[4, 2, 1, 1], ones(8))];
    let conv = read(PLAIN, &tiny(&kernel), true).unwrap();
    assert_eq!(conv.modules[0].kind, AdapterKind::Conv1x1);
    assert_eq!(conv.weights(F32).unwrap(), tiny(&kernel));
    let halves: Vec<u8> = (0..6).flat_map(|i| (f64::from(i) / 3.0).to_le_bytes()).collect();
    let wide = read(PLAIN, &tiny(&[("fc.lora_A.weight", F64, &[2, 3], halves), b.clone()]), true).unwrap();
    assert_eq!(wide.modules[0].a[1], (1.0f64 / 3.0) as f32);
    refuse(
        "a short magnitude",
        &[a.clone(), b.clone(), ("fc.lora_magnitude_vector", F32, &[3], ones(3))],
        "file",
        &["3"],
    );
    let dora = PLAIN.replace("\"r\"", "\"use_dora\": true, \"r\"");
    refused("DoRA without magnitudes", read(&dora, &good, true), "file", &["lora_magnitude_vector"]);

    // What is odd but usable is an error, or a note where the caller says so.
    let mut nan = a.clone();
    nan.3[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let zero = PLAIN.replace("\"lora_alpha\": 4", "\"lora_alpha\": 0");
    let qalora = PLAIN.replace("\"r\"", "\"use_qalora\": true, \"r\"");
    let corda = PLAIN.replace("\"r\"", "\"init_lora_weights\": \"corda\", \"r\"");
    for (what, config, weights, code, words) in [
        ("NaN", PLAIN, tiny(&[nan, b.clone()]), "file", ["fc.lora_A.weight", "not finite"]),
        ("alpha 0", &zero, good.clone(), "file", ["fc", "lora_alpha is 0"]),
        ("a field", &qalora, good.clone(), "unsupported", ["use_qalora", "true"]),
        ("a start", &corda, good.clone(), "unsupported", ["init_lora_weights", "corda"]),
    ] {
        refused(what, read(config, &weights, true), code, &words);
        let notes = read(config, &weights, false).unwrap().notes;
        assert!(notes.len() == 1 && words.iter().all(|word| notes[0].contains(word)), "{what}: {notes:?}");
    }
    // The tensors' ranks win; the report says which modules disagree.
    let five = PLAIN.replace("\"r\": 2", "\"r\": 5");
    let adapter = read(&five, &good, true).unwrap();
    assert_eq!((adapter.modules[0].rank, adapter.modules[0].scaling), (2, 2.0));
    assert_eq!(adapter.disagreements(), ["fc: rank 5 in the configuration, 2 in the tensors; scaling 2"]);
    assert!(adapter.notes[1].contains("r is 5, but no tensor has that rank"), "{:?}", adapter.notes);

    let biased = PLAIN.replace("\"r\"", "\"bias\": \"lora_only\", \"r\"");
    let notes = read(&biased, &good, true).unwrap().notes;
    assert!(notes.len() == 1 && notes[0].contains("lora_only, but no bias"), "{notes:?}");
    for name in ["fc.bias", "fc.base_layer.bias"] {
        let bias = (name, F32, &[4usize][..], ones(4));
        assert_eq!(read(&biased, &tiny(&[a.clone(), b.clone(), bias]), true).unwrap().notes, Vec::<String>::new());
    }

    // Trained on, such a bias is in the file once.
    let bias = ("fc.bias", F32, &[4usize][..], ones(4));
    let again = read(&biased, &tiny(&[a.clone(), b.clone(), bias]), true).unwrap();
    let again = again.with_biases(&[("fc".into(), vec![2.0; 4])]).unwrap();
    assert_eq!(again.others.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(), ["fc.base_layer.bias"]);

    // Keys as older versions and other tools write them.
    let named = [
        ("fc.lora_A.default.weight", F32, &[2usize, 3][..], ones(6)),
        ("fc.lora_B.default.weight", F32, &[4, 2], ones(8)),
        ("fc.lora_magnitude_vector.default.weight", F32, &[4], ones(4)),
    ];
    assert_eq!(read(&dora, &tiny(&named), true).unwrap().modules[0].magnitude, Some(vec![1.0; 4]));
    refuse("two names", &[named[0].clone(), named[1].clone(), a.clone()], "file", &["twice"]);
    let entries = &[
        Entry { name: "fc.lora_A.weight", dtype: F32, shape: &[2, 3], data: &ones(6) },
        Entry { name: "fc.lora_B.weight", dtype: F32, shape: &[4, 2], data: &ones(8) },
    ];
    let bare = read(PLAIN, &write(entries, &[]), true).unwrap();
    assert!(bare.notes[0].contains("2 keys lack the prefix"), "{:?}", bare.notes);
    assert_eq!(bare.weights(F32).unwrap(), good);

    // Fitting a model.
    let model = |name: &str, in_features| {
        let kind = ModuleKind::Linear;
        vec![ModelModule { name: name.into(), kind, in_features, out_features: 4, is_output_head: false }]
    };
    let adapter = read(PLAIN, &good, true).unwrap();
    assert_eq!(adapter.report(&model("fc", 3), true).unwrap().matched, [0]);
    refused("another width", adapter.report(&model("fc", 5), true), "shape", &["fc", "[4, 5]", "[4, 3]"]);
    for strict in [true, false] {
        refused("no module", adapter.report(&model("x.other", 3), strict), "unmatched", &["fc", "x.other"]);
    }
    let more = tiny(&[a, b, ("head.weight", F32, &[1], ones(1))]);
    let adapter = read(PLAIN, &more, true).unwrap();
    refused("left over", adapter.report(&model("fc", 3), true), "unmatched", &["head.weight", "strict"]);
    let report = adapter.report(&model("fc", 3), false).unwrap();
    assert_eq!((report.matched, report.leftover), (vec![0], vec!["head.weight".to_string()]));
    let mut two = model("fc", 3);
    two.extend(model("other.fc", 3));
    assert_eq!(adapter.report(&two, false).unwrap().missing, ["other.fc"]);
}

/// The tensors of many modules lie apart in a file; each module's are put together, and all in little time.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn many_modules_are_put_together() {
    let count = if cfg!(target_arch = "wasm32") { 300 } else { 60_000 };
    let names: Vec<String> = (0..count).map(|i| format!("layers.{i:05}.fc")).collect();
    // Of every third module both tensors are halves, which lie behind the floats.
    let parts =
        |i: usize| [("lora_A.weight", i.is_multiple_of(3)), ("lora_B.weight", true), ("bias", i.is_multiple_of(2))];
    let tensors: Vec<(String, Dtype, Vec<u8>)> = (0..count)
        .flat_map(|i| parts(i).map(|(part, half)| (i, part, if half { Dtype::F16 } else { Dtype::F32 })))
        .map(|(i, part, dtype)| {
            let value = (i % 2048) as f64;
            (format!("{}.{part}", names[i]), dtype, from_f32("value", dtype, &mut [value].into_iter()).unwrap())
        })
        .collect();
    let mut entries = Vec::new();
    for (name, dtype, data) in &tensors {
        let shape: &[usize] = if name.ends_with("bias") { &[1] } else { &[1, 1] };
        entries.push(Entry { name, dtype: *dtype, shape, data });
    }
    let file = write(&entries, &[]);
    let config = PLAIN.replace("\"r\": 2", "\"r\": 1");
    #[cfg(not(target_arch = "wasm32"))]
    let start = std::time::Instant::now();
    let adapter = Adapter::read(config.as_bytes(), &file, true).unwrap();
    let (first, last): (Vec<usize>, Vec<usize>) = (0..count).partition(|i| i % 3 != 0);
    assert_eq!(adapter.modules.len(), count);
    for (module, i) in adapter.modules.iter().zip(first.into_iter().chain(last)) {
        assert_eq!(module.name, names[i]);
        assert_eq!((&module.a, &module.b), (&vec![(i % 2048) as f32], &vec![(i % 2048) as f32]));
    }
    let mut model = model_modules(&names);
    model.iter_mut().for_each(|module| (module.in_features, module.out_features) = (1, 1));
    let report = adapter.report(&model, true).unwrap();
    assert_eq!((report.matched.len(), report.replaced.len(), report.missing.len()), (count, count, 0));
    let info = TensorInfo { name: format!("{}.weight", names[0]), dtype: Dtype::F32, shape: vec![1, 1], range: 0..4 };
    assert_eq!(adapter.merge_tensor(&info, &[0; 3]).unwrap_err().code(), "file", "a tensor cut off");
    let merged = adapter.merged_tensors();
    assert_eq!(merged.len(), 2 * count);
    assert!(Adapter::new(adapter.modules, None).is_ok());
    #[cfg(not(target_arch = "wasm32"))]
    say(&format!("{count} modules in {:?}", start.elapsed()));
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn configurations_that_are_none_are_errors() {
    let parse = |text: &str| AdapterConfig::parse(text.as_bytes());
    for (text, word) in [
        ("", "an object"),
        ("[]", "an object"),
        ("{\"peft_type\": \"LORA\"", "a comma"),
        ("{\"peft_type\": \"LORA\"} x", "the end"),
        ("{'peft_type': 1}", "a string"),
        ("{\"r\": 4}", "peft_type"),
        ("{\"peft_type\": \"LORA\", \"r\": 0}", "at least 1"),
        ("{\"peft_type\": \"LORA\", \"r\": 18446744073709551615}", "at least 1"),
        ("{\"peft_type\": \"LORA\", \"r\": -1}", "whole number"),
        ("{\"peft_type\": \"LORA\", \"r\": \"4\"}", "a number"),
        ("{\"peft_type\": \"LORA\", \"r\": 4, \"r\": 8}", "two entries"),
        ("{\"peft_type\": \"LORA\", \"lora_alpha\": 1e999}", "finite"),
        ("{\"peft_type\": \"LORA\", \"lora_alpha\": NaN}", "a number"),
        ("{\"peft_type\": \"LORA\", \"use_dora\": 1}", "true or false"),
        ("{\"peft_type\": \"LORA\", \"bias\": \"some\"}", "lora_only"),
        ("{\"peft_type\": \"LORA\", \"rank_pattern\": {\"q\": 0}}", "at least 1"),
        ("{\"peft_type\": \"LORA\", \"target_modules\": \".*\", \"layers_to_transform\": [1]}", "list of names"),
        ("{\"peft_type\": \"LORA\", \"x\": \"\\ud800\"}", "surrogate"),
        ("{\"peft_type\": \"LORA\", \"x\": \"\\ud800\\u0041\"}", "surrogate"),
        ("{\"peft_type\": \"LORA\", \"x\": \"\\udbff\\ue000\"}", "surrogate"),
        ("{\"peft_type\": \"LORA\", \"x\": 01}", "a number"),
    ] {
        refused(text, parse(text), "file", &[word]);
    }
    refused("deep", parse(&format!("{{\"peft_type\": \"LORA\", \"x\": {}", "[".repeat(100_000))), "file", &["nesting"]);
    refused("another method", parse("{\"peft_type\": \"IA3\"}"), "unsupported", &["IA3"]);
    // Nothing changes where a new value is no good.
    let mut config = parse(PLAIN).unwrap();
    refused("rank 0", config.set("r", "0"), "file", &["at least 1"]);
    refused("no JSON", config.set("r", "1,"), "file", &["the end"]);
    assert_eq!(config.rank(), 2);
    config.set("lora_dropout", "0.5").unwrap();
    config.set("nothing", "null").unwrap();
    let spaced = PLAIN.replace("{", "{\n  ").replace(", ", ",\n  ").replace('}', "\n}");
    let sorted = spaced.replace("\"peft_type\"", "\"lora_dropout\": 0.5,\n  \"peft_type\"");
    assert_eq!((config.dropout(), config.to_json()), (0.5, sorted));
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn random_and_changed_bytes_never_panic_nor_allocate_more_than_the_file() {
    if !given("peft_mlp/").await || !given("/adapter_end.gguf").await {
        return;
    }
    let mut rng = Rng(7);
    // Errors have texts, and a few small tables are there before anything is read.
    const SLACK: usize = 16 << 10;
    let folder = adapters("peft_mlp/").await.swap_remove(0);
    let (config, weights) = files(&folder).await;
    let path = list().await.into_iter().find(|path| path.ends_with(".gguf")).unwrap();
    let gguf = bytes(&path).await;
    let folder = path.strip_suffix("/adapter_end.gguf").unwrap();
    let model = GgufModel::from_config(&bytes(&format!("{folder}/config.json")).await).unwrap();
    let kohya = random_adapter(&mut rng);
    let kohya = Adapter::new(
        kohya
            .modules
            .into_iter()
            .map(|m| AdapterModule { magnitude: None, lora_bias: None, kind: AdapterKind::Linear, ..m })
            .collect(),
        None,
    );
    let kohya = kohya.unwrap().to_kohya("lora_unet").unwrap();
    let names = model_modules(&["fc1", "block.fc1", "a.0.q_proj"].map(String::from));
    let widths = HesperWidths { in_features: 3, q_out_features: 2, v_out_features: 1 };

    let (mut accepted, mut refusals) = (0, 0);
    let mut attempt = |what: &str, size: usize, factor: usize, body: &mut dyn FnMut() -> bool| {
        let mut fine = false;
        let most = counting::most(|| fine = body());
        assert!(most <= factor * size + SLACK, "{what}: {most} bytes for {size}");
        if fine { accepted += 1 } else { refusals += 1 }
    };
    for round in 0..3000 {
        let mut changed = |original: &[u8]| {
            let mut file = original.to_vec();
            match below(&mut rng, 5) {
                // Random throughout; bits turned, some of them in the header; cut; doubled in part; a few bytes of numbers.
                0 => file = (0..below(&mut rng, 300)).map(|_| below(&mut rng, 256) as u8).collect(),
                1 => (0..1 + below(&mut rng, 8)).for_each(|_| {
                    let most = file.len().min([16, 300, usize::MAX][below(&mut rng, 3)]);
                    let at = below(&mut rng, most);
                    file[at] ^= 1 << below(&mut rng, 8);
                }),
                2 => file.truncate(below(&mut rng, original.len())),
                3 => {
                    let (at, len) = (below(&mut rng, original.len()), below(&mut rng, 64));
                    let piece = original[at..(at + len).min(original.len())].to_vec();
                    let to = below(&mut rng, original.len());
                    file.splice(to..to, piece);
                }
                _ => {
                    let at = below(&mut rng, original.len().min(600));
                    let end = (at + 8).min(file.len());
                    file[at..end].fill([0xff, 0x7f, b'9', 0][below(&mut rng, 4)]);
                }
            }
            file
        };
        let (config_changed, weights_changed) = (changed(&config), changed(&weights));
        let (gguf_changed, kohya_changed) = (changed(&gguf), changed(&kohya));
        let strict = round % 2 == 0;
        let size = config.len() + weights_changed.len();
        attempt("weights", size, 1, &mut || Adapter::read(&config, &weights_changed, strict).is_ok());
        let size = config_changed.len() + weights.len();
        attempt("config", size, 2, &mut || Adapter::read(&config_changed, &weights, strict).is_ok());
        attempt("GGUF header", gguf_changed.len(), 1, &mut || {
            GgufHeader::parse("f", &gguf_changed, gguf_changed.len() as u64).is_ok()
        });
        attempt("GGUF", gguf_changed.len(), 3, &mut || Adapter::from_gguf(&gguf_changed, Some(&model)).is_ok());
        attempt("Kohya", kohya_changed.len(), 3, &mut || Adapter::from_kohya(&kohya_changed, &names).is_ok());
        attempt("MLX", weights_changed.len(), 3, &mut || Adapter::from_mlx(&config_changed, &weights_changed).is_ok());
        attempt("Hesper", kohya_changed.len(), 2, &mut || Adapter::from_hesper(&kohya_changed, widths).is_ok());
        attempt("header", weights_changed.len(), 1, &mut || {
            Header::parse("f", &weights_changed, weights_changed.len() as u64).is_ok()
        });
        attempt("merge", weights.len() + weights_changed.len(), 3, &mut || {
            Adapter::read(&config, &weights, true).unwrap().merge(&weights_changed).is_ok()
        });
    }
    say(&format!("{refusals} changed files refused, {accepted} read all the same"));
    assert!(accepted > 0 && refusals > accepted);

    // Headers that are all entries: what they are read into is a small multiple of them.
    let entries: Vec<String> =
        (0..2000).map(|i| format!(r#""{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#)).collect();
    let file = container(&format!("{{{}}}", entries.join(",")), 0);
    let most = counting::most(|| assert_eq!(SafetensorsFile::parse("f", &file).unwrap().header.tensors.len(), 2000));
    assert!(most <= 6 * file.len(), "{most} bytes for {}", file.len());
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn kohya_and_mlx_and_hesper_are_read_as_they_are_defined() {
    let mut rng = Rng(3);
    // Kohya: alpha per module, dots as underscores, 1×1 kernels.
    let mut modules =
        vec![random_module(&mut rng, "down.0.to_q", 4, 6, 5), random_module(&mut rng, "mid_block.proj", 2, 3, 7)];
    modules[1].kind = AdapterKind::Conv1x1;
    modules[1].alpha = 3.0;
    let mut adapter = Adapter::new(modules, Some("base")).unwrap();
    adapter.config.set("use_rslora", "true").unwrap();
    // With rsLoRA the scale is another one, and so is Kohya's alpha.
    let adapter =
        Adapter::read(adapter.config.to_json().as_bytes(), &adapter.weights(Dtype::F32).unwrap(), true).unwrap();
    assert_eq!(adapter.modules[0].scaling, 4.0 / 2.0);
    let kohya = adapter.to_kohya("lora_unet").unwrap();
    assert_eq!(tensor(&kohya, "lora_unet_down_0_to_q.alpha"), [8.0]);
    assert_eq!(tensor(&kohya, "lora_unet_down_0_to_q.lora_down.weight"), adapter.modules[0].a);
    assert_eq!(tensor(&kohya, "lora_unet_mid_block_proj.lora_up.weight"), adapter.modules[1].b);
    assert_eq!(shape_of(&kohya, "lora_unet_mid_block_proj.lora_up.weight"), [7, 2, 1, 1]);
    assert_eq!(metadata(&kohya, "ss_network_dim"), 4);
    let model = model_modules(&["down.0.to_q", "mid_block.proj", "proj"].map(String::from));
    let again = Adapter::from_kohya(&kohya, &model).unwrap();
    for module in &adapter.modules {
        let back = again.modules.iter().find(|m| m.name == module.name).unwrap();
        assert_eq!((&back.a, &back.b, back.kind), (&module.a, &module.b, module.kind));
        assert!((back.scaling - module.scaling).abs() <= 1e-7 * module.scaling);
    }
    refused("no such module", Adapter::from_kohya(&kohya, &model[1..]), "unmatched", &["lora_unet_down_0_to_q"]);
    let both = model_modules(&["down.0.to_q", "down_0.to_q", "mid_block.proj"].map(String::from));
    refused("two modules", Adapter::from_kohya(&kohya, &both), "unmatched", &["down.0.to_q", "down_0.to_q"]);
    // Without alpha the scale is 1; LyCORIS' kinds are refused.
    let (down, up) = (ones(6), ones(8));
    let mut entries = vec![
        Entry { name: "lora_te_fc.lora_down.weight", dtype: Dtype::F32, shape: &[2, 3], data: &down },
        Entry { name: "lora_te_fc.lora_up.weight", dtype: Dtype::F32, shape: &[4, 2], data: &up },
    ];
    let fc = model_modules(&["fc".to_string()]);
    assert_eq!(Adapter::from_kohya(&write(&entries, &[]), &fc).unwrap().modules[0].scaling, 1.0);
    entries.push(Entry { name: "lora_te_fc.dora_scale", dtype: Dtype::F32, shape: &[2, 1], data: &down[..8] });
    refused("LyCORIS", Adapter::from_kohya(&write(&entries, &[]), &fc), "unsupported", &["dora_scale"]);

    // MLX: y += scale·(x·a)·b with a [in, rank], b [rank, out].
    let values: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let entries = vec![
        Entry { name: "model.layers.0.self_attn.q_proj.lora_a", dtype: Dtype::F32, shape: &[3, 2], data: &values },
        Entry {
            name: "model.layers.0.self_attn.q_proj.lora_b",
            dtype: Dtype::F32,
            shape: &[2, 1],
            data: &values[8..16],
        },
    ];
    let config = br#"{"fine_tune_type": "lora", "num_layers": 1, "lora_parameters": {"rank": 2, "dropout": 0.0, "scale": 20.0}}"#;
    let mlx = Adapter::from_mlx(config, &write(&entries, &[])).unwrap();
    let module = &mlx.modules[0];
    assert_eq!((module.name.as_str(), module.rank, module.scaling), ("model.layers.0.self_attn.q_proj", 2, 20.0));
    assert_eq!((&module.a[..], &module.b[..]), (&[0.0, 2.0, 4.0, 1.0, 3.0, 5.0][..], &[2.0, 3.0][..]));
    assert_eq!(module.delta_weight().unwrap(), [60.0, 260.0, 460.0]);
    refused(
        "DoRA",
        Adapter::from_mlx(br#"{"fine_tune_type": "dora", "lora_parameters": {"scale": 1}}"#, &write(&entries, &[])),
        "unsupported",
        &["dora"],
    );
    refused("no scale", Adapter::from_mlx(b"{}", &write(&entries, &[])), "file", &["scale"]);
    refused("half a pair", Adapter::from_mlx(config, &write(&entries[..1], &[])), "file", &["no lora_b"]);

    // The seed system's: header and raw numbers.
    let widths = HesperWidths { in_features: 3, q_out_features: 4, v_out_features: 2 };
    let mut file: Vec<u8> = [0x4C4F_5241u32, 1, 2, 8f32.to_bits(), 2, 0].iter().flat_map(|w| w.to_le_bytes()).collect();
    file.extend((0..2 * 2 * (3 + 4 + 3 + 2)).flat_map(|i| (i as f32).to_le_bytes()));
    let hesper = Adapter::from_hesper(&file, widths).unwrap();
    let names: Vec<_> = hesper.modules.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names[1..3], ["model.layers.0.self_attn.v_proj", "model.layers.1.self_attn.q_proj"]);
    assert_eq!((hesper.modules[0].scaling, hesper.modules[0].a[5], hesper.modules[0].b[0]), (4.0, 5.0, 6.0));
    assert_eq!((hesper.modules[1].a[0], hesper.modules[1].b[3], hesper.modules[2].a[0]), (14.0, 23.0, 24.0));
    assert_eq!(hesper.to_hesper().unwrap(), file);
    refused("a bit less", Adapter::from_hesper(&file[..file.len() - 1], widths), "file", &["rank 2", "2 layers"]);
    let wide = HesperWidths { in_features: usize::MAX, ..widths };
    refused("other widths", Adapter::from_hesper(&file, wide), "file", &["whole layers"]);
    refused("no header", Adapter::from_hesper(&file[..20], widths), "file", &["24 bytes"]);
    refused("fc", adapter.to_hesper(), "unsupported", &["q_proj"]);
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn exports_name_what_they_would_lose() {
    let mut rng = Rng(5);
    let name = "model.layers.0.self_attn.q_proj";
    let plain = random_module(&mut rng, name, 2, 4, 4);
    let gguf = GgufModel { architecture: "qwen2".into(), heads: 1, kv_heads: 1, tied: true };
    let lost =
        |module: AdapterModule, format| Adapter::new(vec![module], None).unwrap().can_export(format, Some(&gguf));
    for format in [Format::Gguf, Format::Kohya, Format::Peft] {
        assert_eq!(lost(plain.clone(), format), Vec::<String>::new());
    }
    let dora = AdapterModule { magnitude: Some(vec![1.0; 4]), ..plain.clone() };
    let bias = AdapterModule { lora_bias: Some(vec![1.0; 4]), ..plain.clone() };
    let head = AdapterModule { name: "lm_head".into(), ..plain.clone() };
    let embedding = AdapterModule { kind: AdapterKind::Embedding, name: "model.embed_tokens".into(), ..plain.clone() };
    let other = AdapterModule { name: "fc".into(), ..plain.clone() };
    for (module, format, word) in [
        (&dora, Format::Gguf, "DoRA"),
        (&dora, Format::Kohya, "DoRA"),
        (&bias, Format::Gguf, "biases of B"),
        (&head, Format::Gguf, "lm_head"),
        // The head, too, would be given this: llama.cpp stops at its shape.
        (&embedding, Format::Gguf, "model.embed_tokens"),
        (&other, Format::Gguf, "fc: llama.cpp has no name"),
        (&embedding, Format::Kohya, "embedding"),
        (&plain, Format::Hesper, "v_proj"),
    ] {
        let lost = lost(module.clone(), format);
        assert!(lost.len() == 1 && lost[0].contains(word), "{word}: {lost:?}");
        let adapter = Adapter::new(vec![module.clone()], None).unwrap();
        let result = match format {
            Format::Gguf => adapter.to_gguf(&gguf, None),
            Format::Kohya => adapter.to_kohya("lora_unet"),
            _ => adapter.to_hesper(),
        };
        refused(word, result, "unsupported", &[word]);
    }
    // An embedding goes into GGUF with A turned, as llama.cpp looks it up, and comes back.
    let adapter = Adapter::new(vec![embedding], None).unwrap();
    let file = adapter.to_gguf(&GgufModel { tied: false, ..gguf }, None).unwrap();
    let tensors = gguf_tensors(&file);
    assert_eq!((tensors[0].0.as_str(), &tensors[0].1[..]), ("token_embd.weight.lora_a", &[4, 2][..]));
    assert_eq!(tensors[0].2[1], adapter.modules[0].a[4]);
    assert_eq!(Adapter::from_gguf(&file, None).unwrap().modules, adapter.modules);
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn hostile_gguf_headers_are_errors() {
    let parse = |file: &[u8], len: u64| GgufHeader::parse("f", file, len);
    let head = |tensors: u64, entries: u64, rest: &[u8]| {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(tensors.to_le_bytes());
        file.extend(entries.to_le_bytes());
        file.extend(rest);
        file
    };
    let string = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let entry = |key: &str, kind: u32, value: &[u8]| [&string(key)[..], &kind.to_le_bytes(), value].concat();
    let tensor = |name: &str, shape: &[u64], kind: u32, offset: u64| {
        let mut out = string(name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
        out
    };
    let padded = |mut file: Vec<u8>, data: usize| {
        file.resize(file.len().next_multiple_of(32) + data, 0);
        file
    };
    let numbers: Vec<u8> = [9u32.to_le_bytes().to_vec(), 4u32.to_le_bytes().to_vec()].concat();
    let array = [&4u32.to_le_bytes()[..], &3u64.to_le_bytes(), &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]].concat();
    let good = padded(
        head(1, 2, &[entry("a", 9, &array), entry("b", 10, &7u64.to_le_bytes()), tensor("t", &[64, 2], 2, 0)].concat()),
        72,
    );
    let header = parse(&good, good.len() as u64).unwrap();
    assert_eq!(header.find("t").unwrap().shape, [2, 64]);
    assert_eq!(header.find("t").unwrap().range, header.data_start..header.data_start + 72);
    let Some(GgufValue::Array(array)) = header.get("a") else { panic!("no array") };
    let mut found = Vec::new();
    let mut push = |value: GgufValue| {
        found.push(value.as_u64().unwrap());
        Ok(())
    };
    array.each(&good, &mut push).unwrap();
    assert_eq!((found, header.get("b").unwrap().as_u64()), (vec![1, 2, 3], Some(7)));
    // Any beginning of it says that it needs more, and how much at least.
    for cut in 0..header.data_start as usize - 32 {
        let error = refused("a beginning", parse(&good[..cut], good.len() as u64), "incomplete", &[]);
        let &ErrorKind::Incomplete { needed, .. } = error.kind() else { panic!("{error}") };
        assert!(needed > cut as u64 && needed <= good.len() as u64);
    }
    for (what, file, word) in [
        ("no magic", b"GGML\x03\0\0\0".to_vec(), "no GGUF"),
        ("version 1", b"GGUF\x01\0\0\0".to_vec(), "version 1"),
        ("tensors beyond the file", head(u64::MAX, 0, &[]), "cut off"),
        ("entries beyond the file", head(0, u64::MAX, &[]), "cut off"),
        ("a string beyond the file", head(0, 1, &u64::MAX.to_le_bytes()), "more than it has"),
        (
            "an array beyond the file",
            head(0, 1, &entry("a", 9, &[&4u32.to_le_bytes()[..], &u64::MAX.to_le_bytes()].concat())),
            "more than it has",
        ),
        ("arrays of arrays", head(0, 1, &entry("a", 9, &[numbers.repeat(50), vec![0; 16]].concat())), "f"),
        ("an unknown value", head(0, 1, &entry("a", 13, &[])), "unknown type 13"),
        ("equal names", head(0, 2, &entry("a", 0, &[1]).repeat(2)), "`a`"),
        ("an unknown type", padded(head(1, 0, &tensor("t", &[4], 99, 0)), 64), "99"),
        ("five dimensions", padded(head(1, 0, &tensor("t", &[1; 5], 0, 0)), 64), "5 dimensions"),
        ("half a block", padded(head(1, 0, &tensor("t", &[16], 2, 0)), 64), "size"),
        ("an overflowing shape", padded(head(1, 0, &tensor("t", &[1 << 40, 1 << 40], 0, 0)), 64), "t"),
        ("an overflowing offset", padded(head(1, 0, &tensor("t", &[0], 0, u64::MAX - 31)), 64), "t"),
        ("an offset that is not aligned", padded(head(1, 0, &tensor("t", &[1], 0, 8)), 64), "aligned"),
        ("terabytes", padded(head(1, 0, &tensor("t", &[1 << 40], 0, 0)), 64), HUGE[1]),
        (
            "an overlap",
            padded(head(2, 0, &[tensor("t", &[16], 0, 0), tensor("u", &[16], 0, 32)].concat()), 128),
            "overlaps",
        ),
        ("an odd alignment", head(0, 1, &entry("general.alignment", 4, &33u32.to_le_bytes())), "alignment"),
    ] {
        refused(what, parse(&file, file.len() as u64), "file", &[word]);
    }
    let model = head(0, 1, &entry("general.type", 8, &string("model")));
    refused("a model", Adapter::from_gguf(&model, None), "file", &["general.type", "model"]);
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn starts_are_what_peft_defines() {
    let mut rng = Rng(11);
    let (rows, columns, rank, scaling) = (12, 9, 4, 0.5);
    let weight = rng.numbers(rows * columns);
    let start = |init: InitLoraWeights, rank, seed| initialize(&init, &weight, rows, columns, rank, scaling, seed);
    let product = |a: &[f32], b: &[f32], rank: usize| -> Vec<f64> {
        let element = |i: usize| {
            (0..rank).map(|r| f64::from(b[i / columns * rank + r]) * f64::from(a[r * columns + i % columns])).sum()
        };
        (0..rows * columns).map(element).collect()
    };
    let norm = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>().sqrt();

    // Uniform and gaussian: B zero, the deviations as defined, other seeds other numbers.
    for (init, deviation) in [(InitLoraWeights::Default, 1.0 / 27f64.sqrt()), (InitLoraWeights::Gaussian, 0.25)] {
        let wide = initialize(&init, &[], 2, 9, 4000, 1.0, 1).unwrap();
        assert!(wide.b.iter().all(|v| *v == 0.0) && wide.weight.is_none());
        let expected = if init == InitLoraWeights::Gaussian { 1.0 / 4000.0 } else { deviation };
        let found = norm(&wide.a.iter().map(|v| f64::from(*v)).collect::<Vec<_>>()) / (wide.a.len() as f64).sqrt();
        assert!((found / expected - 1.0).abs() < 0.02, "{init:?}: {found} {expected}");
        assert_eq!(start(init.clone(), rank, 1).unwrap(), start(init.clone(), rank, 1).unwrap());
        assert_ne!(start(init.clone(), rank, 1).unwrap().a, start(init, rank, 2).unwrap().a);
    }
    // Orthogonal: neither is zero, their product is.
    assert_eq!(start(InitLoraWeights::Orthogonal, 100_000, 1).unwrap_err().code(), "invalid-argument");
    let orthogonal = start(InitLoraWeights::Orthogonal, rank, 1).unwrap();
    assert!(orthogonal.a.iter().chain(&orthogonal.b).all(|v| *v != 0.0));
    assert!(norm(&product(&orthogonal.a, &orthogonal.b, rank)) < 1e-7);
    refused("odd", start(InitLoraWeights::Orthogonal, 3, 1), "invalid-argument", &["even", "3"]);
    // PiSSA and OLoRA: what they take out is in A and B, to f32's rounding.
    let full = start(InitLoraWeights::Pissa(None), 9, 1).unwrap();
    assert!(full.weight.unwrap().iter().all(|v| v.abs() < 1e-6), "all of W at full rank");
    let exact = start(InitLoraWeights::Pissa(None), rank, 1).unwrap();
    for init in [InitLoraWeights::Pissa(None), InitLoraWeights::Pissa(Some(200)), InitLoraWeights::Olora] {
        let s = start(init.clone(), rank, 1).unwrap();
        let left = s.weight.unwrap();
        let sum = product(&s.a, &s.b, rank);
        let back = (0..left.len()).all(|i| (f64::from(left[i]) + scaling * sum[i] - f64::from(weight[i])).abs() < 1e-7);
        assert!(back, "{init:?}");
        // By Eckart and Young nothing of that rank leaves less than PiSSA.
        let rest = |left: &[f32]| norm(&left.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
        let (least, found) = (rest(exact.weight.as_ref().unwrap()), rest(&left));
        match init {
            InitLoraWeights::Olora => assert!(found > least * 1.01),
            _ => assert!(found < least * (1.0 + 1e-6), "{init:?}: {found} {least}"),
        }
    }
    // OLoRA's B are orthonormal columns, A the beginning of R: zero left of the diagonal.
    let olora = start(InitLoraWeights::Olora, rank, 1).unwrap();
    assert!((0..rank).all(|r| olora.a[r * columns..r * columns + r].iter().all(|v| v.abs() < 1e-7)));
    assert!(olora.b[0] < 0.0 && (olora.a[0] < 0.0) == (weight[0] > 0.0), "LAPACK's signs");
    refused("rank beyond the widths", start(InitLoraWeights::Olora, 10, 1), "invalid-argument", &["at most 9"]);
    refused("corda", start(InitLoraWeights::Other("corda".into()), 2, 1), "unsupported", &["corda"]);
    let short = initialize(&InitLoraWeights::Olora, &weight[1..], rows, columns, 2, 1.0, 0);
    refused("a short weight", short, "shape", &["107"]);
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn combinations_and_merges_refuse_what_they_cannot_do() {
    let mut rng = Rng(13);
    let module = |rng: &mut Rng, rank| random_module(rng, "fc", rank, 6, 5);
    let one = |module| Adapter::new(vec![module], None).unwrap();
    let (two, three) = (one(module(&mut rng, 2)), one(module(&mut rng, 3)));
    let delta = |adapter: &Adapter| adapter.modules[0].delta_weight().unwrap();
    // Of different ranks: cat and an SVD of enough rank are exact.
    for combination in [Combination::Cat, Combination::Svd { rank: Some(5) }, Combination::Svd { rank: Some(6) }] {
        let sum = Adapter::combine(&[(&two, 0.5), (&three, -2.0)], combination).unwrap();
        for ((sum, a), b) in delta(&sum).iter().zip(delta(&two)).zip(delta(&three)) {
            assert!((sum - (0.5 * a - 2.0 * b)).abs() < 1e-5, "{combination:?}");
        }
    }
    // Alone, an adapter is weighted as it is, whatever the sign.
    let alone = Adapter::combine(&[(&two, -0.25)], Combination::Cat).unwrap();
    assert_eq!(alone.modules[0].rank, 2);
    assert!(delta(&alone).iter().zip(delta(&two)).all(|(a, b)| (a + 0.25 * b).abs() < 1e-6));
    // One that lacks a module adds nothing there.
    let other = one(random_module(&mut rng, "other", 2, 3, 3));
    let both = Adapter::combine(&[(&two, 1.0), (&other, 1.0)], Combination::Linear).unwrap();
    assert_eq!(both.modules.len(), 2);
    refused(
        "ranks",
        Adapter::combine(&[(&two, 1.0), (&three, 1.0)], Combination::Linear),
        "unmatched",
        &["fc", "2", "3"],
    );
    refused("nothing", Adapter::combine(&[], Combination::Cat), "invalid-argument", &["adapters"]);
    refused("NaN", Adapter::combine(&[(&two, f64::NAN)], Combination::Cat), "invalid-argument", &["weights"]);
    let wide = one(random_module(&mut rng, "fc", 2, 7, 5));
    refused("widths", Adapter::combine(&[(&two, 1.0), (&wide, 1.0)], Combination::Cat), "unmatched", &["fc"]);
    let dora = one(AdapterModule { magnitude: Some(vec![1.0; 5]), ..module(&mut rng, 2) });
    refused("DoRA", Adapter::combine(&[(&two, 1.0), (&dora, 1.0)], Combination::Cat), "unsupported", &["DoRA"]);
    refused(
        "rank 0",
        Adapter::combine(&[(&two, 1.0), (&two, 1.0)], Combination::Svd { rank: Some(0) }),
        "invalid-argument",
        &["rank"],
    );

    let model = |dtype, shape: &[usize], data: &[u8]| write(&[Entry { name: "fc.weight", dtype, shape, data }], &[]);
    refused("another shape", two.merge(&model(Dtype::F32, &[6, 5], &ones(30))), "shape", &["fc", "[6, 5]"]);
    refused("quantised", two.merge(&model(Dtype::I8, &[5, 6], &[1; 30])), "unsupported", &["fc.weight", "I8", "copy"]);
    let empty = write(&[Entry { name: "x.weight", dtype: Dtype::F32, shape: &[1], data: &ones(1) }], &[]);
    refused("no such tensor", two.merge(&empty), "unmatched", &["fc.weight"]);
    let mut large = two.clone();
    large.modules[0].scaling = 1e6;
    let half = from_f32("x", Dtype::F16, &mut [1.0; 30].into_iter()).unwrap();
    refused("beyond f16", large.merge(&model(Dtype::F16, &[5, 6], &half)), "file", &["fc.weight", "F16"]);
    // fan_in_fan_out: the base's weight lies the other way round.
    let mut turned = two.clone();
    turned.config.set("fan_in_fan_out", "true").unwrap();
    let plain = tensor(&two.merge(&model(Dtype::F32, &[5, 6], &ones(30))).unwrap(), "fc.weight");
    let other = tensor(&turned.merge(&model(Dtype::F32, &[6, 5], &ones(30))).unwrap(), "fc.weight");
    assert!((0..30).all(|i| plain[i] == other[i % 6 * 5 + i / 6]));
    // A model's file lists such a module's widths the other way round, and a plain adapter of PiSSA does the same as itself.
    let listed = modules(&model(Dtype::F32, &[6, 5], &ones(30)));
    assert_eq!(turned.report(&listed, true).unwrap().matched, [0]);
    refused("not turned", two.report(&listed, true), "shape", &["fc"]);
    turned.config.set("init_lora_weights", "\"pissa\"").unwrap();
    let weight = Rng(8).numbers(30);
    let base = model(Dtype::F32, &[6, 5], &weight.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
    let plain = turned.to_plain(&mut |_| Ok(weight.clone())).unwrap();
    let [own, other] = [&turned, &plain].map(|adapter| tensor(&adapter.merge(&base).unwrap(), "fc.weight"));
    assert!(own.iter().zip(&other).all(|(a, b)| (a - b).abs() < 1e-5), "{own:?} {other:?}");
    // A small file can ask for more than there is.
    let many = AdapterModule { a: vec![0.0; 40_000], b: vec![0.0; 40_000], rank: 1, ..module(&mut rng, 1) };
    refused("an outer product", many.delta_weight(), "limit", &["fc", "6400000000"]);
    // Merged into half precision, each number is the nearest of the exact sum.
    let merged = two.merge(&model(Dtype::F16, &[5, 6], &half)).unwrap();
    let exact = delta(&two).iter().map(|d| 1.0 + f64::from(*d)).collect::<Vec<_>>();
    let near = |(m, e): (&f32, &f64)| (f64::from(*m) - e).abs() <= e.abs() / 2048.0 + 1e-7;
    assert!(tensor(&merged, "fc.weight").iter().zip(&exact).all(near));
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn hostile_patterns_and_many_names_take_no_time_to_speak_of() {
    let config = |patterns: &[String]| {
        let entries: Vec<String> = patterns.iter().map(|key| format!(r#""{key}":2"#)).collect();
        format!(r#"{{"peft_type":"LORA","r":2,"target_modules":["fc"],"alpha_pattern":{{{}}}}}"#, entries.join(","))
    };
    // Each pattern would be compiled to thousands of steps, and tried on each module.
    let patterns: Vec<String> = (0..400).map(|i| format!("(a|b){{1000}}c{i}")).collect();
    let text = config(&patterns);
    refused("patterns", AdapterConfig::parse(text.as_bytes()), "unsupported", &["alpha_pattern", "fewer patterns"]);
    // As many plain names are fine, and mean what they mean as patterns.
    let names: Vec<String> = (0..3000).map(|i| format!(r"^model\\.layers\\.{i}\\.fc")).collect();
    let config = AdapterConfig::parse(config(&names).as_bytes()).unwrap();
    let modules = model_modules(&(0..3000).map(|i| format!("model.layers.{i}.fc")).collect::<Vec<_>>());
    assert!(config.resolve(&modules).unwrap().iter().all(|module| module.alpha == 2.0));
    assert_eq!((config.alpha_of("x.model.layers.1.fc"), config.alpha_of("model_layers.1.fc")), (8.0, 8.0));
    let like = |key: &str, name: &str| {
        let text = format!(r#"{{"peft_type":"LORA","r":2,"target_modules":["fc"],"rank_pattern":{{"{key}":5}}}}"#);
        AdapterConfig::parse(text.as_bytes()).unwrap().rank_of(name) == 5
    };
    for (key, name, expected) in [
        ("fc", "fc", true),
        ("fc", "a.fc", true),
        ("fc", "afc", false),
        ("a.fc", "a.fc", true),
        ("a.fc", "x.abfc", true),
        ("a.fc", "x.aafc.", false),
        ("a.fc", "x.a_fc", true),
        (r"a\\.fc", "x.a_fc", false),
        ("^fc", "a.fc", false),
        ("^fc", "fc", true),
        (".fc", "fc", false),
        ("é.fc", "x.é.fc", true),
        ("a[1].fc", "a1.fc", true),
        (r"a\\d.fc", "x.a1.fc", true),
        (r"a\\?.fc", "x.a?.fc", true),
        ("", "a.", true),
    ] {
        // The second key says the same as a pattern that is no plain name.
        assert_eq!((like(key, name), like(&format!("(?:{key})"), name)), (expected, expected), "{key} and {name:?}");
    }
    // A tensor's partner is found by its name among many.
    let names: Vec<String> =
        (0..20_000).flat_map(|i| ["lora_a", "lora_b"].map(|part| format!("m{i}.{part}"))).collect();
    let bytes = 1f32.to_le_bytes();
    let entries: Vec<Entry> =
        names.iter().map(|name| Entry { name, dtype: Dtype::F32, shape: &[1, 1], data: &bytes }).collect();
    let file = write(&entries, &[]);
    assert_eq!(Adapter::from_mlx(br#"{"lora_parameters":{"scale":1}}"#, &file).unwrap().modules.len(), 20_000);
}

/// A safetensors file of float32 ones.
fn of_ones(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let data: Vec<Vec<u8>> = tensors.iter().map(|(_, shape)| ones(shape.iter().product())).collect();
    let mut entries = Vec::new();
    for ((name, shape), data) in tensors.iter().zip(&data) {
        entries.push(Entry { name, dtype: Dtype::F32, shape, data });
    }
    write(&entries, &[])
}

/// Whoever loads a tied model makes its embedding the head, too: changed, the one tensor would change both.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn the_embedding_of_a_tied_model_is_not_merged() {
    let mut rng = Rng(17);
    let embed = "model.embed_tokens";
    let kind = AdapterKind::Embedding;
    let on_embedding =
        Adapter::new(vec![AdapterModule { kind, ..random_module(&mut rng, embed, 2, 9, 4) }], None).unwrap();
    let on_q = || Adapter::new(vec![random_module(&mut Rng(3), "model.q_proj", 2, 4, 4)], None).unwrap();
    let (mut whole, mut copied) = (on_q(), on_q());
    for (adapter, name) in [(&mut whole, "weight"), (&mut copied, "base_layer.weight")] {
        let (name, shape) = (format!("{embed}.{name}"), vec![9, 4]);
        adapter.others.push(OtherTensor { name, dtype: Dtype::F32, shape, data: ones(36) });
    }
    let tied: &[(&str, &[usize])] = &[("model.embed_tokens.weight", &[9, 4]), ("model.q_proj.weight", &[4, 4])];
    let untied = [tied, &[("lm_head.weight", &[9, 4])]].concat();
    for (what, adapter) in [("an adapter", &on_embedding), ("trained whole", &whole), ("a copy", &copied)] {
        refused(what, adapter.merge(&of_ones(tied)), "unsupported", &[embed, "lm_head.weight", "tied"]);
        assert!(adapter.merge(&of_ones(&untied)).is_ok(), "{what}");
        let mut both = adapter.clone();
        both.config.set("ensure_weight_tying", "true").unwrap();
        assert!(both.merge(&of_ones(tied)).is_ok(), "{what}: the head was trained as the embedding");
    }
    assert!(on_q().merge(&of_ones(tied)).is_ok());
    // An encoder has no head.
    let mut bare = on_embedding;
    bare.modules[0].name = "embed_tokens".into();
    assert!(bare.merge(&of_ones(&[("embed_tokens.weight", &[9, 4])])).is_ok());
}

/// Embeddings of other families are heads, too, where there is none beside them; those of positions are not.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn embeddings_of_every_name_are_kept_out_of_tied_heads() {
    let adapter = |name: &str, whole: bool| {
        let kind = AdapterKind::Embedding;
        let module = AdapterModule { kind, ..random_module(&mut Rng(3), name, 2, 9, 4) };
        if !whole {
            return Adapter::new(vec![module], None).unwrap();
        }
        let mut adapter = Adapter::new(vec![random_module(&mut Rng(3), "encoder.q", 2, 4, 4)], None).unwrap();
        let (name, shape) = (format!("{name}.weight"), vec![9, 4]);
        adapter.others.push(OtherTensor { name, dtype: Dtype::F32, shape, data: ones(36) });
        adapter
    };
    for (embedding, beside, tied) in [
        ("shared", "decoder.final_layer_norm.weight", true),
        ("shared", "encoder.final_layer_norm.weight", false), // T5's encoder alone
        ("model.shared", "model.norm.weight", true),
        ("transformer.word_embeddings", "transformer.ln_f.weight", true),
        ("gpt_neox.embed_in", "gpt_neox.norm.weight", true),
        ("gpt_neox.embed_in", "embed_out.weight", false),
        ("model.tok_embeddings", "output.weight", false),
        ("model.tok_embeddings", "model.layers.0.attention.output.weight", true),
        ("bert.embeddings.word_embeddings", "cls.predictions.transform.dense.weight", true),
        ("bert.embeddings.word_embeddings", "classifier.weight", false),
        ("bert.embeddings.position_embeddings", "cls.predictions.transform.dense.weight", false),
        ("transformer.wpe", "transformer.ln_f.weight", false),
    ] {
        let tensor = format!("{embedding}.weight");
        let model = of_ones(&[(&tensor, &[9, 4]), ("encoder.q.weight", &[4, 4]), (beside, &[4])]);
        for whole in [false, true] {
            let merged = adapter(embedding, whole).merge(&model);
            match tied {
                true => drop(refused(embedding, merged, "unsupported", &[embedding, "lm_head.weight", "tied"])),
                false => assert!(merged.is_ok(), "{embedding} beside {beside}: {:?}", merged.err()),
            }
        }
    }
}

/// A file that was saved from the model without its head has names without the first word, and an adapter can be of either.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn names_with_and_without_their_first_word_are_those_of_one_model() {
    let of = |names: &[&str]| {
        let modules = names.iter().map(|name| random_module(&mut Rng(23), name, 2, 3, 5)).collect();
        let mut adapter = Adapter::new(modules, None).unwrap();
        adapter.config.set("fan_in_fan_out", "true").unwrap();
        adapter
    };
    let model = |names: &[&str]| of_ones(&names.iter().map(|name| (*name, &[3, 5][..])).collect::<Vec<_>>());
    let (long, short) = (["transformer.h.0.c_attn", "transformer.h.1.c_attn"], ["h.0.c_attn", "h.1.c_attn"]);
    let (longs, shorts) = (
        ["transformer.h.0.c_attn.weight", "transformer.h.1.c_attn.weight"],
        ["h.0.c_attn.weight", "h.1.c_attn.weight"],
    );
    let plain = of(&long).merge(&model(&longs)).unwrap();
    for (adapter, tensors) in [(&long, &shorts), (&short, &longs), (&short, &shorts)] {
        let (adapter, file) = (of(adapter), model(tensors));
        let report = adapter.report(&modules(&file), true).unwrap();
        assert_eq!((report.matched, report.missing), (vec![0, 1], vec![]));
        let merged = adapter.merge(&file).unwrap();
        for (name, expected) in tensors.iter().zip(longs) {
            assert_eq!(tensor(&merged, name), tensor(&plain, expected), "the file's own names");
            assert_ne!(tensor(&merged, name), [1.0; 15]);
        }
    }
    // What fits in part, or in two ways, is not guessed at.
    for tensors in [
        &["h.0.c_attn.weight", "h.2.c_attn.weight"][..],
        &["transformer.h.0.c_attn.weight", "h.1.c_attn.weight"],
        &["wte.weight"],
    ] {
        refused("in part", of(&long).merge(&model(tensors)), "unmatched", &["transformer.h."]);
    }
    let two = ["a.h.0.c_attn.weight", "a.h.1.c_attn.weight", "b.h.0.c_attn.weight", "b.h.1.c_attn.weight"];
    refused("in two ways", of(&short).merge(&model(&two)), "unmatched", &["h.0.c_attn.weight"]);
    let deep = ["a.b.h.0.c_attn.weight", "a.b.h.1.c_attn.weight"];
    refused("by two words", of(&short).merge(&model(&deep)), "unmatched", &["h.0.c_attn.weight"]);
}

/// A tied model's file has no head, but the model has, which was perhaps trained.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn the_head_of_a_tied_model_is_a_module() {
    let (q, head) =
        (random_module(&mut Rng(3), "model.q_proj", 2, 4, 4), random_module(&mut Rng(4), "lm_head", 2, 4, 9));
    let adapter = Adapter::new(vec![q, head], None).unwrap();
    let file = of_ones(&[("model.embed_tokens.weight", &[9, 4]), ("model.q_proj.weight", &[4, 4])]);
    let report = adapter.report(&modules(&file), true).unwrap();
    assert_eq!((report.matched, report.missing, report.leftover), (vec![0, 1], vec![], vec![]));
    refused("no tensor of it", adapter.merge(&file), "unmatched", &["lm_head.weight"]);
    for other in [[8, 4], [9, 5]] {
        let file = of_ones(&[("model.embed_tokens.weight", &other), ("model.q_proj.weight", &[4, 4])]);
        refused("other widths", adapter.report(&modules(&file), true), "unmatched", &["lm_head"]);
    }
}

/// Each name means one module to PEFT before 0.15, which looks it up, and since, which takes it for a pattern of a name's end.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn ranks_and_alphas_of_single_modules_are_written_by_their_names() {
    let patterns = |modules: &[(&str, usize)]| {
        let modules = modules.iter().map(|(name, rank)| random_module(&mut Rng(29), name, *rank, 3, 5));
        let modules: Vec<_> = modules.map(|module| AdapterModule { alpha: module.rank as f64, ..module }).collect();
        let adapter = Adapter::new(modules.clone(), None).unwrap();
        for module in &modules {
            let own = (adapter.config.rank_of(&module.name), adapter.config.alpha_of(&module.name));
            assert_eq!(own, (module.rank, module.alpha), "{}", module.name);
        }
        let written = |key: &str| serde_json::from_str::<Value>(adapter.config.get(key).unwrap()).unwrap();
        assert_eq!(
            written("rank_pattern").as_object().unwrap().len(),
            written("alpha_pattern").as_object().unwrap().len()
        );
        written("rank_pattern")
    };
    let plain = patterns(&[("a.q_proj", 4), ("a.k_proj", 4), ("a.v_proj", 2), ("a-b.v_proj", 3)]);
    assert_eq!(plain, serde_json::json!({"a.v_proj": 2, "a-b.v_proj": 3}));
    // The end of another, one that is like another but for the point, and one that is more than a name.
    let exact = patterns(&[("b.a.q", 4), ("c.a.q", 4), ("a.q", 2), ("e.q", 3), ("e_q", 4), ("l+x.q", 5)]);
    assert_eq!(exact, serde_json::json!({r"^a\.q": 2, r"^e\.q": 3, r"^l\+x\.q": 5}));
}

/// Norms and other modules that are no matrices can be trained whole.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn modules_that_are_no_matrices_are_reported_and_merged() {
    let file = of_ones(&[
        ("model.fc.weight", &[5, 6]),
        ("model.norm.weight", &[6]),
        ("model.norm.bias", &[6]),
        ("model.conv.weight", &[2, 2, 3, 3]),
        ("model.rotary.inv_freq", &[3]),
    ]);
    let listed = modules(&file);
    let kinds: Vec<_> = listed.iter().map(|m| (m.name.as_str(), m.kind)).collect();
    let other = ModuleKind::Other;
    let expected = [("model.fc", ModuleKind::Linear), ("model.norm", other), ("model.conv", other)];
    assert!(kinds.len() == 3 && expected.iter().all(|each| kinds.contains(each)), "{kinds:?}");
    let mut adapter = Adapter::new(vec![random_module(&mut Rng(19), "model.fc", 2, 6, 5)], None).unwrap();
    for (name, shape) in [("model.norm.weight", vec![6]), ("model.norm.base_layer.bias", vec![6])] {
        let data = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
        adapter.others.push(OtherTensor { name: name.into(), dtype: Dtype::F32, shape, data });
    }
    let report = adapter.report(&listed, true).unwrap();
    assert_eq!((report.matched, report.missing), (vec![0], vec![]));
    assert_eq!(report.replaced, ["model.norm.weight", "model.norm.bias"]);
    let merged = adapter.merge(&file).unwrap();
    for name in report.replaced {
        assert_eq!(tensor(&merged, &name), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "{name}");
    }
    // No adapter sits on one, whatever its configuration says.
    for target in ["[\"norm\", \"fc\"]", "\".*\"", "\"all-linear\""] {
        adapter.config.set("target_modules", target).unwrap();
        let found = adapter.config.resolve(&listed).unwrap();
        assert_eq!(found.iter().map(|m| listed[m.module].name.as_str()).collect::<Vec<_>>(), ["model.fc"], "{target}");
    }
    let on_norm = Adapter::new(vec![random_module(&mut Rng(2), "model.norm", 1, 6, 1)], None).unwrap();
    refused("on a norm", on_norm.report(&listed, true), "unmatched", &["model.norm"]);
}

/// Ranks that make A or B larger than the memory are errors before anything is made.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn ranks_beyond_the_memory_are_refused() {
    for init in [InitLoraWeights::Default, InitLoraWeights::None, InitLoraWeights::Gaussian] {
        for (out_features, in_features) in [(4, 1 << 20), (1 << 20, 4)] {
            for rank in [1 << 12, 1 << 22, usize::MAX / 2] {
                let start = initialize(&init, &[], out_features, in_features, rank, 1.0, 0);
                refused("a rank", start, "limit", &["lora_"]);
            }
        }
    }
    let wide = initialize(&InitLoraWeights::Orthogonal, &[], 4, 1 << 20, 4096, 1.0, 0);
    refused("an orthogonal one", wide, "limit", &["lora_A"]);
}

/// DoRA makes a row of zeros as long as its magnitude, which is zero.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn doras_rows_of_zeros_stay_zero() {
    let magnitude = Some(vec![0.0, 2.0]);
    let b = vec![0.0, 1.0];
    let module = AdapterModule { magnitude, b, ..random_module(&mut Rng(5), "fc", 1, 3, 2) };
    let adapter = Adapter::new(vec![module], None).unwrap();
    let data: Vec<u8> = [0f32, 0.0, 0.0, 1.0, 2.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let model = write(&[Entry { name: "fc.weight", dtype: Dtype::F32, shape: &[2, 3], data: &data }], &[]);
    let merged = tensor(&adapter.merge(&model).unwrap(), "fc.weight");
    assert_eq!(merged[..3], [0.0; 3]);
    let length = merged[3..].iter().map(|v| v * v).sum::<f32>().sqrt();
    assert!((length - 2.0).abs() < 1e-6, "{merged:?}");
}
