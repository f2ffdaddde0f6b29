//! The wasm-bindgen façade under `js/`: it converts and checks, and does no mathematics.
//!
//! Methods take `&self` over shared state and hold no borrow across an await, so that nothing that JavaScript calls
//! finds an object locked.

mod adopt;
mod base;
mod io;
mod model;

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use js_sys::{Array, Float32Array, Function, Int32Array, Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;

use crate::kernels::lora;
use crate::train::TrainerPlan;
use crate::{
    Activation, AdamW, Adapter, DType, Error, Gpu, GpuRequest, Init, LoraConfig, LoraGrad, LoraLinear, LoraWeight,
    Loss, Module, Network, Norm, Optimizer, OptimizerKind, OptimizerOptions, Position, Profile, Recording, Resumed,
    Schedule, Sgd, Tensor, Trainer,
};

type Result<T> = std::result::Result<T, JsValue>;

thread_local! {
    /// `(code, message) → LoraError`, given by the TypeScript layer.
    static MAKE_ERROR: RefCell<Option<Function>> = const { RefCell::new(None) };
}

impl From<Error> for JsValue {
    fn from(error: Error) -> JsValue {
        let make = MAKE_ERROR.with_borrow(Clone::clone);
        let (code, message) = (error.code(), error.to_string());
        make.and_then(|f| f.call2(&JsValue::NULL, &code.into(), &message.as_str().into()).ok())
            .unwrap_or_else(|| js_sys::Error::new(&message).into())
    }
}

/// Installs the panic hook and the function that makes a `LoraError`.
#[wasm_bindgen(js_name = setUp)]
pub fn set_up(make_error: Function) {
    console_error_panic_hook::set_once();
    MAKE_ERROR.set(Some(make_error));
}

/// Boxed, so that all promises share one copy of the code that drives them.
fn promise<T: Into<JsValue>>(future: impl Future<Output = crate::Result<T>> + 'static) -> Promise {
    let future: Pin<Box<dyn Future<Output = Result<JsValue>>>> = Box::pin(async move { Ok(future.await?.into()) });
    future_to_promise(future)
}

fn shape(dimensions: &[u32]) -> Vec<usize> {
    dimensions.iter().map(|&d| d as usize).collect()
}

#[wasm_bindgen]
extern "C" {
    /// A `GPUQueue`.
    type JsQueue;
    #[wasm_bindgen(method, catch, js_name = writeBuffer)]
    fn write_buffer(this: &JsQueue, buffer: &JsValue, offset: f64, data: &JsArray) -> Result<()>;

    /// A `Float32Array` or an `Int32Array`.
    type JsArray;
    #[wasm_bindgen(method, getter)]
    fn length(this: &JsArray) -> u32;
    #[wasm_bindgen(method)]
    fn subarray(this: &JsArray, begin: u32, end: u32) -> JsArray;
}

/// A device.
#[wasm_bindgen]
pub struct RawGpu(Gpu);

#[wasm_bindgen]
impl RawGpu {
    /// Wraps the device that `navigator.gpu.requestAdapter()` leads to, which is asked in this very turn, so that the
    /// TypeScript layer can answer with a device that it has. One that is not `owned` is never destroyed.
    pub fn adopt(owned: bool, software: bool) -> Promise {
        let profile = if software { Profile::Software } else { Profile::Hardware };
        let mut opening = Box::pin(Gpu::open(GpuRequest { profile: Some(profile), ..Default::default() }, owned));
        // The first poll makes the call.
        let mut context = Context::from_waker(Waker::noop());
        let first = opening.as_mut().poll(&mut context);
        promise(async move {
            match first {
                Poll::Ready(gpu) => gpu,
                Poll::Pending => opening.await,
            }
            .map(RawGpu)
        })
    }

    /// `[buffers, bytes]`
    pub fn memory(&self) -> Vec<f64> {
        let memory = self.0.memory();
        vec![memory.buffers as f64, memory.bytes as f64]
    }

    /// `[submits, dispatches, uploaded bytes, pipelines, bind groups, buffers created]`
    pub fn stats(&self) -> Vec<f64> {
        let s = self.0.stats();
        [s.submits, s.dispatches, s.uploaded_bytes, s.pipelines, s.bind_groups, s.buffers_created]
            .map(|n| n as f64)
            .into()
    }

    pub fn finished(&self) -> Promise {
        promise(self.0.finished().map_unit())
    }

    pub fn destroy(&self) {
        self.0.destroy();
    }
}

/// `()` as a JavaScript `undefined`.
trait MapUnit: Future<Output = crate::Result<()>> + Sized {
    fn map_unit(self) -> impl Future<Output = crate::Result<JsValue>> {
        async { self.await.map(|()| JsValue::UNDEFINED) }
    }
}
impl<F: Future<Output = crate::Result<()>>> MapUnit for F {}

/// Straight from JavaScript's memory to the GPU process, in pieces of 16 MiB.
fn write(tensor: &Tensor, data: &JsValue) -> Result<()> {
    const PIECE: u32 = 4 << 20;
    let dtype = if data.is_instance_of::<Int32Array>() { DType::I32 } else { DType::F32 };
    let data: &JsArray = data.unchecked_ref();
    tensor.upload(dtype, data.length() as usize, |buffer, offset| {
        let (Some(queue), Some(buffer)) = (tensor.gpu().queue().as_webgpu(), buffer.as_webgpu()) else {
            return Err(Error::validation("this device is not a WebGPU one".into()).into());
        };
        let (queue, buffer): (&JsQueue, &JsValue) = (AsRef::<JsValue>::as_ref(queue).unchecked_ref(), buffer.as_ref());
        for start in (0..data.length()).step_by(PIECE as usize) {
            let piece = data.subarray(start, data.length().min(start + PIECE));
            let written = queue.write_buffer(buffer, offset as f64 + 4.0 * f64::from(start), &piece);
            written.map_err(|_| Error::validation(format!("tensor `{}`: the queue took no data", tensor.label())))?;
        }
        Ok(())
    })?
}

/// A tensor.
#[wasm_bindgen]
pub struct RawTensor(Tensor);

#[wasm_bindgen]
impl RawTensor {
    #[wasm_bindgen(constructor)]
    pub fn new(gpu: &RawGpu, label: &str, dimensions: &[u32], integers: bool) -> Result<RawTensor> {
        let shape = shape(dimensions);
        Ok(RawTensor(match integers {
            true => Tensor::integers(&gpu.0, label, &shape, None)?,
            false => Tensor::zeros(&gpu.0, label, &shape)?,
        }))
    }

    #[wasm_bindgen(js_name = isInteger)]
    pub fn is_integer(&self) -> bool {
        self.0.dtype() == DType::I32
    }

    pub fn label(&self) -> String {
        self.0.label().into()
    }

    pub fn shape(&self) -> Vec<u32> {
        self.0.shape().iter().map(|&d| d as u32).collect()
    }

    /// `data` is a `Float32Array`, or an `Int32Array` for a tensor of integers.
    pub fn write(&self, data: &JsValue) -> Result<()> {
        write(&self.0, data)
    }

    /// A `Float32Array`, of a tensor of integers an `Int32Array`.
    pub fn read(&self) -> Promise {
        let integers = self.is_integer();
        promise(crate::gpu::read(&self.0, move |view| -> JsValue {
            let bytes = view.as_uint8array();
            let (buffer, offset, length) = (bytes.buffer(), bytes.byte_offset(), bytes.length() / 4);
            match integers {
                true => Int32Array::new_with_byte_offset_and_length(&buffer, offset, length).slice(0, length).into(),
                false => Float32Array::new_with_byte_offset_and_length(&buffer, offset, length).slice(0, length).into(),
            }
        }))
    }

    #[wasm_bindgen(js_name = isDestroyed)]
    pub fn is_destroyed(&self) -> bool {
        self.0.is_destroyed()
    }

    pub fn destroy(&self) {
        self.0.destroy();
    }
}

/// `A` and `B`.
#[wasm_bindgen]
pub struct RawWeight(LoraWeight);

#[wasm_bindgen]
impl RawWeight {
    #[wasm_bindgen(constructor)]
    pub fn new(gpu: &RawGpu, in_features: u32, out_features: u32, config: &RawConfig) -> Result<RawWeight> {
        Ok(RawWeight(LoraWeight::new(&gpu.0, in_features as usize, out_features as usize, &config.0)?))
    }

    pub fn from(a: &RawTensor, b: &RawTensor) -> Result<RawWeight> {
        Ok(RawWeight(LoraWeight::from_tensors(a.0.clone(), b.0.clone())?))
    }

    pub fn a(&self) -> RawTensor {
        RawTensor(self.0.a.clone())
    }

    pub fn b(&self) -> RawTensor {
        RawTensor(self.0.b.clone())
    }

    pub fn destroy(&self) {
        self.0.destroy();
    }
}

/// `dA` and `dB`.
#[wasm_bindgen]
pub struct RawGrad(LoraGrad);

#[wasm_bindgen]
impl RawGrad {
    #[wasm_bindgen(constructor)]
    pub fn new(gpu: &RawGpu, weight: &RawWeight) -> Result<RawGrad> {
        Ok(RawGrad(LoraGrad::new(&gpu.0, &weight.0)?))
    }

    pub fn a(&self) -> RawTensor {
        RawTensor(self.0.a.clone())
    }

    pub fn b(&self) -> RawTensor {
        RawTensor(self.0.b.clone())
    }

    pub fn destroy(&self) {
        self.0.destroy();
    }
}

#[wasm_bindgen]
impl RawGrad {
    pub fn zero(&self, rec: &RawRecording) -> Result<()> {
        Ok(self.0.zero(&rec.0)?)
    }
}

/// Rank, alpha and initialisation.
#[wasm_bindgen]
pub struct RawConfig(LoraConfig);

#[wasm_bindgen]
impl RawConfig {
    /// `seed` is an integer of at most 53 bits; `flags` has bit 0 for rsLoRA, 1 for DoRA, 2 for a bias beside B, 3 to train
    /// the base's bias, 4 for Hesper's initialisation.
    #[wasm_bindgen(constructor)]
    pub fn new(rank: u32, alpha: f64, dropout: f64, seed: f64, flags: u32) -> Result<RawConfig> {
        let flag = |bit: u32| flags >> bit & 1 == 1;
        let config = LoraConfig {
            rank: rank as usize,
            alpha,
            use_rslora: flag(0),
            dropout,
            use_dora: flag(1),
            lora_bias: flag(2),
            train_bias: flag(3),
            init: if flag(4) { Init::Hesper } else { Init::Peft },
            seed: seed as u64,
        };
        config.check()?;
        Ok(RawConfig(config))
    }

    pub fn scaling(&self) -> Result<f32> {
        Ok(self.0.scaling()?)
    }
}

/// A linear layer with an adapter.
#[wasm_bindgen]
pub struct RawLayer(Rc<LoraLinear>);

#[wasm_bindgen]
impl RawLayer {
    /// The adapter of this name.
    pub fn adapter(&self, name: &str) -> Result<RawAdapter> {
        Ok(RawAdapter(self.0.adapter(name)?))
    }

    #[wasm_bindgen(js_name = addAdapter)]
    pub fn add_adapter(&self, name: &str, config: &RawConfig) -> Result<RawAdapter> {
        Ok(RawAdapter(self.0.add_adapter(name, &config.0)?))
    }

    #[wasm_bindgen(js_name = removeAdapter)]
    pub fn remove_adapter(&self, name: &str) -> Result<()> {
        Ok(self.0.remove_adapter(name)?)
    }

    /// The names of all adapters.
    pub fn adapters(&self) -> Vec<String> {
        self.0.adapters().iter().map(|adapter| adapter.name().to_string()).collect()
    }

    /// The names of the active ones.
    pub fn active(&self) -> Vec<String> {
        self.0.active().iter().map(|adapter| adapter.name().to_string()).collect()
    }

    #[wasm_bindgen(js_name = setActive)]
    pub fn set_active(&self, names: Vec<String>) -> Result<()> {
        Ok(self.0.set_active(&names.iter().map(String::as_str).collect::<Vec<_>>())?)
    }

    /// An empty name is the base's alone.
    #[wasm_bindgen(js_name = forwardRows)]
    pub fn forward_rows(&self, rec: &RawRecording, x: &RawTensor, names: Vec<String>) -> Result<RawTensor> {
        let names: Vec<_> = names.iter().map(|name| Some(name.as_str()).filter(|name| !name.is_empty())).collect();
        Ok(RawTensor(self.0.forward_rows(&rec.0, &x.0, &names)?))
    }

    pub fn merge(&self, keep_original: bool) -> Result<Promise> {
        Ok(promise(self.0.merge(keep_original)?.map_unit()))
    }

    pub fn unmerge(&self) -> Result<Promise> {
        Ok(promise(self.0.unmerge()?.map_unit()))
    }

    #[wasm_bindgen(js_name = isMerged)]
    pub fn is_merged(&self) -> bool {
        self.0.is_merged()
    }

    pub fn enabled(&self) -> bool {
        self.0.is_enabled()
    }

    #[wasm_bindgen(js_name = setEnabled)]
    pub fn set_enabled(&self, enabled: bool) {
        self.0.set_enabled(enabled);
    }

    pub fn forward(&self, rec: &RawRecording, x: &RawTensor) -> Result<RawTensor> {
        Ok(RawTensor(self.0.forward(&rec.0, &x.0)?))
    }

    pub fn backward(&self, rec: &RawRecording, x: &RawTensor, d_output: &RawTensor) -> Result<()> {
        Ok(self.0.backward(&rec.0, &x.0, &d_output.0, None)?)
    }

    #[wasm_bindgen(js_name = backwardWithInput)]
    pub fn backward_with_input(
        &self,
        rec: &RawRecording,
        x: &RawTensor,
        d_output: &RawTensor,
        d_input: &RawTensor,
    ) -> Result<()> {
        Ok(self.0.backward(&rec.0, &x.0, &d_output.0, Some(&d_input.0))?)
    }

    #[wasm_bindgen(js_name = deltaWeight)]
    pub fn delta_weight(&self) -> Promise {
        let delta = self.0.delta_weight();
        promise(async { delta.await.map(|values| Float32Array::from(values.as_slice())) })
    }

    pub fn destroy(&self) {
        self.0.destroy();
    }
}

/// One adapter of a layer.
#[wasm_bindgen]
pub struct RawAdapter(Rc<Adapter>);

#[wasm_bindgen]
impl RawAdapter {
    pub fn weight(&self) -> RawWeight {
        RawWeight(self.0.weight().clone())
    }

    pub fn grad(&self) -> RawGrad {
        RawGrad(self.0.grad().clone())
    }

    /// 0: DoRA's magnitudes, 1: the bias beside B, 2: the base's bias; with `grad` their gradients.
    pub fn vector(&self, which: u32, grad: bool) -> Option<RawTensor> {
        let trained = match which {
            0 => self.0.magnitude(),
            1 => self.0.lora_bias(),
            _ => self.0.base_bias(),
        }?;
        Some(RawTensor(if grad { trained.grad.clone() } else { trained.value.clone() }))
    }

    pub fn scaling(&self) -> f32 {
        self.0.scaling()
    }

    pub fn scale(&self) -> f32 {
        self.0.scale()
    }

    #[wasm_bindgen(js_name = setScale)]
    pub fn set_scale(&self, scale: f32) -> Result<()> {
        Ok(self.0.set_scale(scale)?)
    }
}

/// How an optimiser updates.
#[wasm_bindgen]
pub struct RawOptions(Cell<OptimizerOptions>);

#[wasm_bindgen]
impl RawOptions {
    pub fn adamw(lr: f64, beta1: f64, beta2: f64, eps: f64, weight_decay: f64) -> RawOptions {
        let kind = OptimizerKind::AdamW(AdamW { beta1, beta2, eps, weight_decay });
        RawOptions(Cell::new(OptimizerOptions::new(kind, lr)))
    }

    pub fn sgd(lr: f64, momentum: f64, weight_decay: f64) -> RawOptions {
        let kind = OptimizerKind::Sgd(Sgd { momentum, weight_decay });
        RawOptions(Cell::new(OptimizerOptions::new(kind, lr)))
    }

    #[wasm_bindgen(js_name = setLrRatioB)]
    pub fn set_lr_ratio_b(&self, lr_ratio_b: f64) {
        self.0.set(OptimizerOptions { lr_ratio_b, ..self.0.get() });
    }

    #[wasm_bindgen(js_name = setMaxGradNorm)]
    pub fn set_max_grad_norm(&self, norm: f64) {
        self.0.set(OptimizerOptions { max_grad_norm: Some(norm), ..self.0.get() });
    }

    /// `kind`: 0 constant, 1 linear, 2 cosine.
    #[wasm_bindgen(js_name = setSchedule)]
    pub fn set_schedule(&self, kind: u32, warmup: u32, total: u32) {
        let (warmup, total) = (warmup as usize, total as usize);
        let schedule = match kind {
            0 => Schedule::ConstantWithWarmup { warmup },
            1 => Schedule::Linear { warmup, total },
            _ => Schedule::Cosine { warmup, total },
        };
        self.0.set(OptimizerOptions { schedule, ..self.0.get() });
    }
}

/// An optimiser over layers.
#[wasm_bindgen]
pub struct RawOptimizer(Optimizer);

#[wasm_bindgen]
impl RawOptimizer {
    /// Over the linear layers of a list of modules.
    #[wasm_bindgen(constructor)]
    pub fn new(gpu: &RawGpu, layers: &RawModules, options: &RawOptions) -> Result<RawOptimizer> {
        let network = layers.0.borrow();
        let layers: Vec<&LoraLinear> = network
            .iter()
            .filter_map(|m| if let Module::Linear(layer) = m { Some(layer.as_ref()) } else { None })
            .collect();
        Ok(RawOptimizer(Optimizer::new(&gpu.0, &layers, options.0.get())?))
    }

    pub fn step(&self, rec: &RawRecording) -> Result<()> {
        Ok(self.0.step(&rec.0)?)
    }

    #[wasm_bindgen(js_name = zeroGrad)]
    pub fn zero_grad(&self, rec: &RawRecording) -> Result<()> {
        Ok(self.0.zero_grad(&rec.0)?)
    }

    #[wasm_bindgen(js_name = setLr)]
    pub fn set_lr(&self, lr: f64) -> Result<()> {
        Ok(self.0.set_lr(lr)?)
    }

    pub fn destroy(&self) {
        self.0.destroy();
    }
}

/// Layer norm or RMS norm.
#[wasm_bindgen]
pub struct RawNorm(Rc<Norm>);

#[wasm_bindgen]
impl RawNorm {
    #[wasm_bindgen(constructor)]
    pub fn new(gpu: &RawGpu, weight: &[f32], bias: Option<Vec<f32>>, centered: bool, eps: f64) -> Result<RawNorm> {
        Ok(RawNorm(Rc::new(Norm::new(&gpu.0, weight, bias.as_deref(), centered, eps)?)))
    }

    pub fn destroy(&self) {
        self.0.destroy();
    }
}

/// A list of modules: an array of exported objects would take them out of JavaScript's hands.
#[wasm_bindgen]
#[derive(Default)]
pub struct RawModules(RefCell<Vec<Module>>);

#[wasm_bindgen]
impl RawModules {
    #[wasm_bindgen(constructor)]
    pub fn new() -> RawModules {
        RawModules::default()
    }

    #[wasm_bindgen(js_name = pushLinear)]
    pub fn push_linear(&self, layer: &RawLayer) {
        self.0.borrow_mut().push(Module::Linear(layer.0.clone()));
    }

    /// 0 tanh, 1 relu, 2 gelu, 3 silu
    #[wasm_bindgen(js_name = pushActivation)]
    pub fn push_activation(&self, kind: u32) {
        let kind = match kind {
            0 => Activation::Tanh,
            1 => Activation::Relu,
            2 => Activation::Gelu,
            _ => Activation::Silu,
        };
        self.0.borrow_mut().push(Module::Activation(kind));
    }

    #[wasm_bindgen(js_name = pushNorm)]
    pub fn push_norm(&self, norm: &RawNorm) {
        self.0.borrow_mut().push(Module::Norm(norm.0.clone()));
    }

    #[wasm_bindgen(js_name = pushResidual)]
    pub fn push_residual(&self, modules: &RawModules) {
        let modules = modules.0.borrow().clone();
        self.0.borrow_mut().push(Module::Residual(modules));
    }
}

/// A trainer.
#[wasm_bindgen]
pub struct RawTrainer(Rc<Trainer>);

#[wasm_bindgen]
impl RawTrainer {
    /// `loss`: 0 mean squared error, 1 binary cross-entropy with logits, 2 cross-entropy.
    #[wasm_bindgen(constructor)]
    pub fn new(
        gpu: &RawGpu,
        modules: &RawModules,
        loss: u32,
        ignore_index: i32,
        label_smoothing: f64,
        options: &RawOptions,
        seed: f64,
    ) -> Result<RawTrainer> {
        let network = Network::new(modules.0.borrow().clone())?;
        let loss = match loss {
            0 => Loss::Mse,
            1 => Loss::BceWithLogits,
            _ => Loss::CrossEntropy { ignore_index, label_smoothing },
        };
        Ok(RawTrainer(Rc::new(Trainer::new(&gpu.0, network, loss, options.0.get())?.with_seed(seed as u64))))
    }

    #[wasm_bindgen(js_name = inFeatures)]
    pub fn in_features(&self) -> usize {
        self.0.network().in_features()
    }

    pub fn attempts(&self) -> f64 {
        self.0.attempts() as f64
    }

    /// The plan for this many tokens, with nothing of a batch to be copied.
    pub fn plan(&self, tokens: u32) -> Result<RawPlan> {
        let plan = self.0.plan(tokens as usize)?;
        plan.copies.clear();
        Ok(RawPlan { plan, trainer: self.0.clone() })
    }

    #[wasm_bindgen(js_name = checkLabels)]
    pub fn check_labels(&self, labels: &[i32]) -> Result<()> {
        Ok(self.0.check_labels(labels)?)
    }

    pub fn step(&self, plan: &RawPlan) -> Promise {
        promise(self.0.stepper().step(&plan.plan).map_unit())
    }

    #[wasm_bindgen(js_name = beginWindow)]
    pub fn begin_window(&self) -> Promise {
        promise(self.0.stepper().begin_window().map_unit())
    }

    #[wasm_bindgen(js_name = microStep)]
    pub fn micro_step(&self, plan: &RawPlan) -> Promise {
        promise(self.0.stepper().micro_step(&plan.plan).map_unit())
    }

    #[wasm_bindgen(js_name = endWindow)]
    pub fn end_window(&self) -> Promise {
        promise(self.0.stepper().end_window().map_unit())
    }

    /// `[sum of the loss, what it counts]`
    pub fn evaluate(&self, plan: &RawPlan) -> Promise {
        let totals = self.0.stepper().evaluate(&plan.plan);
        promise(async { totals.await.map(|(sum, count)| Float32Array::from([sum, count].as_slice())) })
    }

    #[wasm_bindgen(js_name = layerName)]
    pub fn layer_name(&self, layer: usize) -> Option<String> {
        self.0.network().layers().get(layer)?.name().map(str::to_string)
    }

    /// `[loss, norm, lr, outcome as begin_step.wgsl numbers it]` of each attempt from `from` on, as far back as the log reaches.
    pub fn records(&self, from: f64) -> Promise {
        records(self.0.records(from as u64))
    }

    /// `note` is what the TypeScript layer wants back.
    #[wasm_bindgen(js_name = saveState)]
    pub fn save_state(&self, epoch: f64, batch: f64, note: &str) -> Promise {
        saved(self.0.save_state(position(epoch, batch), note))
    }

    /// `[epoch, batch, whether bits may differ, note]`
    #[wasm_bindgen(js_name = loadState)]
    pub fn load_state(&self, bytes: &[u8]) -> Result<Array> {
        Ok(resumed(self.0.load_state(bytes)?))
    }

    pub fn destroy(&self) {
        self.0.destroy();
    }
}

fn records(records: impl Future<Output = crate::Result<Vec<crate::StepRecord>>> + 'static) -> Promise {
    promise(async {
        let flat = |r: crate::StepRecord| [r.loss, r.grad_norm, r.lr, r.outcome.to_log()];
        records.await.map(|all| Float32Array::from(all.into_iter().flat_map(flat).collect::<Vec<f32>>().as_slice()))
    })
}

fn saved(state: impl Future<Output = crate::Result<Vec<u8>>> + 'static) -> Promise {
    promise(async { state.await.map(|bytes| Uint8Array::from(bytes.as_slice())) })
}

fn position(epoch: f64, batch: f64) -> Position {
    Position { epoch: epoch as u64, batch: batch as u64 }
}

/// `[epoch, batch, whether bits may differ, note]`
fn resumed(state: Resumed) -> Array {
    let Resumed { position: Position { epoch, batch }, note, bits_may_differ } = state;
    let (epoch, batch) = (JsValue::from(epoch as f64), JsValue::from(batch as f64));
    Array::of4(&epoch, &batch, &bits_may_differ.into(), &note.into())
}

/// A trainer's tensors for one number of tokens.
#[wasm_bindgen]
pub struct RawPlan {
    plan: Rc<TrainerPlan>,
    trainer: Rc<Trainer>,
}

#[wasm_bindgen]
impl RawPlan {
    /// Writes the inputs, or else the targets, of a batch to the GPU.
    pub fn write(&self, inputs: bool, data: &JsValue) -> Result<()> {
        write(self.part(inputs), data)
    }

    /// Has the next submit copy them from a tensor.
    pub fn copy(&self, inputs: bool, tensor: &RawTensor) -> Result<()> {
        let to = self.part(inputs);
        tensor.0.expect_shape(if inputs { "x" } else { "target" }, to.shape())?;
        Ok(self.plan.copies.copy(&tensor.0, to)?)
    }

    fn part(&self, inputs: bool) -> &Tensor {
        if inputs { &self.plan.tensors.x } else { &self.plan.tensors.targets }
    }

    /// Kernels of its steps that are not compiled yet.
    pub fn missing(&self) -> usize {
        self.plan.missing_kernels(self.trainer.stepper())
    }

    /// As `RawRecording::compile`.
    pub fn compile(&self, keep: bool) -> Result<usize> {
        Ok(self.plan.compile_missing(self.trainer.stepper(), keep)?)
    }
}

/// Dispatches in order.
#[wasm_bindgen]
pub struct RawRecording(Recording);

#[wasm_bindgen]
impl RawRecording {
    #[wasm_bindgen(constructor)]
    pub fn new(gpu: &RawGpu) -> RawRecording {
        RawRecording(Recording::new(&gpu.0))
    }

    pub fn dispatches(&self) -> usize {
        self.0.dispatches()
    }

    /// Makes the pipelines that are missing; without `keep` only for the browser to see.
    pub fn compile(&self, keep: bool) -> Result<usize> {
        Ok(self.0.compile_missing(keep)?)
    }

    pub fn submit(&self) -> Promise {
        promise(self.0.submit().map_unit())
    }

    pub fn zero(&self, tensor: &RawTensor) -> Result<()> {
        Ok(self.0.zero(&tensor.0)?)
    }

    #[wasm_bindgen(js_name = projectA)]
    pub fn project_a(&self, weight: &RawWeight, x: &RawTensor, h: &RawTensor) -> Result<()> {
        Ok(lora::project_a::record(&self.0, &weight.0.a, &x.0, &h.0)?)
    }

    #[wasm_bindgen(js_name = projectB)]
    pub fn project_b(&self, weight: &RawWeight, h: &RawTensor, y: &RawTensor) -> Result<()> {
        Ok(lora::project_b::record(&self.0, &weight.0.b, &h.0, &y.0)?)
    }

    #[wasm_bindgen(js_name = addScaled)]
    pub fn add_scaled(&self, y: &RawTensor, output: &RawTensor, scale: f32) -> Result<()> {
        Ok(lora::add_scaled::record(&self.0, &y.0, &output.0, scale)?)
    }

    #[wasm_bindgen(js_name = fusedBAdd)]
    pub fn fused_b_add(&self, weight: &RawWeight, h: &RawTensor, output: &RawTensor, scale: f32) -> Result<()> {
        Ok(lora::fused_b_add::record(&self.0, &weight.0.b, &h.0, &output.0, scale)?)
    }

    #[wasm_bindgen(js_name = loraForward)]
    pub fn lora_forward(
        &self,
        weight: &RawWeight,
        x: &RawTensor,
        h: &RawTensor,
        y: &RawTensor,
        output: &RawTensor,
        scale: f32,
    ) -> Result<()> {
        Ok(self.0.lora_forward(&weight.0, &x.0, &h.0, &y.0, &output.0, scale)?)
    }

    #[wasm_bindgen(js_name = loraForwardFused)]
    pub fn lora_forward_fused(
        &self,
        weight: &RawWeight,
        x: &RawTensor,
        h: &RawTensor,
        output: &RawTensor,
        scale: f32,
    ) -> Result<()> {
        Ok(self.0.lora_forward_fused(&weight.0, &x.0, &h.0, &output.0, scale)?)
    }

    #[wasm_bindgen(js_name = saveActivation)]
    pub fn save_activation(&self, src: &RawTensor, dst: &RawTensor) -> Result<()> {
        Ok(lora::save_activation::record(&self.0, &src.0, &dst.0)?)
    }

    #[wasm_bindgen(js_name = gradB)]
    pub fn grad_b(&self, d_output: &RawTensor, h: &RawTensor, d_b: &RawTensor, scale: f32) -> Result<()> {
        Ok(lora::grad_b::record(&self.0, &d_output.0, &h.0, &d_b.0, scale)?)
    }

    #[wasm_bindgen(js_name = gradDh)]
    pub fn grad_dh(&self, weight: &RawWeight, d_output: &RawTensor, dh: &RawTensor) -> Result<()> {
        Ok(lora::grad_dh::record(&self.0, &weight.0.b, &d_output.0, &dh.0)?)
    }

    #[wasm_bindgen(js_name = gradA)]
    pub fn grad_a(&self, dh: &RawTensor, x: &RawTensor, d_a: &RawTensor, scale: f32) -> Result<()> {
        Ok(lora::grad_a::record(&self.0, &dh.0, &x.0, &d_a.0, scale)?)
    }

    #[wasm_bindgen(js_name = inputGrad)]
    pub fn input_grad(&self, weight: &RawWeight, dh: &RawTensor, d_input: &RawTensor, scale: f32) -> Result<()> {
        Ok(lora::input_grad::record(&self.0, &weight.0.a, &dh.0, &d_input.0, scale)?)
    }

    #[wasm_bindgen(js_name = loraBackward)]
    #[allow(clippy::too_many_arguments)]
    pub fn lora_backward(
        &self,
        weight: &RawWeight,
        d_output: &RawTensor,
        x: &RawTensor,
        h: &RawTensor,
        dh: &RawTensor,
        grad: &RawGrad,
        d_input: &RawTensor,
        has_d_input: bool,
        scale: f32,
    ) -> Result<()> {
        let d_input = has_d_input.then_some(&d_input.0);
        Ok(self.0.lora_backward(&weight.0, &d_output.0, &x.0, &h.0, &dh.0, &grad.0, d_input, scale)?)
    }

    pub fn mse(&self, output: &RawTensor, target: &RawTensor, d_output: &RawTensor, loss: &RawTensor) -> Result<()> {
        self.loss(Loss::Mse, output, target, d_output, loss)
    }

    #[wasm_bindgen(js_name = bceWithLogits)]
    pub fn bce_with_logits(
        &self,
        output: &RawTensor,
        target: &RawTensor,
        d_output: &RawTensor,
        loss: &RawTensor,
    ) -> Result<()> {
        self.loss(Loss::BceWithLogits, output, target, d_output, loss)
    }

    #[wasm_bindgen(js_name = crossEntropy)]
    pub fn cross_entropy(
        &self,
        output: &RawTensor,
        target: &RawTensor,
        d_output: &RawTensor,
        loss: &RawTensor,
        ignore_index: i32,
        label_smoothing: f64,
    ) -> Result<()> {
        self.loss(Loss::CrossEntropy { ignore_index, label_smoothing }, output, target, d_output, loss)
    }

    fn loss(
        &self,
        kind: Loss,
        output: &RawTensor,
        target: &RawTensor,
        d_output: &RawTensor,
        loss: &RawTensor,
    ) -> Result<()> {
        Ok(kind.record(&self.0, &output.0, &target.0, &d_output.0, &loss.0)?)
    }
}
