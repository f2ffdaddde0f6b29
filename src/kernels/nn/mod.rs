//! What stands between linear layers.

use crate::error::{Error, Result};
use crate::gpu::Tensor;

pub mod activation;
pub mod activation_grad;
pub mod add;
pub mod attention;
pub mod attention_grad_kv;
pub mod attention_grad_kv_tiled;
pub mod attention_grad_q;
pub mod attention_grad_q_tiled;
pub mod attention_step;
pub mod attention_tiled;
pub mod cache_write;
pub mod embedding;
pub mod embedding_grad;
pub mod gated;
pub mod gated_grad;
pub mod norm;
pub mod norm_grad;
pub mod rope;
pub mod sample;

/// An elementwise function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Activation {
    /// tanh
    Tanh = 0,
    /// max(x, 0)
    Relu = 1,
    /// x·Φ(x), with erf as PyTorch's default
    Gelu = 2,
    /// x·σ(x)
    Silu = 3,
}

/// The function of a gated product f(gate)·up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Gate {
    /// x·σ(x): SwiGLU
    Silu = 0,
    /// max(x, 0)²
    Relu2 = 1,
}

/// How the rows of queries and keys are divided among heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values; each serves `heads / kv_heads` query heads, one after another.
    pub kv_heads: usize,
    /// Elements of a head, an even number.
    pub head_dim: usize,
}

impl Heads {
    /// 1/√head_dim
    fn scale(self) -> f32 {
        (1.0 / (self.head_dim as f64).sqrt()) as f32
    }

    /// Checks itself and the shapes `[rows, heads·head_dim]`, `[rows, kv_heads·head_dim]` and `[rows, heads, 2]`.
    fn check(
        self,
        rows: usize,
        like_q: &[(&str, &Tensor)],
        like_k: &[(&str, &Tensor)],
        stats: Option<&Tensor>,
    ) -> Result<()> {
        let Heads { heads, kv_heads, head_dim } = self;
        if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(Error::argument("heads", &format!("a multiple of kv_heads {kv_heads}"), heads.to_string()));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(Error::argument("head_dim", "an even number", head_dim.to_string()));
        }
        like_q.iter().try_for_each(|(name, tensor)| tensor.expect_shape(name, &[rows, heads * head_dim]))?;
        like_k.iter().try_for_each(|(name, tensor)| tensor.expect_shape(name, &[rows, kv_heads * head_dim]))?;
        stats.map_or(Ok(()), |stats| stats.expect_shape("stats", &[rows, heads, 2]))
    }
}
