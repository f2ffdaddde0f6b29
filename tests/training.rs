//! Losses, clipping, schedules, accumulation and whole training runs against PyTorch's and PEFT's numbers.

mod common;
mod reference;

use std::rc::Rc;

use common::files::{File, given, json, list};
use common::{bits, fresh_gpu, gpu, refused, say};
use lora_webgpu::{
    Activation, AdamW, Batch, FrozenLinear, Gpu, Inputs, LoraConfig, LoraLinear, Loss, Module, Network, OptimizerKind,
    OptimizerOptions, Origin, Outcome, Position, Recording, Schedule, Sgd, Targets, Tensor, Trainer,
};
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

/// |got − expected| ≤ bound for each, and not all of them zero.
#[track_caller]
fn assert_within(what: &str, got: &[f32], expected: &[f32], bound: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let worst = got.iter().zip(expected).map(|(g, e)| (f64::from(*g) - f64::from(*e)).abs()).fold(0.0, f64::max);
    let all_finite = got.iter().all(|g| g.is_finite());
    assert!(all_finite && worst <= bound, "{what}: off by {worst:e}, bound {bound:e}");
    let largest = expected.iter().map(|e| f64::from(e.abs())).fold(0.0, f64::max);
    assert!(largest > bound, "{what}: zeros would pass the bound {bound:e}");
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}

/// Losses against PyTorch's mean reduction. In f32 a probability carries some ten roundings.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn golden_losses() {
    if !given("losses/losses.safetensors").await {
        return;
    }
    let gpu = gpu().await;
    let file = File::read("losses/losses.safetensors").await;
    let shape = file.shape("logits").to_vec();
    let upload = |name: &str| Tensor::from_slice(&gpu, name, &shape, file.tensor(name)).unwrap();
    let logits = upload("logits");
    let labels = Tensor::integers(&gpu, "targets", &shape[..1], Some(&file.labels("targets"))).unwrap();
    let binary = upload("bce_targets");
    let cross_entropy = |label_smoothing| Loss::CrossEntropy { ignore_index: -100, label_smoothing };
    let cases = [
        ("mse", Loss::Mse, &binary),
        ("bce", Loss::BceWithLogits, &binary),
        ("ce_0.0", cross_entropy(0.0), &labels),
        ("ce_0.1", cross_entropy(0.1), &labels),
    ];
    for (name, loss, targets) in cases {
        let d_output = Tensor::from_slice(&gpu, "d_output", &shape, &vec![f32::NAN; logits.len()]).unwrap();
        let value = Tensor::zeros(&gpu, "loss", &[1]).unwrap();
        let rec = Recording::new(&gpu);
        loss.record(&rec, &logits, targets, &d_output, &value).unwrap();
        rec.submit().await.unwrap();
        let (golden, gradient) = (file.tensor(name), file.tensor(&format!("{name}_grad")));
        assert_within(name, &value.read().await.unwrap(), golden, 2e-6 * f64::from(golden[0].abs()));
        let largest = gradient.iter().map(|g| f64::from(g.abs())).fold(0.0, f64::max);
        assert_within(&format!("{name} gradient"), &d_output.read().await.unwrap(), gradient, 2e-6 * largest);
    }
    say("golden losses/losses.safetensors: 8 tensors compared");
}

/// A layer over the given adapter.
fn layer(
    gpu: &Gpu,
    name: &str,
    weight: &[f32],
    bias: Option<&[f32]>,
    a: &[f32],
    b: &[f32],
    config: LoraConfig,
) -> Rc<LoraLinear> {
    let in_features = a.len() / config.rank;
    let out_features = b.len() / config.rank;
    let base = FrozenLinear::new(gpu, out_features, in_features, weight, bias).unwrap();
    let layer = LoraLinear::new(gpu, Some(name), base, &config).unwrap();
    layer.weight().a.write(a).unwrap();
    layer.weight().b.write(b).unwrap();
    Rc::new(layer)
}

/// Micro-batches of unequal label counts are one mean over all labels.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn golden_accumulation() {
    if !given("losses/accumulation.safetensors").await {
        return;
    }
    let gpu = gpu().await;
    let file = File::read("losses/accumulation.safetensors").await;
    let rank = file.shape("A")[0];
    let config = LoraConfig::new(rank, file.number("scaling") * rank as f64);
    let linear = layer(&gpu, "fc", file.tensor("W"), None, file.tensor("A"), file.tensor("B"), config);
    // SGD with a learning rate of 1 shows the gradient as the difference of the parameters.
    let options = OptimizerOptions::new(OptimizerKind::Sgd(Sgd::default()), 1.0);
    let loss = Loss::CrossEntropy { ignore_index: -100, label_smoothing: 0.0 };
    let network = Network::new(vec![Module::Linear(linear.clone())]).unwrap();
    let trainer = Trainer::new(&gpu, network, loss, options).unwrap();
    let count = (0..).take_while(|i| file.has(&format!("x_{i}"))).count();
    let labels: Vec<_> = (0..count).map(|i| file.labels(&format!("targets_{i}"))).collect();
    let inputs: Vec<_> = (0..count).map(|i| file.tensor(&format!("x_{i}"))).collect();
    let batches: Vec<_> = inputs
        .iter()
        .zip(&labels)
        .map(|(x, labels)| Batch { x: Inputs::Values(x), targets: Targets::Labels(labels) })
        .collect();
    trainer.step(&batches).await.unwrap();
    let record = trainer.records(0).await.unwrap()[0];
    assert_within("loss", &[record.loss], file.tensor("loss"), 2e-6 * f64::from(file.tensor("loss")[0]));
    for (name, tensor) in [("A", &linear.weight().a), ("B", &linear.weight().b)] {
        let after = tensor.read().await.unwrap();
        let gradient: Vec<f32> = file.tensor(name).iter().zip(&after).map(|(old, new)| old - new).collect();
        let golden = file.tensor(&format!("d{name}"));
        let largest = golden.iter().chain(file.tensor(name)).map(|g| f64::from(g.abs())).fold(0.0, f64::max);
        assert_within(&format!("d{name}"), &gradient, golden, 4e-7 * largest);
    }
    // One batch of them all is the same step, up to rounding.
    let all_x: Vec<f32> = inputs.concat();
    let all_labels: Vec<i32> = labels.concat();
    linear.weight().a.write(file.tensor("A")).unwrap();
    linear.weight().b.write(file.tensor("B")).unwrap();
    trainer.step(&[Batch { x: Inputs::Values(&all_x), targets: Targets::Labels(&all_labels) }]).await.unwrap();
    assert_within("one batch", &[trainer.records(1).await.unwrap()[0].loss], file.tensor("loss"), 5e-6);
    say(&format!("golden losses/accumulation.safetensors: {count} micro-batches, 3 tensors compared"));
}

