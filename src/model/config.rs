//! What a model is: the meaning of Hugging Face's `config.json`.

use crate::error::{Error, Result};
use crate::io::{json::Reader, twice};
use crate::kernels::nn::{Gate, Heads};

const FILE: &str = "config.json";

/// The kinds of model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Llama and what has its form: SmolLM2, TinyLlama.
    Llama,
    /// Mistral without sliding window.
    Mistral,
    /// Qwen2 and Qwen2.5: biases of q, k and v.
    Qwen2,
    /// Qwen3: norms of queries and keys.
    Qwen3,
    /// BitNet b1.58: ReLU² and a norm before each output projection.
    Bitnet,
}

/// How the rotary frequencies are stretched.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by the factor.
    Linear {
        /// What positions are divided by.
        factor: f64,
    },
    /// Llama 3's: slow ones divided, fast ones kept, a blend between.
    Llama3 {
        /// What the slow ones are divided by.
        factor: f64,
        /// Waves longer than `original_positions` over this are slow.
        low_freq_factor: f64,
        /// Waves shorter than `original_positions` over this are fast.
        high_freq_factor: f64,
        /// Positions that the model was trained on at first.
        original_positions: f64,
    },
    /// Each divided by its own factor `[head_dim / 2]`: GGUF's `rope_freqs`.
    Factors(Vec<f32>),
}

/// How ternary linear layers of transformers' packing are scaled; their activations have 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ternary {
    /// `linear_class: autobitlinear` multiplies by weight_scale.
    Multiply,
    /// `linear_class: bitlinear` divides by it.
    Divide,
}

/// A decoder-only language model's shape.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Which kind.
    pub family: Family,
    /// Tokens that there are.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width between the feed-forward part's projections.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Added to the mean of squares in the norms.
    pub rms_norm_eps: f64,
    /// The longest sequence.
    pub max_positions: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How they are stretched.
    pub rope_scaling: RopeScaling,
    /// Whether the head is the embedding's transpose.
    pub tie_word_embeddings: bool,
    /// Biases of q, k and v.
    pub qkv_bias: bool,
    /// A bias of the attention's output projection.
    pub o_bias: bool,
    /// Biases of the feed-forward part.
    pub mlp_bias: bool,
    /// The feed-forward part's function.
    pub gate: Gate,
    /// Whether the layers' linear modules are ternary, by `quantization_config`; None: as their tensors are.
    pub ternary: Option<Ternary>,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<i32>,
}

/// More of a dimension than any model has: what a hostile file could ask memory for is bounded by it.
pub(super) const LARGEST: u64 = 1 << 24;

/// The fields of an object, each value as it is written; null is as good as absent.
struct Fields<'a>(Vec<(String, &'a str)>);

