//! Networks of linear layers, activations, norms and residuals: against the same in f64, and their gradients against
//! directional derivatives.

mod common;
#[cfg(not(target_arch = "wasm32"))]
#[allow(dead_code)] // its main()
#[path = "../examples/layer.rs"]
mod example;
mod reference;

use std::rc::Rc;

use common::{PROFILES, Rng, bits, f64s, gpu, gpu_as, refused};
use lora_webgpu::{
    Activation, Batch, FrozenLinear, Gpu, Inputs, LoraConfig, LoraLinear, Loss, Module, Network, Norm, OptimizerKind,
    OptimizerOptions, Sgd, Targets, Trainer,
};
use reference::lora::lora_forward;
use reference::nn::{Function, activation, norm};
use reference::{Dims, base, loss, values};
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

const TOKENS: usize = 6;
const EPS: f64 = 1e-2;

/// A network to be made on the GPU and in f64.
enum Part {
    /// In, out, and where the bias lies: ± this and a little.
    Linear(usize, usize, f32),
    Activation(Function),
    LayerNorm(usize),
    RmsNorm(usize),
    Residual(Vec<Part>),
}

use Part::{LayerNorm, Residual, RmsNorm};

/// `[TOKENS, width]` to the next.
type Step = Box<dyn Fn(&[f64]) -> Vec<f64>>;

fn chain(steps: Vec<Step>) -> Step {
    Box::new(move |x| steps.iter().fold(x.to_vec(), |x, step| step(&x)))
}

/// The modules, with random numbers, and the same function in f64.
fn build(gpu: &Gpu, parts: &[Part], rng: &mut Rng) -> (Vec<Module>, Step) {
    let built: Vec<(Module, Step)> = parts.iter().map(|part| build_one(gpu, part, rng)).collect();
    let (modules, steps) = built.into_iter().unzip();
    (modules, chain(steps))
}

fn build_one(gpu: &Gpu, part: &Part, rng: &mut Rng) -> (Module, Step) {
    match part {
        &Part::Linear(in_features, out_features, offset) => {
            let d = Dims { tokens: TOKENS, in_features, out_features, rank: 2 };
            let scaled = |values: Vec<f32>, scale: f32| values.iter().map(|v| v * scale).collect::<Vec<_>>();
            let w = scaled(rng.numbers(in_features * out_features), 0.5);
            let sign = |i| if i % 3 == 0 { -offset } else { offset };
            let bias: Vec<f32> = rng.numbers(out_features).iter().enumerate().map(|(i, v)| 0.5 * v + sign(i)).collect();
            let (a, b) = (scaled(rng.numbers(2 * in_features), 0.3), scaled(rng.numbers(2 * out_features), 0.3));
            let base = FrozenLinear::new(gpu, out_features, in_features, &w, Some(&bias)).unwrap();
            let layer = LoraLinear::new(gpu, None, base, &LoraConfig::new(2, 3.0)).unwrap();
            layer.weight().a.write(&a).unwrap();
            layer.weight().b.write(&b).unwrap();
            let [w, bias, a, b] = [w, bias, a, b].map(|v| f64s(&v));
            let forward = move |x: &[f64]| {
                values(&lora_forward(d, &a, &b, x, &values(&base::linear(d, &w, Some(&bias), x)), 1.5))
            };
            (Module::Linear(Rc::new(layer)), Box::new(forward))
        }
        &Part::Activation(function) => {
            let kind = match function {
                Function::Tanh => Activation::Tanh,
                Function::Relu => Activation::Relu,
                Function::Gelu => Activation::Gelu,
                Function::Silu => Activation::Silu,
            };
            let forward = move |x: &[f64]| x.iter().map(|x| activation(function, *x).value).collect();
            (Module::Activation(kind), Box::new(forward))
        }
        &LayerNorm(features) | &RmsNorm(features) => {
            let centered = matches!(part, LayerNorm(_));
            let weight: Vec<f32> = rng.numbers(features).iter().map(|w| w + 1.5).collect();
            let bias = centered.then(|| rng.numbers(features));
            let module = Norm::new(gpu, &weight, bias.as_deref(), centered, EPS).unwrap();
            let (weight, bias) = (f64s(&weight), bias.map(|bias| f64s(&bias)));
            let eps = f64::from(EPS as f32);
            let forward = move |x: &[f64]| values(&norm(&weight, bias.as_deref(), x, centered, eps));
            (Module::Norm(Rc::new(module)), Box::new(forward))
        }
        Residual(parts) => {
            let (modules, inner) = build(gpu, parts, rng);
            let forward = move |x: &[f64]| x.iter().zip(inner(x)).map(|(x, y)| x + y).collect();
            (Module::Residual(modules), Box::new(forward))
        }
    }
}