/// clip_grad_norm_ below, at and above the norm.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn golden_clipping() {
    if !given("optimizer/clip.safetensors").await {
        return;
    }
    let gpu = gpu().await;
    let file = File::read("optimizer/clip.safetensors").await;
    let gradient = file.tensor("grad");
    let mut compared = 0;
    for (name, max_norm) in file.meta("max_norms").as_object().unwrap() {
        let golden = file.tensor(&format!("clipped_{name}"));
        let factor = if name == "small_norm" { 1e-6 } else { 1.0 };
        let scaled: Vec<f32> = gradient.iter().map(|g| g * factor).collect();
        let (a, b) = scaled.split_at(scaled.len() / 2);
        let config = LoraConfig::new(1, 1.0);
        let linear =
            layer(&gpu, "fc", &vec![0.0; a.len() * b.len()], None, &vec![0.0; a.len()], &vec![0.0; b.len()], config);
        let max_grad_norm = max_norm.as_f64();
        let options =
            OptimizerOptions { max_grad_norm, ..OptimizerOptions::new(OptimizerKind::Sgd(Sgd::default()), 1.0) };
        let optimizer = lora_webgpu::Optimizer::new(&gpu, &[&linear], options).unwrap();
        linear.grad().a.write(a).unwrap();
        linear.grad().b.write(b).unwrap();
        let rec = Recording::new(&gpu);
        optimizer.step(&rec).unwrap();
        rec.submit().await.unwrap();
        let mut clipped = linear.weight().a.read().await.unwrap();
        clipped.extend(linear.weight().b.read().await.unwrap());
        let clipped: Vec<f32> = clipped.iter().map(|v| -v).collect();
        let largest = golden.iter().map(|g| f64::from(g.abs())).fold(0.0, f64::max);
        assert_within(&format!("clipped_{name}"), &clipped, golden, 5e-7 * largest);
        let logged = optimizer.log().read().await.unwrap()[1];
        let expected = file.number("norm") * f64::from(factor);
        assert!((f64::from(logged) - expected).abs() <= 1e-6 * expected, "{name}: norm {logged} {expected}");
        compared += 1;
    }
    say(&format!("golden optimizer/clip.safetensors: {compared} tensors compared"));
    assert!(compared > 0);
}

/// AdamW with clipping, step by step.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn golden_adamw_with_clipping() {
    if !given("optimizer/adamw_clip.safetensors").await {
        return;
    }
    let gpu = gpu().await;
    let file = File::read("optimizer/adamw_clip.safetensors").await;
    let hyper = file.meta("hyper");
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let kind = OptimizerKind::AdamW(AdamW {
        beta1: number(&hyper["betas"][0]),
        beta2: number(&hyper["betas"][1]),
        eps: number(&hyper["eps"]),
        weight_decay: number(&hyper["weight_decay"]),
    });
    let (p, q) = (file.tensor("p_0"), file.tensor("q_0"));
    let linear = layer(&gpu, "fc", &vec![0.0; p.len() * q.len()], None, p, q, LoraConfig::new(1, 1.0));
    let options = OptimizerOptions {
        max_grad_norm: Some(file.number("clip")),
        ..OptimizerOptions::new(kind, number(&hyper["lr"]))
    };
    let optimizer = lora_webgpu::Optimizer::new(&gpu, &[&linear], options).unwrap();
    let rec = Recording::new(&gpu);
    optimizer.step(&rec).unwrap();
    let norms = file.meta("norms").as_array().unwrap();
    for (i, norm) in norms.iter().enumerate() {
        linear.grad().a.write(file.tensor(&format!("dp_{}", i + 1))).unwrap();
        linear.grad().b.write(file.tensor(&format!("dq_{}", i + 1))).unwrap();
        rec.submit().await.unwrap();
        assert_within("p", &linear.weight().a.read().await.unwrap(), file.tensor(&format!("p_{}", i + 1)), 2e-6);
        assert_within("q", &linear.weight().b.read().await.unwrap(), file.tensor(&format!("q_{}", i + 1)), 2e-6);
        let logged = f64::from(optimizer.log().read().await.unwrap()[4 * i + 1]);
        assert!((logged - number(norm)).abs() <= 1e-6 * number(norm), "norm {logged} {norm}");
    }
    say(&format!("golden optimizer/adamw_clip.safetensors: {} tensors compared", 2 * norms.len()));
    assert!(!norms.is_empty());
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn golden_schedules() {
    if !given("optimizer/schedules.json").await {
        return;
    }
    let file = json("optimizer/schedules.json").await;
    let schedules = file["schedules"].as_object().unwrap();
    for (name, rates) in schedules {
        let part = |key: &str| name.split('_').find_map(|part| part.strip_prefix(key)).unwrap().parse().unwrap();
        let (warmup, total) = (part("warmup"), part("total"));
        let schedule = match name.split('_').next() {
            Some("cosine") => Schedule::Cosine { warmup, total },
            Some("linear") => Schedule::Linear { warmup, total },
            other => panic!("{name}: {other:?} is not known"),
        };
        for (step, rate) in rates.as_array().unwrap().iter().enumerate() {
            let (got, expected) = (file["base_lr"].as_f64().unwrap() * schedule.factor(step), rate.as_f64().unwrap());
            assert!((got - expected).abs() <= 1e-14, "{name}, step {step}: {got} {expected}");
        }
    }
    say(&format!("golden optimizer/schedules.json: {} schedules compared", schedules.len()));
    assert!(!schedules.is_empty());
}