impl<'a> Fields<'a> {
    fn read(text: &'a [u8]) -> Result<Fields<'a>> {
        let mut fields: Vec<(String, &str)> = Vec::new();
        let mut reader = Reader::new(FILE, text)?;
        reader.object(&mut |reader, key| {
            fields.push((key, reader.raw()?));
            Ok(())
        })?;
        reader.end()?;
        if let Some(i) = twice(fields.len(), &|i| &fields[i].0) {
            return Err(Error::file(FILE, format!("two entries have the key `{}`", fields[i].0)));
        }
        Ok(Fields(fields))
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        self.0.iter().find(|(name, value)| name == key && *value != "null").map(|(_, value)| *value)
    }

    /// A field by a function of the reader; an error names the field.
    fn value<T>(&self, key: &str, read: impl Fn(&mut Reader<'a>) -> Result<T>) -> Result<Option<T>> {
        let one = |text: &'a str| {
            read(&mut Reader::new(FILE, text.as_bytes())?).map_err(|_| {
                Error::file(FILE, format!("`{key}` is of another type than Hugging Face gives it: {text}"))
            })
        };
        self.get(key).map(one).transpose()
    }

    /// A dimension.
    fn size(&self, key: &str) -> Result<Option<usize>> {
        match self.value(key, Reader::integer)? {
            Some(n) if n == 0 || n > LARGEST => {
                Err(Error::file(FILE, format!("`{key}`: expected a number from 1 to {LARGEST}, got {n}")))
            }
            n => Ok(n.map(|n| n as usize)),
        }
    }

    fn needed(&self, key: &str) -> Result<usize> {
        self.size(key)?.ok_or_else(|| Error::file(FILE, format!("lacks `{key}`")))
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        self.value(key, Reader::number)
    }

    /// A number above 0.
    fn positive(&self, key: &str) -> Result<Option<f64>> {
        match self.number(key)? {
            Some(value) if !(value > 0.0 && value.is_finite()) => {
                Err(Error::file(FILE, format!("`{key}`: expected a finite number above 0")))
            }
            value => Ok(value),
        }
    }

    fn flag(&self, key: &str) -> Result<bool> {
        Ok(self.value(key, Reader::boolean)?.unwrap_or(false))
    }

    fn text(&self, key: &str) -> Result<Option<String>> {
        self.value(key, Reader::string)
    }

    /// A refusal of a field's value.
    fn refuse<T>(&self, key: &str, works: &str) -> Result<T> {
        let value = self.get(key).unwrap_or("null");
        Err(Error::unsupported(format!("{FILE}: `{key}`: {value} is not supported; {works}")))
    }
}

/// What Hugging Face's configurations mean where they do not say.
struct Defaults {
    family: Family,
    kv_heads: Option<usize>,
    head_dim: Option<usize>,
    rms_norm_eps: f64,
    max_positions: usize,
    rope_theta: f64,
}

impl Defaults {
    fn of(model_type: &str) -> Option<Defaults> {
        let (family, kv_heads, head_dim, rms_norm_eps, max_positions, rope_theta) = match model_type {
            "llama" => (Family::Llama, None, None, 1e-6, 2048, 1e4),
            "mistral" => (Family::Mistral, Some(8), None, 1e-6, 131_072, 1e4),
            "qwen2" => (Family::Qwen2, Some(32), None, 1e-6, 32_768, 1e4),
            "qwen3" => (Family::Qwen3, Some(32), Some(128), 1e-6, 32_768, 1e4),
            "bitnet" => (Family::Bitnet, Some(5), None, 1e-5, 2048, 5e5),
            _ => return None,
        };
        Some(Defaults { family, kv_heads, head_dim, rms_norm_eps, max_positions, rope_theta })
    }
}

impl ModelConfig {
    /// Reads a `config.json` of Hugging Face's, rope settings in the form of transformers 4 or 5.
    ///
    /// # Errors
    /// [`Unsupported`](crate::error::ErrorKind::Unsupported) naming the field and value that this package does not do; [`File`](crate::error::ErrorKind::File) for what is no JSON
    /// object, lacks a field or contradicts itself.
    pub fn parse(bytes: &[u8]) -> Result<ModelConfig> {
        let fields = Fields::read(bytes)?;
        let families = "llama, mistral, qwen2, qwen3 and bitnet are";
        let model_type = fields.text("model_type")?.unwrap_or_default();
        let Some(default) = Defaults::of(&model_type) else { return fields.refuse("model_type", families) };
        let family = default.family;
        let hidden_size = fields.needed("hidden_size")?;
        let heads = fields.needed("num_attention_heads")?;
        let kv_heads = fields.size("num_key_value_heads")?.or(default.kv_heads).unwrap_or(heads);
        let head_dim = fields.size("head_dim")?.or(default.head_dim).unwrap_or(hidden_size / heads);
        let max_positions = fields.size("max_position_embeddings")?.unwrap_or(default.max_positions);

        let act = if family == Family::Bitnet { "relu2" } else { "silu" };
        if fields.text("hidden_act")?.unwrap_or_else(|| act.into()) != act {
            return fields.refuse("hidden_act", &format!("{act} is for {model_type}"));
        }
        let slides = match family {
            Family::Mistral => match fields.size("sliding_window")? {
                None if !fields.0.iter().any(|(name, _)| name == "sliding_window") && max_positions > 4096 => {
                    return Err(Error::unsupported(format!(
                        "{FILE}: no `sliding_window` means 4096; expected it to be null"
                    )));
                }
                window => window.is_some_and(|window| window < max_positions),
            },
            Family::Qwen2 | Family::Qwen3 => fields.flag("use_sliding_window")?,
            Family::Llama | Family::Bitnet => false,
        };
        if slides {
            let key = if family == Family::Mistral { "sliding_window" } else { "use_sliding_window" };
            return fields.refuse(key, "attention to all earlier tokens is");
        }
        let full = fields.value("layer_types", |reader| {
            let mut full = true;
            reader.array(&mut |reader| {
                full &= reader.string()? == "full_attention";
                Ok(())
            })?;
            Ok(full)
        })?;
        if full == Some(false) {
            return fields.refuse("layer_types", "full_attention is");
        }
        let ternary = fields.get("quantization_config").map(ternary).transpose()?;
        if ternary.is_some() && family != Family::Bitnet {
            return fields.refuse("quantization_config", "weights as they are, in float32, float16 or bfloat16, are");
        }
        let attention_bias = fields.flag("attention_bias")?;
        if attention_bias && matches!(family, Family::Mistral | Family::Qwen2) {
            return fields.refuse("attention_bias", "false is");
        }
        let mlp_bias = fields.flag("mlp_bias")?;
        if mlp_bias && family != Family::Llama {
            return fields.refuse("mlp_bias", "false is");
        }
        let (rope_theta, rope_scaling) = rope(&fields, default.rope_theta)?;
        let eos_token_ids = fields.value("eos_token_id", |reader| {
            let mut ids = Vec::new();
            let mut one = |reader: &mut Reader| {
                ids.push(reader.integer()?.min(i32::MAX as u64) as i32);
                Ok(())
            };
            if reader.is_array() {
                reader.array(&mut one)?
            } else {
                one(reader)?
            }
            Ok(ids)
        })?;
        let config = ModelConfig {
            family,
            vocab_size: fields.needed("vocab_size")?,
            hidden_size,
            intermediate_size: fields.needed("intermediate_size")?,
            layers: fields.needed("num_hidden_layers")?,
            heads,
            kv_heads,
            head_dim,
            rms_norm_eps: fields.positive("rms_norm_eps")?.unwrap_or(default.rms_norm_eps),
            max_positions,
            rope_theta,
            rope_scaling,
            tie_word_embeddings: fields.flag("tie_word_embeddings")?,
            qkv_bias: attention_bias || family == Family::Qwen2,
            o_bias: attention_bias,
            mlp_bias,
            gate: if family == Family::Bitnet { Gate::Relu2 } else { Gate::Silu },
            ternary,
            eos_token_ids: eos_token_ids.unwrap_or_default(),
        };
        config.check()?;
        Ok(config)
    }

