//! Whatever a caller gets wrong is an error with a code and a message that names it; nothing is half-recorded, and the
//! objects still work.

mod common;
mod reference;

use common::tolerance::{assert_close, exact};
use common::{Rng, bits, f64s, fresh_gpu, gpu, refused};
use lora_webgpu::kernels::nn::{Gate, Heads};
use lora_webgpu::kernels::optim::LrRatio;
use lora_webgpu::kernels::{base, lora, loss, nn, optim};
use lora_webgpu::{
    Activation, AdamW, DType, FrozenLinear, FrozenLoader, Gpu, LoraConfig, LoraGrad, LoraLinear, LoraWeight, Loss,
    Norm, Optimizer, OptimizerKind, OptimizerOptions, Recording, Result, Schedule, Sgd, Tensor, WeightKind,
};
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

/// One learning rate for all.
const GROUP: LrRatio = LrRatio { from: 0, ratio: 1.0 };

/// A tensor of ones.
fn ones(gpu: &Gpu, label: &str, shape: &[usize]) -> Tensor {
    Tensor::from_slice(gpu, label, shape, &vec![1.0; shape.iter().product()]).unwrap()
}

fn layer(gpu: &Gpu, name: &str) -> LoraLinear {
    let base = FrozenLinear::new(gpu, 5, 4, &Rng(1).numbers(20), None).unwrap();
    LoraLinear::new(gpu, Some(name), base, &LoraConfig::new(2, 4.0)).unwrap()
}