/// Whole runs of PEFT: 20 AdamW steps of fc2(tanh(fc1(x))), losses and end adapter.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn golden_peft_mlp() {
    if !given("peft_mlp/").await {
        return;
    }
    let gpu = gpu().await;
    let mut variants = 0;
    for path in list().await.iter().filter(|path| path.starts_with("peft_mlp/") && path.ends_with("/trace.safetensors"))
    {
        let folder = path.trim_end_matches("/trace.safetensors");
        let config = json(&format!("{folder}/start/adapter_config.json")).await;
        let trace = File::read(path).await;
        let start = File::read(&format!("{folder}/start/adapter_model.safetensors")).await;
        let end = File::read(&format!("{folder}/end/adapter_model.safetensors")).await;
        let key = |name: &str, matrix: &str| format!("base_model.model.{name}.lora_{matrix}.weight");
        let vector = |name: &str| format!("base_model.model.{name}.lora_magnitude_vector");
        let linear = |name: &str| {
            let pattern =
                |of: &str, default: &serde_json::Value| config[of].get(name).unwrap_or(default).as_f64().unwrap();
            let rank = pattern("rank_pattern", &config["r"]) as usize;
            let use_rslora = config["use_rslora"].as_bool().unwrap();
            let use_dora = config["use_dora"].as_bool().unwrap();
            let alpha = pattern("alpha_pattern", &config["lora_alpha"]);
            let options = LoraConfig { use_rslora, use_dora, ..LoraConfig::new(rank, alpha) };
            let base = |part: &str| trace.tensor(&format!("base.{name}.{part}"));
            let adapter = |matrix| start.tensor(&key(name, matrix));
            let layer = layer(&gpu, name, base("weight"), Some(base("bias")), adapter("A"), adapter("B"), options);
            if let Some(magnitude) = layer.active()[0].magnitude() {
                magnitude.value.write(start.tensor(&vector(name))).unwrap();
            }
            layer
        };
        let layers = [linear("fc1"), linear("fc2")];
        let (y, grads) = first_pass(&gpu, &layers, &trace).await;
        assert_within(
            &format!("{folder} y_start"),
            &y,
            trace.tensor("y_start"),
            2e-6 * largest(trace.tensor("y_start")),
        );
        for (name, got) in grads {
            let key = trace.names().find(|key| key.starts_with("grad.") && key.contains(&name)).unwrap();
            assert_within(&format!("{folder} {key}"), &got, trace.tensor(key), 1e-5 * largest(trace.tensor(key)));
        }
        let modules = vec![
            Module::Linear(layers[0].clone()),
            Module::Activation(Activation::Tanh),
            Module::Linear(layers[1].clone()),
        ];
        let adam = AdamW { weight_decay: trace.number("weight_decay"), ..AdamW::default() };
        let options = OptimizerOptions::new(OptimizerKind::AdamW(adam), trace.number("lr"));
        let trainer = Trainer::new(&gpu, Network::new(modules).unwrap(), Loss::Mse, options).unwrap();
        let batch = Batch { x: Inputs::Values(trace.tensor("x")), targets: Targets::Values(trace.tensor("target")) };
        let losses: Vec<f32> =
            trace.meta("losses").as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap() as f32).collect();
        let submits = gpu.stats().submits;
        for _ in &losses {
            trainer.step(&[batch]).await.unwrap();
        }
        assert_eq!(gpu.stats().submits - submits, losses.len() as u64, "one submit a step");
        let got: Vec<f32> = trainer.records(0).await.unwrap().iter().map(|record| record.loss).collect();
        assert_within(&format!("{folder} losses"), &got, &losses, 1e-5);
        for (layer, name) in layers.iter().zip(["fc1", "fc2"]) {
            let weight = layer.weight();
            let mut tensors = vec![(key(name, "A"), weight.a.clone()), (key(name, "B"), weight.b.clone())];
            tensors.extend(layer.active()[0].magnitude().map(|m| (vector(name), m.value.clone())));
            for (matrix, tensor) in tensors {
                let got = tensor.read().await.unwrap();
                let (from, to) = (start.tensor(&matrix), end.tensor(&matrix));
                let difference =
                    |a: &[f32], b: &[f32]| norm(a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
                let (error, moved) = (difference(&got, to), difference(to, from));
                assert!(error <= 1e-4 * moved, "{folder} {name} {matrix}: {error:e} of {moved:e}");
            }
        }
        let (y, _) = first_pass(&gpu, &layers, &trace).await;
        assert_within(&format!("{folder} y_end"), &y, trace.tensor("y_end"), 1e-4 * largest(trace.tensor("y_end")));
        trainer.destroy();
        for (layer, name) in layers.iter().zip(["fc1", "fc2"]) {
            let (before, golden) =
                (trace.tensor(&format!("base.{name}.weight")), trace.tensor(&format!("merged.{name}.weight")));
            for keep in [false, true] {
                layer.merge(keep).unwrap().await.unwrap();
                let merged = layer.base().f32_weight().unwrap().read().await.unwrap();
                assert_within(&format!("{folder} merged {name}"), &merged, golden, 1e-4 * largest(golden));
                layer.unmerge().unwrap().await.unwrap();
                let restored = layer.base().f32_weight().unwrap().read().await.unwrap();
                let rounding = if keep { 0.0 } else { 4e-7 * largest(golden) };
                assert_within(&format!("{folder} unmerged {name}"), &restored, before, rounding);
                layer.base().f32_weight().unwrap().write(before).unwrap();
            }
        }
        variants += 1;
        say(&format!(
            "golden {folder}: outputs, gradients, {} losses, end adapter and merged weights compared",
            losses.len()
        ));
    }
    assert!(variants > 0);
}

fn largest(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(v.abs())).fold(0.0, f64::max)
}

