//! One Rust file for each shader: its bindings, its `Params`, and a function that checks shapes and records it.
//!
//! Shapes are row-major: `x [tokens, in_features]`, `A [rank, in_features]`, `B [out_features, rank]`,
//! `h, dh [tokens, rank]`, `output, y, d_output [tokens, out_features]`, `d_input [tokens, in_features]`.

pub mod base;
pub mod lora;
pub mod loss;
pub mod nn;
pub mod optim;

pub use crate::gpu::{Access, Kernel};

/// Every kernel of the package.
pub static ALL: &[&Kernel] = &[
    &base::linear_f32::KERNEL,
    &base::linear_f32_gemv::KERNEL,
    &base::linear_f32_t::KERNEL,
    &base::linear_f32_t_gemv::KERNEL,
    &base::linear_f32_t_vec4::KERNEL,
    &base::linear_f32_vec4::KERNEL,
    &lora::add_scaled::KERNEL,
    &lora::bias_add::KERNEL,
    &lora::bias_grad::KERNEL,
    &lora::dora::KERNEL,
    &lora::dora_grad::KERNEL,
    &lora::dropout::KERNEL,
    &lora::find_non_finite::KERNEL,
    &lora::fused_b_add::KERNEL,
    &lora::grad_a::KERNEL,
    &lora::grad_b::KERNEL,
    &lora::grad_dh::KERNEL,
    &lora::grad_dh_gemv::KERNEL,
    &lora::input_grad::KERNEL,
    &lora::merge::KERNEL,
    &lora::project_a::KERNEL,
    &lora::project_a_gemv::KERNEL,
    &lora::project_b::KERNEL,
    &lora::row_squares::KERNEL,
    &lora::save_activation::KERNEL,
    &lora::scale_rows::KERNEL,
    &lora::weight_norm::KERNEL,
    &loss::bce_with_logits::KERNEL,
    &loss::cross_entropy::KERNEL,
    &loss::lm_head_grad::KERNEL,
    &loss::lm_head_loss::KERNEL,
    &loss::lm_head_stats::KERNEL,
    &loss::mean::KERNEL,
    &loss::mse::KERNEL,
    &loss::total::KERNEL,
    &nn::activation::KERNEL,
    &nn::activation_grad::KERNEL,
    &nn::add::KERNEL,
    &nn::attention::KERNEL,
    &nn::attention_grad_kv::KERNEL,
    &nn::attention_grad_q::KERNEL,
    &nn::attention_step::KERNEL,
    &nn::cache_write::KERNEL,
    &nn::embedding::KERNEL,
    &nn::gated::KERNEL,
    &nn::gated_grad::KERNEL,
    &nn::norm::KERNEL,
    &nn::norm_grad::KERNEL,
    &nn::rope::KERNEL,
    &optim::adamw::KERNEL,
    &optim::begin_step::KERNEL,
    &optim::end_micro_batch::KERNEL,
    &optim::grad_norm::KERNEL,
    &optim::sgd::KERNEL,
    &optim::sgd_momentum::KERNEL,
];
