//! Language models, their trainer and generation.

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::{Array, Float32Array, Int32Array, Promise, Uint8Array};
use wasm_bindgen::prelude::*;

use super::{MapUnit, RawGpu, RawOptions, Result, position, promise, records, resumed, saved};
use crate::io::gguf::GgufHeader;
use crate::io::safetensors::{Dtype, Header};
use crate::io::{Adapter, AdapterConfig, NewConfig};
use crate::model::{gguf_sources, safetensors_sources};
use crate::{
    CausalLM, Error, Generation, Gpu, Input, LanguageTrainer, ModelConfig, ModelLoader, Sampling, SequencesOptions,
    SourceTensor, Store, TokenBatch,
};

/// A language model, with the configuration of its adapter.
#[wasm_bindgen]
pub struct RawCausalLM {
    model: Rc<CausalLM>,
    adapter: RefCell<Option<AdapterConfig>>,
}

#[wasm_bindgen]
impl RawCausalLM {
    /// `[vocabulary, positions, layers, bytes of the weights]`
    pub fn numbers(&self) -> Vec<f64> {
        let c = self.model.config();
        [c.vocab_size as u64, c.max_positions as u64, c.layers as u64, self.model.bytes()].map(|n| n as f64).into()
    }

    #[wasm_bindgen(js_name = eosTokenIds)]
    pub fn eos_token_ids(&self) -> Vec<i32> {
        self.model.config().eos_token_ids.clone()
    }

    /// Names of the layers' linear modules.
    pub fn modules(&self) -> Vec<String> {
        self.model.linears().iter().map(|linear| linear.name().to_string()).collect()
    }

    /// A new adapter.
    #[wasm_bindgen(js_name = newAdapter)]
    pub fn new_adapter(&self, adapter: &RawAdapterConfig, seed: f64) -> Result<()> {
        self.refuse_second()?;
        self.model.new_adapter(&adapter.0, seed as u64)?;
        *self.adapter.borrow_mut() = Some(adapter.0.clone());
        Ok(())
    }

    /// Bytes of `[weights, adapter, activations, largest buffer]`, and the largest buffer that the device allows.
    pub fn estimate(
        &self,
        adapter: &RawAdapterConfig,
        batch: usize,
        tokens: usize,
        checkpointing: bool,
    ) -> Result<Vec<f64>> {
        let e = self.model.estimate(&adapter.0, batch, tokens, checkpointing)?;
        let limits = self.model.gpu().limits();
        let most = limits.max_buffer_size.min(limits.max_storage_buffer_binding_size);
        Ok([e.weights, e.adapter, e.activations, e.largest, most].map(|n| n as f64).into())
    }

    #[wasm_bindgen(js_name = loadAdapter)]
    pub fn load_adapter(&self, config: &[u8], weights: &[u8]) -> Result<()> {
        let adapter = Adapter::read(config, weights, true)?;
        self.refuse_second()?;
        self.model.load_adapter(&adapter)?;
        *self.adapter.borrow_mut() = Some(adapter.config);
        Ok(())
    }

    fn refuse_second(&self) -> Result<()> {
        self.model.check_live()?;
        match self.adapter.borrow().is_some() {
            true => Err(Error::argument("adapter", "a model without one; remove it first", "a second one").into()),
            false => Ok(()),
        }
    }

    /// `[adapter_config.json, adapter_model.safetensors]`
    #[wasm_bindgen(js_name = saveAdapter)]
    pub fn save_adapter(&self) -> Result<Promise> {
        self.model.check_live()?;
        let config = self.adapter.borrow().clone();
        let config = config.ok_or_else(|| Error::argument("adapter", "a model with one", "none"))?;
        let saved = self.model.save_adapter(&config);
        Ok(promise(async move {
            let adapter = saved.await?;
            let weights = Uint8Array::from(adapter.weights(Dtype::F32)?.as_slice());
            Ok(Array::of2(&adapter.config.to_json().into(), &weights))
        }))
    }

    /// Takes the adapter away.
    #[wasm_bindgen(js_name = removeAdapter)]
    pub fn remove_adapter(&self) -> Result<()> {
        self.model.remove_adapters()?;
        self.adapter.take();
        Ok(())
    }

    #[wasm_bindgen(js_name = setEnabled)]
    pub fn set_enabled(&self, enabled: bool) {
        self.model.set_adapter_enabled(enabled);
    }

    #[wasm_bindgen(js_name = setScale)]
    pub fn set_scale(&self, scale: f32) -> Result<()> {
        let mut adapters = self.model.loras().into_iter().flat_map(|lora| lora.adapters());
        Ok(adapters.try_for_each(|adapter| adapter.set_scale(scale))?)
    }

    /// Logits `[tokens, vocabulary]`.
    pub fn logits(&self, input_ids: &[i32]) -> Promise {
        let logits = self.model.logits(1, &Input { input_ids, ..Input::default() });
        promise(async { logits.await.map(|values| Float32Array::from(values.as_slice())) })
    }