    /// That its numbers fit each other.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |key: &str, expected: String, got: usize| {
            Err(Error::file(FILE, format!("`{key}`: expected {expected}, got {got}")))
        };
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a divisor of num_attention_heads {}", self.heads);
            return wrong("num_key_value_heads", expected, self.kv_heads);
        }
        // Where numbers have 32 bits, as in a page, a product could be more.
        if [self.heads, self.kv_heads].iter().any(|heads| (*heads as u64) * self.head_dim as u64 > LARGEST) {
            return wrong("num_attention_heads", format!("at most {LARGEST} over head_dim"), self.heads);
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) || self.head_dim > 256 {
            return wrong("head_dim", "an even number up to 256".into(), self.head_dim);
        }
        Ok(())
    }

    /// Width of all queries of a token.
    pub(crate) fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all keys of a token.
    pub(crate) fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    pub(crate) fn attention(&self) -> Heads {
        Heads { heads: self.heads, kv_heads: self.kv_heads, head_dim: self.head_dim }
    }

    /// Norms of queries and keys.
    pub(crate) fn qk_norms(&self) -> bool {
        self.family == Family::Qwen3
    }

    /// Norms before the output projections.
    pub(crate) fn sub_norms(&self) -> bool {
        self.family == Family::Bitnet
    }

    /// A layer's linear modules, in order.
    pub(crate) fn linears(&self) -> [LinearShape; 7] {
        let (hidden, inner, q, kv) = (self.hidden_size, self.intermediate_size, self.q_width(), self.kv_width());
        let linear = |name, out_features, in_features, bias| LinearShape { name, out_features, in_features, bias };
        [
            linear("self_attn.q_proj", q, hidden, self.qkv_bias),
            linear("self_attn.k_proj", kv, hidden, self.qkv_bias),
            linear("self_attn.v_proj", kv, hidden, self.qkv_bias),
            linear("self_attn.o_proj", hidden, q, self.o_bias),
            linear("mlp.gate_proj", inner, hidden, self.mlp_bias),
            linear("mlp.up_proj", inner, hidden, self.mlp_bias),
            linear("mlp.down_proj", hidden, inner, self.mlp_bias),
        ]
    }

    /// A layer's norms and their widths.
    pub(crate) fn norms(&self) -> Vec<(&'static str, usize)> {
        let mut norms = vec![("input_layernorm", self.hidden_size), ("post_attention_layernorm", self.hidden_size)];
        if self.qk_norms() {
            norms.extend([("self_attn.q_norm", self.head_dim), ("self_attn.k_norm", self.head_dim)]);
        }
        if self.sub_norms() {
            norms.extend([("self_attn.attn_sub_norm", self.q_width()), ("mlp.ffn_sub_norm", self.intermediate_size)]);
        }
        norms
    }

    /// Calls `each` with names and shapes of all tensors in Hugging Face's files.
    pub(crate) fn each_tensor(&self, each: &mut dyn FnMut(&str, &[usize]) -> Result<()>) -> Result<()> {
        let embedding = [self.vocab_size, self.hidden_size];
        each("model.embed_tokens.weight", &embedding)?;
        for layer in 0..self.layers {
            let mut each = |rest: &str, part: &str, shape: &[usize]| {
                each(&["model.layers.", &layer.to_string(), ".", rest, part].concat(), shape)
            };
            for linear in self.linears() {
                // Four rows of ternary weights lie in one.
                let rows = linear.out_features / if self.ternary.is_some() { 4 } else { 1 };
                each(linear.name, ".weight", &[rows, linear.in_features])?;
                if self.ternary.is_some() {
                    each(linear.name, ".weight_scale", &[1])?;
                }
                if linear.bias {
                    each(linear.name, ".bias", &[linear.out_features])?;
                }
            }
            for (norm, width) in self.norms() {
                each(norm, ".weight", &[width])?;
            }
        }
        each("model.norm.weight", &[self.hidden_size])?;
        if self.tie_word_embeddings { Ok(()) } else { each("lm_head.weight", &embedding) }
    }
}