fn linear(in_features: usize, out_features: usize) -> Part {
    Part::Linear(in_features, out_features, 0.0)
}

/// Away from 0, where relu has a corner that differences would step over.
fn far(in_features: usize, out_features: usize) -> Part {
    Part::Linear(in_features, out_features, 4.0)
}

fn act(function: Function) -> Part {
    Part::Activation(function)
}

/// Each with its width in and out. Residuals first, last, nested, of nothing, and of what is not trained.
fn networks() -> Vec<(&'static str, Vec<Part>, usize, usize)> {
    use Function::{Gelu, Relu, Silu, Tanh};
    vec![
        ("one layer", vec![linear(5, 3)], 5, 3),
        (
            "a block",
            vec![
                linear(6, 8),
                LayerNorm(8),
                act(Gelu),
                Residual(vec![RmsNorm(8), linear(8, 9), act(Silu), linear(9, 8)]),
                RmsNorm(8),
                linear(8, 5),
            ],
            6,
            5,
        ),
        ("residual first", vec![Residual(vec![LayerNorm(7), linear(7, 7), act(Tanh)]), linear(7, 4)], 7, 4),
        (
            "residual last, one in another",
            vec![
                far(5, 6),
                act(Relu),
                Residual(vec![linear(6, 4), act(Tanh), Residual(vec![linear(4, 4)]), linear(4, 6)]),
            ],
            5,
            6,
        ),
        ("residual alone", vec![Residual(vec![linear(4, 4)])], 4, 4),
        ("residual of an activation first", vec![Residual(vec![act(Tanh)]), linear(4, 3)], 4, 3),
        ("residual of a norm first", vec![Residual(vec![LayerNorm(4), act(Silu)]), linear(4, 3), RmsNorm(3)], 4, 3),
        ("residual of an activation later", vec![linear(4, 3), Residual(vec![act(Gelu)]), linear(3, 3)], 4, 3),
        ("residual of nothing", vec![Residual(vec![]), linear(4, 3), Residual(vec![]), linear(3, 2)], 4, 2),
        ("norm first, activation last", vec![LayerNorm(5), act(Gelu), linear(5, 4), act(Silu)], 5, 4),
    ]
}

const IGNORED: i32 = -100;

/// A batch of each kind of targets.
struct Data {
    x: Vec<f32>,
    values: Vec<f32>,
    labels: Vec<i32>,
}

impl Data {
    fn new(in_features: usize, out_features: usize) -> Data {
        let rng = &mut Rng(23);
        Data {
            x: rng.numbers(TOKENS * in_features),
            values: rng.numbers(TOKENS * out_features).iter().map(|v| v.abs()).collect(),
            labels: (0..TOKENS).map(|i| if i == 2 { IGNORED } else { (i * 7 % out_features) as i32 }).collect(),
        }
    }

    fn batch(&self, loss: Loss) -> Batch<'_> {
        let targets = match loss {
            Loss::CrossEntropy { .. } => Targets::Labels(&self.labels),
            Loss::Mse | Loss::BceWithLogits => Targets::Values(&self.values),
        };
        Batch { x: Inputs::Values(&self.x), targets }
    }

    /// The mean loss of an output in f64, and over how many.
    fn loss(&self, of: Loss, output: &[f64]) -> (f64, usize) {
        let targets = f64s(&self.values);
        let (sum, counted) = match of {
            Loss::Mse => (loss::mse(output, &targets).0, output.len()),
            Loss::BceWithLogits => (loss::bce_with_logits(output, &targets).0, output.len()),
            Loss::CrossEntropy { ignore_index, label_smoothing } => {
                let classes = output.len() / TOKENS;
                let (sum, _, counted) =
                    loss::cross_entropy(classes, output, &self.labels, ignore_index, label_smoothing);
                (sum, counted)
            }
        };
        (sum.value / counted as f64, counted)
    }
}

