//! What the kernels make together: the table of systems, a layer, its gradients, its training.

#[path = "layer/adapters.rs"]
mod adapters;
mod common;
#[cfg(not(target_arch = "wasm32"))] // in a browser on a software adapter hardware's tiles take seconds to compile
#[path = "layer/parts.rs"]
mod parts;
#[path = "layer/problem.rs"]
mod problem;
mod reference;

use std::collections::BTreeMap;

use common::tolerance::{Expected, assert_close, products, updated};
use common::{PROFILES, Rng, bits, f64s, gpu, gpu_as, refused};
use lora_webgpu::kernels::lora as kernel;
use lora_webgpu::{
    AdamW, FrozenLinear, Gpu, Init, LoraConfig, LoraGrad, LoraLinear, LoraWeight, Loss, Optimizer, OptimizerKind,
    OptimizerOptions, Recording, Result, Sgd, Tensor,
};
use problem::{DERIVED, Derivative, Problem, SCALE, derivatives};
use reference::lora::{Old, lora_backward, lora_forward};
use reference::{Dims, Sum, base, values};
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

const fn d(tokens: usize, in_features: usize, out_features: usize, rank: usize) -> Dims {
    Dims { tokens, in_features, out_features, rank }
}

const SHAPES: &[Dims] = &[
    d(1, 1, 1, 1),
    d(1, 33, 20, 3),
    d(2, 3, 5, 3),
    d(7, 12, 31, 17),
    d(5, 64, 64, 64),
    d(130, 17, 13, 4),
    d(9, 1, 7, 8),
    d(6, 7, 1, 1),
    d(17, 24, 40, 8),
];

// ── the reference ──

/// Central differences: of a function that is at most quadratic in each argument without an error but f64's, of others
/// with the square of the step.
fn assert_gradient(name: &str, at: &[f64], gradient: &[f64], f: impl Fn(&[f64]) -> f64) {
    const STEP: f64 = 1e-4;
    for (i, expected) in gradient.iter().enumerate() {
        let moved = |by: f64| f(&(0..at.len()).map(|j| at[j] + if i == j { by } else { 0.0 }).collect::<Vec<_>>());
        let difference = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
        let error = (difference - expected).abs();
        assert!(error <= 1e-6 * expected.abs().max(1.0), "{name}[{i}]: {difference} by differences, not {expected}");
    }
}

#[wasm_bindgen_test(unsupported = test)]
fn finite_differences_hold_the_reference_to_1e_6() {
    for d in [d(1, 1, 1, 1), d(1, 5, 4, 3), d(3, 5, 4, 2), d(2, 3, 1, 1), d(4, 1, 6, 8)] {
        let rng = &mut Rng(7);
        let mut random = |len: usize| f64s(&rng.numbers(len));
        let (a, b) = (random(d.rank * d.in_features), random(d.out_features * d.rank));
        let (w, bias) = (random(d.out_features * d.in_features), random(d.out_features));
        let (x, targets) = (random(d.tokens * d.in_features), random(d.tokens * d.out_features));
        let output = |a: &[f64], b: &[f64], x: &[f64]| {
            values(&lora_forward(d, a, b, x, &values(&base::linear(d, &w, Some(&bias), x)), 1.75))
        };
        let mse = |output: &[f64]| mean_mse(output, &targets);
        let loss = |a: &[f64], b: &[f64], x: &[f64]| mse(&output(a, b, x)).0;
        let d_output = mse(&output(&a, &b, &x)).1;
        let old = Old {
            d_a: vec![0.0; a.len()],
            d_b: vec![0.0; b.len()],
            d_input: values(&base::linear_t(d, &w, &d_output)),
        };
        let gradient = lora_backward(d, &a, &b, &x, &d_output, &old, 1.75);
        assert_gradient("d_output", &output(&a, &b, &x), &d_output, |y| mse(y).0);
        assert_gradient("dA", &a, &values(&gradient.d_a), |a| loss(a, &b, &x));
        assert_gradient("dB", &b, &values(&gradient.d_b), |b| loss(&a, b, &x));
        assert_gradient("d_input", &x, &values(&gradient.d_input), |x| loss(&a, &b, x));
    }
}

/// The mean, with its gradient.
fn mean_mse(output: &[f64], targets: &[f64]) -> (f64, Vec<f64>) {
    let (sum, gradient) = reference::loss::mse(output, targets);
    let (loss, gradient) = reference::loss::mean([sum.value, output.len() as f64], &values(&gradient));
    (loss.value, values(&gradient))
}

#[wasm_bindgen_test(unsupported = test)]
fn finite_differences_hold_the_losses_to_1e_6() {
    let random = |seed, len, scale: f64| f64s(&Rng(seed).numbers(len)).iter().map(|v| v * scale).collect::<Vec<_>>();
    let (z, y) = (random(1, 23, 6.0), random(2, 23, 0.5).iter().map(|v| v + 0.5).collect::<Vec<_>>());
    for (name, f) in [
        ("mse", reference::loss::mse as fn(&[f64], &[f64]) -> (Sum, Vec<Sum>)),
        ("bce_with_logits", reference::loss::bce_with_logits),
    ] {
        assert_gradient(name, &z, &values(&f(&z, &y).1), |z| f(z, &y).0.value);
    }
    for (classes, labels) in [(7, &[3, -1, 0, 6, 6][..]), (1, &[0, 0]), (2, &[1, 0, -1]), (3, &[-1, -1])] {
        for smoothing in [0.0, 0.1, 1.0] {
            let z = random(3, classes * labels.len(), 4.0);
            let f = |z: &[f64]| reference::loss::cross_entropy(classes, z, labels, -1, smoothing);
            let (_, gradient, counted) = f(&z);
            assert_eq!(counted, labels.iter().filter(|label| **label >= 0).count());
            assert_gradient("cross_entropy", &z, &values(&gradient), |z| f(z).0.value);
        }
    }
    // Large logits: the loss is their difference, and neither infinite nor NaN.
    assert_eq!(reference::loss::bce_with_logits(&[1e4, -1e4], &[0.0, 1.0]).0.value, 2e4);
    assert_eq!(reference::loss::cross_entropy(2, &[1e4, -1e4], &[1], -1, 0.0).0.value, 2e4);
}