/// That a step of training still changes B, which starts as zeros.
async fn still_trains(gpu: &Gpu, layer: &LoraLinear) {
    let optimizer =
        Optimizer::new(gpu, &[layer], OptimizerOptions::new(OptimizerKind::AdamW(AdamW::default()), 0.1)).unwrap();
    let (x, d_output) = (ones(gpu, "x", &[3, 4]), ones(gpu, "d_output", &[3, 5]));
    let rec = Recording::new(gpu);
    layer.forward(&rec, &x).unwrap();
    layer.backward(&rec, &x, &d_output, None).unwrap();
    optimizer.step(&rec).unwrap();
    rec.submit().await.unwrap();
    assert!(layer.weight().b.read().await.unwrap().iter().all(|v| v.is_finite() && *v != 0.0));
    optimizer.destroy();
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn tensors_have_positive_dimensions_and_as_many_elements() {
    let gpu = gpu().await;
    for shape in [&[][..], &[0], &[3, 0], &[0, 3]] {
        refused("an empty shape", Tensor::zeros(&gpu, "empty", shape), "shape", &["empty", &format!("{shape:?}")]);
    }
    refused("too few", Tensor::from_slice(&gpu, "few", &[2, 3], &[0.0; 5]), "shape", &["few", "6", "5"]);
    let tensor = ones(&gpu, "target", &[2, 3]);
    refused("a write of another length", tensor.write(&[0.0; 7]), "shape", &["target", "6", "7"]);
    assert_eq!(tensor.read().await.unwrap(), [1.0; 6], "nothing was written");
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn sizes_above_the_limits_are_refused_before_anything_is_made() {
    let gpu = gpu().await;
    let before = gpu.memory();
    let most = gpu.limits().max_buffer_size.min(gpu.limits().max_storage_buffer_binding_size) / 4;
    for shape in [&[most as usize + 1][..], &[usize::MAX], &[usize::MAX, usize::MAX], &[usize::MAX / 2, 3]] {
        refused("a tensor", Tensor::zeros(&gpu, "huge", shape), "limit", &["huge"]);
    }
    let parts: [(&str, &[usize]); 2] = [("half", &[most as usize / 2 + 64]), ("more", &[most as usize / 2 + 64])];
    refused("an arena", Tensor::arena(&gpu, "arena", &parts), "limit", &["arena"]);
    refused("an arena", Tensor::arena(&gpu, "arena", &[("whole", &[usize::MAX / 4])]), "limit", &[]);
    for rank in [most as usize, usize::MAX / 8, usize::MAX] {
        refused("a rank", LoraWeight::new(&gpu, 64, 64, &LoraConfig::new(rank, 1.0)), "limit", &["lora"]);
    }
    assert_eq!(gpu.memory(), before);
    still_trains(&gpu, &layer(&gpu, "after")).await;
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn configurations_out_of_range_are_refused() {
    let gpu = gpu().await;
    let before = gpu.memory();
    for (rank, alpha, name) in [
        (0, 1.0, "rank"),
        (4, f64::NAN, "alpha"),
        (4, f64::INFINITY, "alpha"),
        (4, f64::NEG_INFINITY, "alpha"),
        (1, 1e300, "alpha"),
    ] {
        for use_rslora in [false, true] {
            let config = LoraConfig { use_rslora, ..LoraConfig::new(rank, alpha) };
            refused("a scaling", config.scaling(), "invalid-argument", &[name]);
            refused("a weight", LoraWeight::new(&gpu, 3, 5, &config), "invalid-argument", &[name]);
        }
    }
    assert_eq!(gpu.memory(), before);
    assert_eq!(LoraConfig::new(4, 8.0).scaling().unwrap(), 2.0);
    assert_eq!(LoraConfig { use_rslora: true, ..LoraConfig::new(4, 8.0) }.scaling().unwrap(), 4.0);
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn optimizers_refuse_what_is_out_of_range_and_layers_that_are_taken() {
    let gpu = gpu().await;
    let (first, second) = (layer(&gpu, "first"), layer(&gpu, "second"));
    let start = first.weight().a.read().await.unwrap();
    let sgd = OptimizerKind::Sgd(Sgd::default());
    let adamw = |change: fn(&mut AdamW)| {
        let mut options = AdamW::default();
        change(&mut options);
        OptimizerKind::AdamW(options)
    };
    let before = gpu.memory();
    for lr in [f64::NAN, f64::INFINITY, -1e-3, 1e300] {
        refused("lr", Optimizer::new(&gpu, &[&first], OptimizerOptions::new(sgd, lr)), "invalid-argument", &["lr"]);
    }
    for (kind, name) in [
        (adamw(|o| o.beta1 = 1.0), "beta1"),
        (adamw(|o| o.beta1 = -0.1), "beta1"),
        (adamw(|o| o.beta2 = 1.5), "beta2"),
        (adamw(|o| o.beta2 = f64::NAN), "beta2"),
        (adamw(|o| o.beta2 = 1.0 - 1e-12), "beta2"),
        (adamw(|o| o.eps = -1e-8), "eps"),
        (adamw(|o| o.eps = f64::INFINITY), "eps"),
        (adamw(|o| o.weight_decay = f64::NAN), "weightDecay"),
        (OptimizerKind::Sgd(Sgd { momentum: 1.0, weight_decay: 0.0 }), "momentum"),
        (OptimizerKind::Sgd(Sgd { momentum: f64::NAN, weight_decay: 0.0 }), "momentum"),
        (OptimizerKind::Sgd(Sgd { momentum: 0.9, weight_decay: -1.0 }), "weightDecay"),
    ] {
        refused(name, Optimizer::new(&gpu, &[&first], OptimizerOptions::new(kind, 1e-3)), "invalid-argument", &[name]);
    }
    for value in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
        let options = OptimizerOptions { lr_ratio_b: value, ..OptimizerOptions::new(sgd, 1e-3) };
        refused("a ratio", Optimizer::new(&gpu, &[&first], options), "invalid-argument", &["lrRatioB"]);
    }
    for value in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300] {
        let options = OptimizerOptions { max_grad_norm: Some(value), ..OptimizerOptions::new(sgd, 1e-3) };
        refused("a norm", Optimizer::new(&gpu, &[&first], options), "invalid-argument", &["maxGradNorm"]);
    }
    for schedule in [
        Schedule::Linear { warmup: 3, total: 2 },
        Schedule::Cosine { warmup: 0, total: 0 },
        Schedule::Linear { warmup: 0, total: usize::MAX },
        Schedule::ConstantWithWarmup { warmup: usize::MAX },
    ] {
        let options = OptimizerOptions { schedule, ..OptimizerOptions::new(sgd, 1e-3) };
        refused("a schedule", Optimizer::new(&gpu, &[&first], options), "invalid-argument", &["schedule"]);
    }
    refused("no layers", Optimizer::new(&gpu, &[], OptimizerOptions::new(sgd, 1e-3)), "invalid-argument", &["layers"]);
    refused(
        "a layer twice",
        Optimizer::new(&gpu, &[&first, &second, &first], OptimizerOptions::new(sgd, 1e-3)),
        "invalid-argument",
        &["first"],
    );
    assert_eq!(gpu.memory(), before);

    let owner = Optimizer::new(&gpu, &[&second], OptimizerOptions::new(sgd, 1e-3)).unwrap();
    refused(
        "a layer of another",
        Optimizer::new(&gpu, &[&first, &second], OptimizerOptions::new(sgd, 1e-3)),
        "invalid-argument",
        &["second"],
    );
    refused("set_lr", owner.set_lr(f64::NAN), "invalid-argument", &["lr"]);
    owner.destroy();
    let next = Optimizer::new(&gpu, &[&first, &second], OptimizerOptions::new(sgd, 1e-3)).unwrap();
    assert_eq!(first.weight().a.read().await.unwrap(), start);
    next.destroy();
    still_trains(&gpu, &first).await;
    still_trains(&gpu, &second).await;
}

/// Everything that takes shapes, each with one wrong.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn wrong_shapes_are_refused_by_name_and_nothing_is_recorded() {
    let gpu = gpu().await;
    let t = |shape: &[usize]| ones(&gpu, "given", shape);
    let rec = Recording::new(&gpu);
    let adamw = AdamW::default();
    let weight = LoraWeight::from_tensors(t(&[2, 4]), t(&[5, 2])).unwrap();
    let grad = LoraGrad::new(&gpu, &weight).unwrap();
    let labels = |len| Tensor::integers(&gpu, "labels", &[len], None).unwrap();
    let mse = |z: &Tensor, y: &Tensor, d: &Tensor, totals: &Tensor| loss::mse::record(&rec, z, y, d, totals, false);
    let bce = |z: &Tensor, y: &Tensor, d: &Tensor, totals: &Tensor| {
        loss::bce_with_logits::record(&rec, z, y, d, totals, false)
    };
    let cross_entropy = |z: &Tensor, labels: &Tensor, d: &Tensor, totals: &Tensor| {
        loss::cross_entropy::record(&rec, z, labels, d, totals, false, -100, 0.0)
    };
    let activation_grad = |x: &Tensor, d_output: &Tensor, d_input: &Tensor| {
        nn::activation_grad::record(&rec, Activation::Silu, x, d_output, d_input)
    };
    let integers = |shape: &[usize]| Tensor::integers(&gpu, "integers", shape, None).unwrap();
    let rope = |cos: &[usize], sin: &[usize], x: &[usize]| {
        nn::rope::record(&rec, &t(cos), &t(sin), &integers(&[4]), &t(x), false)
    };
    let gated_grad = |gate: &Tensor, d_gate: &Tensor, d_up: &Tensor| {
        nn::gated_grad::record(&rec, Gate::Relu2, gate, &t(&[3, 5]), &t(&[3, 5]), d_gate, d_up)
    };
    let attention = |(heads, kv_heads, head_dim): (usize, usize, usize), q: &[usize], k: &[usize], stats: &[usize]| {
        let shape = Heads { heads, kv_heads, head_dim };
        nn::attention::record(&rec, shape, &t(q), &t(k), &t(&[6, 16]), &integers(&[2, 3]), &t(&[6, 32]), &t(stats))
    };
    let lm_head_stats =
        |logits: &Tensor, stats: &Tensor| loss::lm_head_stats::record(&rec, logits, &integers(&[4]), stats, 0);
    let begin_step = |bias: &Tensor, totals: &Tensor, state: &Tensor, log: &Tensor| {
        let (lr, partial_sums, window) = (&t(&[1]), &t(&[1]), &t(&[4]));
        let inputs = optim::begin_step::Inputs { lr, bias, partial_sums, partials: 1, totals, window, max_norm: 0.0 };
        optim::begin_step::record(&rec, inputs, state, log)
    };
    let mask = lora::dropout::Mask { p: 0.5, seed: 0, layer: 0 };
    let dropout = |x: &Tensor, state: &Tensor, window: &Tensor, output: &Tensor| {
        lora::dropout::record(&rec, x, state, window, output, mask, false)
    };
    let joined = |b: &Tensor, d_output: &Tensor| {
        let (h, d_b) = (t(&[3, b.shape()[1]]), t(b.shape()));
        lora::grad_b_dh::record(&rec, b, d_output, &h, &d_b, &h.clone(), 1.0)
    };
    let frozen = FrozenLinear::new(&gpu, 5, 4, &[1.0; 20], None).unwrap();
    let rows = frozen.kernel_rows().remove(0);
    let more = base::Rows { first: 1, ..rows.clone() };
    let eight = FrozenLinear::new(&gpu, 5, 8, &[1.0; 40], None).unwrap().kernel_rows().remove(0);
    let any = base::Rows { layout: base::Layout::F32Any, ..eight.clone() };
    let nibbles = base::Rows { layout: base::Layout::Q4_0, ..eight.clone() };
    let mut loader = FrozenLoader::new(&gpu, WeightKind::F16, 5, 4).unwrap();
    loader.write(0, &[0; 40]).unwrap();
    let half = loader.finish().unwrap().kernel_rows().remove(0);
    let biases = [t(&[4]), t(&[5])];
    let bias = |len: usize, first| Some(base::Bias { bias: &biases[len - 4], first });
    let cases: Vec<(&str, Result<()>, &str)> = vec![
        ("dropout", dropout(&t(&[6]), &t(&[8]), &t(&[4]), &t(&[6])), "x"),
        ("dropout", dropout(&t(&[2, 3]), &t(&[7]), &t(&[4]), &t(&[2, 3])), "state"),
        ("dropout", dropout(&t(&[2, 3]), &t(&[8]), &t(&[2]), &t(&[2, 3])), "window"),
        ("dropout", dropout(&t(&[2, 3]), &t(&[8]), &t(&[4]), &t(&[3, 2])), "output"),
        ("find_non_finite", lora::find_non_finite::record(&rec, &t(&[6]), &t(&[2]), &t(&[3]), 0), "window"),
        ("end_micro_batch", optim::end_micro_batch::record(&rec, &t(&[2])), "window"),
        ("project_a", lora::project_a::record(&rec, &t(&[2, 4]), &t(&[3, 5]), &t(&[3, 2])), "x"),
        ("project_a", lora::project_a::record(&rec, &t(&[2, 4]), &t(&[3, 4]), &t(&[2, 3])), "h"),
        ("project_a", lora::project_a::record(&rec, &t(&[8]), &t(&[3, 4]), &t(&[3, 2])), "a"),
        ("project_a", lora::project_a::record(&rec, &t(&[2, 4]), &t(&[12]), &t(&[3, 2])), "x"),
        ("project_a_gemv", lora::project_a_gemv::record(&rec, &t(&[2, 4]), &t(&[2, 4]), &t(&[2, 2])), "x"),
        ("project_a_gemv", lora::project_a_gemv::record(&rec, &t(&[2, 4]), &t(&[1, 4]), &t(&[2, 1])), "h"),
        ("project_b", lora::project_b::record(&rec, &t(&[5, 2]), &t(&[3, 4]), &t(&[3, 5])), "h"),
        ("project_b", lora::project_b::record(&rec, &t(&[5, 2]), &t(&[3, 2]), &t(&[5, 3])), "y"),
        ("add_scaled", lora::add_scaled::record(&rec, &t(&[3, 5]), &t(&[5, 3]), 1.0), "output"),
        ("fused_b_add", lora::fused_b_add::record(&rec, &t(&[5, 2]), &t(&[3, 3]), &t(&[3, 5]), 1.0), "h"),
        ("fused_b_add", lora::fused_b_add::record(&rec, &t(&[5, 2]), &t(&[3, 2]), &t(&[3, 4]), 1.0), "output"),
        ("save_activation", lora::save_activation::record(&rec, &t(&[3, 5]), &t(&[15])), "dst"),
        ("grad_b", lora::grad_b::record(&rec, &t(&[3, 4]), &t(&[3, 2]), &t(&[5, 2]), 1.0), "d_output"),
        ("grad_b", lora::grad_b::record(&rec, &t(&[3, 5]), &t(&[3, 1]), &t(&[5, 2]), 1.0), "h"),
        ("grad_dh", lora::grad_dh::record(&rec, &t(&[5, 2]), &t(&[3, 4]), &t(&[3, 2])), "d_output"),
        ("grad_dh", lora::grad_dh::record(&rec, &t(&[5, 2]), &t(&[3, 5]), &t(&[3, 3])), "dh"),
        ("grad_dh_gemv", lora::grad_dh_gemv::record(&rec, &t(&[5, 2]), &t(&[2, 5]), &t(&[2, 2])), "d_output"),
        ("grad_dh_tiled", lora::grad_dh_tiled::record(&rec, &t(&[5, 2]), &t(&[3, 5]), &t(&[3, 2])), "d_output"),
        ("project_a_subgroups", lora::project_a_subgroups::record(&rec, &t(&[2, 5]), &t(&[3, 5]), &t(&[3, 2])), "x"),
        ("project_a_tiled", lora::project_a_tiled::record(&rec, &t(&[2, 5]), &t(&[3, 5]), &t(&[3, 2])), "x"),
        ("grad_a_tiled", lora::grad_a_tiled::record(&rec, &t(&[3, 2]), &t(&[3, 5]), &t(&[2, 5]), 1.0), "x"),
        ("grad_b_tiled", lora::grad_b_tiled::record(&rec, &t(&[3, 5]), &t(&[3, 2]), &t(&[5, 2]), 1.0), "d_output"),
        ("grad_b_dh", joined(&t(&[6, 2]), &t(&[3, 6])), "d_output"),
        ("grad_b_dh", joined(&t(&[4, 2]), &t(&[3, 8])), "d_output"),
        ("grad_b_dh_sums", lora::grad_b_dh_sums::record(&rec, &t(&[1, 9]), [2, 1], &t(&[3, 1]), &t(&[2, 1])), "parts"),
        ("grad_a", lora::grad_a::record(&rec, &t(&[3, 1]), &t(&[3, 4]), &t(&[2, 4]), 1.0), "dh"),
        ("grad_a", lora::grad_a::record(&rec, &t(&[3, 2]), &t(&[2, 4]), &t(&[2, 4]), 1.0), "x"),
        ("input_grad", lora::input_grad::record(&rec, &t(&[2, 4]), &t(&[3, 1]), &t(&[3, 4]), 1.0), "dh"),
        ("input_grad", lora::input_grad::record(&rec, &t(&[2, 4]), &t(&[3, 2]), &t(&[4, 3]), 1.0), "d_input"),
        ("linear_grad", base::linear_grad::record(&rec, &t(&[3, 2]), &t(&[3, 4]), &t(&[1, 4]), 1.0), "left"),
        ("linear_grad", base::linear_grad::record(&rec, &t(&[3, 1]), &t(&[2, 4]), &t(&[1, 4]), 1.0), "right"),
        ("linear", frozen.forward(&rec, &t(&[3, 5]), &t(&[3, 5])), "x"),
        ("linear", frozen.forward(&rec, &t(&[3, 4]), &t(&[2, 5])), "output"),
        ("linear", base::linear::record(&rec, &rows, bias(4, 0), &t(&[3, 4]), &t(&[3, 5]), 0), "bias"),
        ("linear", base::linear::record(&rec, &rows, bias(5, 1), &t(&[3, 4]), &t(&[3, 5]), 0), "bias"),
        ("linear", base::linear::record(&rec, &rows, None, &t(&[3, 4]), &t(&[3, 6]), 2), "output"),
        ("linear", base::linear::record(&rec, &more, None, &t(&[3, 4]), &t(&[3, 6]), 0), "rows"),
        ("linear_vec4", base::linear_vec4::record(&rec, &rows, None, &t(&[3, 5]), &t(&[3, 5]), 0), "x"),
        ("linear_quad", base::linear_quad::record(&rec, &any, None, &t(&[3, 8]), &t(&[3, 5]), 0, false), "weight"),
        (
            "linear_quad",
            base::linear_quad::record(&rec, &eight, bias(4, 0), &t(&[3, 8]), &t(&[3, 5]), 0, false),
            "bias",
        ),
        ("linear_quad", base::linear_quad::record(&rec, &eight, None, &t(&[3, 4]), &t(&[3, 5]), 0, false), "x"),
        ("linear_quad", base::linear_quad::record(&rec, &eight, None, &t(&[3, 8]), &t(&[3, 5]), 1, false), "output"),
        ("linear_t_quad", base::linear_t_quad::record(&rec, &eight, &t(&[3, 5]), &t(&[3, 8]), 1, false), "d_output"),
        ("linear_t_quad", base::linear_t_quad::record(&rec, &eight, &t(&[3, 5]), &t(&[2, 8]), 0, false), "d_input"),
        (
            "linear_t_quad",
            base::linear_t_quad::record_transposed(&rec, &eight, &t(&[3, 5]), &t(&[5, 8]), 0, true),
            "d_output",
        ),
        ("linear_gemv", base::linear_gemv::record(&rec, &rows, None, &t(&[3, 4]), &t(&[3, 5]), 0), "output"),
        (
            "linear_gemv_subgroups",
            base::linear_gemv_subgroups::record(&rec, &rows, None, &t(&[3, 4]), &t(&[3, 5]), 0),
            "output",
        ),
        (
            "linear_gemv_subgroups",
            base::linear_gemv_subgroups::record(&rec, &nibbles, None, &t(&[1, 8]), &t(&[1, 5]), 0),
            "weight",
        ),
        ("linear_half", base::linear_half::record(&rec, &rows, None, &t(&[3, 4]), &t(&[3, 5]), 0), "weight"),
        ("linear_half", base::linear_half::record(&rec, &half, None, &t(&[3, 5]), &t(&[3, 5]), 0), "x"),
        ("linear_t_half", base::linear_t_half::record(&rec, &rows, &t(&[3, 5]), &t(&[3, 4]), 0, false), "weight"),
        ("linear_t", frozen.backward_input(&rec, &t(&[3, 4]), &t(&[3, 4])), "d_output"),
        ("linear_t", frozen.backward_input(&rec, &t(&[3, 5]), &t(&[3, 5])), "d_input"),
        ("linear_t_vec4", base::linear_t_vec4::record(&rec, &rows, &t(&[3, 5]), &t(&[3, 4]), 1, false), "d_output"),
        ("linear_t_gemv", base::linear_t_gemv::record(&rec, &rows, &t(&[3, 5]), &t(&[3, 4]), 0, false), "d_output"),
        ("rows", base::rows::record(&rec, &rows, &labels(2), &t(&[3, 4]), 0, 5), "ids"),
        ("row_squares", base::row_squares::record(&rec, &rows, &t(&[5]), 1), "squares"),
        ("mse", mse(&t(&[3, 5]), &t(&[5, 3]), &t(&[3, 5]), &t(&[2])), "targets"),
        ("mse", mse(&t(&[3, 5]), &t(&[3, 5]), &t(&[15]), &t(&[2])), "d_output"),
        ("mse", mse(&t(&[3, 5]), &t(&[3, 5]), &t(&[3, 5]), &t(&[1])), "totals"),
        ("bce_with_logits", bce(&t(&[3, 5]), &t(&[5, 3]), &t(&[3, 5]), &t(&[2])), "targets"),
        ("bce_with_logits", bce(&t(&[3, 5]), &t(&[3, 5]), &t(&[3, 4]), &t(&[2])), "d_output"),
        ("bce_with_logits", bce(&t(&[3, 5]), &t(&[3, 5]), &t(&[3, 5]), &t(&[2, 1])), "totals"),
        ("cross_entropy", cross_entropy(&t(&[15]), &labels(3), &t(&[15]), &t(&[2])), "logits"),
        ("cross_entropy", cross_entropy(&t(&[3, 5]), &labels(5), &t(&[3, 5]), &t(&[2])), "labels"),
        ("cross_entropy", cross_entropy(&t(&[3, 5]), &labels(3), &t(&[5, 3]), &t(&[2])), "d_logits"),
        ("cross_entropy", cross_entropy(&t(&[3, 5]), &labels(3), &t(&[3, 5]), &t(&[1])), "totals"),
        ("total", loss::total::record(&rec, &t(&[7]), 4, &t(&[2]), false), "partial_sums"),
        ("total", loss::total::record(&rec, &t(&[8]), 4, &t(&[3]), false), "totals"),
        ("mean", loss::mean::record(&rec, &t(&[1]), &t(&[3, 5]), &t(&[1])), "totals"),
        ("mean", loss::mean::record(&rec, &t(&[2]), &t(&[3, 5]), &t(&[2])), "loss"),
        ("Loss", Loss::Mse.record(&rec, &t(&[3, 5]), &t(&[3, 5]), &t(&[3, 5]), &t(&[2])), "loss"),
        ("activation", nn::activation::record(&rec, Activation::Gelu, &t(&[3, 5]), &t(&[5, 3])), "output"),
        ("activation_grad", activation_grad(&t(&[3, 5]), &t(&[5, 3]), &t(&[3, 5])), "d_output"),
        ("activation_grad", activation_grad(&t(&[3, 5]), &t(&[3, 5]), &t(&[15])), "d_input"),
        ("norm", nn::norm::record(&rec, &t(&[4]), None, &t(&[3, 5]), &t(&[3, 5]), true, 1e-5), "weight"),
        ("norm", nn::norm::record(&rec, &t(&[5]), Some(&t(&[3])), &t(&[3, 5]), &t(&[3, 5]), true, 1e-5), "bias"),
        ("norm", nn::norm::record(&rec, &t(&[5]), None, &t(&[5]), &t(&[5]), true, 1e-5), "x"),
        ("norm", nn::norm::record(&rec, &t(&[5]), None, &t(&[3, 5]), &t(&[5, 3]), true, 1e-5), "output"),
        (
            "norm_grad",
            nn::norm_grad::record(&rec, &t(&[3]), &t(&[3, 5]), &t(&[3, 5]), &t(&[3, 5]), true, 0.0, false),
            "weight",
        ),
        (
            "norm_grad",
            nn::norm_grad::record(&rec, &t(&[5]), &t(&[3, 5]), &t(&[5, 3]), &t(&[3, 5]), true, 0.0, false),
            "d_output",
        ),
        (
            "norm_grad",
            nn::norm_grad::record(&rec, &t(&[5]), &t(&[3, 5]), &t(&[3, 5]), &t(&[15]), true, 0.0, false),
            "d_input",
        ),
        ("rope", rope(&[3, 2], &[3, 3], &[4, 8]), "sin_table"),
        ("rope", rope(&[3, 2], &[3, 2], &[5, 8]), "position_ids"),
        ("rope", rope(&[3, 2], &[3, 2], &[4, 6]), "x"),
        ("gated", nn::gated::record(&rec, Gate::Silu, &t(&[3, 5]), &t(&[5, 3]), &t(&[3, 5])), "up"),
        ("gated_grad", gated_grad(&t(&[3, 5]), &t(&[3, 5]), &t(&[15])), "d_up"),
        ("attention", attention((4, 2, 8), &[6, 32], &[6, 8], &[6, 4, 2]), "k"),
        ("attention", attention((4, 2, 8), &[5, 32], &[6, 16], &[6, 4, 2]), "q"),
        ("attention", attention((4, 2, 8), &[6, 32], &[6, 16], &[6, 4]), "stats"),
        ("lm_head_stats", lm_head_stats(&t(&[4, 7]), &t(&[3, 3])), "stats"),
        ("lm_head_stats", lm_head_stats(&t(&[3, 7]), &t(&[3, 3])), "labels"),
        ("adamw", optim::adamw::record(&rec, &t(&[3]), &t(&[8]), &t(&[4]), &t(&[2, 4]), &adamw, GROUP), "grad"),
        ("adamw", optim::adamw::record(&rec, &t(&[4]), &t(&[8]), &t(&[4]), &t(&[4]), &adamw, GROUP), "moments"),
        ("adamw", optim::adamw::record(&rec, &t(&[4]), &t(&[4]), &t(&[4]), &t(&[2, 4]), &adamw, GROUP), "state"),
        ("begin_step", begin_step(&t(&[3, 3]), &t(&[2]), &t(&[8]), &t(&[1, 4])), "bias"),
        ("begin_step", begin_step(&t(&[3, 2]), &t(&[1]), &t(&[8]), &t(&[1, 4])), "totals"),
        ("begin_step", begin_step(&t(&[3, 2]), &t(&[2]), &t(&[4]), &t(&[1, 4])), "state"),
        ("begin_step", begin_step(&t(&[3, 2]), &t(&[2]), &t(&[8]), &t(&[4])), "log"),
        ("begin_step", begin_step(&t(&[3, 2]), &t(&[2]), &t(&[8]), &t(&[4, 3])), "log"),
        ("sgd", optim::sgd::record(&rec, &t(&[4]), &t(&[8]), &t(&[5]), 0.0, GROUP), "grad"),
        ("sgd", optim::sgd::record(&rec, &t(&[5]), &t(&[7]), &t(&[5]), 0.0, GROUP), "state"),
        (
            "sgd_momentum",
            optim::sgd_momentum::record(&rec, &t(&[4]), &t(&[8]), &t(&[4]), &t(&[5]), 0.0, 0.9, GROUP),
            "velocity",
        ),
        ("lora_forward", rec.lora_forward(&weight, &t(&[3, 4]), &t(&[3, 2]), &t(&[3, 5]), &t(&[3, 4]), 1.0), "output"),
        ("lora_forward_fused", rec.lora_forward_fused(&weight, &t(&[3, 4]), &t(&[3, 2]), &t(&[4, 5]), 1.0), "output"),
        (
            "lora_backward",
            rec.lora_backward(
                &weight,
                &t(&[3, 5]),
                &t(&[3, 4]),
                &t(&[3, 2]),
                &t(&[3, 2]),
                &grad,
                Some(&t(&[3, 5])),
                1.0,
            ),
            "d_input",
        ),
    ];
    // Where quads of invocations share what they load, other kernels take nine tokens and more.
    let wide = LoraWeight::from_tensors(t(&[4, 8]), t(&[12, 4])).unwrap();
    let grads = LoraGrad::new(&gpu, &wide).unwrap();
    let forward =
        |x: &[usize], h: &[usize], output: &[usize]| rec.lora_forward_fused(&wide, &t(x), &t(h), &t(output), 1.0);
    let backward = |d_output: &[usize], x: &[usize], h: &[usize], dh: &[usize], d_input: &[usize]| {
        rec.lora_backward(&wide, &t(d_output), &t(x), &t(h), &t(dh), &grads, Some(&t(d_input)), 1.0)
    };
    for (what, result, name) in [
        ("wide x", forward(&[9, 12], &[9, 4], &[9, 12]), "x"),
        ("a flat x", forward(&[72], &[9, 4], &[9, 12]), "x"),
        ("wide h", forward(&[9, 8], &[9, 8], &[9, 12]), "h"),
        ("a flat h", forward(&[9, 8], &[36], &[9, 12]), "h"),
        ("more of h", forward(&[9, 8], &[10, 4], &[10, 12]), "h"),
        ("wide output", forward(&[9, 8], &[9, 4], &[9, 16]), "output"),
        ("more of output", forward(&[9, 8], &[9, 4], &[10, 12]), "output"),
        ("wide d_output", backward(&[9, 16], &[9, 8], &[9, 4], &[9, 4], &[9, 8]), "d_output"),
        ("more of d_output", backward(&[12, 12], &[9, 8], &[9, 4], &[12, 4], &[12, 8]), "d_output"),
        ("wide h", backward(&[9, 12], &[9, 8], &[9, 8], &[9, 4], &[9, 8]), "h"),
        ("wide dh", backward(&[9, 12], &[9, 8], &[9, 4], &[9, 8], &[9, 8]), "dh"),
        ("more of dh", backward(&[9, 12], &[9, 8], &[9, 4], &[12, 4], &[12, 8]), "dh"),
        ("wide x", backward(&[9, 12], &[9, 12], &[9, 4], &[9, 4], &[9, 8]), "x"),
        ("less of x", backward(&[12, 12], &[9, 8], &[12, 4], &[12, 4], &[12, 8]), "x"),
        ("wide d_input", backward(&[9, 12], &[9, 8], &[9, 4], &[9, 4], &[9, 12]), "d_input"),
        ("more of d_input", backward(&[9, 12], &[9, 8], &[9, 4], &[9, 4], &[12, 8]), "d_input"),
    ] {
        refused(what, result, "shape", &[&format!("{name}: expected"), "got"]);
    }
    for (heads, words) in [((3, 2, 8), ["heads", "2"]), ((4, 0, 8), ["heads", "0"]), ((4, 2, 7), ["head_dim", "even"])]
    {
        refused("attention", attention(heads, &[6, 32], &[6, 16], &[6, 4, 2]), "invalid-argument", &words);
    }
    for (what, result, name) in cases {
        refused(what, result, "shape", &[&format!("{name}: expected"), "got"]);
    }
    let layer = layer(&gpu, "layer");
    let too_early = layer.backward(&rec, &t(&[3, 4]), &t(&[3, 5]), None);
    refused("backward before forward", too_early, "invalid-argument", &["x", "forward pass", "3 tokens"]);
    refused("forward", layer.forward(&rec, &t(&[3, 5])), "shape", &["x", "4", "5"]);
    let earlier = Recording::new(&gpu);
    layer.forward(&earlier, &t(&[3, 4])).unwrap();
    refused("backward", layer.backward(&rec, &t(&[3, 4]), &t(&[2, 5]), None), "shape", &["d_output"]);
    refused("backward", layer.backward(&rec, &t(&[3, 4]), &t(&[3, 5]), Some(&t(&[3, 5]))), "shape", &["d_input"]);
    refused("a and b", LoraWeight::from_tensors(t(&[2, 4]), t(&[5, 3])), "shape", &["b", "2", "3"]);
    refused("weight", FrozenLinear::new(&gpu, 5, 4, &[0.0; 19], None), "shape", &["weight", "20", "19"]);
    refused("bias", FrozenLinear::new(&gpu, 5, 4, &[0.0; 20], Some(&[0.0; 4])), "shape", &["bias", "5", "4"]);
    assert_eq!(rec.dispatches(), 0, "nothing was half-recorded");
    rec.submit().await.unwrap();
    still_trains(&gpu, &layer).await;
}

/// Floats and integers are not taken for one another, by a write or by a kernel.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn floats_and_integers_are_not_confused() {
    let gpu = gpu().await;
    let rec = Recording::new(&gpu);
    let floats = |label, shape: &[usize]| ones(&gpu, label, shape);
    let integers = |label, shape: &[usize]| Tensor::integers(&gpu, label, shape, None).unwrap();
    let logits = floats("logits", &[3, 5]);
    let [d_logits, totals, loss] = [floats("gradient", &[3, 5]), floats("totals", &[2]), floats("loss", &[1])];
    let cross_entropy = |labels: &Tensor, smoothing| {
        loss::cross_entropy::record(&rec, &logits, labels, &d_logits, &totals, false, -100, smoothing)
    };
    let words = |label: &'static str, expected, got| [label, expected, got];
    let wrong = |what, result: Result<()>, words: [&str; 3]| refused(what, result, "invalid-argument", &words);
    wrong("float labels", cross_entropy(&floats("labels", &[3]), 0.0), words("labels", "int32", "float32"));
    let bce = Loss::BceWithLogits.record(&rec, &logits, &integers("bits", &[3, 5]), &d_logits, &loss);
    wrong("integer targets", bce, words("bits", "float32", "int32"));
    let written = nn::activation::record(&rec, Activation::Relu, &logits, &integers("output", &[3, 5]));
    wrong("an integer output", written, words("output", "float32", "int32"));
    let base = FrozenLinear::from_tensors(floats("W", &[5, 4]), None).unwrap();
    let (x, y) = (integers("x", &[3, 4]), floats("y", &[3, 5]));
    wrong("an integer input", base.forward(&rec, &x, &y), words("x", "float32", "int32"));
    wrong("a write", integers("labels", &[2]).write(&[1.0; 2]), words("labels", "float32", "int32"));
    wrong("a write", floats("x", &[2]).write_integers(&[1; 2]), words("x", "int32", "float32"));
    for smoothing in [-0.1, 1.1, f32::NAN, f32::INFINITY] {
        let result = cross_entropy(&integers("labels", &[3]), smoothing);
        refused("smoothing", result, "invalid-argument", &["labelSmoothing", "0 to 1"]);
        let loss_of = Loss::CrossEntropy { ignore_index: -100, label_smoothing: smoothing.into() };
        let result = loss_of.record(&rec, &logits, &integers("labels", &[3]), &d_logits, &loss);
        refused("smoothing", result, "invalid-argument", &["labelSmoothing", "0 to 1"]);
    }
    assert_eq!(rec.dispatches(), 0, "nothing was half-recorded");

    let labels = Tensor::integers(&gpu, "labels", &[3], Some(&[-100, 4, i32::MIN])).unwrap();
    assert_eq!((labels.dtype(), logits.dtype()), (DType::I32, DType::F32));
    assert_eq!(bits(&labels.read().await.unwrap()), [-100i32, 4, i32::MIN].map(|v| v as u32));
    labels.write_integers(&[0, 1, 2]).unwrap();
    assert_eq!(bits(&labels.read().await.unwrap()), [0, 1, 2]);
    refused("labels", Tensor::integers(&gpu, "labels", &[3], Some(&[1; 2])), "shape", &["labels", "3", "2"]);
    refused("labels", labels.write_integers(&[0; 4]), "shape", &["labels", "3", "4"]);
    cross_entropy(&labels, 1.0).unwrap();
    rec.submit().await.unwrap();
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn norms_refuse_what_is_out_of_range() {
    let gpu = gpu().await;
    let before = gpu.memory();
    for eps in [f64::NAN, f64::INFINITY, -1e-5, 1e300] {
        refused("eps", Norm::new(&gpu, &[1.0; 4], None, true, eps), "invalid-argument", &["eps"]);
    }
    refused("no weight", Norm::new(&gpu, &[], None, true, 1e-5), "shape", &["norm weight"]);
    refused("a bias", Norm::new(&gpu, &[1.0; 4], Some(&[0.0; 3]), true, 1e-5), "shape", &["norm bias", "4", "3"]);
    assert_eq!(gpu.memory(), before);
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn scalars_that_are_not_finite_are_refused() {
    let gpu = gpu().await;
    let t = |shape: &[usize]| ones(&gpu, "given", shape);
    let rec = Recording::new(&gpu);
    let weight = LoraWeight::from_tensors(t(&[2, 4]), t(&[5, 2])).unwrap();
    let grad = LoraGrad::new(&gpu, &weight).unwrap();
    for scale in [f32::NAN, f32::INFINITY] {
        let (x, h, y, output) = (t(&[3, 4]), t(&[3, 2]), t(&[3, 5]), t(&[3, 5]));
        for result in [
            lora::add_scaled::record(&rec, &y, &output, scale),
            lora::fused_b_add::record(&rec, &weight.b, &h, &output, scale),
            lora::grad_a::record(&rec, &h, &x, &grad.a, scale),
            lora::grad_b::record(&rec, &y, &h, &grad.b, scale),
            lora::input_grad::record(&rec, &weight.a, &h, &x, scale),
            rec.lora_forward(&weight, &x, &h, &y, &output, scale),
            rec.lora_forward_fused(&weight, &x, &h, &output, scale),
            rec.lora_backward(&weight, &y, &x, &h, &t(&[3, 2]), &grad, None, scale),
        ] {
            refused("a scale", result, "invalid-argument", &["scale"]);
        }
        // As many tokens as quads of invocations take.
        let weight = LoraWeight::from_tensors(t(&[4, 8]), t(&[12, 4])).unwrap();
        let grad = LoraGrad::new(&gpu, &weight).unwrap();
        let (x, h, output) = (t(&[9, 8]), t(&[9, 4]), t(&[9, 12]));
        for result in [
            rec.lora_forward_fused(&weight, &x, &h, &output, scale),
            rec.lora_backward(&weight, &output, &x, &h, &t(&[9, 4]), &grad, None, scale),
        ] {
            refused("a scale", result, "invalid-argument", &["scale"]);
        }
    }
    assert_eq!(rec.dispatches(), 0);
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn tensors_of_another_gpu_are_refused() {
    let (here, there) = (gpu().await, fresh_gpu(None).await);
    let rec = Recording::new(&here);
    let (a, x, h) = (ones(&here, "a", &[2, 4]), ones(&here, "x", &[3, 4]), ones(&here, "h", &[3, 2]));
    let foreign = ones(&there, "stranger", &[3, 4]);
    let words = &["stranger"];
    refused("an input", lora::project_a::record(&rec, &a, &foreign, &h), "foreign-tensor", words);
    refused("an output", lora::save_activation::record(&rec, &x, &foreign), "foreign-tensor", words);
    refused("zero", rec.zero(&foreign), "foreign-tensor", words);
    let layer = layer(&here, "layer");
    refused("forward", layer.forward(&rec, &foreign), "foreign-tensor", words);
    let weight = LoraWeight::from_tensors(a.clone(), ones(&there, "stranger", &[5, 2])).unwrap();
    let output = ones(&here, "output", &[3, 5]);
    refused("b", rec.lora_forward_fused(&weight, &x, &h, &output, 1.0), "foreign-tensor", words);
    let sgd = OptimizerKind::Sgd(Sgd::default());
    refused("a layer", Optimizer::new(&there, &[&layer], OptimizerOptions::new(sgd, 1e-3)), "foreign-tensor", &[]);
    assert_eq!(rec.dispatches(), 0, "nothing was half-recorded");
    still_trains(&here, &layer).await;
    there.destroy();
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn one_buffer_read_and_written_in_a_dispatch_is_refused() {
    let gpu = gpu().await;
    let rec = Recording::new(&gpu);
    let square = ones(&gpu, "square", &[4, 4]);
    let other = ones(&gpu, "other", &[4, 4]);
    let aliased = |what, result: Result<()>, words: &[&str]| refused(what, result, "aliased-buffer", words);
    aliased("y is output", lora::add_scaled::record(&rec, &square, &square, 1.0), &["add_scaled", "y", "output"]);
    aliased("a copy onto itself", lora::save_activation::record(&rec, &square, &square.clone()), &["src", "dst"]);
    aliased("x is h", lora::project_a::record(&rec, &other, &square, &square), &["project_a", "x", "h"]);
    // WebGPU counts usage by buffer: other parts of one arena are as bad.
    let (_, parts) = Tensor::arena(&gpu, "arena", &[("first", &[4, 4]), ("second", &[4, 4])]).unwrap();
    aliased("two ranges", lora::save_activation::record(&rec, &parts[0], &parts[1]), &["src", "dst"]);
    // Two written bindings over one range.
    let (grad, state) = (ones(&gpu, "grad", &[4]), ones(&gpu, "state", &[8]));
    let param = ones(&gpu, "param", &[4]);
    let both = optim::sgd_momentum::record(&rec, &grad, &state, &param, &param, 0.0, 0.9, GROUP);
    aliased("written twice", both, &["param", "velocity"]);
    let weight = LoraWeight::from_tensors(square.clone(), other.clone()).unwrap();
    let (h, output) = (ones(&gpu, "h", &[4, 4]), ones(&gpu, "output", &[4, 4]));
    aliased("h is output", rec.lora_forward_fused(&weight, &output, &h, &h, 1.0), &["h", "output"]);
    assert_eq!(rec.dispatches(), 0, "nothing was half-recorded");
    let base = FrozenLinear::new(&gpu, 4, 4, &[1.0; 16], None).unwrap();
    let layer = LoraLinear::new(&gpu, None, base, &LoraConfig::new(2, 4.0)).unwrap();
    let output = layer.forward(&rec, &square).unwrap();
    let recorded = rec.dispatches();
    aliased("its own output", layer.forward(&rec, &output).map(drop), &["x", "output"]);
    assert_eq!(rec.dispatches(), recorded, "nothing was half-recorded");
    // Read twice is fine.
    lora::project_a::record(&rec, &square, &square, &h).unwrap();
    rec.submit().await.unwrap();
    assert_close("h", &h.read().await.unwrap(), &exact(&[4.0; 16]));
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn destroyed_tensors_are_refused_when_recorded_and_when_submitted() {
    let gpu = gpu().await;
    let memory = gpu.memory();
    let gone = ones(&gpu, "gone", &[3, 4]);
    gone.destroy();
    gone.destroy();
    assert!(gone.is_destroyed());
    assert_eq!(gpu.memory(), memory, "its memory is freed");
    let (src, dst) = (ones(&gpu, "src", &[3, 4]), ones(&gpu, "dst", &[3, 4]));
    let rec = Recording::new(&gpu);
    refused("write", gone.write(&[0.0; 12]), "disposed", &["gone"]);
    refused("read", gone.read().await, "disposed", &["gone"]);
    refused("zero", rec.zero(&gone), "disposed", &["gone"]);
    refused("an input", lora::save_activation::record(&rec, &gone, &dst), "disposed", &["gone"]);
    refused("an output", lora::save_activation::record(&rec, &src, &gone), "disposed", &["gone"]);
    assert_eq!(rec.dispatches(), 0);

    // Between recording and submit: nothing of the recording runs.
    let late = ones(&gpu, "late", &[3, 4]);
    dst.write(&[7.0; 12]).unwrap();
    lora::save_activation::record(&rec, &src, &dst).unwrap();
    lora::save_activation::record(&rec, &late, &dst).unwrap();
    late.destroy();
    let before = gpu.stats();
    refused("submit", rec.submit().await, "disposed", &["late"]);
    assert_eq!(gpu.stats(), before, "nothing was submitted");
    assert_eq!(dst.read().await.unwrap(), [7.0; 12]);

    // After submit: the work still runs.
    let used = ones(&gpu, "used", &[3, 4]);
    let rec = Recording::new(&gpu);
    lora::add_scaled::record(&rec, &used, &dst, 2.0).unwrap();
    let submission = rec.submit();
    used.destroy();
    submission.await.unwrap();
    assert_eq!(dst.read().await.unwrap(), [9.0; 12]);

    let layer = layer(&gpu, "layer");
    layer.destroy();
    let rec = Recording::new(&gpu);
    refused("a destroyed layer", layer.forward(&rec, &src), "disposed", &[]);
    let sgd = OptimizerKind::Sgd(Sgd::default());
    refused("a destroyed layer", Optimizer::new(&gpu, &[&layer], OptimizerOptions::new(sgd, 1e-3)), "disposed", &[]);
    assert_eq!(rec.dispatches(), 0);
    let sound = self::layer(&gpu, "sound");
    refused(
        "one of two layers",
        Optimizer::new(&gpu, &[&sound, &layer], OptimizerOptions::new(sgd, 1e-3)),
        "disposed",
        &[],
    );
    still_trains(&gpu, &sound).await;
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn an_optimizer_that_was_destroyed_leaves_its_layers_usable() {
    let gpu = gpu().await;
    let layer = layer(&gpu, "layer");
    let start = layer.weight().a.read().await.unwrap();
    let optimizer =
        Optimizer::new(&gpu, &[&layer], OptimizerOptions::new(OptimizerKind::AdamW(AdamW::default()), 1e-3)).unwrap();
    optimizer.destroy();
    optimizer.destroy();
    let rec = Recording::new(&gpu);
    refused("step", optimizer.step(&rec), "disposed", &[]);
    refused("zero_grad", optimizer.zero_grad(&rec), "disposed", &[]);
    refused("set_lr", optimizer.set_lr(0.1), "disposed", &[]);
    assert_eq!(rec.dispatches(), 0);
    assert_eq!(bits(&layer.weight().a.read().await.unwrap()), bits(&start));
    still_trains(&gpu, &layer).await;
}

/// A destroyed device, and what was made on it.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_destroyed_gpu_refuses_work() {
    let gpu = fresh_gpu(None).await;
    let tensor = ones(&gpu, "tensor", &[2, 2]);
    let values = f64s(&tensor.read().await.unwrap());
    assert_eq!(values, [1.0; 4]);
    let rec = Recording::new(&gpu);
    lora::save_activation::record(&rec, &tensor, &ones(&gpu, "copy", &[2, 2])).unwrap();
    gpu.destroy();
    gpu.destroy();
    refused("a tensor", Tensor::zeros(&gpu, "new", &[2]), "disposed", &["Gpu"]);
    refused("a read", tensor.read().await, "disposed", &["Gpu"]);
    refused("a write", tensor.write(&[0.0; 4]), "disposed", &["Gpu"]);
    refused("a submit", rec.submit().await, "disposed", &["Gpu"]);
    tensor.destroy();
}