const LOSSES: [Loss; 3] =
    [Loss::Mse, Loss::BceWithLogits, Loss::CrossEntropy { ignore_index: IGNORED, label_smoothing: 0.1 }];

/// SGD that leaves the parameters where they are, so that the gradients of a step stay to be read.
fn standing_still() -> OptimizerOptions {
    OptimizerOptions::new(OptimizerKind::Sgd(Sgd::default()), 0.0)
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn directional_derivatives_hold_whole_networks_to_1e_3() {
    for profile in PROFILES {
        let gpu = gpu_as(profile).await;
        for (i, (name, parts, in_features, out_features)) in networks().into_iter().enumerate() {
            let loss = LOSSES[i % 3];
            let data = Data::new(in_features, out_features);
            let (modules, reference) = build(&gpu, &parts, &mut Rng(29));
            let network = Network::new(modules).unwrap();
            assert_eq!((network.in_features(), network.out_features()), (in_features, out_features), "{name}");
            let trainer = Trainer::new(&gpu, network, loss, standing_still()).unwrap();
            let batch = data.batch(loss);
            trainer.step(&[batch]).await.unwrap();
            let (expected, counted) = data.loss(loss, &reference(&f64s(&data.x)));
            let got = f64::from(trainer.records(0).await.unwrap()[0].loss);
            let error = (got - expected).abs();
            assert!(error <= 1e-5 * expected.abs().max(1.0), "{name} for {profile:?}: loss {got}, not {expected}");
            let got = f64::from(trainer.evaluate(&batch).await.unwrap());
            assert!((got - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{name}: evaluated {got}");

            for (l, layer) in trainer.network().layers().into_iter().enumerate() {
                for (matrix, tensor, grad) in
                    [("A", &layer.weight().a, &layer.grad().a), ("B", &layer.weight().b, &layer.grad().b)]
                {
                    let at = tensor.read().await.unwrap();
                    let gradient: Vec<f64> =
                        f64s(&grad.read().await.unwrap()).iter().map(|g| g / counted as f64).collect();
                    let norm = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
                    let random = f64s(&Rng(17).numbers(at.len()));
                    let (g, r) = (norm(&gradient), norm(&random));
                    assert!(g > 1e-3, "{name} for {profile:?}, layer {l}, {matrix}: a gradient of {g} shows nothing");
                    // Turned towards the gradient, so that the derivative is not by chance near zero.
                    let direction: Vec<f64> =
                        gradient.iter().zip(&random).map(|(a, b)| a / g + b / (2.0 * r)).collect();
                    let derivative: f64 = gradient.iter().zip(&direction).map(|(g, v)| g * v).sum();
                    let mut at_step = Vec::new();
                    for step in [0.04, -0.04, 0.08, -0.08] {
                        let moved = at.iter().zip(&direction).map(|(at, v)| (f64::from(*at) + step * v) as f32);
                        tensor.write(&moved.collect::<Vec<_>>()).unwrap();
                        at_step.push(f64::from(trainer.evaluate(&batch).await.unwrap()));
                    }
                    tensor.write(&at).unwrap();
                    // Two central differences: of the error the part by the square of the step cancels.
                    let difference = (8.0 * (at_step[0] - at_step[1]) - (at_step[2] - at_step[3])) / (12.0 * 0.04);
                    let error = (difference - derivative).abs() / derivative.abs();
                    assert!(
                        error <= 1e-3,
                        "{name} for {profile:?}, layer {l}, {matrix}: {difference} by differences, {derivative}"
                    );
                }
            }
            trainer.destroy();
        }
    }
}

/// Steps over batches of other sizes between them give the bits that they give alone.
#[wasm_bindgen_test(unsupported = pollster::test)]
async fn batches_of_any_size_share_one_network() {
    let gpu = gpu().await;
    let mut ends = Vec::new();
    for others in [false, true] {
        let (_, parts, in_features, out_features) = networks().remove(1);
        let data = Data::new(in_features, out_features);
        let (modules, _) = build(&gpu, &parts, &mut Rng(29));
        let options = OptimizerOptions::new(OptimizerKind::Sgd(Sgd::default()), 0.1);
        let trainer = Trainer::new(&gpu, Network::new(modules).unwrap(), Loss::Mse, options).unwrap();
        for tokens in [TOKENS, 1, 3, TOKENS, 2, 11, TOKENS] {
            let x: Vec<f32> = data.x.iter().cycle().take(tokens * in_features).copied().collect();
            let values: Vec<f32> = data.values.iter().cycle().take(tokens * out_features).copied().collect();
            let batch = Batch { x: Inputs::Values(&x), targets: Targets::Values(&values) };
            match tokens == TOKENS {
                true => trainer.step(&[batch]).await.unwrap(),
                false if others => drop(trainer.evaluate(&batch).await.unwrap()),
                false => {}
            }
        }
        let mut end = Vec::new();
        for layer in trainer.network().layers() {
            end.push(bits(&layer.weight().a.read().await.unwrap()));
            end.push(bits(&layer.weight().b.read().await.unwrap()));
        }
        ends.push(end);
    }
    assert_eq!(ends[0], ends[1]);
}

#[wasm_bindgen_test(unsupported = pollster::test)]
async fn modules_that_do_not_fit_are_refused() {
    let gpu = gpu().await;
    let network = |parts: &[Part]| Network::new(build(&gpu, parts, &mut Rng(1)).0);
    let wrong = |what, parts: &[Part], words: &[&str]| refused(what, network(parts), "shape", words);
    wrong("a layer", &[linear(4, 3), linear(4, 3)], &["layers[1]", "width 3", "4"]);
    wrong("a norm", &[linear(4, 3), act(Function::Tanh), LayerNorm(4)], &["layers[2]", "width 3", "4"]);
    wrong("a norm first", &[RmsNorm(5), linear(4, 3)], &["layers[1]", "width 5", "4"]);
    wrong("a residual that changes the width", &[Residual(vec![linear(4, 3)])], &["layers[0]", "width 4", "3"]);
    wrong("a layer in a residual", &[linear(4, 3), Residual(vec![linear(4, 3)])], &["width 3", "4"]);
    for none in [&[][..], &[act(Function::Relu)], &[Residual(vec![])], &[LayerNorm(4)], &[Residual(vec![LayerNorm(4)])]]
    {
        refused("nothing to train", network(none), "invalid-argument", &["layers", "LoraLinear"]);
    }
    let (modules, _) = build(&gpu, &[linear(4, 4)], &mut Rng(1));
    let twice = Network::new([modules.clone(), modules].concat()).unwrap();
    refused("a layer twice", Trainer::new(&gpu, twice, Loss::Mse, standing_still()), "invalid-argument", &["layers"]);

    let trainer = Trainer::new(&gpu, network(&[linear(4, 3)]).unwrap(), Loss::Mse, standing_still()).unwrap();
    let values = Batch { x: Inputs::Values(&[0.5; 8]), targets: Targets::Values(&[0.0; 5]) };
    refused("targets", trainer.step(&[values]).await, "shape", &["targets", "6", "5"]);
    let labels = Batch { x: Inputs::Values(&[0.5; 8]), targets: Targets::Labels(&[0, 1]) };
    refused("labels", trainer.step(&[labels]).await, "invalid-argument", &["targets", "floats", "integers"]);
    assert_eq!(trainer.attempts(), 0);
}

#[cfg(not(target_arch = "wasm32"))]
#[pollster::test]
async fn the_native_example_learns() {
    let losses = example::train(60).await.unwrap();
    assert!(losses.len() == 60 && losses[59] < losses[0] / 2.0, "{losses:?}");
}