/// fc2(tanh(fc1(x))) and the gradients of its mean squared error, by the names that PEFT gives to parameters.
async fn first_pass(gpu: &Gpu, layers: &[Rc<LoraLinear>; 2], trace: &File) -> (Vec<f32>, Vec<(String, Vec<f32>)>) {
    let upload = |name: &str| Tensor::from_slice(gpu, name, trace.shape(name), trace.tensor(name)).unwrap();
    let (x, target) = (upload("x"), upload("target"));
    let rec = Recording::new(gpu);
    layers.iter().flat_map(|layer| layer.active()).for_each(|adapter| {
        adapter.grad().zero(&rec).unwrap();
        adapter.magnitude().iter().for_each(|m| rec.zero(&m.grad).unwrap());
    });
    let hidden = layers[0].forward(&rec, &x).unwrap();
    let like = |tensor: &Tensor| Tensor::zeros(gpu, "like", tensor.shape()).unwrap();
    let (activated, d_activated, d_hidden) = (like(&hidden), like(&hidden), like(&hidden));
    lora_webgpu::kernels::nn::activation::record(&rec, Activation::Tanh, &hidden, &activated).unwrap();
    let y = layers[1].forward(&rec, &activated).unwrap();
    let (d_y, loss) = (like(&y), Tensor::zeros(gpu, "loss", &[1]).unwrap());
    Loss::Mse.record(&rec, &y, &target, &d_y, &loss).unwrap();
    layers[1].backward(&rec, &activated, &d_y, Some(&d_activated)).unwrap();
    lora_webgpu::kernels::nn::activation_grad::record(&rec, Activation::Tanh, &hidden, &d_activated, &d_hidden)
        .unwrap();
    layers[0].backward(&rec, &x, &d_hidden, None).unwrap();
    rec.submit().await.unwrap();
    let mut grads = Vec::new();
    for layer in layers {
        let (adapter, name) = (layer.active()[0].clone(), layer.name().unwrap());
        grads.push((format!("{name}.lora_A"), adapter.grad().a.read().await.unwrap()));
        grads.push((format!("{name}.lora_B"), adapter.grad().b.read().await.unwrap()));
        if let Some(magnitude) = adapter.magnitude() {
            grads.push((format!("{name}.lora_magnitude_vector"), magnitude.grad.read().await.unwrap()));
        }
    }
    (y.read().await.unwrap(), grads)
}

fn regression(gpu: &Gpu) -> (Rc<LoraLinear>, Trainer) {
    let linear = layer(gpu, "fc", &[0.5; 12], None, &[0.25; 4], &[0.125; 3], LoraConfig::new(1, 1.0));
    let network = Network::new(vec![Module::Linear(linear.clone())]).unwrap();
    let options = OptimizerOptions::new(OptimizerKind::AdamW(AdamW::default()), 1e-2);
    (linear, Trainer::new(gpu, network, Loss::Mse, options).unwrap())
}

/// What is not finite updates nothing, is counted and said, and the next step goes on.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn steps_that_are_not_finite_are_skipped() {
    let gpu = gpu().await;
    let (linear, trainer) = regression(&gpu);
    let (good, targets) = ([0.5, -0.25, 1.0, 0.75], [1.0, 2.0, 3.0]);
    let step = async |x: [f32; 4]| {
        trainer.step(&[Batch { x: Inputs::Values(&x), targets: Targets::Values(&targets) }]).await.unwrap()
    };
    step(good).await;
    let before = linear.weight().a.read().await.unwrap();
    step([f32::NAN, 0.0, 0.0, 0.0]).await;
    step([0.0, f32::INFINITY, 0.0, 0.0]).await;
    assert_eq!(bits(&linear.weight().a.read().await.unwrap()), bits(&before));
    step(good).await;
    assert_ne!(bits(&linear.weight().a.read().await.unwrap()), bits(&before));
    let records = trainer.records(0).await.unwrap();
    assert_eq!(records.iter().map(|r| r.skipped()).collect::<Vec<_>>(), [false, true, true, false]);

    // The same two good steps without the bad ones between give the same bits.
    let (other, trainer) = regression(&gpu);
    for _ in 0..2 {
        trainer.step(&[Batch { x: Inputs::Values(&good), targets: Targets::Values(&targets) }]).await.unwrap();
    }
    assert_eq!(bits(&linear.weight().a.read().await.unwrap()), bits(&other.weight().a.read().await.unwrap()));
    assert_eq!(bits(&linear.weight().b.read().await.unwrap()), bits(&other.weight().b.read().await.unwrap()));
}

/// All labels ignored: loss 0 and no update, not NaN.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_batch_without_labels_updates_nothing() {
    let gpu = gpu().await;
    let linear = layer(&gpu, "fc", &[0.5; 12], None, &[0.25; 4], &[0.125; 3], LoraConfig::new(1, 1.0));
    let loss = Loss::CrossEntropy { ignore_index: -100, label_smoothing: 0.1 };
    let options = OptimizerOptions::new(OptimizerKind::Sgd(Sgd::default()), 0.1);
    let trainer =
        Trainer::new(&gpu, Network::new(vec![Module::Linear(linear.clone())]).unwrap(), loss, options).unwrap();
    trainer.step(&[Batch { x: Inputs::Values(&[1.0; 8]), targets: Targets::Labels(&[-100, -100]) }]).await.unwrap();
    let record = trainer.records(0).await.unwrap()[0];
    assert_eq!((record.loss, record.outcome), (0.0, Outcome::NothingCounted));
    assert_eq!(linear.weight().a.read().await.unwrap(), [0.25; 4]);

    let bad = trainer.step(&[Batch { x: Inputs::Values(&[1.0; 8]), targets: Targets::Labels(&[0, 3]) }]).await;
    refused("a label out of range", bad, "invalid-argument", &["targets", "0 to 2", "3"]);
    let bad = trainer.step(&[Batch { x: Inputs::Values(&[1.0; 7]), targets: Targets::Labels(&[0, 1]) }]).await;
    refused("a ragged batch", bad, "shape", &["x", "4", "7"]);
    refused("no batch", trainer.step(&[]).await, "invalid-argument", &["batches"]);
    assert_eq!(trainer.attempts(), 1, "what is refused is no attempt");
}

/// A steady step makes nothing and uploads its inputs alone.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_thousand_steps_hold_no_more_memory_than_one() {
    let gpu = gpu().await;
    let (_, trainer) = regression(&gpu);
    let (x, targets) = ([0.5; 8], [1.0; 6]);
    let batch = Batch { x: Inputs::Values(&x), targets: Targets::Values(&targets) };
    trainer.step(&[batch]).await.unwrap();
    let (memory, before) = (gpu.memory(), gpu.stats());
    for _ in 0..1000 {
        trainer.step(&[batch]).await.unwrap();
    }
    let after = gpu.stats();
    assert_eq!(gpu.memory(), memory);
    assert_eq!(after.uploaded_bytes - before.uploaded_bytes, 1000 * 4 * (8 + 6));
    let made = |s: lora_webgpu::Stats| (s.buffers_created, s.bind_groups, s.pipelines);
    assert_eq!(made(after), made(before));
}