#[wasm_bindgen_test(unsupported = test)]
fn finite_differences_hold_activations_and_norms_to_1e_6() {
    use reference::nn::{Function, activation, activation_grad, norm, norm_grad};
    let x: Vec<f64> = (-60..=60).map(|i| f64::from(i) * 0.11 + 0.003).chain([-30.0, -100.0, 30.0, 100.0]).collect();
    let d_output = f64s(&Rng(1).numbers(x.len()));
    for f in [Function::Tanh, Function::Relu, Function::Gelu, Function::Silu] {
        let along = |x: &[f64]| x.iter().zip(&d_output).map(|(x, d)| activation(f, *x).value * d).collect::<Vec<_>>();
        for i in 0..x.len() {
            let gradient = activation_grad(f, x[i], d_output[i]).value;
            assert_gradient(&format!("{f:?} at {}", x[i]), &x[i..=i], &[gradient], |at| {
                along(&[&vec![0.0; i], at].concat())[i]
            });
        }
    }
    // Φ against erf as tabulated: Φ(1), Φ(−2), Φ(−5).
    for (x, phi) in [(1.0, 0.841_344_746_068_542_9), (-2.0, 0.022_750_131_948_179_2), (-5.0, 2.866_515_718_791_939e-7)]
    {
        let got = activation(Function::Gelu, x).value / x;
        assert!((got - phi).abs() <= 1e-13 * phi.max(1e-3), "Φ({x}) = {got}");
    }
    for (rows, features) in [(1, 1), (3, 5), (2, 17)] {
        for centered in [true, false] {
            for eps in [1e-5, 0.5] {
                let rng = &mut Rng(9);
                let mut random = |len: usize| f64s(&rng.numbers(len));
                let (weight, bias, d_output) = (random(features), random(features), random(rows * features));
                let x: Vec<f64> = random(rows * features).iter().map(|v| v + 0.5).collect();
                let along = |x: &[f64]| {
                    let output = norm(&weight, Some(&bias), x, centered, eps);
                    output.iter().zip(&d_output).map(|(y, d)| y.value * d).sum::<f64>()
                };
                let gradient = values(&norm_grad(&weight, &x, &d_output, centered, eps));
                assert_gradient(&format!("norm {centered} {eps}"), &x, &gradient, along);
            }
        }
    }
}

#[wasm_bindgen_test(unsupported = test)]
fn finite_differences_hold_a_language_models_parts_to_1e_6() {
    use reference::nn::{Attention, Given, attention, attention_grad_kv, attention_grad_q, gated, gated_grad, rope};
    for squared in [false, true] {
        for gate in [-30.0, -3.1, -0.4, 0.3, 2.2, 40.0] {
            let [d_gate, d_up] = gated_grad(squared, gate, -0.7, 1.3).map(|sum| sum.value);
            let name = format!("gated {squared} at {gate}");
            assert_gradient(&name, &[gate, -0.7], &[d_gate, d_up], |at| 1.3 * gated(squared, at[0], at[1]).value);
        }
    }
    let rng = &mut Rng(11);
    let mut random = |len: usize| f64s(&rng.numbers(len));
    // Any tables: the transpose is one of whatever matrix they make.
    let (cos, sin, x, d_output) = (random(12), random(12), random(24), random(24));
    let rotate = |x: &[f64], transposed| values(&rope(3, [&cos, &sin], &[2, 0], x, transposed));
    let along = |x: &[f64]| rotate(x, false).iter().zip(&d_output).map(|(y, d)| y * d).sum::<f64>();
    assert_gradient("rope", &x, &rotate(&d_output, true), along);

    for (heads, kv_heads, segments) in
        [(3, 1, [1, 1, 1, 1, 1, 1]), (2, 2, [0, 1, 1, 0, 0, 1]), (4, 2, [1, 1, 0, 0, 0, 0]), (2, 1, [1, 2, 2, 2, 1, 1])]
    {
        let d = Attention { batch: 2, tokens: 3, heads, kv_heads, head_dim: 4 };
        let [q, k, v] = [heads, kv_heads, kv_heads].map(|heads| random(6 * heads * 4));
        let d_output = random(q.len());
        let f = |q: &[f64], k: &[f64], v: &[f64]| {
            let [output, _] = attention(d, q, k, v, &segments, 32);
            output.iter().zip(&d_output).map(|(y, d)| y.value * d).sum::<f64>()
        };
        let [output, log_sums] = attention(d, &q, &k, &v, &segments, 32).map(|sums| values(&sums));
        let given = Given { q: &q, k: &k, v: &v, segments: &segments, d_output: &d_output, log_sums: &log_sums };
        let [d_q, deltas] = attention_grad_q(d, given, &output).map(|sums| values(&sums));
        let [d_k, d_v] = attention_grad_kv(d, given, &deltas).map(|sums| values(&sums));
        assert_gradient("attention at q", &q, &d_q, |q| f(q, &k, &v));
        assert_gradient("attention at k", &k, &d_k, |k| f(&q, k, &v));
        assert_gradient("attention at v", &v, &d_v, |v| f(&q, &k, v));
        for (row, segment) in segments.iter().enumerate().filter(|(_, segment)| **segment == 0) {
            let width = heads * 4;
            assert!(output[row * width..(row + 1) * width].iter().all(|v| *v == 0.0), "row {row} of segment {segment}");
            assert!(d_q[row * width..(row + 1) * width].iter().all(|v| *v == 0.0));
            assert!(d_v[row * kv_heads * 4..(row + 1) * kv_heads * 4].iter().all(|v| *v == 0.0));
        }
    }
}

