//! Variants of an adapter, several on one base, and adapters merged into it.

use lora_webgpu::kernels::lora::save_activation;
use lora_webgpu::{
    FrozenLinear, FrozenLoader, Gpu, LoraConfig, LoraLinear, Optimizer, OptimizerKind, OptimizerOptions, Packing,
    Recording, Sgd, Tensor, WeightKind, pack,
};
use wasm_bindgen_test::wasm_bindgen_test;

use crate::common::{Rng, bits, gpu, refused};

/// Random tensors for a layer's adapters, B's too.
async fn filled(gpu: &Gpu, rng: &mut Rng, configs: &[(&str, LoraConfig)]) -> LoraLinear {
    filled_on(gpu, rng, WeightKind::F32, configs).await
}

/// The same over a weight of this kind.
async fn filled_on(gpu: &Gpu, rng: &mut Rng, kind: WeightKind, configs: &[(&str, LoraConfig)]) -> LoraLinear {
    let (weight, bias) = (rng.numbers(35), rng.numbers(5));
    let mut loader = FrozenLoader::new(gpu, kind, 5, 7).unwrap();
    loader.set_bias(&bias).unwrap();
    loader.write(0, &pack(kind, &weight).unwrap()).unwrap();
    let base = loader.finish().unwrap();
    let layer = LoraLinear::new(gpu, Some("fc"), base, &configs[0].1).unwrap();
    for (name, config) in &configs[1..] {
        layer.add_adapter(name, config).unwrap();
    }
    for adapter in layer.adapters() {
        let vectors = [adapter.magnitude(), adapter.lora_bias()].into_iter().flatten().map(|t| t.value.clone());
        for tensor in [adapter.weight().a.clone(), adapter.weight().b.clone()].into_iter().chain(vectors) {
            tensor.write(&rng.numbers(tensor.len())).unwrap();
        }
    }
    layer
}

async fn forward(gpu: &Gpu, layer: &LoraLinear, x: &Tensor) -> Vec<f32> {
    let rec = Recording::new(gpu);
    let output = layer.forward(&rec, x).unwrap();
    rec.submit().await.unwrap();
    output.read().await.unwrap()
}

#[track_caller]
fn assert_alike(what: &str, got: &[f32], expected: &[f32]) {
    let largest = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
    let worst = got.iter().zip(expected).fold(0f32, |m, (g, e)| m.max((g - e).abs()));
    assert!(largest > 0.0 && worst <= 4e-6 * largest, "{what}: off by {worst:e} of {largest:e}");
}

/// Each variant's gradients against central differences of ½·‖output‖², along the gradient itself; what DoRA holds constant
/// is no part of it, so its A and B are not compared there.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn variants_have_the_gradients_of_what_they_give() {
    let gpu = gpu().await;
    let plain = LoraConfig::new(3, 4.5);
    let variants = [
        ("bias beside B", LoraConfig { lora_bias: true, ..plain }),
        ("the base's bias", LoraConfig { train_bias: true, ..plain }),
        ("dora", LoraConfig { use_dora: true, ..plain }),
    ];
    for (what, config) in variants {
        let layer = filled(&gpu, &mut Rng(5), &[("default", config)]).await;
        let x = Tensor::from_slice(&gpu, "x", &[4, 7], &Rng(6).numbers(28)).unwrap();
        let rec = Recording::new(&gpu);
        let output = layer.forward(&rec, &x).unwrap();
        let [d_output, d_input] = [[4, 5], [4, 7]].map(|shape| Tensor::zeros(&gpu, "gradient", &shape).unwrap());
        save_activation::record(&rec, &output, &d_output).unwrap();
        layer.backward(&rec, &x, &d_output, Some(&d_input)).unwrap();
        rec.submit().await.unwrap();
        let adapter = &layer.active()[0];
        let mut pairs = vec![(x.clone(), d_input.clone())];
        pairs.extend(
            [adapter.magnitude(), adapter.lora_bias(), adapter.base_bias()]
                .into_iter()
                .flatten()
                .map(|t| (t.value.clone(), t.grad.clone())),
        );
        if !config.use_dora {
            pairs.push((adapter.weight().a.clone(), adapter.grad().a.clone()));
            pairs.push((adapter.weight().b.clone(), adapter.grad().b.clone()));
        }
        for (value, grad) in pairs {
            let (start, direction) = (value.read().await.unwrap(), grad.read().await.unwrap());
            let length = direction.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            let mut energy = [0.0; 2];
            for (energy, h) in energy.iter_mut().zip([1e-2, -1e-2]) {
                let moved: Vec<f32> = start
                    .iter()
                    .zip(&direction)
                    .map(|(v, g)| (f64::from(*v) + h * f64::from(*g) / length) as f32)
                    .collect();
                value.write(&moved).unwrap();
                *energy = forward(&gpu, &layer, &x).await.iter().map(|y| 0.5 * f64::from(*y).powi(2)).sum();
            }
            value.write(&start).unwrap();
            let slope = (energy[0] - energy[1]) / 2e-2;
            assert!((slope - length).abs() <= 1e-3 * length, "{what}, {}: {slope} and {length}", value.label());
        }
    }
}

