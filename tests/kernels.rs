//! Every kernel against its f64 reference, over awkward shapes, repeated, and with its shader made wrong on purpose.

#[path = "kernels/base.rs"]
mod base;
#[path = "kernels/base_file.rs"]
mod base_file;
#[path = "kernels/cases.rs"]
mod cases;
#[allow(dead_code)] // tests/contract.rs uses the rest
#[path = "kernels/chosen.rs"]
mod chosen;
mod common;
#[path = "kernels/edges.rs"]
mod edges;
#[path = "kernels/page.rs"]
mod page;
mod reference;
#[path = "kernels/transformer.rs"]
mod transformer;

use cases::{Case, Spec};
use common::tolerance::{Worst, compare};
use common::{PROFILES, Rng, bits, fresh_gpu, gpu_as};
use lora_webgpu::kernels::all;
use lora_webgpu::{Gpu, Profile, Recording, Tensor};
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

/// The tests of the kernel NAME.
macro_rules! tests {
    ($($test:ident)*) => {$(tests!(@$test);)*};
    (@agrees) => {
        #[wasm_bindgen_test(unsupported = pollster::test)]
        async fn agrees_with_the_reference_over_awkward_shapes() {
            agrees(spec(NAME)).await;
        }
    };
    (@repeats) => {
        #[wasm_bindgen_test(unsupported = pollster::test)]
        async fn gives_the_same_bits_twenty_times() {
            repeats(spec(NAME)).await;
        }
    };
    (@mutations) => {
        #[wasm_bindgen_test(unsupported = pollster::test)]
        async fn is_caught_when_its_shader_is_wrong() {
            mutations_are_caught(spec(NAME)).await;
        }
    };
}

macro_rules! kernels {
    ($($group:ident: $($kernel:ident)*;)*) => {$($(
        mod $kernel {
            use crate::*;

            const NAME: &str = concat!(stringify!($group), "/", stringify!($kernel));
            tests!(agrees repeats mutations);
        }
    )*)*};
}

/// Products of the base: each agrees in every layout of the weight; how its invocations work together is the same in all, and
/// how a layout is read is the same in all products.
macro_rules! products {
    ($($product:ident: $($layout:ident [$($test:ident)*])*;)*) => {$(
        mod $product {$(
            mod $layout {
                use crate::*;

                const NAME: &str = concat!("base/", stringify!($product), "_", stringify!($layout));
                tests!(agrees $($test)*);
            }
        )*}
    )*};
}

products! {
    linear: f32 [] f32_any [repeats mutations] f16 [] bf16 [] ternary [] q8_0 [] q4_0 [] q4_1 [];
    linear_gemv: f32 [] f32_any [repeats mutations] f16 [] bf16 [] ternary [mutations] q8_0 [mutations] q4_0 [mutations] q4_1 [mutations];
    linear_vec4: f32 [] f32_any [repeats mutations] f16 [] bf16 [] ternary [] q8_0 [] q4_0 [] q4_1 [];
    linear_t: f32 [] f32_any [repeats mutations] f16 [] bf16 [] ternary [] q8_0 [] q4_0 [] q4_1 [];
    linear_t_gemv: f32 [] f32_any [repeats mutations] f16 [] bf16 [] ternary [repeats mutations] q8_0 [mutations] q4_0 [mutations] q4_1 [mutations];
    linear_t_vec4: f32 [] f32_any [repeats mutations] f16 [] bf16 [] ternary [] q8_0 [] q4_0 [] q4_1 [];
    linear_gemv_subgroups: f32 [] f32_any [repeats mutations] f16 [] bf16 [] ternary [] q8_0 [];
    rows: f32 [mutations] f32_any [repeats mutations] f16 [mutations] bf16 [mutations] ternary [mutations] q8_0 [mutations] q4_0 [mutations] q4_1 [mutations];
    row_squares: f32 [] f32_any [repeats mutations] f16 [] bf16 [] ternary [] q8_0 [] q4_0 [] q4_1 [];
}

products! {
    linear_wide: f32_any [repeats mutations];
    linear_t_wide: f32_any [repeats mutations];
}

#[cfg(not(target_arch = "wasm32"))]
mod natively {
    // In the browser on a software adapter each takes two seconds to compile.
    products! {
        linear_wide: f32 [] f16 [] bf16 [] ternary [] q8_0 [] q4_0 [] q4_1 [];
        linear_t_wide: f32 [] f16 [] bf16 [] ternary [] q8_0 [] q4_0 [] q4_1 [];
    }