/// The chunks of a large vocabulary make the loss of the whole.
#[wasm_bindgen_test(unsupported = test)]
fn finite_differences_hold_the_chunked_loss_to_1e_6() {
    use reference::loss::{cross_entropy, lm_head_grad, lm_head_loss, lm_head_stats};
    let (classes, labels) = (7, [3, -1, 0, 6]);
    let z: Vec<f64> = f64s(&Rng(3).numbers(28)).iter().map(|v| 4.0 * v).collect();
    let known: Vec<i32> = labels.iter().map(|label| *label.max(&0)).collect();
    let stats = |z: &[f64]| {
        let all = lm_head_stats(classes, z, &known, 1);
        all.iter().flat_map(|row| row.map(|sum| sum.value)).collect::<Vec<_>>()
    };
    let loss = |z: &[f64]| lm_head_loss(&stats(z), &labels, -1).0.value;
    let gradient = values(&lm_head_grad(classes, 0, &z, &stats(&z), &labels, -1));
    assert_gradient("lm_head", &z, &gradient, loss);
    let (whole, _, counted) = cross_entropy(classes, &z, &labels, -1, 0.0);
    assert!((loss(&z) - whole.value).abs() <= 1e-12 && lm_head_loss(&stats(&z), &labels, -1).1 == counted);
}

// ── the table of systems ──

/// One tensor of each kind.
struct Set {
    tensors: BTreeMap<&'static str, Tensor>,
    weight: LoraWeight,
    grad: LoraGrad,
}

impl std::ops::Index<&str> for Set {
    type Output = Tensor;
    fn index(&self, name: &str) -> &Tensor {
        &self.tensors[name]
    }
}

impl Set {
    /// Random inputs; outputs as `fill` says.
    fn new(gpu: &Gpu, d: Dims, row: &System, fill: impl Fn(&str, usize) -> Vec<f32>) -> Set {
        let Dims { tokens: t, in_features: i, out_features: o, rank: r } = d;
        let shapes = [
            ("a", [r, i]),
            ("b", [o, r]),
            ("x", [t, i]),
            ("h", [t, r]),
            ("y", [t, o]),
            ("output", [t, o]),
            ("d_output", [t, o]),
            ("dh", [t, r]),
            ("d_a", [r, i]),
            ("d_b", [o, r]),
            ("d_input", [t, i]),
            ("saved", [t, i]),
        ];
        let rng = &mut Rng(3);
        let tensors: BTreeMap<_, _> = shapes
            .into_iter()
            .map(|(name, shape)| {
                let random = rng.numbers(shape[0] * shape[1]);
                let is_output = row.overwrites.contains(&name) || row.accumulates.contains(&name);
                let data = if is_output { fill(name, random.len()) } else { random };
                (name, Tensor::from_slice(gpu, name, &shape, &data).unwrap())
            })
            .collect();
        let weight = LoraWeight::from_tensors(tensors["a"].clone(), tensors["b"].clone()).unwrap();
        let grad = LoraGrad::from_tensors(tensors["d_a"].clone(), tensors["d_b"].clone());
        Set { tensors, weight, grad }
    }

    async fn read(&self) -> BTreeMap<&'static str, Vec<f32>> {
        let mut read = BTreeMap::new();
        for (name, tensor) in &self.tensors {
            read.insert(*name, tensor.read().await.unwrap());
        }
        read
    }
}

struct System {
    name: &'static str,
    record: fn(&Recording, &Set) -> Result<()>,
    overwrites: &'static [&'static str],
    accumulates: &'static [&'static str],
    dispatches: usize,
}