/// DoRA's output is m/‖W + s·B·A‖·(W + s·B·A)·x + bias by rows, and a new one changes nothing.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn dora_gives_what_its_equation_says() {
    let gpu = gpu().await;
    let config = LoraConfig { use_dora: true, ..LoraConfig::new(3, 4.5) };
    let layer = filled(&gpu, &mut Rng(8), &[("default", config)]).await;
    let x = Rng(9).numbers(21);
    let tensor = Tensor::from_slice(&gpu, "x", &[3, 7], &x).unwrap();
    let got = forward(&gpu, &layer, &tensor).await;
    let w = layer.base().f32_weight().unwrap().read().await.unwrap();
    let (bias, delta) = (layer.base().bias().unwrap().read().await.unwrap(), layer.delta_weight().await.unwrap());
    let magnitude = layer.active()[0].magnitude().unwrap().value.read().await.unwrap();
    let row =
        |o: usize| (0..7).map(move |i| 7 * o + i).map(|i| f64::from(w[i]) + f64::from(delta[i])).collect::<Vec<_>>();
    let mut expected = Vec::new();
    for x in x.chunks(7) {
        for o in 0..5 {
            let row = row(o);
            let norm = row.iter().map(|v| v * v).sum::<f64>().sqrt();
            let y: f64 = row.iter().zip(x).map(|(w, x)| w * f64::from(*x)).sum();
            expected.push((f64::from(magnitude[o]) / norm * y + f64::from(bias[o])) as f32);
        }
    }
    assert_alike("dora", &got, &expected);

    let (weight, bias) = (Rng(1).numbers(35), Rng(2).numbers(5));
    let base = || FrozenLinear::new(&gpu, 5, 7, &weight, Some(&bias)).unwrap();
    let fresh = LoraLinear::new(&gpu, None, base(), &config).unwrap();
    let alone = LoraLinear::new(&gpu, None, base(), &LoraConfig::new(3, 4.5)).unwrap();
    assert_alike("a new one", &forward(&gpu, &fresh, &tensor).await, &forward(&gpu, &alone, &tensor).await);
}

/// The norm of W + s·B·A is that of a merged weight, whatever a ternary base does with its input: A is no activation.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn doras_norm_takes_a_as_it_is() {
    let gpu = gpu().await;
    let (rows, columns, rank) = (4, 128, 3);
    let codes: Vec<u8> =
        Rng(3).numbers(columns).iter().map(|v| [0x24, 0x81, 0x12, 0x59][(v.abs() * 4.0) as usize % 4]).collect();
    for int8_activations in [true, false] {
        let kind = WeightKind::BitLinear { packing: Packing::Transformers, int8_activations };
        let mut loader = FrozenLoader::new(&gpu, kind, rows, columns).unwrap();
        loader.set_scale(0.75).unwrap();
        loader.write(0, &codes).unwrap();
        let base = loader.finish().unwrap();
        let config = LoraConfig { use_dora: true, ..LoraConfig::new(rank, 4.5) };
        let layer = LoraLinear::new(&gpu, None, base, &config).unwrap();
        let (a, b) = (Rng(5).numbers(rank * columns), Rng(6).numbers(rows * rank));
        layer.weight().a.write(&a).unwrap();
        layer.weight().b.write(&b).unwrap();
        // Rows of x that 8 bits hold: each a number at one place. Each gives a column of m/‖W + s·B·A‖·(W + s·B·A).
        let mut x = vec![0.0; columns * columns];
        (0..columns).for_each(|i| x[i * columns + i] = 1.0);
        let x = Tensor::from_slice(&gpu, "x", &[columns, columns], &x).unwrap();
        let got = forward(&gpu, &layer, &x).await;
        let magnitude = layer.active()[0].magnitude().unwrap().value.read().await.unwrap();
        layer.set_enabled(false);
        let w = forward(&gpu, &layer, &x).await; // transposed
        let sum = |o: usize, i: usize| {
            let delta: f64 = (0..rank).map(|r| f64::from(b[o * rank + r]) * f64::from(a[r * columns + i])).sum();
            f64::from(w[i * rows + o]) + 1.5 * delta
        };
        let mut expected = vec![0.0; rows * columns];
        for o in 0..rows {
            let norm = (0..columns).map(|i| sum(o, i).powi(2)).sum::<f64>().sqrt();
            (0..columns).for_each(|i| expected[i * rows + o] = (f64::from(magnitude[o]) / norm * sum(o, i)) as f32);
        }
        assert_alike(if int8_activations { "8 bits" } else { "floats" }, &got, &expected);
    }
}

