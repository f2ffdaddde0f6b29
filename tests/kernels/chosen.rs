//! Which kernels a device is ever given, by hand: `tests/contract.rs` holds the lists to where `src` chooses.

use lora_webgpu::kernels::Kernel;
use lora_webgpu::{OptionalFeatures, Profile};

/// For hardware alone: tiles in workgroup memory.
pub const HARDWARE: &[&str] = &[
    "base/linear",
    "base/linear_t",
    "base/linear_t_wide",
    "base/linear_wide",
    "base/linear_grad",
    "lora/dora_tiled",
    "lora/fused_b_add_tiled",
    "lora/grad_a_tiled",
    "lora/grad_b_tiled",
    "lora/grad_dh_tiled",
    "lora/input_grad_tiled",
    "lora/project_a_tiled",
    "nn/attention_grad_kv_tiled",
    "nn/attention_grad_q_tiled",
    "nn/attention_tiled",
];

/// For software adapters alone.
pub const SOFTWARE: &[&str] =
    &["base/linear_t_vec4", "base/linear_vec4", "nn/attention", "nn/attention_grad_kv", "nn/attention_grad_q"];

/// For software adapters with subgroups.
pub const QUADS: &[&str] = &["base/linear_quad", "base/linear_t_quad"];

/// A kernel's name, without the layout of the weight where it is one of many.
pub fn product(kernel: &Kernel) -> &'static str {
    const LAYOUTS: [&str; 8] = ["_f32", "_f32_any", "_f16", "_bf16", "_ternary", "_q8_0", "_q4_0", "_q4_1"];
    match kernel.source {
        [_] => kernel.name,
        _ => LAYOUTS.iter().find_map(|layout| kernel.name.strip_suffix(layout)).unwrap_or(kernel.name),
    }
}

/// For hardware with subgroups.
pub const SUBGROUPS: &[&str] =
    &["base/linear_gemv_subgroups", "lora/grad_b_dh", "lora/grad_b_dh_sums", "lora/project_a_subgroups"];

/// For hardware with f16.
pub const F16: &[&str] = &["base/linear_half", "base/linear_t_half"];

/// What a device with every optional feature has.
pub const ALL_FEATURES: OptionalFeatures = OptionalFeatures { subgroups: true, subgroup_ids: true, f16: true };

/// Whether a device with these features can run the kernel.
pub fn is_possible(kernel: &Kernel, has: OptionalFeatures) -> bool {
    let is_in = |names: &[&str]| names.contains(&product(kernel));
    (has.subgroups || !is_in(QUADS)) && (has.subgroup_ids || !is_in(SUBGROUPS)) && (has.f16 || !is_in(F16))
}

/// Whether such a device is ever given the kernel.
pub fn is_chosen(kernel: &Kernel, profile: Profile, has: OptionalFeatures) -> bool {
    let is_in = |lists: &[&[&str]]| lists.iter().any(|names| names.contains(&product(kernel)));
    let others = match profile {
        Profile::Hardware => is_in(&[SOFTWARE, QUADS]),
        Profile::Software => is_in(&[HARDWARE, SUBGROUPS, F16]),
    };
    !others && is_possible(kernel, has)
}