/// DESIGN's table.
const SYSTEMS: &[System] = &[
    System {
        name: "projectA",
        record: |rec, s| kernel::project_a::record(rec, &s["a"], &s["x"], &s["h"]),
        overwrites: &["h"],
        accumulates: &[],
        dispatches: 1,
    },
    System {
        name: "projectB",
        record: |rec, s| kernel::project_b::record(rec, &s["b"], &s["h"], &s["y"]),
        overwrites: &["y"],
        accumulates: &[],
        dispatches: 1,
    },
    System {
        name: "addScaled",
        record: |rec, s| kernel::add_scaled::record(rec, &s["y"], &s["output"], SCALE),
        overwrites: &[],
        accumulates: &["output"],
        dispatches: 1,
    },
    System {
        name: "fusedBAdd",
        record: |rec, s| kernel::fused_b_add::record(rec, &s["b"], &s["h"], &s["output"], SCALE),
        overwrites: &[],
        accumulates: &["output"],
        dispatches: 1,
    },
    System {
        name: "loraForward",
        record: |rec, s| rec.lora_forward(&s.weight, &s["x"], &s["h"], &s["y"], &s["output"], SCALE),
        overwrites: &["h", "y"],
        accumulates: &["output"],
        dispatches: 3,
    },
    System {
        name: "loraForwardFused",
        record: |rec, s| rec.lora_forward_fused(&s.weight, &s["x"], &s["h"], &s["output"], SCALE),
        overwrites: &["h"],
        accumulates: &["output"],
        dispatches: 2,
    },
    System {
        name: "saveActivation",
        record: |rec, s| kernel::save_activation::record(rec, &s["x"], &s["saved"]),
        overwrites: &["saved"],
        accumulates: &[],
        dispatches: 1,
    },
    System {
        name: "gradB",
        record: |rec, s| kernel::grad_b::record(rec, &s["d_output"], &s["h"], &s["d_b"], SCALE),
        overwrites: &[],
        accumulates: &["d_b"],
        dispatches: 1,
    },
    System {
        name: "gradDh",
        record: |rec, s| kernel::grad_dh::record(rec, &s["b"], &s["d_output"], &s["dh"]),
        overwrites: &["dh"],
        accumulates: &[],
        dispatches: 1,
    },
    System {
        name: "gradA",
        record: |rec, s| kernel::grad_a::record(rec, &s["dh"], &s["x"], &s["d_a"], SCALE),
        overwrites: &[],
        accumulates: &["d_a"],
        dispatches: 1,
    },
    System {
        name: "inputGrad",
        record: |rec, s| kernel::input_grad::record(rec, &s["a"], &s["dh"], &s["d_input"], SCALE),
        overwrites: &[],
        accumulates: &["d_input"],
        dispatches: 1,
    },
    System {
        name: "loraBackward",
        record: |rec, s| {
            rec.lora_backward(
                &s.weight,
                &s["d_output"],
                &s["x"],
                &s["h"],
                &s["dh"],
                &s.grad,
                Some(&s["d_input"]),
                SCALE,
            )
        },
        overwrites: &["dh"],
        accumulates: &["d_a", "d_b", "d_input"],
        dispatches: 4,
    },
    System {
        name: "loraBackward without dInput",
        record: |rec, s| rec.lora_backward(&s.weight, &s["d_output"], &s["x"], &s["h"], &s["dh"], &s.grad, None, SCALE),
        overwrites: &["dh"],
        accumulates: &["d_a", "d_b"],
        dispatches: 3,
    },
    System {
        name: "zero",
        record: |rec, s| s.grad.zero(rec),
        overwrites: &["d_a", "d_b"],
        accumulates: &[],
        dispatches: 0,
    },
];

/// Twice from random accumulators and NaN elsewhere: what accumulates grows by the same each time, what is overwritten
/// gets the same bits, and nothing else changes.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn every_system_overwrites_or_accumulates_as_the_table_says() {
    let gpu = gpu().await;
    for d in [d(1, 5, 7, 3), d(3, 9, 4, 2)] {
        for system in SYSTEMS {
            let name = system.name;
            let record = |set: &Set| {
                let rec = Recording::new(&gpu);
                (system.record)(&rec, set).unwrap();
                assert_eq!(rec.dispatches(), system.dispatches, "{name}");
                rec
            };
            let accumulator = |name: &str| system.accumulates.contains(&name);
            let from_zero =
                Set::new(&gpu, d, system, |name, len| vec![if accumulator(name) { 0.0 } else { f32::NAN }; len]);
            record(&from_zero).submit().await.unwrap();
            let once = from_zero.read().await;

            let set = Set::new(&gpu, d, system, |name, len| match accumulator(name) {
                true => Rng(5).numbers(len),
                false => vec![f32::NAN; len],
            });
            let before = set.read().await;
            let rec = record(&set);
            for times in 1..=2 {
                rec.submit().await.unwrap();
                for (tensor, now) in set.read().await {
                    if system.overwrites.contains(&tensor) {
                        assert_eq!(bits(&now), bits(&once[tensor]), "{name}: {tensor} is overwritten");
                        assert!(now.iter().all(|v| v.is_finite()), "{name}: {tensor} is written whole");
                    } else if accumulator(tensor) {
                        let expected = |(old, grown): (&f32, &f32)| {
                            let sum = Sum::of((*old).into()).plus(Sum::of(f64::from(times) * f64::from(*grown)));
                            Sum { terms: 4, ..sum }
                        };
                        let sums: Vec<Sum> = before[tensor].iter().zip(&once[tensor]).map(expected).collect();
                        assert_close(&format!("{name}: {tensor} accumulates"), &now, &products(&sums));
                    } else {
                        assert_eq!(bits(&now), bits(&before[tensor]), "{name}: {tensor} is left alone");
                    }
                }
            }
        }
    }
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn the_fused_forward_equals_the_unfused() {
    for profile in PROFILES {
        let gpu = gpu_as(profile).await;
        for &d in SHAPES {
            let system = |name: &str| SYSTEMS.iter().find(|system| system.name == name).unwrap();
            let mut outputs = Vec::new();
            let mut expected = Vec::new();
            for system in [system("loraForward"), system("loraForwardFused")] {
                let set = Set::new(&gpu, d, system, |_, len| Rng(5).numbers(len));
                let [a, b, x, old] = [&set["a"], &set["b"], &set["x"], &set["output"]].map(Tensor::read);
                let [a, b, x, old] = [a.await, b.await, x.await, old.await].map(|v| f64s(&v.unwrap()));
                let rec = Recording::new(&gpu);
                (system.record)(&rec, &set).unwrap();
                rec.submit().await.unwrap();
                outputs.push(set["output"].read().await.unwrap());
                expected = products(&lora_forward(d, &a, &b, &x, &old, SCALE.into()));
            }
            let name = format!("for {profile:?} at {d:?}");
            for output in &outputs {
                assert_close(&name, output, &expected);
            }
            let unfused: Vec<Expected> =
                outputs[0].iter().zip(&expected).map(|(v, e)| Expected { value: (*v).into(), ..*e }).collect();
            assert_close(&name, &outputs[1], &unfused);
        }
    }
}

