//! The frozen base: `output = x·Wᵀ + bias` and its transpose for the input gradient.

pub mod linear_f32;
pub mod linear_f32_gemv;
pub mod linear_f32_t;
pub mod linear_f32_t_gemv;
pub mod linear_f32_t_vec4;
pub mod linear_f32_vec4;