    // Chromium's software adapter has no f16.
    kernels! {
        base: linear_half linear_t_half;
    }
}

kernels! {
    base: absmax_int8 add_parts linear_quad linear_t_quad pad_rows linear_grad;
    lora: add_scaled bias_add bias_grad dora dora_grad dora_tiled dropout dropout_vec4 find_non_finite fused_b_add fused_b_add_tiled grad_a grad_a_tiled grad_b grad_b_dh grad_b_dh_sums grad_b_tiled grad_dh grad_dh_gemv grad_dh_tiled input_grad input_grad_tiled merge merge_f16 project_a project_a_gemv project_a_subgroups project_a_tiled project_b save_activation scale_rows weight_norm;
    loss: bce_with_logits cross_entropy lm_head_grad lm_head_loss lm_head_stats mean mse total;
    nn: activation activation_grad add attention attention_grad_kv attention_grad_kv_tiled attention_grad_q attention_grad_q_tiled attention_step attention_tiled cache_write embedding embedding_grad gated gated_grad;
    nn: norm norm_grad rope sample;
    optim: adamw begin_step end_micro_batch grad_norm sgd sgd_momentum;
}

fn specs() -> impl Iterator<Item = &'static Spec> {
    cases::SPECS.iter().chain(transformer::SPECS).chain(&base::PRODUCTS).chain(base::OPTIONAL).chain(base::INPUTS)
}

fn spec(name: &str) -> &'static Spec {
    specs().find(|spec| spec.kernel.name == name).unwrap_or_else(|| panic!("{name} has no case"))
}

impl Spec {
    /// The case at one shape, with numbers of its own.
    fn at(&self, shape: usize) -> Case {
        (self.case)(self.shapes[shape], &mut Rng(1 + shape as u64))
    }
}

/// Uploads, records, submits and reads back; with the contents of the outputs before and after.
async fn run(gpu: &Gpu, case: &Case) -> Vec<Vec<f32>> {
    let tensors: Vec<Tensor> =
        case.tensors.iter().enumerate().map(|(i, given)| given.upload(gpu, &format!("tensor {i}"))).collect();
    let rec = Recording::new(gpu);
    (case.record)(&rec, &tensors).unwrap();
    rec.submit().await.unwrap_or_else(|error| panic!("the dispatch was refused: {error}"));
    let mut outputs = Vec::new();
    for (index, _) in &case.expected {
        outputs.push(tensors[*index].read().await.unwrap());
    }
    tensors.iter().for_each(Tensor::destroy);
    outputs
}

/// The check of a kernel's outputs that its own mutations are held against.
fn check(name: &str, case: &Case, outputs: &[Vec<f32>]) -> Result<Worst, String> {
    case.expected.iter().zip(outputs).try_fold(Worst::default(), |worst, ((index, expected), output)| {
        compare(&format!("{name}, tensor {index}"), &case.tensors[*index].data, output, expected).map(|w| worst.and(w))
    })
}

/// In the browser on a software adapter, compiling hardware's large workgroups takes most of a second for each: products of the
/// base are compiled for both in one layout, and else for software; attention, whose tiles are largest, for software.
async fn profiles(spec: &Spec) -> &'static [Profile] {
    // Natively every adapter can run every kernel, and those that are tested must.
    let has = gpu_as(Profile::Software).await.optional_features();
    if cfg!(target_arch = "wasm32") && !chosen::is_possible(spec.kernel, has) {
        let name = spec.kernel.name;
        assert!(chosen::F16.contains(&name), "{name}: these tests need a browser that has subgroups, as {has:?} says");
        return &[];
    }
    let one_of_many = spec.kernel.source.len() > 1 && !spec.kernel.name.ends_with("_f32_any");
    let large = spec.kernel.name.starts_with("nn/attention");
    let same = spec.kernel.constants.is_empty(); // for both
    if same || cfg!(target_arch = "wasm32") && (one_of_many || large) { &PROFILES[1..] } else { &PROFILES }
}