/// A row of zeros has no direction: its magnitude is zero, and it gives and learns nothing, where m/‖·‖ would be 0/0.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn dora_leaves_rows_of_zeros() {
    let gpu = gpu().await;
    let mut weight = Rng(1).numbers(35);
    weight[14..21].fill(0.0);
    let bias = Rng(2).numbers(5);
    let config = LoraConfig { use_dora: true, ..LoraConfig::new(3, 4.5) };
    let layer =
        LoraLinear::new(&gpu, None, FrozenLinear::new(&gpu, 5, 7, &weight, Some(&bias)).unwrap(), &config).unwrap();
    let optimizer =
        Optimizer::new(&gpu, &[&layer], OptimizerOptions::new(OptimizerKind::Sgd(Sgd::default()), 0.05)).unwrap();
    let x = Tensor::from_slice(&gpu, "x", &[3, 7], &Rng(13).numbers(21)).unwrap();
    let [d_output, d_input] = [[3, 5], [3, 7]].map(|shape| Tensor::zeros(&gpu, "gradient", &shape).unwrap());
    for _ in 0..3 {
        let rec = Recording::new(&gpu);
        optimizer.zero_grad(&rec).unwrap();
        let output = layer.forward(&rec, &x).unwrap();
        save_activation::record(&rec, &output, &d_output).unwrap();
        layer.backward(&rec, &x, &d_output, Some(&d_input)).unwrap();
        optimizer.step(&rec).unwrap();
        rec.submit().await.unwrap();
        let outputs = output.read().await.unwrap();
        assert!(outputs.iter().chain(&d_input.read().await.unwrap()).all(|v| v.is_finite()), "{outputs:?}");
        assert!((0..3).all(|t| outputs[5 * t + 2] == bias[2]), "{outputs:?}");
    }
    let magnitude = layer.active()[0].magnitude().unwrap().value.read().await.unwrap();
    assert!(magnitude[2] == 0.0 && magnitude.iter().all(|m| m.is_finite()), "{magnitude:?}");
    let b = layer.weight().b.read().await.unwrap();
    assert!(b[6..9] == [0.0; 3] && b[..6].iter().any(|v| *v != 0.0), "{b:?}");
    optimizer.destroy();
    let beside = forward(&gpu, &layer, &x).await;
    for _ in 0..2 {
        layer.merge(false).unwrap().await.unwrap();
        assert_alike("merged", &forward(&gpu, &layer, &x).await, &beside);
        layer.unmerge().unwrap().await.unwrap();
    }
    let restored = layer.base().f32_weight().unwrap().read().await.unwrap();
    assert_alike("restored", &restored, &weight);
}