/// A batch on the GPU trains and evaluates to the bits of the same one in memory, in a window of both, too, and uploads nothing.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn batches_on_the_gpu_train_as_those_in_memory() {
    let gpu = gpu().await;
    let (x, y) = ([0.5, -0.25, 1.0, 0.75, 0.125, 0.5, -1.0, 0.25], [1.0, 2.0, 3.0, -1.0, 0.5, 0.0]);
    let tensors = [Tensor::from_slice(&gpu, "x", &[2, 4], &x), Tensor::from_slice(&gpu, "y", &[2, 3], &y)];
    let [on_x, on_y] = tensors.map(Result::unwrap);
    let memory = Batch { x: Inputs::Values(&x), targets: Targets::Values(&y) };
    let on_gpu = Batch { x: Inputs::Tensor(&on_x), targets: Targets::Tensor(&on_y) };
    let mixed = Batch { x: Inputs::Values(&x), targets: Targets::Tensor(&on_y) };
    let run = async |[one, two]: [Batch<'_>; 2]| {
        let (linear, trainer) = regression(&gpu);
        trainer.step(&[one]).await.unwrap();
        trainer.step(&[one, two]).await.unwrap();
        let evaluated = trainer.evaluate(&two).await.unwrap();
        trainer.step(&[two]).await.unwrap();
        let (a, b) = (linear.weight().a.read().await.unwrap(), linear.weight().b.read().await.unwrap());
        [bits(&a), bits(&b), vec![evaluated.to_bits()]]
    };
    let expected = run([memory, memory]).await;
    assert!(run([on_gpu, on_gpu]).await == expected, "other bits on the GPU");
    assert!(run([mixed, on_gpu]).await == expected, "other bits in part on the GPU");
    // What was copied for one step is not for the next.
    assert!(run([on_gpu, memory]).await == expected, "other bits in memory after the GPU");

    let (_, trainer) = regression(&gpu);
    trainer.step(&[on_gpu]).await.unwrap();
    let (held, before) = (gpu.memory(), gpu.stats());
    for _ in 0..10 {
        trainer.step(&[on_gpu]).await.unwrap();
    }
    let after = gpu.stats();
    let made = |s: lora_webgpu::Stats| (s.uploaded_bytes, s.buffers_created, s.bind_groups, s.pipelines);
    assert_eq!((gpu.memory(), made(after), after.submits), (held, made(before), before.submits + 10));
}

/// A tensor that is no such batch is refused, and the next step goes on as if it had not been.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn batches_on_the_gpu_that_do_not_fit_are_refused() {
    let (gpu, other) = (gpu().await, fresh_gpu(None).await);
    let (linear, trainer) = regression(&gpu);
    let good = Tensor::from_slice(&gpu, "good", &[1, 4], &[0.5; 4]).unwrap();
    let targets = Tensor::from_slice(&gpu, "targets", &[1, 3], &[1.0; 3]).unwrap();
    let batch = |x, targets| Batch { x: Inputs::Tensor(x), targets: Targets::Tensor(targets) };
    let zeros = |gpu, shape: &[usize]| Tensor::zeros(gpu, "zeros", shape).unwrap();
    let gone = zeros(&gpu, &[1, 4]);
    let (flat, wide, rows, foreign) =
        (zeros(&gpu, &[4]), zeros(&gpu, &[1, 6]), zeros(&gpu, &[2, 3]), zeros(&other, &[1, 4]));
    let labels = Tensor::integers(&gpu, "labels", &[1, 3], None).unwrap();
    gone.destroy();
    for (what, x, y, code) in [
        ("one dimension", &flat, &targets, "shape"),
        ("another width", &wide, &targets, "shape"),
        ("other rows", &good, &rows, "shape"),
        ("labels for floats", &good, &labels, "invalid-argument"),
        ("another device", &foreign, &targets, "foreign-tensor"),
        ("destroyed", &gone, &targets, "disposed"),
    ] {
        for batches in [vec![batch(x, y)], vec![batch(&good, &targets), batch(x, y)]] {
            let error = trainer.step(&batches).await.expect_err(what);
            assert_eq!(error.code(), code, "{what}: {error}");
        }
        assert_eq!(trainer.evaluate(&batch(x, y)).await.expect_err(what).code(), code);
    }
    assert_eq!(trainer.attempts(), 0);
    trainer.step(&[batch(&good, &targets)]).await.unwrap();
    let (alone, trainer) = regression(&gpu);
    trainer.step(&[batch(&good, &targets)]).await.unwrap();
    assert_eq!(bits(&linear.weight().a.read().await.unwrap()), bits(&alone.weight().a.read().await.unwrap()));
}

/// Labels on the GPU are as those in memory; one out of range skips the step.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn labels_on_the_gpu_train_as_those_in_memory() {
    let gpu = gpu().await;
    let step = async |targets: Targets<'_>| {
        let linear = layer(&gpu, "fc", &[0.5; 12], None, &[0.25; 4], &[0.125; 3], LoraConfig::new(1, 1.0));
        let network = Network::new(vec![Module::Linear(linear.clone())]).unwrap();
        let options = OptimizerOptions::new(OptimizerKind::AdamW(AdamW::default()), 1e-2);
        let loss = Loss::CrossEntropy { ignore_index: -100, label_smoothing: 0.1 };
        let trainer = Trainer::new(&gpu, network, loss, options).unwrap();
        trainer.step(&[Batch { x: Inputs::Values(&[1.0; 8]), targets }]).await.unwrap();
        let records = trainer.records(0).await.unwrap();
        (records[0].outcome, bits(&linear.weight().b.read().await.unwrap()))
    };
    let labels = |values: [i32; 2]| Tensor::integers(&gpu, "labels", &[2], Some(&values)).unwrap();
    let in_memory = step(Targets::Labels(&[-100, 1])).await;
    assert_eq!(in_memory.0, Outcome::Updated);
    assert_eq!(step(Targets::Tensor(&labels([-100, 1]))).await, in_memory);
    let (outcome, b) = step(Targets::Tensor(&labels([0, 3]))).await;
    assert!(matches!(outcome, Outcome::NotFinite(_)) && b == bits(&[0.125; 3]), "{outcome:?}");
}