    #[allow(clippy::too_many_arguments)]
    pub fn generate(
        &self,
        prompt: &[i32],
        max_tokens: usize,
        temperature: f64,
        top_k: usize,
        top_p: f64,
        repetition_penalty: f64,
        seed: f64,
    ) -> Result<RawGeneration> {
        let sampling = Sampling { temperature, top_k, top_p, repetition_penalty, seed: seed as u64 };
        Ok(RawGeneration(Rc::new(self.model.generate(prompt, max_tokens, &sampling)?)))
    }

    pub fn destroy(&self) {
        self.model.destroy();
    }
}

/// The configuration of an adapter to be made.
#[wasm_bindgen]
pub struct RawAdapterConfig(AdapterConfig);

#[wasm_bindgen]
impl RawAdapterConfig {
    /// `flags`: 1 rsLoRA, 2 DoRA, 4 lora_bias; 8 bias lora_only, 16 all; 32 a gaussian start, 64 an orthogonal one. Without
    /// `targets` all linear layers; `saved` are trained whole.
    #[wasm_bindgen(constructor)]
    pub fn new(
        rank: usize,
        alpha: f64,
        targets: Vec<String>,
        saved: Vec<String>,
        dropout: f64,
        flags: u32,
    ) -> Result<RawAdapterConfig> {
        let new = NewConfig { rank, alpha, target_modules: &targets, ranks: &[], alphas: &[], base_model: None };
        let mut config = AdapterConfig::new(&new)?;
        let flag = |bit: u32| if flags & bit > 0 { "true" } else { "false" };
        if targets.is_empty() {
            config.set("target_modules", "\"all-linear\"")?;
        }
        if !saved.is_empty() {
            let names: Vec<String> = saved.iter().map(|name| crate::io::json::quoted(name)).collect();
            config.set("modules_to_save", &format!("[{}]", names.join(", ")))?;
        }
        if flags & 24 > 0 {
            config.set("bias", if flags & 8 > 0 { "\"lora_only\"" } else { "\"all\"" })?;
        }
        if flags & 96 > 0 {
            config.set("init_lora_weights", if flags & 32 > 0 { "\"gaussian\"" } else { "\"orthogonal\"" })?;
        }
        config.set("lora_dropout", &crate::error::show_number(dropout))?;
        config.set("task_type", "\"CAUSAL_LM\"")?;
        config.set("use_rslora", flag(1))?;
        config.set("use_dora", flag(2))?;
        if flags & 4 > 0 {
            config.set("lora_bias", "true")?;
        }
        Ok(RawAdapterConfig(config))
    }
}

/// A model on its way: its files' headers, then its tensors' bytes.
#[wasm_bindgen]
pub struct RawModelLoader {
    gpu: Gpu,
    config: RefCell<Option<ModelConfig>>,
    sources: RefCell<Vec<SourceTensor>>,
    loader: RefCell<Option<ModelLoader>>,
}

#[wasm_bindgen]
impl RawModelLoader {
    #[wasm_bindgen(constructor)]
    pub fn new(gpu: &RawGpu) -> RawModelLoader {
        RawModelLoader {
            gpu: gpu.0.clone(),
            config: RefCell::default(),
            sources: RefCell::default(),
            loader: RefCell::default(),
        }
    }

    /// The first bytes of the file of this number: safetensors, or GGUF, which brings the configuration.
    #[wasm_bindgen(js_name = addFile)]
    pub fn add_file(&self, number: usize, name: &str, bytes: &[u8], len: f64) -> Result<()> {
        let sources = if bytes.starts_with(b"GGUF") {
            let header = GgufHeader::parse(name, bytes, len as u64)?;
            *self.config.borrow_mut() = Some(ModelConfig::from_gguf(&header)?);
            gguf_sources(number, &header)
        } else {
            safetensors_sources(number, &Header::parse(name, bytes, len as u64)?)
        };
        self.sources.borrow_mut().extend(sources);
        Ok(())
    }

    /// `config.json` of safetensors files.
    #[wasm_bindgen(js_name = setConfig)]
    pub fn set_config(&self, config: &[u8]) -> Result<()> {
        *self.config.borrow_mut() = Some(ModelConfig::parse(config)?);
        Ok(())
    }

    /// After all files: `[file, first byte, end]` of each tensor that is to be written. `store`: 0 as in the file, 1 f32, 2 q8_0.
    pub fn begin(&self, store: u32) -> Result<Vec<f64>> {
        let missing = || Error::argument("config", "config.json or a GGUF file", "neither");
        let config = self.config.take().ok_or_else(missing)?;
        let store = [Store::AsIs, Store::F32, Store::Q8_0][store as usize % 3];
        let loader = ModelLoader::new(&self.gpu, config, self.sources.take(), store)?;
        let range = |source: &SourceTensor| [source.file as f64, source.range.start as f64, source.range.end as f64];
        let ranges = loader.sources().iter().flat_map(range).collect();
        *self.loader.borrow_mut() = Some(loader);
        Ok(ranges)
    }

    /// The tensor's name.
    pub fn name(&self, tensor: usize) -> Option<String> {
        self.loader.borrow().as_ref()?.sources().get(tensor).map(|source| source.name.clone())
    }