/// Adapters are added, switched, scaled, and taken away again; several active ones add up.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn several_adapters_share_a_base() {
    let gpu = gpu().await;
    let configs = [("default", LoraConfig::new(3, 4.5)), ("second", LoraConfig::new(2, 1.0))];
    let layer = filled(&gpu, &mut Rng(12), &configs).await;
    let x = Tensor::from_slice(&gpu, "x", &[3, 7], &Rng(13).numbers(21)).unwrap();
    let mut outputs = Vec::new();
    for active in [&[][..], &["default"], &["second"], &["default", "second"]] {
        layer.set_active(active).unwrap();
        outputs.push(forward(&gpu, &layer, &x).await);
    }
    let sum: Vec<f32> = (0..15).map(|i| outputs[1][i] + outputs[2][i] - outputs[0][i]).collect();
    assert_alike("both", &outputs[3], &sum);
    assert_ne!(bits(&outputs[1]), bits(&outputs[2]));

    layer.set_active(&["second"]).unwrap();
    layer.adapter("second").unwrap().set_scale(-0.5).unwrap();
    let half: Vec<f32> = (0..15).map(|i| outputs[0][i] - 0.5 * (outputs[2][i] - outputs[0][i])).collect();
    assert_alike("scaled", &forward(&gpu, &layer, &x).await, &half);
    layer.adapter("second").unwrap().set_scale(1.0).unwrap();

    // Rows of different adapters, and of none.
    let rec = Recording::new(&gpu);
    let mixed = layer.forward_rows(&rec, &x, &[Some("second"), None, Some("default")]).unwrap();
    rec.submit().await.unwrap();
    let mixed = mixed.read().await.unwrap();
    let rows: Vec<f32> = [&outputs[2][..5], &outputs[0][5..10], &outputs[1][10..]].concat();
    assert_alike("mixed rows", &mixed, &rows);
    refused("rows without names", layer.forward_rows(&rec, &x, &[None]), "shape", &["adapters", "3", "1"]);
    refused("a row of nobody", layer.forward_rows(&rec, &x, &[Some("third"); 3]), "invalid-argument", &["third"]);
    let d_output = Tensor::zeros(&gpu, "d_output", &[3, 5]).unwrap();
    refused("backward", layer.backward(&rec, &x, &d_output, None), "invalid-argument", &["forward"]);

    refused("a taken name", layer.add_adapter("second", &configs[0].1), "invalid-argument", &["second"]);
    refused("nobody", layer.set_active(&["third"]), "invalid-argument", &["default, second", "third"]);
    let dora = LoraConfig { use_dora: true, ..configs[0].1 };
    layer.add_adapter("dora", &dora).unwrap();
    refused("DoRA beside another", layer.set_active(&["dora", "default"]), "invalid-argument", &["DoRA", "alone"]);
    layer.remove_adapter("dora").unwrap();
    layer.remove_adapter("second").unwrap();
    refused("the only one", layer.remove_adapter("default"), "invalid-argument", &["default"]);
    assert_eq!(layer.adapters().len(), 1);
    // What is left is active no more, since it was "second" that was.
    assert_eq!(bits(&forward(&gpu, &layer, &x).await), bits(&outputs[0]));
}

/// Only the active adapters of a layer are trained, and their optimiser keeps them.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn an_optimizer_updates_the_active_adapters() {
    let gpu = gpu().await;
    let configs =
        [("default", LoraConfig::new(3, 4.5)), ("second", LoraConfig { lora_bias: true, ..LoraConfig::new(2, 1.0) })];
    let layer = filled(&gpu, &mut Rng(14), &configs).await;
    layer.set_active(&["second"]).unwrap();
    let options = OptimizerOptions::new(OptimizerKind::Sgd(Sgd::default()), 0.5);
    let optimizer = Optimizer::new(&gpu, &[&layer], options).unwrap();
    let x = Tensor::from_slice(&gpu, "x", &[3, 7], &Rng(13).numbers(21)).unwrap();
    let before =
        [layer.adapter("default").unwrap().weight().b.read().await.unwrap(), layer.weight().b.read().await.unwrap()];
    let bias = layer.active()[0].lora_bias().unwrap().value.clone();
    let bias_before = bias.read().await.unwrap();
    let rec = Recording::new(&gpu);
    let output = layer.forward(&rec, &x).unwrap();
    let d_output = Tensor::zeros(&gpu, "d_output", &[3, 5]).unwrap();
    save_activation::record(&rec, &output, &d_output).unwrap();
    layer.backward(&rec, &x, &d_output, None).unwrap();
    optimizer.step(&rec).unwrap();
    rec.submit().await.unwrap();
    assert_eq!(bits(&layer.adapter("default").unwrap().weight().b.read().await.unwrap()), bits(&before[0]));
    assert_ne!(bits(&layer.weight().b.read().await.unwrap()), bits(&before[1]));
    assert_ne!(bits(&bias.read().await.unwrap()), bits(&bias_before));
    refused("an owned one", layer.remove_adapter("second"), "invalid-argument", &["second", "optimizer"]);
    refused("merging it", layer.merge(false), "invalid-argument", &["optimizer"]);
    optimizer.destroy();
    layer.remove_adapter("second").unwrap();
}

