//! Language models, their trainer and generation.

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::{Array, Float32Array, Int32Array, Promise, Uint8Array};
use wasm_bindgen::prelude::*;

use super::{MapUnit, RawGpu, RawOptions, Result, promise, resumed};
use crate::io::safetensors::{Dtype, to_f32};
use crate::io::{Adapter, AdapterConfig, NewConfig};
use crate::{
    CausalLM, Error, Generation, Input, LanguageTrainer, LoraLinear, ModelConfig, Position, Sampling, SequencesOptions,
    TokenBatch,
};

/// A language model, with the configuration of its adapter.
#[wasm_bindgen]
pub struct RawCausalLM {
    model: Rc<CausalLM>,
    adapter: RefCell<Option<AdapterConfig>>,
}

#[wasm_bindgen]
impl RawCausalLM {
    #[wasm_bindgen(constructor)]
    pub fn new(gpu: &RawGpu, config: &[u8]) -> Result<RawCausalLM> {
        let model = Rc::new(CausalLM::new(&gpu.0, ModelConfig::parse(config)?)?);
        Ok(RawCausalLM { model, adapter: RefCell::default() })
    }

    /// `[vocabulary, positions, layers, tied]`
    pub fn numbers(&self) -> Vec<u32> {
        let c = self.model.config();
        vec![c.vocab_size as u32, c.max_positions as u32, c.layers as u32, c.tie_word_embeddings.into()]
    }

    #[wasm_bindgen(js_name = eosTokenIds)]
    pub fn eos_token_ids(&self) -> Vec<i32> {
        self.model.config().eos_token_ids.clone()
    }

    /// Names of the linear layers that can have adapters.
    pub fn modules(&self) -> Vec<String> {
        self.model.linears().iter().map(|linear| linear.name().to_string()).collect()
    }

    /// Names of the frozen tensors.
    #[wasm_bindgen(js_name = parameterNames)]
    pub fn parameter_names(&self) -> Vec<String> {
        self.model.parameters().into_iter().map(|parameter| parameter.name).collect()
    }

    /// Shapes of the frozen tensors, in the order of their names.
    #[wasm_bindgen(js_name = parameterShapes)]
    pub fn parameter_shapes(&self) -> Array {
        let shape = |tensor: &crate::Tensor| tensor.shape().iter().map(|d| JsValue::from(*d as f64)).collect::<Array>();
        self.model.parameters().iter().map(|parameter| JsValue::from(shape(&parameter.tensor))).collect()
    }

    /// Writes elements of a frozen tensor from `first` on.
    #[wasm_bindgen(js_name = writeParameter)]
    pub fn write_parameter(&self, index: usize, first: f64, dtype: &str, bytes: &[u8]) -> Result<()> {
        let parameters = self.model.parameters();
        let parameter =
            parameters.get(index).ok_or_else(|| Error::argument("tensor", "one of the model", index.to_string()))?;
        let Some(dtype) = Dtype::from_name(dtype) else {
            return Err(Error::argument(&parameter.name, "elements of a known type", dtype).into());
        };
        let values = to_f32(&parameter.name, dtype, bytes)?;
        Ok(parameter.tensor.write_elements(first as usize, &values)?)
    }

    /// A new adapter; `flags`: 1 rsLoRA, 2 DoRA, 4 lora_bias. Without `targets` all linear layers.
    #[wasm_bindgen(js_name = newAdapter)]
    pub fn new_adapter(
        &self,
        rank: usize,
        alpha: f64,
        targets: Vec<String>,
        dropout: f64,
        flags: u32,
        seed: f64,
    ) -> Result<()> {
        let new = NewConfig { rank, alpha, target_modules: &targets, ranks: &[], alphas: &[], base_model: None };
        let mut config = AdapterConfig::new(&new)?;
        let flag = |bit: u32| if flags & bit > 0 { "true" } else { "false" };
        if targets.is_empty() {
            config.set("target_modules", "\"all-linear\"")?;
        }
        config.set("lora_dropout", &crate::error::show_number(dropout))?;
        config.set("task_type", "\"CAUSAL_LM\"")?;
        config.set("use_rslora", flag(1))?;
        config.set("use_dora", flag(2))?;
        if flags & 4 > 0 {
            config.set("lora_bias", "true")?;
        }
        self.refuse_second()?;
        self.model.new_adapter(&config, seed as u64)?;
        *self.adapter.borrow_mut() = Some(config);
        Ok(())
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
        match self.adapter.borrow().is_some() {
            true => Err(Error::argument("adapter", "a model without one; remove it first", "a second one").into()),
            false => Ok(()),
        }
    }

    /// `[adapter_config.json, adapter_model.safetensors]`
    #[wasm_bindgen(js_name = saveAdapter)]
    pub fn save_adapter(&self) -> Result<Promise> {
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
    pub fn remove_adapter(&self) {
        self.model.loras().iter().for_each(|lora| self.model.remove_lora(lora));
        self.adapter.take();
    }

    #[wasm_bindgen(js_name = hasAdapter)]
    pub fn has_adapter(&self) -> bool {
        self.adapter.borrow().is_some()
    }

    #[wasm_bindgen(js_name = setEnabled)]
    pub fn set_enabled(&self, enabled: bool) {
        self.model.loras().iter().for_each(|lora| LoraLinear::set_enabled(lora, enabled));
    }

    #[wasm_bindgen(js_name = setScale)]
    pub fn set_scale(&self, scale: f32) -> Result<()> {
        let adapters = self.model.loras().into_iter().flat_map(|lora| lora.adapters());
        Ok(adapters.map(|adapter| adapter.set_scale(scale)).collect::<crate::Result<()>>()?)
    }

    /// Logits `[batch·tokens, vocabulary]`.
    pub fn logits(&self, batch: usize, input_ids: &[i32], mask: Option<Vec<i32>>) -> Promise {
        let input = Input { input_ids, attention_mask: mask.as_deref(), ..Input::default() };
        let logits = self.model.logits(batch, &input);
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

    /// One step over micro-batches `[sequences, ids, mask, labels]`.
    pub fn step(&self, batches: Array) -> Promise {
        let trainer = self.0.clone();
        promise(
            async move {
                let batches: Vec<Batch> = batches.iter().map(|value| Batch::from(&value)).collect();
                let tokens: Vec<TokenBatch> = batches.iter().map(Batch::tokens).collect();
                trainer.step(&tokens).await
            }
            .map_unit(),
        )
    }

    /// `[mean loss, labels that it counts]`
    pub fn evaluate(&self, batch: JsValue) -> Promise {
        let result = self.0.evaluate(&Batch::from(&batch).tokens());
        promise(async { result.await.map(|(loss, count)| Float32Array::from([loss, count].as_slice())) })
    }

    /// As the trainer's of a network.
    pub fn records(&self, from: f64) -> Promise {
        let records = self.0.records(from as u64);
        promise(async {
            let flat = |r: crate::StepRecord| [r.loss, r.grad_norm, r.lr, r.outcome.to_log()];
            records.await.map(|all| Float32Array::from(all.into_iter().flat_map(flat).collect::<Vec<f32>>().as_slice()))
        })
    }

    /// As the trainer's of a network.
    #[wasm_bindgen(js_name = saveState)]
    pub fn save_state(&self, epoch: f64, batch: f64, note: &str) -> Promise {
        let state = self.0.save_state(Position { epoch: epoch as u64, batch: batch as u64 }, note);
        promise(async { state.await.map(|bytes| Uint8Array::from(bytes.as_slice())) })
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