/// One linear module of a layer.
pub(crate) struct LinearShape {
    /// As Hugging Face names it below its layer: `self_attn.q_proj`.
    pub name: &'static str,
    pub out_features: usize,
    pub in_features: usize,
    pub bias: bool,
}

/// What a `quantization_config` of transformers' `bitnet` method means.
fn ternary(text: &str) -> Result<Ternary> {
    let fields = Fields::read(text.as_bytes())?;
    let within = |key: &str, value: &str, works: &str| {
        let text = format!("{FILE}: `quantization_config.{key}`: {value} is not supported; {works}");
        Err(Error::unsupported(text))
    };
    let method = fields.text("quant_method")?.unwrap_or_default();
    if method != "bitnet" {
        return within("quant_method", &method, "bitnet is");
    }
    let mode = fields.text("quantization_mode")?.unwrap_or_else(|| "offline".into());
    if mode != "offline" {
        return within("quantization_mode", &mode, "offline is");
    }
    if fields.flag("use_rms_norm")? {
        return within("use_rms_norm", "true", "false is");
    }
    let others = fields.value("modules_to_not_convert", |reader| {
        let mut others = None;
        reader.array(&mut |reader| {
            let name = reader.string()?;
            others = others.take().or((name != "lm_head").then_some(name));
            Ok(())
        })?;
        Ok(others)
    })?;
    if let Some(name) = others.flatten() {
        return within("modules_to_not_convert", &name, "lm_head is");
    }
    match fields.text("linear_class")?.as_deref().unwrap_or("bitlinear") {
        "bitlinear" => Ok(Ternary::Divide),
        "autobitlinear" => Ok(Ternary::Multiply),
        other => within("linear_class", other, "bitlinear and autobitlinear are"),
    }
}

/// Base and scaling: under `rope_parameters` since transformers 5, before under `rope_theta` and `rope_scaling`.
fn rope(fields: &Fields, default_theta: f64) -> Result<(f64, RopeScaling)> {
    let (key, settings) = match (fields.get("rope_parameters"), fields.get("rope_scaling")) {
        (Some(text), _) => ("rope_parameters", Some(text)),
        (None, text) => ("rope_scaling", text),
    };
    let settings = settings.map(|text| Fields::read(text.as_bytes())).transpose()?.unwrap_or(Fields(Vec::new()));
    let theta = settings.positive("rope_theta")?.or(fields.positive("rope_theta")?).unwrap_or(default_theta);
    for fields in [fields, &settings] {
        if fields.number("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
            return fields.refuse("partial_rotary_factor", "1 is");
        }
    }
    let positive = |name: &str| match settings.number(name)? {
        Some(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err(Error::file(FILE, format!("`{key}.{name}`: expected a finite number above 0"))),
    };
    let kind = settings.text("rope_type")?.or(settings.text("type")?).unwrap_or_else(|| "default".into());
    let scaling = match kind.as_str() {
        // Dynamic scaling begins behind max_position_embeddings, where no sequence goes.
        "default" | "dynamic" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: positive("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: positive("factor")?,
            low_freq_factor: positive("low_freq_factor")?,
            high_freq_factor: positive("high_freq_factor")?,
            original_positions: positive("original_max_position_embeddings")?,
        },
        _ => {
            let key = format!("{key}.rope_type");
            let works = "default, linear, dynamic and llama3 are";
            return Err(Error::unsupported(format!("{FILE}: `{key}`: {kind} is not supported; {works}")));
        }
    };
    Ok((theta, scaling))
}
