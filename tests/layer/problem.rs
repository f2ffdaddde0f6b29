//! A layer with its numbers known, and its gradients by differences: for the tests and for the site's self-check.
#![allow(dead_code)] // each user takes a part

use lora_webgpu::{FrozenLinear, Gpu, LoraConfig, LoraLinear, Loss, Recording, Result, Tensor};

use crate::common::{Rng, f64s};
use crate::reference::lora::lora_forward;
use crate::reference::{Dims, Sum, base};

/// Neither 1 nor its own square.
pub const SCALE: f32 = 1.75;

/// A layer with a base and an adapter of random numbers, and a batch.
pub struct Problem {
    pub d: Dims,
    pub layer: LoraLinear,
    pub x: Tensor,
    pub d_output: Tensor,
    pub d_input: Tensor,
    pub w: Vec<f64>,
    pub bias: Option<Vec<f64>>,
    pub a: Vec<f64>,
    pub b: Vec<f64>,
    pub x_values: Vec<f64>,
    pub d_output_values: Vec<f64>,
}

impl Problem {
    pub fn new(gpu: &Gpu, d: Dims, with_bias: bool) -> Problem {
        let rng = &mut Rng(11);
        let w = rng.numbers(d.out_features * d.in_features);
        let bias = rng.numbers(d.out_features);
        let bias = with_bias.then_some(bias);
        let base = FrozenLinear::new(gpu, d.out_features, d.in_features, &w, bias.as_deref()).unwrap();
        let alpha = f64::from(SCALE) * d.rank as f64;
        let layer = LoraLinear::new(gpu, Some("layer"), base, &LoraConfig::new(d.rank, alpha)).unwrap();
        assert_eq!(layer.scaling(), SCALE);
        let (a, b) = (rng.numbers(d.rank * d.in_features), rng.numbers(d.out_features * d.rank));
        layer.weight().a.write(&a).unwrap();
        layer.weight().b.write(&b).unwrap();
        let (x, x_values) = rng.tensor(gpu, "x", &[d.tokens, d.in_features]);
        let (d_output, d_output_values) = rng.tensor(gpu, "d_output", &[d.tokens, d.out_features]);
        let nan = vec![f32::NAN; d.tokens * d.in_features];
        let d_input = Tensor::from_slice(gpu, "d_input", &[d.tokens, d.in_features], &nan).unwrap();
        let (w, bias, a, b) = (f64s(&w), bias.map(|bias| f64s(&bias)), f64s(&a), f64s(&b));
        Problem { d, layer, x, d_output, d_input, w, bias, a, b, x_values, d_output_values }
    }

    /// Sums of the base's products and, along the chain, the adapter's.
    pub fn output(&self, enabled: bool) -> Vec<Sum> {
        let base = base::linear(self.d, &self.w, self.bias.as_deref(), &self.x_values);
        if !enabled {
            return base;
        }
        let zeros = vec![0.0; base.len()];
        let adapter = lora_forward(self.d, &self.a, &self.b, &self.x_values, &zeros, SCALE.into());
        base.iter().zip(&adapter).map(|(base, adapter)| base.plus(*adapter)).collect()
    }
}

/// What [`derivatives`] are taken at.
pub const DERIVED: &[Dims] = &[
    Dims { tokens: 1, in_features: 33, out_features: 20, rank: 3 },
    Dims { tokens: 7, in_features: 12, out_features: 31, rank: 17 },
    Dims { tokens: 2, in_features: 1, out_features: 5, rank: 1 },
    Dims { tokens: 33, in_features: 16, out_features: 8, rank: 8 },
];

/// The loss's derivative along a direction, once by central differences and once by the gradient.
pub struct Derivative {
    pub name: &'static str,
    pub by_differences: f64,
    pub by_gradient: f64,
}

/// Derivatives of a layer's mean squared error by A, B and x, all of it on the GPU. The loss is quadratic in each of them,
/// so that a long step has no error but f32's.
pub async fn derivatives(gpu: &Gpu, d: Dims) -> Result<Vec<Derivative>> {
    const STEP: f64 = 0.25;
    let p = Problem::new(gpu, d, true);
    let (targets, _) = Rng(13).tensor(gpu, "targets", &[d.tokens, d.out_features]);
    let loss = Tensor::zeros(gpu, "loss", &[1])?;
    let rec = Recording::new(gpu);
    p.layer.grad().zero(&rec)?;
    let output = p.layer.forward(&rec, &p.x)?;
    Loss::Mse.record(&rec, &output, &targets, &p.d_output, &loss)?;
    p.layer.backward(&rec, &p.x, &p.d_output, Some(&p.d_input))?;
    rec.submit().await?;
    let parameters = [
        ("A", &p.layer.weight().a, &p.a, p.layer.grad().a.read().await?),
        ("B", &p.layer.weight().b, &p.b, p.layer.grad().b.read().await?),
        ("x", &p.x, &p.x_values, p.d_input.read().await?),
    ];
    let mut found = Vec::new();
    for (name, tensor, at, gradient) in parameters {
        // A random direction, turned towards the gradient so that the derivative is not by chance near zero.
        let gradient = f64s(&gradient);
        let norm = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
        let random = f64s(&Rng(17).numbers(at.len()));
        let (g, r) = (norm(&gradient), norm(&random));
        let direction: Vec<f64> = gradient.iter().zip(&random).map(|(a, b)| a / g + b / (2.0 * r)).collect();
        let mut losses = [0.0; 2];
        for (loss_there, sign) in losses.iter_mut().zip([1.0, -1.0]) {
            let moved = at.iter().zip(&direction).map(|(at, v)| (at + sign * STEP * v) as f32);
            tensor.write(&moved.collect::<Vec<_>>())?;
            rec.submit().await?;
            *loss_there = loss.read().await?[0].into();
        }
        tensor.write(&at.iter().map(|v| *v as f32).collect::<Vec<_>>())?;
        let by_gradient = gradient.iter().zip(&direction).map(|(g, v)| g * v).sum();
        found.push(Derivative { name, by_differences: (losses[0] - losses[1]) / (2.0 * STEP), by_gradient });
    }
    p.layer.destroy();
    Ok(found)
}