/// With an adapter that comes and goes between two steps activations move, and the next step finds them.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn an_adapter_that_comes_and_goes_changes_no_step() {
    let gpu = gpu().await;
    let (x, targets) = ([0.5; 8], [1.0; 6]);
    let batch = Batch { x: Inputs::Values(&x), targets: Targets::Values(&targets) };
    let run = async |change: bool| {
        let (linear, trainer) = regression(&gpu);
        let mut held = None;
        for _ in 0..5 {
            trainer.step(&[batch]).await.unwrap();
            if change {
                linear.add_adapter("more", &LoraConfig::new(1, 1.0)).unwrap();
                trainer.step(&[batch]).await.unwrap();
                linear.remove_adapter("more").unwrap();
            } else {
                trainer.step(&[batch]).await.unwrap();
            }
            if let Some(held) = held {
                assert_eq!(gpu.memory(), held, "what was made for the old activations is freed");
            }
            held = change.then(|| gpu.memory());
        }
        linear.weight().b.read().await.unwrap()
    };
    let (plain, changed) = (run(false).await, run(true).await);
    assert!(bits(&plain) == bits(&changed) && plain[0] != 0.125, "other bits");
}

/// More lengths in one window than there are plans kept.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_window_of_many_lengths_is_one_step() {
    let gpu = gpu().await;
    let (linear, trainer) = regression(&gpu);
    let data: Vec<_> = (1..=12).map(|tokens| (vec![0.5; 4 * tokens], vec![1.0; 3 * tokens])).collect();
    let batches: Vec<_> =
        data.iter().map(|(x, y)| Batch { x: Inputs::Values(x), targets: Targets::Values(y) }).collect();
    trainer.step(&batches).await.unwrap();
    let record = trainer.records(0).await.unwrap()[0];

    // All tokens are alike, so that one of them alone has the same mean loss and the same step.
    let (other, trainer) = regression(&gpu);
    trainer.step(&batches[..1]).await.unwrap();
    let single = trainer.records(0).await.unwrap()[0];
    assert_within("loss", &[record.loss], &[single.loss], 1e-6);
    let (many, one) = (linear.weight().b.read().await.unwrap(), other.weight().b.read().await.unwrap());
    assert_within("B", &many, &one, 1e-6);
    assert!(many.iter().all(|b| *b != 0.125), "B has moved: {many:?}");
}

/// An evaluation between the micro-batches of a step and its update changes no bit of the step.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn an_evaluation_does_not_disturb_a_pending_step() {
    let gpu = gpu().await;
    let batch = Batch { x: Inputs::Values(&[0.5, 1.0, -1.0, 0.25]), targets: Targets::Values(&[1.0, 0.0, -1.0]) };
    let other = Batch { x: Inputs::Values(&[0.75; 8]), targets: Targets::Values(&[1.0; 6]) };
    let run = async |evaluate: bool| {
        let (linear, trainer) = regression(&gpu);
        let alone = trainer.evaluate(&other).await.unwrap();
        let step = trainer.step(&[batch, batch]);
        if evaluate {
            assert_eq!(trainer.evaluate(&other).await.unwrap(), alone);
        }
        step.await.unwrap();
        let record = trainer.records(0).await.unwrap()[0];
        assert!(record.loss > 0.0 && alone > 0.0 && record.loss != alone);
        let (a, b) = (linear.weight().a.read().await.unwrap(), linear.weight().b.read().await.unwrap());
        [vec![record.loss, record.grad_norm], a, b].concat()
    };
    let (plain, disturbed) = (run(false).await, run(true).await);
    assert!(bits(&disturbed) == bits(&plain), "other bits");
}

/// The first layer whose output is not finite, or the last whose gradient is not.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_skipped_step_says_where_it_began() {
    let gpu = gpu().await;
    let config = LoraConfig::new(1, 1.0);
    let chain = |weights: [f32; 3]| {
        let layers = weights.map(|w| layer(&gpu, "fc", &[w; 4], None, &[0.25; 2], &[0.125; 2], config));
        let network = Network::new(layers.into_iter().map(Module::Linear).collect()).unwrap();
        Trainer::new(&gpu, network, Loss::Mse, OptimizerOptions::new(OptimizerKind::Sgd(Sgd::default()), 0.1)).unwrap()
    };
    let outcome = async |trainer: &Trainer, x: [f32; 2], target: f32| {
        trainer.step(&[Batch { x: Inputs::Values(&x), targets: Targets::Values(&[target; 2]) }]).await.unwrap();
        trainer.records(trainer.attempts() - 1).await.unwrap()[0].outcome
    };
    let trainer = chain([1.0, 3e38, 1.0]);
    assert_eq!(outcome(&trainer, [1.0; 2], 1.0).await, Outcome::NotFinite(Some(Origin::Output(1))));
    assert_eq!(outcome(&trainer, [f32::NAN, 0.0], 1.0).await, Outcome::NotFinite(Some(Origin::Output(0))));
    let trainer = chain([1.0, 1.0, 1.0]);
    assert_eq!(outcome(&trainer, [1.0; 2], f32::INFINITY).await, Outcome::NotFinite(Some(Origin::Gradient(2))));
    assert_eq!(outcome(&trainer, [1.0; 2], 1.0).await, Outcome::Updated);
}

/// A layer of 64 → 64 with the values of its dropout visible: W = 0, A = 1 and B = 1 in one row and column each.
fn dropping(gpu: &Gpu, p: f64, seed: u64) -> (Rc<LoraLinear>, Trainer) {
    let config = LoraConfig { dropout: p, ..LoraConfig::new(1, 1.0) };
    let linear = layer(gpu, "fc", &[0.0; 64], None, &[1.0; 64], &[1.0], config);
    let network = Network::new(vec![Module::Linear(linear.clone())]).unwrap();
    let options = OptimizerOptions::new(OptimizerKind::Sgd(Sgd::default()), 1.0);
    (linear, Trainer::new(gpu, network, Loss::Mse, options).unwrap().with_seed(seed))
}

