//! One Rust file for each shader: its bindings, its `Params`, and a function that checks shapes and records it.
//!
//! Shapes are row-major: `x [tokens, in_features]`, `A [rank, in_features]`, `B [out_features, rank]`,
//! `h, dh [tokens, rank]`, `output, y, d_output [tokens, out_features]`, `d_input [tokens, in_features]`.

/// A shader's text; in what a page downloads without comments and indentation, which are a third of it.
macro_rules! wgsl {
    ($path:literal) => {{
        const TEXT: &str = include_str!($path);
        if cfg!(all(target_arch = "wasm32", not(debug_assertions))) {
            const LEN: usize = $crate::kernels::strip::<0>(TEXT).1;
            const STRIPPED: &[u8] = &$crate::kernels::strip::<LEN>(TEXT).0;
            match std::str::from_utf8(STRIPPED) {
                Ok(text) => text,
                Err(_) => TEXT,
            }
        } else {
            TEXT
        }
    }};
}

pub mod base;
pub mod lora;
pub mod loss;
pub mod nn;
pub mod optim;

pub use crate::gpu::{Access, Kernel};

/// The text without line comments, indentation and empty lines, as far as it fits, and its whole length. WGSL has no strings
/// in which two slashes could stand.
const fn strip<const LEN: usize>(text: &str) -> ([u8; LEN], usize) {
    let text = text.as_bytes();
    let (mut out, mut len, mut i, mut in_comment, mut line_begins) = ([b' '; LEN], 0, 0, false, true);
    while i < text.len() {
        let byte = text[i];
        if byte == b'/' && i + 1 < text.len() && text[i + 1] == b'/' {
            in_comment = true;
        }
        if byte == b'\n' {
            in_comment = false;
        }
        let skipped = in_comment || line_begins && (byte == b' ' || byte == b'\n');
        if !skipped {
            if len < LEN {
                out[len] = byte;
            }
            len += 1;
            line_begins = byte == b'\n';
        }
        i += 1;
    }
    (out, len)
}

/// Every kernel of the package.
pub fn all() -> impl Iterator<Item = &'static Kernel> {
    ONE_BY_ONE.iter().copied().chain(base::products())
}

/// All but the base's products, which come in a kernel for each layout of the weight.
static ONE_BY_ONE: &[&Kernel] = &[
    &base::absmax_int8::KERNEL,
    &base::add_parts::KERNEL,
    &base::linear_quad::KERNEL,
    &base::linear_t_quad::KERNEL,
    &base::pad_rows::KERNEL,
    &lora::add_scaled::KERNEL,
    &lora::bias_add::KERNEL,
    &lora::bias_grad::KERNEL,
    &lora::dora::KERNEL,
    &lora::dora_grad::KERNEL,
    &lora::dropout::KERNEL,
    &lora::find_non_finite::KERNEL,
    &lora::fused_b_add::KERNEL,
    &lora::fused_b_add_tiled::KERNEL,
    &lora::grad_a::KERNEL,
    &lora::grad_a_tiled::KERNEL,
    &lora::grad_b::KERNEL,
    &lora::grad_b_tiled::KERNEL,
    &lora::grad_dh::KERNEL,
    &lora::grad_dh_gemv::KERNEL,
    &lora::input_grad::KERNEL,
    &lora::input_grad_tiled::KERNEL,
    &lora::merge::KERNEL,
    &lora::merge_f16::KERNEL,
    &lora::project_a::KERNEL,
    &lora::project_a_gemv::KERNEL,
    &lora::project_b::KERNEL,
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
    &nn::attention_tiled::KERNEL,
    &nn::attention_grad_kv::KERNEL,
    &nn::attention_grad_kv_tiled::KERNEL,
    &nn::attention_grad_q::KERNEL,
    &nn::attention_grad_q_tiled::KERNEL,
    &nn::attention_step::KERNEL,
    &nn::cache_write::KERNEL,
    &nn::embedding::KERNEL,
    &nn::embedding_grad::KERNEL,
    &nn::gated::KERNEL,
    &nn::gated_grad::KERNEL,
    &nn::norm::KERNEL,
    &nn::norm_grad::KERNEL,
    &nn::rope::KERNEL,
    &nn::sample::KERNEL,
    &optim::adamw::KERNEL,
    &optim::begin_step::KERNEL,
    &optim::end_micro_batch::KERNEL,
    &optim::grad_norm::KERNEL,
    &optim::sgd::KERNEL,
    &optim::sgd_momentum::KERNEL,
];

#[cfg(test)]
mod tests {
    #[test]
    fn what_a_page_downloads_is_the_shader_without_comments_and_indentation() {
        const TEXT: &str = "// a\n\nlet x = a / b; // c // d\n    let y = 1;\n\n}\n";
        const LEN: usize = super::strip::<0>(TEXT).1;
        assert_eq!(std::str::from_utf8(&super::strip::<LEN>(TEXT).0).unwrap(), "let x = a / b; \nlet y = 1;\n}\n");
    }
}
