//! What a model is by a GGUF file's metadata.

use super::config::{Family, LARGEST, ModelConfig, RopeScaling};
use crate::error::{Error, Result};
use crate::io::gguf::{GgufHeader, Value};
use crate::kernels::nn::Gate;

const FILE: &str = "the GGUF model";

/// The keys of one architecture.
struct Keys<'a> {
    header: &'a GgufHeader,
    architecture: &'a str,
}

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.header.get(&format!("{}.{key}", self.architecture))
    }

    /// A dimension.
    fn size(&self, key: &str) -> Result<Option<usize>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(n @ 1..=LARGEST) => Ok(Some(n as usize)),
                _ => Err(self.wrong(key, &format!("a number from 1 to {LARGEST}"))),
            },
        }
    }

    fn needed(&self, key: &str) -> Result<usize> {
        self.size(key)?.ok_or_else(|| self.wrong(key, "a number"))
    }

    fn wrong(&self, key: &str, expected: &str) -> Error {
        Error::file(FILE, format!("`{}.{key}`: expected {expected}", self.architecture))
    }

    fn refuse<T>(&self, key: &str, works: &str) -> Result<T> {
        let text = format!("{FILE}: `{}.{key}`: its value is not supported; {works}", self.architecture);
        Err(Error::unsupported(text))
    }
}

impl ModelConfig {
    /// Reads a GGUF file's metadata. The factors of `rope_freqs`, which are a tensor, come when the weights are loaded.
    ///
    /// # Errors
    /// [`Unsupported`](crate::error::ErrorKind::Unsupported) naming the architecture or key that this package does not do; [`File`](crate::error::ErrorKind::File) for what lacks a key or contradicts
    /// itself.
    pub fn from_gguf(header: &GgufHeader) -> Result<ModelConfig> {
        let word = |key: &str| header.get(key).and_then(Value::as_str).unwrap_or("nothing");
        let architecture = word("general.architecture");
        let keys = Keys { header, architecture };
        let family = match architecture {
            "llama" => Family::Llama,
            "qwen2" => Family::Qwen2,
            "qwen3" => Family::Qwen3,
            // llama.cpp's name, and those of bitnet.cpp, whose models have ReLU².
            "bitnet" | "bitnet-b1.58" | "bitnet-25" => Family::Bitnet,
            _ => {
                let text = format!(
                    "{FILE}: `general.architecture`: {architecture} is not supported; llama (also for mistral), qwen2, qwen3, bitnet and bitnet-b1.58 are"
                );
                return Err(Error::unsupported(text));
            }
        };
        if word("general.type") == "adapter" {
            return Err(Error::unsupported(format!("{FILE}: `general.type`: an adapter is not supported; a model is")));
        }
        if keys.get("expert_count").and_then(Value::as_u64).is_some_and(|count| count > 0) {
            return keys.refuse("expert_count", "models without experts are");
        }
        let (hidden_size, heads) = (keys.needed("embedding_length")?, keys.needed("attention.head_count")?);
        let head_dim = keys.size("attention.key_length")?.unwrap_or(hidden_size / heads);
        for key in ["attention.value_length", "rope.dimension_count"] {
            if keys.size(key)?.is_some_and(|size| size != head_dim) {
                return keys.refuse(key, "that of the keys is");
            }
        }
        let max_positions = keys.needed("context_length")?;
        if keys.size("attention.sliding_window").ok().flatten().is_some_and(|window| window < max_positions) {
            return keys.refuse("attention.sliding_window", "attention to all earlier tokens is");
        }
        let number = |key: &str| match keys.get(key) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(value) if value > 0.0 && value.is_finite() => Ok(Some(value)),
                _ => Err(keys.wrong(key, "a finite number above 0")),
            },
        };
        let rope_scaling = match keys.get("rope.scaling.type").and_then(Value::as_str).unwrap_or("none") {
            "none" => match number("rope.scale_linear")? {
                Some(factor) => RopeScaling::Linear { factor },
                None => RopeScaling::None,
            },
            "linear" => match number("rope.scaling.factor")? {
                Some(factor) => RopeScaling::Linear { factor },
                None => return Err(keys.wrong("rope.scaling.factor", "a finite number above 0")),
            },
            _ => return keys.refuse("rope.scaling.type", "none and linear are"),
        };
        let has = |name: &str| header.find(name).is_some();
        let embedding = header.find("token_embd.weight").map(|tensor| &tensor.shape[..]);
        let Some([vocab_size, _]) = embedding else {
            return Err(Error::unmatched(format!("{FILE} lacks the tensor `token_embd.weight`")));
        };
        let eos = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
        let mut eos_token_ids: Vec<i32> =
            eos.iter().filter_map(|key| header.get(key)?.as_u64()?.try_into().ok()).collect();
        eos_token_ids.dedup();
        let config = ModelConfig {
            family,
            vocab_size: *vocab_size,
            hidden_size,
            intermediate_size: keys.needed("feed_forward_length")?,
            layers: keys.needed("block_count")?,
            heads,
            kv_heads: keys.size("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            rms_norm_eps: number("attention.layer_norm_rms_epsilon")?
                .ok_or_else(|| keys.wrong("attention.layer_norm_rms_epsilon", "a number"))?,
            max_positions,
            rope_theta: number("rope.freq_base")?.unwrap_or(1e4),
            rope_scaling,
            tie_word_embeddings: !has("output.weight"),
            qkv_bias: has("blk.0.attn_q.bias"),
            o_bias: has("blk.0.attn_output.bias"),
            mlp_bias: has("blk.0.ffn_up.bias"),
            gate: if family == Family::Bitnet { Gate::Relu2 } else { Gate::Silu },
            ternary: None,
            eos_token_ids,
        };
        config.check()?;
        Ok(config)
    }
}