/// The gradient of A shows the mask, since y = Σᵢ mᵢ·xᵢ/(1−p) and the learning rate is 1: dA = 2·(y − target)·m⊙x/(1−p).
/// The mask of a step is the reference's for its seed, step, micro-batch and layer; evaluation drops nothing.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn dropout_is_a_function_of_seed_step_and_micro_batch() {
    let gpu = gpu().await;
    let p = 0.25;
    let x = [0.5; 64];
    let batch = Batch { x: Inputs::Values(&x), targets: Targets::Values(&[-1.0]) };
    for seed in [3, 3 << 40] {
        let (linear, trainer) = dropping(&gpu, p, seed);
        let kept = |step, micro_batch| {
            let draw = reference::lora::Draw { p, seed, step, micro_batch, layer: 0 };
            (0..64).map(|column| f64::from(u8::from(reference::lora::is_kept(draw, 0, column)))).collect::<Vec<_>>()
        };
        assert_ne!(kept(0, 0), kept(1, 0));
        assert_ne!(kept(0, 0), kept(0, 1));
        assert!((trainer.evaluate(&batch).await.unwrap() - 33.0 * 33.0).abs() < 1e-3);
        for (step, micro_batches) in [(0, 1), (1, 3), (2, 1)] {
            let start = [vec![1.0; 64], vec![1.0]];
            linear.weight().a.write(&start[0]).unwrap();
            linear.weight().b.write(&start[1]).unwrap();
            trainer.step(&vec![batch; micro_batches]).await.unwrap();
            let mut expected = vec![1.0; 64];
            let mut losses = 0.0;
            for micro_batch in 0..micro_batches {
                let mask = kept(step, micro_batch as u32);
                let y: f64 = mask.iter().map(|m| m * 0.5 / (1.0 - p)).sum();
                losses += (y + 1.0) * (y + 1.0) / micro_batches as f64;
                for (a, m) in expected.iter_mut().zip(mask) {
                    *a -= 2.0 * (y + 1.0) * m * 0.5 / (1.0 - p) / micro_batches as f64;
                }
            }
            let expected: Vec<f32> = expected.iter().map(|v| *v as f32).collect();
            assert_within("A", &linear.weight().a.read().await.unwrap(), &expected, 2e-5);
            let record = trainer.records(step.into()).await.unwrap()[0];
            assert_within("loss", &[record.loss], &[losses as f32], 1e-5 * losses);
        }
    }
}

/// What comes back through a layer with dropout is the derivative of what it gave: the layer below learns as central
/// differences of the loss say, the mask staying the same while the step does.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn the_gradient_goes_through_dropout() {
    let gpu = gpu().await;
    let mut rng = common::Rng(11);
    let (w, a, b) = (rng.numbers(35), rng.numbers(15), rng.numbers(21));
    let [w2, a2, b2] = [rng.numbers(14), rng.numbers(14), rng.numbers(4)];
    let (x, targets) = (rng.numbers(15), rng.numbers(6));
    let batch = Batch { x: Inputs::Values(&x), targets: Targets::Values(&targets) };
    for use_dora in [false, true] {
        let build = |lr| {
            let below = layer(&gpu, "below", &w, None, &a, &b, LoraConfig::new(3, 3.0));
            let config = LoraConfig { dropout: 0.4, use_dora, ..LoraConfig::new(2, 4.0) };
            let above = layer(&gpu, "above", &w2, None, &a2, &b2, config);
            let modules = vec![Module::Linear(below.clone()), Module::Linear(above)];
            let options = OptimizerOptions::new(OptimizerKind::Sgd(Sgd::default()), lr);
            (below, Trainer::new(&gpu, Network::new(modules).unwrap(), Loss::Mse, options).unwrap().with_seed(5))
        };
        let (below, trainer) = build(1.0);
        trainer.step(&[batch]).await.unwrap();
        let after = below.weight().a.read().await.unwrap();
        let gradient: Vec<f64> = a.iter().zip(&after).map(|(from, to)| f64::from(*from) - f64::from(*to)).collect();
        // Along the gradient itself; with a learning rate of 0 the loss of a first step is the function to differentiate.
        let length = norm(gradient.iter().copied());
        let mut losses = Vec::new();
        for h in [0.02, -0.02] {
            let (below, trainer) = build(0.0);
            let moved: Vec<f32> =
                a.iter().zip(&gradient).map(|(a, g)| (f64::from(*a) + h * g / length) as f32).collect();
            below.weight().a.write(&moved).unwrap();
            trainer.step(&[batch]).await.unwrap();
            losses.push(f64::from(trainer.records(0).await.unwrap()[0].loss));
        }
        let slope = (losses[0] - losses[1]) / 0.04;
        assert!(
            (slope - length).abs() <= 1e-3 * length,
            "DoRA {use_dora}: differences say {slope}, the gradient {length}"
        );
    }
}

/// Shares of kept elements over 64 × 1,000 draws: 4 standard deviations of a binomial distribution.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn dropout_keeps_the_share_that_it_promises() {
    for p in [0.1, 0.5, 0.9] {
        let draw = reference::lora::Draw { p, seed: 1, step: 0, micro_batch: 0, layer: 0 };
        let kept = (0..1000).flat_map(|row| (0..64).map(move |column| (row, column)));
        let share = kept.filter(|(row, column)| reference::lora::is_kept(draw, *row, *column)).count() as f64 / 64e3;
        assert!((share - (1.0 - p)).abs() <= 4.0 * (p * (1.0 - p) / 64e3).sqrt(), "{share} at {p}");
    }
}

/// Resumed in the middle, dropout goes on with the masks that it would have drawn.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn dropout_resumes_with_the_same_bits() {
    let gpu = gpu().await;
    let (x, y) = (common::Rng(2).numbers(128), common::Rng(3).numbers(2));
    let batch = Batch { x: Inputs::Values(&x), targets: Targets::Values(&y) };
    let (whole, trainer) = dropping(&gpu, 0.3, 9);
    for _ in 0..2 {
        trainer.step(&[batch, batch]).await.unwrap();
    }
    let saved = trainer.save_state(Position::default(), "").await.unwrap();
    for _ in 0..2 {
        trainer.step(&[batch, batch]).await.unwrap();
    }
    let (resumed, trainer) = dropping(&gpu, 0.3, 9);
    assert!(!trainer.load_state(&saved).unwrap().bits_may_differ);
    for _ in 0..2 {
        trainer.step(&[batch, batch]).await.unwrap();
    }
    assert_eq!(bits(&whole.weight().a.read().await.unwrap()), bits(&resumed.weight().a.read().await.unwrap()));
    let (_, other) = dropping(&gpu, 0.3, 8);
    refused("another seed", other.load_state(&saved), "checkpoint", &["seed", "8", "9"]);
    let (_, other) = dropping(&gpu, 0.2, 9);
    refused("another dropout", other.load_state(&saved), "checkpoint", &["layers"]);
}

/// CRC-32, bit by bit.
fn crc32(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes.fold(!0u32, |crc, byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 * (crc & 1))))
}