async fn agrees(spec: &Spec) {
    let mut worst = Worst::default();
    for &profile in profiles(spec).await {
        let gpu = gpu_as(profile).await;
        for (i, shape) in spec.shapes.iter().enumerate() {
            let case = spec.at(i);
            let outputs = run(&gpu, &case).await;
            let name = format!("{} for {profile:?} at {shape:?}", spec.kernel.name);
            worst = worst.and(check(&name, &case, &outputs).unwrap_or_else(|failure| panic!("{failure}")));
        }
        page::add(&gpu, spec, worst);
    }
}

async fn repeats(spec: &Spec) {
    for &profile in profiles(spec).await {
        let gpu = gpu_as(profile).await;
        for i in spec.repeated.clone() {
            let case = spec.at(i);
            let first = run(&gpu, &case).await;
            for _ in 1..20 {
                for (a, b) in first.iter().zip(run(&gpu, &case).await) {
                    let name = spec.kernel.name;
                    assert!(bits(a) == bits(&b), "{name} for {profile:?} at {:?} gave other bits", spec.shapes[i]);
                }
            }
        }
    }
}

async fn mutations_are_caught(spec: &Spec) {
    assert!(!spec.mutations.is_empty(), "{} has no wrong shaders", spec.kernel.name);
    // In the browser on a software adapter, compiling hardware's large workgroups takes most of a second for each.
    let profiles = profiles(spec).await;
    let profiles = if cfg!(target_arch = "wasm32") { &profiles[profiles.len().saturating_sub(1)..] } else { profiles };
    // There, too, a few of them show that the check can fail; natively it is all.
    let tried = if cfg!(target_arch = "wasm32") { 3 } else { usize::MAX };
    for (what, from, to) in spec.mutations.iter().take(tried) {
        let source = spec.kernel.text();
        let found = source.matches(from).count();
        assert_eq!(found, 1, "{} with {what}: «{from}» must stand in the shader once", spec.kernel.name);
        for &profile in profiles {
            let gpu = fresh_gpu(Some(profile)).await;
            gpu.replace_shader(spec.kernel.name, source.replace(from, to));
            let mut caught = false;
            for i in 0..spec.shapes.len() {
                let case = spec.at(i);
                caught = caught || check("", &case, &run(&gpu, &case).await).is_err();
                if caught {
                    break;
                }
            }
            gpu.destroy();
            assert!(caught, "{} for {profile:?} with {what} was not caught", spec.kernel.name);
        }
    }
}

/// As where subgroups are of 32 to 128 invocations: a workgroup has no more of them than `few`, and the others make nothing.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn few_subgroups_make_all_teams_in_rounds() {
    let spec = spec("base/linear_gemv_subgroups_f32_any");
    for few in 1..5 {
        let gpu = fresh_gpu(None).await;
        let beyond = format!("round + select(subgroup, TEAMS, subgroup >= {few})");
        let text = spec.kernel.text().replace("round += subgroups", &format!("round += min({few}, subgroups)"));
        gpu.replace_shader(spec.kernel.name, text.replace("round + subgroup", &beyond));
        for i in 0..spec.shapes.len() {
            let case = spec.at(i);
            check(&format!("{few} subgroups"), &case, &run(&gpu, &case).await)
                .unwrap_or_else(|failure| panic!("{failure}"));
        }
        gpu.destroy();
    }
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn every_kernel_has_a_case_and_compiles_here() {
    // Of the others the browser checks the text, which takes a thousandth of compiling it.
    let compiled = |name: &str| !cfg!(target_arch = "wasm32") || !name.contains("_wide_") || name.ends_with("_f32_any");
    for kernel in all().filter(|kernel| !compiled(kernel.name)) {
        let gpu = gpu_as(Profile::Software).await;
        let scope = gpu.device().push_error_scope(wgpu::ErrorFilter::Validation);
        let source = wgpu::ShaderSource::Wgsl(kernel.text().into());
        drop(gpu.device().create_shader_module(wgpu::ShaderModuleDescriptor { label: Some(kernel.name), source }));
        assert_eq!(scope.pop().await.map(|error| error.to_string()), None, "{}", kernel.name);
    }
    for profile in PROFILES {
        let gpu = fresh_gpu(Some(profile)).await;
        let mut kernels = 0;
        for spec in specs().filter(|spec| compiled(spec.kernel.name)) {
            if profiles(spec).await.contains(&profile) {
                run(&gpu, &spec.at(0)).await; // fails where compiling does
                kernels += 1;
            }
        }
        assert_eq!(gpu.stats().pipelines, kernels, "each kernel's own case must run it");
    }
    assert_eq!(specs().count(), all().count());
}
