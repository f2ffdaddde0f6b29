//! What the fuzz targets do with bytes: everything that a page does with a file of the kind, short of a GPU. None may panic, hang
//! or hold more memory than a multiple of the bytes. `fuzz/` searches for inputs that make one; `tests/fuzz.rs` replays those kept.

use lora_webgpu::io::gguf::{GgufHeader, Value};
use lora_webgpu::io::safetensors::{Dtype, Header, SafetensorsFile, to_f32};
use lora_webgpu::io::{Adapter, AdapterConfig, Combination, Format, GgufModel, HesperWidths, ModelModule, ModuleKind};
use lora_webgpu::{ModelConfig, gguf_sources, safetensors_sources};

/// A target: name, what it does, and how many bytes it may hold at a time for each of its input.
pub type Target = (&'static str, fn(&[u8]), usize);

pub const TARGETS: [Target; 8] = [
    ("safetensors", safetensors, 32),
    ("adapter_config", adapter_config, 64),
    ("adapter", adapter, 96),
    ("model_config", model_config, 32),
    ("gguf", gguf, 64),
    ("kohya", kohya, 64),
    ("mlx", mlx, 64),
    ("hesper", hesper, 32),
];

/// Bytes that may be held whatever the input: texts of errors, tables, one compiled pattern of a configuration.
pub const SLACK: usize = 2 << 20;

/// The modules of a small model, by names as in the seeds.
fn modules() -> Vec<ModelModule> {
    let names =
        ["fc", "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj", "model.embed_tokens", "lm_head"];
    let module = |name: &str| ModelModule {
        name: name.into(),
        kind: if name.ends_with("embed_tokens") { ModuleKind::Embedding } else { ModuleKind::Linear },
        in_features: 4,
        out_features: 4,
        is_output_head: name == "lm_head",
    };
    names.map(module).into()
}

/// Two files in one input: the length of the first in its two first bytes.
fn two(data: &[u8]) -> (&[u8], &[u8]) {
    let Some((length, rest)) = data.split_first_chunk::<2>() else { return (&[], &[]) };
    rest.split_at(rest.len().min(u16::from_le_bytes(*length).into()))
}

/// As [`two`] reads them.
#[allow(dead_code)] // the seeds are joined
pub fn join(first: &[u8], second: &[u8]) -> Vec<u8> {
    [&(first.len() as u16).to_le_bytes()[..], first, second].concat()
}

fn safetensors(data: &[u8]) {
    let whole = SafetensorsFile::parse("f", data);
    // Half a file, of known and of unknown length, is asked for more or refused; what says whole has the same tensors.
    for known in [data.len() as u64, u64::MAX] {
        if let (Ok(part), Ok(file)) = (Header::parse("f", &data[..data.len() / 2], known), &whole) {
            assert_eq!(part.tensors, file.header.tensors);
        }
    }
    let Ok(file) = whole else { return };
    let values = |dtype: Dtype, len: usize| if matches!(dtype, Dtype::F64) { len / 8 } else { len / dtype.size() };
    for tensor in &file.header.tensors {
        let bytes = file.data(tensor);
        assert_eq!(bytes.len() as u64, tensor.range.end - tensor.range.start);
        if let Ok(found) = to_f32(&tensor.name, tensor.dtype, bytes) {
            assert_eq!(found.len(), values(tensor.dtype, bytes.len()));
        }
    }
    let _ = (ModelModule::list(&file.header), safetensors_sources(0, &file.header));
}

fn adapter_config(data: &[u8]) {
    let Ok(mut config) = AdapterConfig::parse(data) else { return };
    let _ = config.resolve(&modules());
    let again = AdapterConfig::parse(config.to_json().as_bytes()).expect("what is written can be read");
    assert_eq!(again.to_json(), config.to_json());
    let _ = config.set("lora_alpha", "3");
}

fn adapter(data: &[u8]) {
    let (config, weights) = two(data);
    let _ = Adapter::read(config, weights, true);
    if let Ok(adapter) = Adapter::read(config, weights, false) {
        uses(&adapter);
    }
}

/// What a page does with an adapter.
fn uses(adapter: &Adapter) {
    for strict in [true, false] {
        let _ = adapter.report(&modules(), strict);
    }
    let model = GgufModel { architecture: "llama".into(), heads: 2, kv_heads: 1, tied: false };
    for format in [Format::Peft, Format::Gguf, Format::Kohya, Format::Hesper] {
        let _ = adapter.can_export(format, Some(&model));
    }
    let _ = (adapter.to_gguf(&model, Some("name")), adapter.to_kohya("lora_unet"), adapter.to_hesper());
    let _ = (adapter.parameters(), adapter.disagreements(), adapter.merged_tensors());
    let weights = adapter.weights(Dtype::F32);
    if let Ok(weights) = &weights {
        let again =
            Adapter::read(adapter.config.to_json().as_bytes(), weights, false).expect("what is written can be read");
        assert_eq!(again.modules.len(), adapter.modules.len());
        let _ = adapter.merge(weights);
    }
    // Decompositions and products of large matrices take their time, as they do for good ones.
    if adapter.modules.iter().all(|m| m.in_features().max(m.out_features()) <= 16) {
        for combination in [Combination::Linear, Combination::Cat, Combination::Svd { rank: None }] {
            let _ = Adapter::combine(&[(adapter, 0.5), (adapter, 2.0)], combination);
        }
        for module in &adapter.modules {
            let _ = module.delta_weight();
        }
    }
}

fn model_config(data: &[u8]) {
    let _ = (ModelConfig::parse(data), GgufModel::from_config(data));
}

fn gguf(data: &[u8]) {
    let len = data.len() as u64;
    let whole = GgufHeader::parse("f", data, len);
    let _ = (
        GgufHeader::parse("f", &data[..data.len() / 2], len),
        GgufHeader::parse("f", &data[..data.len() / 2], u64::MAX),
    );
    let Ok(header) = whole else { return };
    for (_, value) in &header.metadata {
        if let Value::Array(array) = value {
            let mut count = 0;
            let read = array.each(data, &mut |_| {
                count += 1;
                Ok(())
            });
            assert!(read.is_err() || count == array.len);
        }
    }
    let _ = (ModelConfig::from_gguf(&header), gguf_sources(0, &header));
    for heads in [None, Some(1), Some(2)] {
        let model = heads.map(|heads| GgufModel { architecture: "llama".into(), heads, kv_heads: 1, tied: true });
        if let Ok(adapter) = Adapter::from_gguf(data, model.as_ref()) {
            uses(&adapter);
        }
    }
}

fn kohya(data: &[u8]) {
    if let Ok(adapter) = Adapter::from_kohya(data, &modules()) {
        uses(&adapter);
    }
}

fn mlx(data: &[u8]) {
    let (config, weights) = two(data);
    if let Ok(adapter) = Adapter::from_mlx(config, weights) {
        uses(&adapter);
    }
}

fn hesper(data: &[u8]) {
    let Some(([input, q, v], file)) = data.split_first_chunk::<3>() else { return };
    let [in_features, q_out_features, v_out_features] = [input, q, v].map(|width| usize::from(*width));
    if let Ok(adapter) = Adapter::from_hesper(file, HesperWidths { in_features, q_out_features, v_out_features }) {
        uses(&adapter);
    }
}