/// Where `text` stands.
fn find(bytes: &[u8], text: &str) -> usize {
    bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap()
}

/// The same state is the same bytes, and any flipped bit is noticed.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_checkpoint_has_one_form_and_notices_damage() {
    let gpu = gpu().await;
    let (_, trainer) = regression(&gpu);
    let (x, targets) = ([0.5; 8], [1.0; 6]);
    let batch = Batch { x: Inputs::Values(&x), targets: Targets::Values(&targets) };
    for _ in 0..3 {
        trainer.step(&[batch]).await.unwrap();
    }
    let position = Position { epoch: 2, batch: 7 };
    let note = "a \"note\" with \"checksum\":\"00000000\" in it\n";
    let state = trainer.save_state(position, note).await.unwrap();
    assert!(trainer.save_state(position, note).await.unwrap() == state, "saved twice");

    // Another trainer takes it over and gives the same bytes back.
    let (other_layer, other) = regression(&gpu);
    let resumed = other.load_state(&state).unwrap();
    assert_eq!((resumed.position, resumed.note.as_str(), resumed.bits_may_differ), (position, note, false));
    assert!(other.save_state(position, note).await.unwrap() == state, "saved, loaded and saved");
    assert_eq!(other.attempts(), 3);

    // Header, first tensor, last byte; each bit of a byte.
    let header = 8 + u64::from_le_bytes(*state.first_chunk().unwrap()) as usize;
    let data = (header..state.len()).step_by(991).chain([state.len() - 1]);
    let mut damaged = state.clone();
    for at in (0..header).chain(data) {
        damaged[at] ^= 1 << (at % 8);
        refused(&format!("bit {} of byte {at}", at % 8), other.load_state(&damaged), "checkpoint", &[]);
        damaged[at] = state[at];
    }
    damaged[state.len() - 3] ^= 0x10;
    refused("a flipped bit in the data", other.load_state(&damaged), "checkpoint", &["checksum", "damaged"]);
    refused("a part", other.load_state(&state[..state.len() - 1]), "checkpoint", &["whole"]);

    // With a right checksum, but another number of attempts than the state on the GPU.
    let mut forged = state.clone();
    let at = find(&forged, "\"attempts\":\"3\"");
    forged[at + 12] = b'4';
    let at = find(&forged, "\"checksum\":\"") + 12;
    forged[at..at + 8].fill(b'0');
    let sum = format!("{:08x}", crc32(forged.iter().copied()));
    forged[at..at + 8].copy_from_slice(sum.as_bytes());
    refused("forged attempts", other.load_state(&forged), "checkpoint", &["attempts", "3", "4"]);

    assert!(other.save_state(position, note).await.unwrap() == state, "nothing of these changed anything");
    assert_eq!(other_layer.weight().a.read().await.unwrap().len(), 4);
}

/// Of a step of several micro-batches nothing is left where the GPU refuses one.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_refused_micro_batch_updates_nothing() {
    let gpu = fresh_gpu(None).await;
    gpu.replace_shader("loss/mse", "not a shader".into());
    let (linear, trainer) = regression(&gpu);
    let (x, targets) = ([0.5; 8], [1.0; 6]);
    let batches = [Batch { x: Inputs::Values(&x), targets: Targets::Values(&targets) }; 2];
    let before = trainer.save_state(Position::default(), "").await.unwrap();
    refused("a broken kernel", trainer.step(&batches).await, "validation", &[]);
    assert_eq!(trainer.attempts(), 0);
    assert_eq!(linear.weight().b.read().await.unwrap(), [0.125; 3]);
    let after = trainer.save_state(Position::default(), "").await.unwrap();
    assert!(before == after, "no attempt, no row in the log, no update");
}

/// Adapters that come and go beside those that are trained drop what recordings lie over, and the next step makes it anew.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn adapters_may_come_and_go_beside_a_trainer() {
    let gpu = gpu().await;
    let batch = Batch { x: Inputs::Values(&[0.5, 1.0, -1.0, 0.25]), targets: Targets::Values(&[1.0, 0.0, -1.0]) };
    let run = async |others: bool| {
        let (linear, trainer) = regression(&gpu);
        for step in 0..3 {
            trainer.step(&[batch]).await.unwrap();
            match (others, step) {
                (true, 0) => drop(linear.add_adapter("other", &LoraConfig::new(2, 2.0)).unwrap()),
                (true, 1) => linear.remove_adapter("other").unwrap(),
                _ => {}
            }
        }
        let loss = trainer.evaluate(&batch).await.unwrap();
        [vec![loss], linear.weight().b.read().await.unwrap()].concat()
    };
    let (alone, beside) = (run(false).await, run(true).await);
    assert!(bits(&alone) == bits(&beside), "other bits");
}

/// A step is refused where other adapters take part than those that the optimiser updates; an evaluation is not.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn only_the_adapters_of_the_optimizer_are_trained() {
    let gpu = gpu().await;
    let batch = Batch { x: Inputs::Values(&[0.5, 1.0, -1.0, 0.25]), targets: Targets::Values(&[1.0, 0.0, -1.0]) };
    let (linear, trainer) = regression(&gpu);
    linear.add_adapter("other", &LoraConfig::new(2, 2.0)).unwrap();
    trainer.step(&[batch]).await.unwrap();
    let state = trainer.save_state(Position::default(), "").await.unwrap();
    let active = |names: &[&str]| linear.set_active(names).unwrap();
    let own = trainer.evaluate(&batch).await.unwrap();
    for names in [&["other"][..], &["default", "other"], &[]] {
        active(names);
        refused("a step", trainer.step(&[batch]).await, "invalid-argument", &["active"]);
        refused("a window", trainer.step(&[batch, batch]).await, "invalid-argument", &["active"]);
        let loss = trainer.evaluate(&batch).await.unwrap();
        assert!(loss > 0.0 && (loss == own) == (names.len() == 2), "{names:?}: {loss}");
    }
    active(&["default"]);
    linear.set_enabled(false);
    refused("switched off", trainer.step(&[batch]).await, "invalid-argument", &["active"]);
    linear.set_enabled(true);
    assert_eq!(trainer.attempts(), 1);
    assert!(trainer.save_state(Position::default(), "").await.unwrap() == state, "nothing was updated");
    trainer.step(&[batch]).await.unwrap();
    assert_eq!(trainer.records(1).await.unwrap()[0].outcome, Outcome::Updated);
}
