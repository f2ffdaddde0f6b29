//! One Rust file for each shader: its bindings, its `Params`, and a function that checks shapes and records it.
//!
//! Shapes are row-major: `x [tokens, in_features]`, `A [rank, in_features]`, `B [out_features, rank]`,
//! `h, dh [tokens, rank]`, `output, y, d_output [tokens, out_features]`, `d_input [tokens, in_features]`.

/// A shader's text; in what a page downloads without comments and needless spaces, which are two fifths of it.
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

/// The text without line comments, empty lines and needless spaces, as far as it fits, and its whole length. WGSL has no strings
/// in which two slashes could stand. A space is needed between words and between operators.
const fn strip<const LEN: usize>(text: &str) -> ([u8; LEN], usize) {
    let text = text.as_bytes();
    let (mut out, mut len, mut i, mut last, mut space) = ([b' '; LEN], 0, 0, b'\n', false);
    while i < text.len() {
        while text[i] == b'/' && i + 1 < text.len() && text[i + 1] == b'/' {
            while text[i] != b'\n' {
                i += 1;
            }
        }
        let byte = text[i];
        i += 1;
        if byte == b' ' || byte == b'\n' && last == b'\n' {
            space = true;
            continue;
        }
        if space && (is_word(byte) && is_word(last) || is_operator(byte) && is_operator(last)) {
            if len < LEN {
                out[len] = b' ';
            }
            len += 1;
        }
        if len < LEN {
            out[len] = byte;
        }
        len += 1;
        (last, space) = (byte, false);
    }
    (out, len)
}

const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

const fn is_operator(byte: u8) -> bool {
    !is_word(byte) && !matches!(byte, b'(' | b')' | b'[' | b']' | b'{' | b'}' | b',' | b';' | b':' | b'\n')
}

/// Every kernel of the package.
pub fn all() -> impl Iterator<Item = &'static Kernel> {
    ONE_BY_ONE.iter().copied().chain(base::products())
}

/// All but the base's products, which come in a kernel for each layout of the weight.
static ONE_BY_ONE: &[&Kernel] = &[
    &base::absmax_int8::KERNEL,
    &base::add_parts::KERNEL,
    &base::linear_half::KERNEL,
    &base::linear_quad::KERNEL,
    &base::linear_t_half::KERNEL,
    &base::linear_t_quad::KERNEL,
    &base::pad_rows::KERNEL,
    &base::linear_grad::KERNEL,
    &lora::add_scaled::KERNEL,
    &lora::bias_add::KERNEL,
    &lora::bias_grad::KERNEL,
    &lora::dora::KERNEL,
    &lora::dora_grad::KERNEL,
    &lora::dora_tiled::KERNEL,
    &lora::dropout::KERNEL,
    &lora::dropout_vec4::KERNEL,
    &lora::find_non_finite::KERNEL,
    &lora::fused_b_add::KERNEL,
    &lora::fused_b_add_tiled::KERNEL,
    &lora::grad_a::KERNEL,
    &lora::grad_a_tiled::KERNEL,
    &lora::grad_b::KERNEL,
    &lora::grad_b_dh::KERNEL,
    &lora::grad_b_dh_sums::KERNEL,
    &lora::grad_b_tiled::KERNEL,
    &lora::grad_dh::KERNEL,
    &lora::grad_dh_gemv::KERNEL,
    &lora::grad_dh_tiled::KERNEL,
    &lora::input_grad::KERNEL,
    &lora::input_grad_tiled::KERNEL,
    &lora::merge::KERNEL,
    &lora::merge_f16::KERNEL,
    &lora::project_a::KERNEL,
    &lora::project_a_gemv::KERNEL,
    &lora::project_a_subgroups::KERNEL,
    &lora::project_a_tiled::KERNEL,
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
    use super::strip;

    #[test]
    fn what_a_page_downloads_is_the_shader_without_comments_and_needless_spaces() {
        const TEXT: &str = "// a\n\nlet x = a / b; // c // d\n    let y = 1 - -z;\n\n} // e\n";
        const LEN: usize = strip::<0>(TEXT).1;
        assert_eq!(std::str::from_utf8(&strip::<LEN>(TEXT).0).unwrap(), "let x=a/b;\nlet y=1- -z;\n}\n");
    }

    #[cfg(not(target_arch = "wasm32"))]
    #[test]
    fn what_a_page_downloads_of_every_shader_means_what_its_file_says() {
        use naga::valid::{Capabilities, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
        const ROOM: usize = 16_384;
        let capabilities =
            Capabilities::SHADER_FLOAT16_IN_FLOAT32 | Capabilities::SHADER_FLOAT16 | Capabilities::SUBGROUP;
        let compiled = |text: &str, kernel: &super::Kernel| {
            let module = naga::front::wgsl::parse_str(text).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
            let info = Validator::new(ValidationFlags::all(), capabilities)
                .subgroup_stages(ShaderStages::COMPUTE)
                .subgroup_operations(SubgroupOperationSet::all())
                .validate(&module)
                .unwrap();
            let constants = kernel.constants.iter().map(|&(name, value, _)| (name.into(), value.into())).collect();
            let (module, info) =
                naga::back::pipeline_constants::process_overrides(&module, &info, None, &constants).unwrap();
            let options =
                naga::back::spv::Options { fake_missing_bindings: true, lang_version: (1, 3), ..Default::default() };
            naga::back::spv::write_vec(&module, &info, &options, None).unwrap()
        };
        for kernel in super::all() {
            let stripped = kernel.source.iter().map(|part| {
                let (bytes, len) = strip::<ROOM>(part);
                String::from_utf8(bytes[..len].to_vec()).unwrap()
            });
            let (text, stripped) = (kernel.source.concat(), stripped.collect::<String>());
            assert!(stripped.len() < text.len(), "{}", kernel.name);
            assert_eq!(compiled(&stripped, kernel), compiled(&text, kernel), "{}", kernel.name);
        }
    }
}
