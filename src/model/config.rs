//! What a model is: the meaning of Hugging Face's `config.json`.

use crate::kernels::nn::{Gate, Heads};

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
#[derive(Debug, Clone, Copy, PartialEq)]
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
}

impl ModelConfig {
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
}