/// On hardware with subgroups dB and dh come from one reading of d_output, for each eight ranks, and a wrong one is seen.
#[cfg(not(target_arch = "wasm32"))]
#[pollster::test]
async fn the_gradients_of_b_and_h_share_their_reading() {
    let system = SYSTEMS.iter().find(|system| system.name == "loraBackward").unwrap();
    let run = async |d: Dims, plain: bool, wrong: bool| {
        let request = lora_webgpu::GpuRequest { profile: Some(PROFILES[0]), plain, ..Default::default() };
        let gpu = Gpu::request(request).await.unwrap();
        if wrong {
            let text = kernel::grad_b_dh::KERNEL.text();
            gpu.replace_shader("lora/grad_b_dh", text.replace("params.scale * sum", "2.0 * params.scale * sum"));
        }
        let set =
            Set::new(&gpu, d, system, |name, len| if name == "d_b" { vec![0.0; len] } else { Rng(5).numbers(len) });
        let [b, d_output, h, d_b] = [&set["b"], &set["d_output"], &set["h"], &set["d_b"]].map(Tensor::read);
        let [b, d_output, h, d_b] = [b.await, d_output.await, h.await, d_b.await].map(|v| f64s(&v.unwrap()));
        let expected = reference::lora::grad_b_dh(d, &b, &d_output, &h, &d_b, SCALE.into());
        let rec = Recording::new(&gpu);
        (system.record)(&rec, &set).unwrap();
        rec.submit().await.unwrap();
        let found = [set["d_b"].read().await.unwrap(), set["dh"].read().await.unwrap()];
        if !wrong {
            for (found, expected) in found.iter().zip(&expected) {
                assert_close(&format!("{d:?}, plain {plain}"), found, &products(expected));
            }
        }
        found
    };
    let no = [d(15, 8, 68, 8), d(40, 8, 67, 8)];
    for (shape, joined) in
        [(d(40, 8, 68, 8), true), (d(40, 8, 68, 17), true)].into_iter().chain(no.map(|shape| (shape, false)))
    {
        for (plain, times) in [(false, if joined { 2.0 } else { 1.0 }), (true, 1.0)] {
            let [d_b, dh] = run(shape, plain, false).await;
            let [changed, same] = run(shape, plain, true).await;
            assert_eq!(changed, d_b.iter().map(|v| times * v).collect::<Vec<_>>(), "{shape:?}, plain {plain}");
            assert_eq!(bits(&same), bits(&dh), "{shape:?}, plain {plain}");
        }
    }
}

