//! The site's self-check: every kernel on the visitor's own device, held to the f64 reference by the tests' own cases.
//! Built for the browser alone, apart from the package.
#![cfg(target_arch = "wasm32")]
#![allow(dead_code)] // the tests use the rest

#[path = "../kernels/base.rs"]
mod base;
#[path = "../kernels/base_file.rs"]
mod base_file;
#[path = "../kernels/cases.rs"]
mod cases;
#[path = "../kernels/chosen.rs"]
mod chosen;
mod common;
#[path = "../layer/problem.rs"]
mod problem;
#[path = "../reference/mod.rs"]
mod reference;
#[path = "../kernels/transformer.rs"]
mod transformer;

use cases::Spec;
use common::Rng;
use common::tolerance::{Worst, compare};
use lora_webgpu::{Gpu, GpuRequest, Profile, Recording, Tensor};
use problem::{DERIVED, derivatives};
use reference::Dims;
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    /// Milliseconds.
    #[wasm_bindgen(js_namespace = performance)]
    fn now() -> f64;
}

/// A device under test.
#[wasm_bindgen]
pub struct Check(Gpu);

/// A run of a kernel at one shape.
#[wasm_bindgen]
pub struct Run {
    /// The worst error as a share of its bound.
    pub share: f64,
    /// The worst error.
    pub absolute: f64,
    /// Milliseconds from recording to having read the outputs.
    pub ms: f64,
}

fn specs() -> impl Iterator<Item = &'static Spec> {
    cases::SPECS.iter().chain(transformer::SPECS).chain(base::INPUTS).chain(base::OPTIONAL).chain(&base::PRODUCTS)
}

fn spec(kernel: usize) -> Result<&'static Spec, JsError> {
    specs().nth(kernel).ok_or_else(|| JsError::new("there is no such kernel"))
}

/// The shapes that need no more than a few megabytes here.
fn shapes(spec: &'static Spec) -> impl Iterator<Item = (usize, &'static Dims)> {
    let fits = |d: &Dims| [d.tokens, d.in_features, d.out_features, d.rank].iter().all(|&n| n <= 2000);
    spec.shapes.iter().enumerate().filter(move |(_, d)| fits(d))
}

/// The kernels' names.
#[wasm_bindgen]
pub fn kernels() -> Vec<String> {
    specs().map(|spec| spec.kernel.name.to_string()).collect()
}

/// How many shapes a kernel is run at.
#[wasm_bindgen(js_name = shapeCount)]
pub fn shape_count(kernel: usize) -> Result<usize, JsError> {
    Ok(shapes(spec(kernel)?).count())
}

fn profile(software: bool) -> Profile {
    if software { Profile::Software } else { Profile::Hardware }
}

/// At how many shapes a layer's gradients are taken by differences.
#[wasm_bindgen(js_name = derivativeCount)]
pub fn derivative_count() -> usize {
    DERIVED.len()
}

#[wasm_bindgen]
impl Check {
    /// A device with the kernels that this kind of adapter gets.
    pub async fn open(software: bool) -> Result<Check, JsValue> {
        console_error_panic_hook::set_once();
        let profile = Some(profile(software));
        Ok(Check(Gpu::request(GpuRequest { profile, ..Default::default() }).await?))
    }

    /// Whether the package ever gives the kernel to a software adapter, or to hardware, with this one's features.
    #[wasm_bindgen(js_name = isChosen)]
    pub fn is_chosen(&self, kernel: usize, software: bool) -> Result<bool, JsError> {
        Ok(chosen::is_chosen(spec(kernel)?.kernel, profile(software), self.0.optional_features()))
    }

    /// The `GPUDevice`.
    pub fn device(&self) -> Result<JsValue, JsError> {
        let device = self.0.device().as_webgpu().ok_or_else(|| JsError::new("there is no device"))?;
        Ok(device.clone().into())
    }

    /// Compiles these kernels, as `Recording::compile_missing`.
    pub fn compile(&self, kernels: Vec<usize>, keep: bool) -> Result<(), JsValue> {
        for kernel in kernels {
            let spec = spec(kernel)?;
            let (index, dims) = shapes(spec).next().ok_or_else(|| JsError::new("there is no such shape"))?;
            let case = (spec.case)(*dims, &mut Rng(1 + index as u64));
            let tensors: Vec<Tensor> = case.tensors.iter().map(|given| given.upload(&self.0, "tensor")).collect();
            let rec = Recording::new(&self.0);
            (case.record)(&rec, &tensors)?;
            rec.compile_missing(keep)?;
            tensors.iter().for_each(Tensor::destroy);
        }
        Ok(())
    }

    /// Runs a kernel at one of its shapes; an error says what came out wrong.
    pub async fn run(&self, kernel: usize, shape: usize) -> Result<Run, JsValue> {
        let (gpu, spec) = (self.0.clone(), spec(kernel)?);
        let (index, dims) = shapes(spec).nth(shape).ok_or_else(|| JsError::new("there is no such shape"))?;
        let case = (spec.case)(*dims, &mut Rng(1 + index as u64));
        let began = now();
        gpu.check_alive()?;
        let tensors: Vec<Tensor> = case.tensors.iter().map(|given| given.upload(&gpu, "tensor")).collect();
        let rec = Recording::new(&gpu);
        (case.record)(&rec, &tensors)?;
        rec.submit().await?;
        let mut outputs = Vec::new();
        for (index, _) in &case.expected {
            outputs.push(tensors[*index].read().await?);
        }
        let ms = now() - began;
        tensors.iter().for_each(Tensor::destroy);
        let mut worst = Worst::default();
        for ((index, expected), output) in case.expected.iter().zip(&outputs) {
            let name = format!("{} at {}, tensor {index}", spec.kernel.name, (spec.show)(dims));
            let found = compare(&name, &case.tensors[*index].data, output, expected).map_err(|e| JsError::new(&e))?;
            worst = worst.and(found);
        }
        Ok(Run { share: worst.share, absolute: worst.absolute, ms })
    }

    /// The largest relative difference between a layer's gradients by A, B and x and the same by central differences.
    #[wasm_bindgen(js_name = derivative)]
    pub async fn derivative(&self, index: usize) -> Result<f64, JsValue> {
        let gpu = self.0.clone();
        gpu.check_alive()?;
        let dims = DERIVED.get(index).ok_or_else(|| JsError::new("there is no such shape"))?;
        let relative = |d: &problem::Derivative| (d.by_differences - d.by_gradient).abs() / d.by_gradient.abs();
        let found = derivatives(&gpu, *dims).await?;
        // NaN is no small error.
        Ok(found.iter().map(relative).fold(0.0, |worst, error| if error <= worst { worst } else { error }))
    }

    /// Ends the device.
    pub fn close(&self) {
        self.0.destroy();
    }
}