    /// The next bytes of a tensor.
    pub fn write(&self, tensor: usize, bytes: &[u8]) -> Result<()> {
        match self.loader.borrow_mut().as_mut() {
            Some(loader) => Ok(loader.write(tensor, bytes)?),
            None => Err(Error::disposed("the loader".into()).into()),
        }
    }

    pub fn finish(&self) -> Result<RawCausalLM> {
        let loader = self.loader.take().ok_or_else(|| Error::disposed("the loader".into()))?;
        Ok(RawCausalLM { model: Rc::new(loader.finish()?), adapter: RefCell::default() })
    }

    /// Frees what came so far.
    pub fn destroy(&self) {
        self.loader.take();
    }
}

/// A text that goes on.
#[wasm_bindgen]
pub struct RawGeneration(Rc<Generation>);

#[wasm_bindgen]
impl RawGeneration {
    /// A token, or undefined at the end.
    #[wasm_bindgen(js_name = nextToken)]
    pub fn next_token(&self) -> Promise {
        let generation = self.0.clone();
        promise(async move { generation.next().await.map(|id| id.map_or(JsValue::UNDEFINED, JsValue::from)) })
    }

    pub fn destroy(&self) {
        self.0.destroy();
    }
}

/// The trainer of a language model's adapter.
#[wasm_bindgen]
pub struct RawLanguageTrainer(Rc<LanguageTrainer>);

/// A micro-batch from JavaScript.
struct Batch {
    batch: usize,
    input_ids: Vec<i32>,
    attention_mask: Vec<i32>,
    labels: Vec<i32>,
}

impl Batch {
    /// `[sequences, ids, mask, labels]`
    fn from(value: &JsValue) -> Batch {
        let parts: &Array = value.unchecked_ref();
        let ints = |i| Int32Array::new(&parts.get(i)).to_vec();
        let batch = parts.get(0).as_f64().unwrap_or(0.0) as usize;
        Batch { batch, input_ids: ints(1), attention_mask: ints(2), labels: ints(3) }
    }

    fn tokens(&self) -> TokenBatch<'_> {
        let input = Input {
            input_ids: &self.input_ids,
            attention_mask: Some(&self.attention_mask),
            labels: Some(&self.labels),
            ..Input::default()
        };
        TokenBatch { batch: self.batch, input }
    }
}

#[wasm_bindgen]
impl RawLanguageTrainer {
    #[wasm_bindgen(constructor)]
    pub fn new(
        model: &RawCausalLM,
        options: &RawOptions,
        checkpointing: bool,
        seed: f64,
    ) -> Result<RawLanguageTrainer> {
        let sequences = SequencesOptions { checkpointing, ..SequencesOptions::default() };
        let trainer = LanguageTrainer::new(&model.model, options.0.get(), sequences, seed as u64)?;
        Ok(RawLanguageTrainer(Rc::new(trainer)))
    }

    pub fn attempts(&self) -> f64 {
        self.0.attempts() as f64
    }

    /// One step over micro-batches `[sequences, ids, mask, labels]`, submitted now but for the update of shapes that are new.
    pub fn step(&self, batches: Array) -> Promise {
        let batches: Vec<Batch> = batches.iter().map(|value| Batch::from(&value)).collect();
        let tokens: Vec<TokenBatch> = batches.iter().map(Batch::tokens).collect();
        promise(self.0.step(&tokens).map_unit())
    }

    /// Kernels of a step over batches of this shape that are not compiled yet.
    pub fn missing(&self, batch: usize, tokens: usize) -> Result<usize> {
        Ok(self.0.missing_kernels(batch, tokens)?)
    }

    /// As `RawRecording::compile`.
    pub fn compile(&self, batch: usize, tokens: usize, keep: bool) -> Result<usize> {
        Ok(self.0.compile_missing(batch, tokens, keep)?)
    }

    /// `[mean loss, labels that it counts]`
    pub fn evaluate(&self, batch: JsValue) -> Promise {
        let result = self.0.evaluate(&Batch::from(&batch).tokens());
        promise(async { result.await.map(|(loss, count)| Float32Array::from([loss, count].as_slice())) })
    }

    #[wasm_bindgen(js_name = layerName)]
    pub fn layer_name(&self, layer: usize) -> Option<String> {
        self.0.model().loras().get(layer)?.name().map(str::to_string)
    }

    /// As the trainer's of a network.
    pub fn records(&self, from: f64) -> Promise {
        records(self.0.records(from as u64))
    }

    /// As the trainer's of a network.
    #[wasm_bindgen(js_name = saveState)]
    pub fn save_state(&self, epoch: f64, batch: f64, note: &str) -> Promise {
        saved(self.0.save_state(position(epoch, batch), note))
    }

    /// As the trainer's of a network.
    #[wasm_bindgen(js_name = loadState)]
    pub fn load_state(&self, bytes: &[u8]) -> Result<Array> {
        Ok(resumed(self.0.load_state(bytes)?))
    }

    pub fn destroy(&self) {
        self.0.destroy();
    }
}