// ── a layer ──

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_layer_agrees_with_the_reference_with_its_adapter_on_and_off() {
    for profile in PROFILES {
        let gpu = gpu_as(profile).await;
        for (i, &d) in SHAPES.iter().enumerate() {
            let p = Problem::new(&gpu, d, i % 2 == 0);
            for enabled in [true, false] {
                let name = |what| format!("{what} for {profile:?}, adapter {enabled}, at {d:?}");
                p.layer.set_enabled(enabled);
                let rec = Recording::new(&gpu);
                p.layer.grad().zero(&rec).unwrap();
                let output = p.layer.forward(&rec, &p.x).unwrap();
                p.layer.backward(&rec, &p.x, &p.d_output, Some(&p.d_input)).unwrap();
                rec.submit().await.unwrap();
                assert_close(&name("output"), &output.read().await.unwrap(), &products(&p.output(enabled)));

                let through_base = base::linear_t(d, &p.w, &p.d_output_values);
                let old =
                    Old { d_a: vec![0.0; p.a.len()], d_b: vec![0.0; p.b.len()], d_input: vec![0.0; p.x_values.len()] };
                let gradient = lora_backward(d, &p.a, &p.b, &p.x_values, &p.d_output_values, &old, SCALE.into());
                let adapter = gradient.d_input.iter().map(|sum| if enabled { *sum } else { Sum::default() });
                let d_input: Vec<Sum> = through_base.iter().zip(adapter).map(|(base, sum)| base.plus(sum)).collect();
                assert_close(&name("d_input"), &p.d_input.read().await.unwrap(), &products(&d_input));
                let (d_a, d_b) = (p.layer.grad().a.read().await.unwrap(), p.layer.grad().b.read().await.unwrap());
                if enabled {
                    assert_close(&name("dA"), &d_a, &products(&gradient.d_a));
                    assert_close(&name("dB"), &d_b, &products(&gradient.d_b));
                } else {
                    assert!(d_a.iter().chain(&d_b).all(|v| *v == 0.0), "an adapter that is off has no gradient");
                }
            }
            p.layer.destroy();
        }
    }
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_new_adapter_leaves_the_output_as_the_base_makes_it() {
    for profile in PROFILES {
        let gpu = gpu_as(profile).await;
        for &d in SHAPES {
            let p = Problem::new(&gpu, d, true);
            p.layer.weight().b.write(&vec![0.0; d.out_features * d.rank]).unwrap();
            let (rec, alone) =
                (Recording::new(&gpu), Tensor::zeros(&gpu, "base", &[d.tokens, d.out_features]).unwrap());
            p.layer.base().forward(&rec, &p.x, &alone).unwrap();
            let output = p.layer.forward(&rec, &p.x).unwrap();
            rec.submit().await.unwrap();
            // x + 0 turns −0 into 0.
            let unsigned = |values: Vec<f32>| bits(&values.iter().map(|v| v + 0.0).collect::<Vec<_>>());
            assert_eq!(unsigned(output.read().await.unwrap()), unsigned(alone.read().await.unwrap()), "at {d:?}");
        }
    }
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn the_same_seed_makes_the_same_bits_everywhere() {
    // Computed with Python: SplitMix64's upper 53 bits / 2⁵³ = u, and (2u − 1)·bound in f64, rounded to f32 by
    // struct.pack("<f", ·), bound being 1/math.sqrt(in) or math.sqrt(3/in); then the first four words and 64-bit FNV-1a
    // over all little-endian bytes.
    let cases = [
        (Init::Peft, 1, 8, 768, [0x3b9d6816, 0x3c914ecd, 0x3d0b3ae0, 0xbb8394b0], 0xb437a195cd60c34c),
        (Init::Hesper, u64::MAX, 17, 2560, [0x3cdcf32f, 0x3ce7699b, 0xbc9d5564, 0xbba57dad], 0x46340001930f6416),
        (Init::Peft, 0, 3, 5, [0x3eaf8933, 0xbd7ada2c, 0xbed8de3c, 0x3ed7a38c], 0x12bd5761f5fbfcf3u64),
    ];
    let gpu = gpu().await;
    for (init, seed, rank, in_features, first, hash) in cases {
        let config = LoraConfig { init, seed, ..LoraConfig::new(rank, 16.0) };
        let weight = LoraWeight::new(&gpu, in_features, 7, &config).unwrap();
        let a = bits(&weight.a.read().await.unwrap());
        assert_eq!(a[..4], first, "{config:?}");
        let bytes = a.iter().flat_map(|word| word.to_le_bytes());
        let fnv = bytes.fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
        assert_eq!(fnv, hash, "{config:?}");
        assert_eq!(bits(&weight.b.read().await.unwrap()), vec![0; 7 * rank], "B is zero");
    }
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn delta_weight_is_scaling_times_b_times_a() {
    let p = Problem::new(&gpu().await, d(2, 5, 7, 3), false);
    let product = |i: usize| {
        let (o, column) = (i / p.d.in_features, i % p.d.in_features);
        (0..p.d.rank).map(|r| p.b[o * p.d.rank + r] * p.a[r * p.d.in_features + column]).sum::<f64>()
    };
    let expected: Vec<Sum> = (0..p.w.len()).map(|i| Sum::of(f64::from(SCALE) * product(i))).collect();
    assert_close("delta_weight", &p.layer.delta_weight().await.unwrap(), &products(&expected));
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn directional_derivatives_hold_the_layers_gradients_to_1e_3() {
    for profile in PROFILES {
        let gpu = gpu_as(profile).await;
        for &d in DERIVED {
            for Derivative { name, by_differences, by_gradient } in derivatives(&gpu, d).await.unwrap() {
                let error = (by_differences - by_gradient).abs() / by_gradient.abs();
                assert!(error <= 1e-3, "{name} for {profile:?} at {d:?}: {by_differences}, not {by_gradient}");
            }
        }
    }
}

/// Activations are made for the largest batch so far.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_layer_takes_batches_of_any_size_in_any_order() {
    let gpu = gpu().await;
    let p = Problem::new(&gpu, d(9, 12, 7, 3), true);
    let (x, d_output) = (p.x.read().await.unwrap(), p.d_output.read().await.unwrap());
    let mut memory = Vec::new();
    for tokens in [3, 1, 9, 2] {
        let d = Dims { tokens, ..p.d };
        let some = &x[..tokens * d.in_features];
        let batch = Tensor::from_slice(&gpu, "x", &[tokens, d.in_features], some).unwrap();
        let gradient = &d_output[..tokens * d.out_features];
        let d_output = Tensor::from_slice(&gpu, "d_output", &[tokens, d.out_features], gradient).unwrap();
        let rec = Recording::new(&gpu);
        p.layer.grad().zero(&rec).unwrap();
        let output = p.layer.forward(&rec, &batch).unwrap();
        p.layer.backward(&rec, &batch, &d_output, None).unwrap();
        rec.submit().await.unwrap();
        let all = p.output(true);
        let output_sums = &all[..tokens * d.out_features];
        assert_close("output", &output.read().await.unwrap(), &products(output_sums));
        let old = Old { d_a: vec![0.0; p.a.len()], d_b: vec![0.0; p.b.len()], d_input: vec![0.0; some.len()] };
        let expected = lora_backward(d, &p.a, &p.b, &f64s(some), &f64s(gradient), &old, SCALE.into());
        assert_close("dA", &p.layer.grad().a.read().await.unwrap(), &products(&expected.d_a));
        assert_close("dB", &p.layer.grad().b.read().await.unwrap(), &products(&expected.d_b));
        batch.destroy();
        d_output.destroy();
        drop((rec, output));
        memory.push(gpu.memory().bytes);
    }
    assert_eq!(memory[0], memory[1]);
    assert!(memory[2] > memory[1]);
    assert_eq!(memory[3], memory[2]);
}

/// Parameters live in slots of one uniform buffer: 256 at first, emptied when full, more where one submit needs them.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn dispatches_keep_their_parameters_apart_however_many_there_are() {
    let gpu = gpu().await;
    let (one, sum) = (Rng(1).tensor(&gpu, "y", &[1]).0, Tensor::zeros(&gpu, "sum", &[1]).unwrap());
    one.write(&[1.0]).unwrap();
    let mut expected = 0.0;
    for range in [0..200, 100..300, 300..900, 0..200] {
        let rec = Recording::new(&gpu);
        for scale in range {
            kernel::add_scaled::record(&rec, &one, &sum, scale as f32).unwrap(); // whole numbers below 2²⁴ add exactly
            expected += scale as f32;
        }
        rec.submit().await.unwrap();
        assert_eq!(sum.read().await.unwrap(), [expected]);
    }
}

/// Tensors are looked up at each submit.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_recording_follows_tensors_that_an_optimizer_moved() {
    let gpu = gpu().await;
    let p = Problem::new(&gpu, d(3, 5, 7, 2), true);
    let rec = Recording::new(&gpu);
    p.layer.grad().zero(&rec).unwrap();
    let output = p.layer.forward(&rec, &p.x).unwrap();
    p.layer.backward(&rec, &p.x, &p.d_output, None).unwrap();
    rec.submit().await.unwrap();
    let read = || [&output, &p.layer.grad().a, &p.layer.grad().b].map(Tensor::read);
    let mut before = Vec::new();
    for tensor in read() {
        before.push(bits(&tensor.await.unwrap()));
    }
    let optimizer =
        Optimizer::new(&gpu, &[&p.layer], OptimizerOptions::new(OptimizerKind::Sgd(Sgd::default()), 0.5)).unwrap();
    let step = Recording::new(&gpu);
    optimizer.step(&step).unwrap();
    rec.submit().await.unwrap();
    for (before, now) in before.iter().zip(read()) {
        assert_eq!(*before, bits(&now.await.unwrap()), "moved, and made again the same");
    }
    step.submit().await.unwrap();
    rec.submit().await.unwrap();
    assert_ne!(before[0], bits(&output.read().await.unwrap()), "the moved tensors are those that are trained");
    drop(optimizer);
    Optimizer::new(&gpu, &[&p.layer], OptimizerOptions::new(OptimizerKind::Sgd(Sgd::default()), 0.5)).unwrap();
}

// ── training ──

/// Twelve steps, each one submit without a read-back, against the same in f64.
async fn train(gpu: &Gpu, kind: OptimizerKind, lr: f64) {
    let d = d(6, 12, 9, 3);
    let p = Problem::new(gpu, d, true);
    let (targets, target_values) = Rng(13).tensor(gpu, "targets", &[d.tokens, d.out_features]);
    let loss = Tensor::zeros(gpu, "loss", &[1]).unwrap();
    let optimizer = Optimizer::new(gpu, &[&p.layer], OptimizerOptions::new(kind, lr)).unwrap();
    let rec = Recording::new(gpu);
    optimizer.zero_grad(&rec).unwrap();
    let output = p.layer.forward(&rec, &p.x).unwrap();
    Loss::Mse.record(&rec, &output, &targets, &p.d_output, &loss).unwrap();
    p.layer.backward(&rec, &p.x, &p.d_output, None).unwrap();
    optimizer.step(&rec).unwrap();

    let start = p.a.iter().chain(&p.b).copied().collect::<Vec<_>>();
    let mut history = vec![start.clone()];
    let (mut parameters, mut moments) = (start, vec![[0.0; 2]; p.a.len() + p.b.len()]);
    let base = values(&base::linear(d, &p.w, p.bias.as_deref(), &p.x_values));
    for step in 1..=12 {
        let before = gpu.stats();
        rec.submit().await.unwrap();
        let after = gpu.stats();
        assert_eq!(after.submits - before.submits, 1);
        assert_eq!(after.dispatches - before.dispatches, rec.dispatches() as u64);
        if step > 1 {
            assert_eq!(after.uploaded_bytes, before.uploaded_bytes, "a steady step uploads nothing but its inputs");
            assert_eq!([after.pipelines, after.bind_groups], [before.pipelines, before.bind_groups]);
        }

        let (a, b) = parameters.split_at(p.a.len());
        let forward = values(&lora_forward(d, a, b, &p.x_values, &base, SCALE.into()));
        let (expected_loss, d_output) = mean_mse(&forward, &target_values);
        let old = Old { d_a: vec![0.0; a.len()], d_b: vec![0.0; b.len()], d_input: vec![0.0; p.x_values.len()] };
        let gradient = lora_backward(d, a, b, &p.x_values, &d_output, &old, SCALE.into());
        let gradient = [values(&gradient.d_a), values(&gradient.d_b)].concat();
        for i in 0..parameters.len() {
            let ([m, v], parameter, g) = (moments[i], parameters[i], gradient[i]);
            let lr = f64::from(lr as f32);
            (parameters[i], moments[i]) = match kind {
                OptimizerKind::Sgd(Sgd { momentum, weight_decay }) => {
                    let [p, v] = reference::optim::sgd_momentum(parameter, v, g, lr, weight_decay, momentum);
                    (p.value, [0.0, v.value])
                }
                OptimizerKind::AdamW(AdamW { beta1, beta2, eps, weight_decay }) => {
                    let options = reference::optim::AdamW { beta1, beta2, eps, weight_decay };
                    let [p, m, v] = reference::optim::adamw(parameter, [m, v], g, lr, step, options);
                    (p.value, [m.value, v.value])
                }
            };
        }
        history.push(parameters.clone());
        let loss = f64::from(loss.read().await.unwrap()[0]);
        assert!((loss - expected_loss).abs() <= 1e-5, "loss of step {step}: {loss}, not {expected_loss}");
    }
    let trained = [p.layer.weight().a.read().await.unwrap(), p.layer.weight().b.read().await.unwrap()].concat();
    assert_close("A and B", &trained, &updated(1e-5, &history));
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn training_with_adamw_agrees_with_the_reference() {
    train(&gpu().await, OptimizerKind::AdamW(AdamW::default()), 1e-2).await;
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn training_with_sgd_agrees_with_the_reference() {
    train(&gpu().await, OptimizerKind::Sgd(Sgd::default()), 0.05).await;
    train(&gpu().await, OptimizerKind::Sgd(Sgd { momentum: 0.9, weight_decay: 0.01 }), 0.05).await;
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn an_optimizer_updates_several_layers_by_the_learning_rate_as_set() {
    let gpu = gpu().await;
    let layers = [d(1, 5, 7, 3), d(1, 65, 1, 1), d(1, 1, 33, 17)].map(|d| Problem::new(&gpu, d, false).layer);
    let references: Vec<&LoraLinear> = layers.iter().collect();
    let optimizer =
        Optimizer::new(&gpu, &references, OptimizerOptions::new(OptimizerKind::Sgd(Sgd::default()), 0.5)).unwrap();
    let rng = &mut Rng(19);
    let mut expected = Vec::new();
    for layer in layers.iter() {
        let (weights, grads) = (layer.weight(), layer.grad());
        for (weight, grad) in [(weights.a, grads.a), (weights.b, grads.b)] {
            let g = rng.numbers(grad.len());
            grad.write(&g).unwrap();
            let p = weight.read().await.unwrap();
            // The first step at 0.5, two more at 0.25.
            let sums =
                p.iter().zip(&g).map(|(p, g)| Sum { terms: 4, ..Sum::of((*p).into()).plus(Sum::of(-f64::from(*g))) });
            expected.push((weight, sums.collect::<Vec<Sum>>()));
        }
    }
    let rec = Recording::new(&gpu);
    optimizer.step(&rec).unwrap();
    assert_eq!(rec.dispatches(), 3, "the gradients' norm, the step's beginning, and one update of all layers");
    rec.submit().await.unwrap();
    optimizer.set_lr(0.25).unwrap();
    rec.submit().await.unwrap();
    rec.submit().await.unwrap();
    for (weight, sums) in &expected {
        assert_close(weight.label(), &weight.read().await.unwrap(), &products(sums));
    }
    let rec = Recording::new(&gpu);
    optimizer.zero_grad(&rec).unwrap();
    rec.submit().await.unwrap();
    for layer in &layers {
        let gradients = [layer.grad().a.read().await.unwrap(), layer.grad().b.read().await.unwrap()].concat();
        assert!(gradients.iter().all(|g| *g == 0.0));
    }
}

/// A recording looks its tensors up once, and again where one has moved.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_recording_follows_tensors_that_move_between_submits() {
    let gpu = gpu().await;
    let base = FrozenLinear::new(&gpu, 3, 4, &[0.5; 12], None).unwrap();
    let layer = LoraLinear::new(&gpu, None, base, &LoraConfig::new(2, 2.0)).unwrap();
    layer.weight().b.write(&[0.25; 6]).unwrap();
    let x = Tensor::from_slice(&gpu, "x", &[1, 4], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    let rec = Recording::new(&gpu);
    let output = layer.forward(&rec, &x).unwrap();
    rec.submit().await.unwrap();
    let first = output.read().await.unwrap();
    // The optimiser moves A and B into arenas of its own; what is written there must be what the recording then reads.
    let options = OptimizerOptions::new(OptimizerKind::Sgd(Sgd::default()), 0.5);
    let optimizer = Optimizer::new(&gpu, &[&layer], options).unwrap();
    layer.weight().b.write(&[0.0; 6]).unwrap();
    rec.submit().await.unwrap();
    assert_eq!(output.read().await.unwrap(), [5.0; 3]);
    assert_ne!(first, [5.0; 3]);
    // What is recorded later runs with the rest.
    rec.zero(&output).unwrap();
    rec.submit().await.unwrap();
    assert_eq!(output.read().await.unwrap(), [0.0; 3]);
    // More different parameters than there were slots for take the old ones' places.
    let many = Recording::new(&gpu);
    let target = Tensor::zeros(&gpu, "target", &[1, 4]).unwrap();
    for i in 0..300 {
        kernel::add_scaled::record(&many, &x, &target, i as f32 / 300.0).unwrap();
    }
    many.submit().await.unwrap();
    let again = Recording::new(&gpu);
    let output = layer.forward(&again, &x).unwrap();
    again.submit().await.unwrap();
    many.submit().await.unwrap();
    again.submit().await.unwrap();
    assert_eq!(output.read().await.unwrap(), [5.0; 3]);
    x.destroy();
    refused("a destroyed tensor", again.submit().await, "disposed", &["x"]);
    optimizer.destroy();
}

/// A long recording in parts gives the bits of the same in one.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn a_recording_in_parts_has_the_same_bits() {
    let gpu = gpu().await;
    let run = async |rec: Recording| {
        let y = Tensor::from_slice(&gpu, "y", &[3, 4], &[0.5; 12]).unwrap();
        let output = Tensor::from_slice(&gpu, "output", &[3, 4], &[0.25; 12]).unwrap();
        for i in 0..1201 {
            let (from, to) = if i % 2 == 0 { (&y, &output) } else { (&output, &y) };
            kernel::add_scaled::record(&rec, from, to, 1e-3 * (i % 7) as f32).unwrap();
        }
        let before = gpu.stats();
        rec.submit().await.unwrap();
        let after = gpu.stats();
        assert_eq!(after.dispatches - before.dispatches, 1201);
        (after.submits - before.submits, output.read().await.unwrap())
    };
    let (one, whole) = run(Recording::new(&gpu)).await;
    let (three, parts) = run(Recording::in_parts(&gpu)).await;
    assert_eq!((one, three), (1, 3));
    assert!(whole[0] > 1.0 && whole[0].is_finite() && bits(&whole) == bits(&parts), "{whole:?}");
}