/// What is merged gives the same as what is beside, and is itself no more counted twice.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn merging_changes_nothing_but_the_cost() {
    let gpu = gpu().await;
    let plain = LoraConfig::new(3, 4.5);
    for config in [plain, LoraConfig { lora_bias: true, ..plain }, LoraConfig { use_dora: true, ..plain }] {
        for keep in [true, false] {
            let layer = filled(&gpu, &mut Rng(21), &[("default", config)]).await;
            let x = Tensor::from_slice(&gpu, "x", &[3, 7], &Rng(22).numbers(21)).unwrap();
            let weight = layer.base().f32_weight().unwrap().read().await.unwrap();
            let beside = forward(&gpu, &layer, &x).await;
            refused("unmerging nothing", layer.unmerge(), "invalid-argument", &["merged"]);
            layer.merge(keep).unwrap().await.unwrap();
            assert_alike("merged", &forward(&gpu, &layer, &x).await, &beside);
            refused("merging twice", layer.merge(keep), "invalid-argument", &["merged"]);
            refused("switching", layer.set_active(&[]), "invalid-argument", &["unmerge"]);
            let options = OptimizerOptions::new(OptimizerKind::Sgd(Sgd::default()), 0.5);
            refused("training", Optimizer::new(&gpu, &[&layer], options), "invalid-argument", &["unmerge"]);
            layer.unmerge().unwrap().await.unwrap();
            let restored = layer.base().f32_weight().unwrap().read().await.unwrap();
            assert_alike("restored", &restored, &weight);
            assert!(!keep || bits(&restored) == bits(&weight));
            assert_alike("beside again", &forward(&gpu, &layer, &x).await, &beside);
        }
    }
}

/// In f16 within the rounding of each weight, to the bit where the original is kept; bf16 and quantised ones are refused.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn merging_into_halves_rounds_each_weight() {
    let gpu = gpu().await;
    let plain = LoraConfig::new(3, 4.5);
    // x = 1 shows the weight itself, beside the bias.
    let one: Vec<f32> = (0..49).map(|at| f32::from(u8::from(at % 8 == 0))).collect();
    let x = Tensor::from_slice(&gpu, "x", &[7, 7], &one).unwrap();
    for config in [plain, LoraConfig { lora_bias: true, ..plain }, LoraConfig { use_dora: true, ..plain }] {
        for keep in [true, false] {
            let layer = filled_on(&gpu, &mut Rng(21), WeightKind::F16, &[("default", config)]).await;
            let bias = layer.base().bias().unwrap();
            let beside = forward(&gpu, &layer, &x).await;
            layer.merge(keep).unwrap().await.unwrap();
            let merged = forward(&gpu, &layer, &x).await;
            let bias = bias.read().await.unwrap();
            for (at, (got, expected)) in merged.iter().zip(&beside).enumerate() {
                let bound = (expected - bias[at % 5]).abs() / 2048.0 + 4e-6 * expected.abs().max(1.0);
                assert!((got - expected).abs() <= bound, "merged [{at}]: {got}, {expected}");
            }
            assert_ne!(bits(&merged), bits(&beside), "in f16 something is rounded");
            layer.unmerge().unwrap().await.unwrap();
            let after = forward(&gpu, &layer, &x).await;
            assert!(!keep || bits(&after) == bits(&beside));
            let most = beside.iter().fold(0f32, |m, v| m.max(v.abs()));
            assert!(
                after.iter().zip(&beside).all(|(a, b)| (a - b).abs() <= 4.0 * most / 2048.0),
                "{after:?} {beside:?}"
            );
        }
    }
    let layer = filled_on(&gpu, &mut Rng(21), WeightKind::Bf16, &[("default", plain)]).await;
    refused("bf16", layer.merge(false), "invalid-argument", &["f32 or f16", "bf16", "copy of the model"]);
    let mut loader = FrozenLoader::new(&gpu, WeightKind::Q8_0, 2, 32).unwrap();
    loader.write(0, &pack(WeightKind::Q8_0, &Rng(3).numbers(64)).unwrap()).unwrap();
    let layer = LoraLinear::new(&gpu, None, loader.finish().unwrap(), &plain).unwrap();
    refused("q8_0", layer.merge(true), "invalid-argument", &["f32 or f16", "q8_0", "copy of the model"]);
    assert!(!layer.is_merged());
}
