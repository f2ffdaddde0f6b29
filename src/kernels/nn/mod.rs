//! What stands between linear layers.

pub mod activation;
pub mod activation_grad;
pub mod norm;
pub mod norm_grad;

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
