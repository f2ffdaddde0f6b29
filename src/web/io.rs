//! Adapter files for `js/peft.ts`: bytes and numbers as arrays, everything else as JSON.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use js_sys::{Float32Array, Uint8Array};
use wasm_bindgen::prelude::*;

use super::{RawConfig, RawGpu, Result};
use crate::error::show_number;
use crate::io::json::{Reader, quote};
use crate::io::safetensors::{Dtype, Header, TensorInfo, to_f32};
use crate::io::{
    Adapter, AdapterKind, AdapterModule, Combination, Format, GgufModel, HesperWidths, InitLoraWeights, ModelModule,
    ModuleKind, Start, initialize,
};
use crate::{Error, LoraWeight};

/// JSON as it is written.
#[derive(Default)]
struct Json(String);

impl Json {
    fn comma(&mut self) {
        if !self.0.is_empty() && !self.0.ends_with(['{', '[', ':']) {
            self.0.push(',');
        }
    }

    fn open(&mut self, bracket: char) {
        self.comma();
        self.0.push(bracket);
    }

    fn close(&mut self, bracket: char) {
        self.0.push(bracket);
    }

    fn key(&mut self, key: &str) {
        self.text(key);
        self.0.push(':');
    }

    fn text(&mut self, text: &str) {
        self.comma();
        quote(&mut self.0, text, false);
    }

    fn number(&mut self, number: f64) {
        self.comma();
        self.0.push_str(&show_number(number));
    }

    fn flag(&mut self, flag: bool) {
        self.comma();
        self.0.push_str(if flag { "true" } else { "false" });
    }

    fn texts(&mut self, texts: &[String]) {
        self.open('[');
        texts.iter().for_each(|text| self.text(text));
        self.close(']');
    }

    fn shape(&mut self, shape: &[usize]) {
        self.open('[');
        shape.iter().for_each(|d| self.number(*d as f64));
        self.close(']');
    }
}

fn dtype(name: &str) -> Result<Dtype> {
    Ok(Dtype::from_name(name).ok_or_else(|| Error::argument("dtype", "\"F32\", \"F16\" or \"BF16\"", name))?)
}

fn kind_name(kind: AdapterKind) -> &'static str {
    match kind {
        AdapterKind::Linear => "linear",
        AdapterKind::Conv1x1 => "conv1x1",
        AdapterKind::Embedding => "embedding",
    }
}

/// `[{name, kind, inFeatures, outFeatures, isOutputHead}]`
fn model_modules(json: &str) -> Result<Vec<ModelModule>> {
    let mut found = Vec::new();
    let mut reader = Reader::new("the model's modules", json.as_bytes())?;
    reader.array(&mut |reader| {
        let kind = ModuleKind::Linear;
        let mut m = ModelModule { name: String::new(), kind, in_features: 0, out_features: 0, is_output_head: false };
        reader.object(&mut |reader, key| {
            match key.as_str() {
                "name" => m.name = reader.string()?,
                "kind" => match reader.string()?.as_str() {
                    "embedding" => m.kind = ModuleKind::Embedding,
                    "other" => m.kind = ModuleKind::Other,
                    _ => {}
                },
                "inFeatures" => m.in_features = reader.integer()? as usize,
                "outFeatures" => m.out_features = reader.integer()? as usize,
                "isOutputHead" => m.is_output_head = reader.boolean()?,
                _ => drop(reader.raw()?),
            }
            Ok(())
        })?;
        found.push(m);
        Ok(())
    })?;
    Ok(found)
}

/// A file's header: `{tensors: [{name, dtype, shape, start, end}], modules: […]}`.
#[wasm_bindgen(js_name = safetensorsHeader)]
pub fn safetensors_header(file: &str, bytes: &[u8], file_len: f64) -> Result<String> {
    let header = Header::parse(file, bytes, file_len as u64)?;
    let mut out = Json::default();
    out.open('{');
    out.key("tensors");
    out.open('[');
    for t in &header.tensors {
        out.open('{');
        out.key("name");
        out.text(&t.name);
        out.key("dtype");
        out.text(t.dtype.name());
        out.key("shape");
        out.shape(&t.shape);
        out.key("start");
        out.number(t.range.start as f64);
        out.key("end");
        out.number(t.range.end as f64);
        out.close('}');
    }
    out.close(']');
    out.key("modules");
    out.open('[');
    for m in ModelModule::list(&header) {
        out.open('{');
        out.key("name");
        out.text(&m.name);
        out.key("kind");
        out.text(match m.kind {
            ModuleKind::Linear => "linear",
            ModuleKind::Embedding => "embedding",
            ModuleKind::Other => "other",
        });
        out.key("inFeatures");
        out.number(m.in_features as f64);
        out.key("outFeatures");
        out.number(m.out_features as f64);
        out.key("isOutputHead");
        out.flag(m.is_output_head);
        out.close('}');
    }
    out.close(']');
    out.close('}');
    Ok(out.0)
}

/// An adapter in memory.
#[wasm_bindgen]
pub struct RawPeft(Rc<Adapter>);

impl RawPeft {
    fn new(adapter: Adapter) -> RawPeft {
        RawPeft(Rc::new(adapter))
    }
}

fn bytes(bytes: Vec<u8>) -> Uint8Array {
    Uint8Array::from(bytes.as_slice())
}

fn gguf_model(config: Option<Vec<u8>>) -> Result<Option<GgufModel>> {
    Ok(config.map(|config| GgufModel::from_config(&config)).transpose()?)
}

#[wasm_bindgen]
impl RawPeft {
    pub fn read(config: &[u8], weights: &[u8], strict: bool) -> Result<RawPeft> {
        Ok(RawPeft::new(Adapter::read(config, weights, strict)?))
    }

    #[wasm_bindgen(js_name = fromGguf)]
    pub fn from_gguf(file: &[u8], config: Option<Vec<u8>>) -> Result<RawPeft> {
        Ok(RawPeft::new(Adapter::from_gguf(file, gguf_model(config)?.as_ref())?))
    }

    #[wasm_bindgen(js_name = fromKohya)]
    pub fn from_kohya(file: &[u8], modules: &str) -> Result<RawPeft> {
        Ok(RawPeft::new(Adapter::from_kohya(file, &model_modules(modules)?)?))
    }

    #[wasm_bindgen(js_name = fromMlx)]
    pub fn from_mlx(config: &[u8], weights: &[u8]) -> Result<RawPeft> {
        Ok(RawPeft::new(Adapter::from_mlx(config, weights)?))
    }

    #[wasm_bindgen(js_name = fromHesper)]
    pub fn from_hesper(
        file: &[u8],
        in_features: usize,
        q_out_features: usize,
        v_out_features: usize,
    ) -> Result<RawPeft> {
        let widths = HesperWidths { in_features, q_out_features, v_out_features };
        Ok(RawPeft::new(Adapter::from_hesper(file, widths)?))
    }

    pub fn config(&self) -> String {
        self.0.config.to_json()
    }

    pub fn weights(&self, dtype_name: &str) -> Result<Uint8Array> {
        Ok(bytes(self.0.weights(dtype(dtype_name)?)?))
    }

    #[wasm_bindgen(js_name = toGguf)]
    pub fn to_gguf(&self, config: Vec<u8>, name: Option<String>) -> Result<Uint8Array> {
        Ok(bytes(self.0.to_gguf(&GgufModel::from_config(&config)?, name.as_deref())?))
    }

    #[wasm_bindgen(js_name = toKohya)]
    pub fn to_kohya(&self, prefix: &str) -> Result<Uint8Array> {
        Ok(bytes(self.0.to_kohya(prefix)?))
    }

    #[wasm_bindgen(js_name = toHesper)]
    pub fn to_hesper(&self) -> Result<Uint8Array> {
        Ok(bytes(self.0.to_hesper()?))
    }

    /// What a format cannot hold. `format`: 0 PEFT, 1 GGUF, 2 Kohya, 3 Hesper.
    #[wasm_bindgen(js_name = cannotExport)]
    pub fn cannot_export(&self, format: u32, config: Option<Vec<u8>>) -> Result<Vec<String>> {
        let format = [Format::Peft, Format::Gguf, Format::Kohya, Format::Hesper][format.min(3) as usize];
        Ok(self.0.can_export(format, gguf_model(config)?.as_ref()))
    }

    /// `{modules: [{name, kind, rank, alpha, scaling, inFeatures, outFeatures}], tensors: [{name, dtype, shape}], notes, parameters,
    /// changesBase}`
    pub fn describe(&self) -> String {
        let mut out = Json::default();
        out.open('{');
        out.key("modules");
        out.open('[');
        for m in &self.0.modules {
            out.open('{');
            out.key("name");
            out.text(&m.name);
            out.key("kind");
            out.text(kind_name(m.kind));
            for (key, number) in [
                ("rank", m.rank as f64),
                ("alpha", m.alpha),
                ("scaling", m.scaling),
                ("inFeatures", m.in_features() as f64),
                ("outFeatures", m.out_features() as f64),
            ] {
                out.key(key);
                out.number(number);
            }
            out.close('}');
        }
        out.close(']');
        out.key("tensors");
        out.open('[');
        for o in &self.0.others {
            out.open('{');
            out.key("name");
            out.text(&o.name);
            out.key("dtype");
            out.text(o.dtype.name());
            out.key("shape");
            out.shape(&o.shape);
            out.close('}');
        }
        out.close(']');
        out.key("notes");
        out.texts(&self.0.notes);
        out.key("parameters");
        out.number(self.0.parameters() as f64);
        out.key("changesBase");
        out.flag(self.0.config.init_lora_weights().changes_base());
        out.close('}');
        out.0
    }

    /// `{matched, missing, leftover, replaced}`, all of them names.
    pub fn report(&self, modules: &str, strict: bool) -> Result<String> {
        let report = self.0.report(&model_modules(modules)?, strict)?;
        let matched: Vec<String> = report.matched.iter().map(|i| self.0.modules[*i].name.clone()).collect();
        let mut out = Json::default();
        out.open('{');
        for (key, names) in [
            ("matched", &matched),
            ("missing", &report.missing),
            ("leftover", &report.leftover),
            ("replaced", &report.replaced),
        ] {
            out.key(key);
            out.texts(names);
        }
        out.close('}');
        Ok(out.0)
    }

    /// `part`: 0 A, 1 B, 2 magnitudes, 3 the bias of B, 4 scaling·B·A.
    pub fn values(&self, module: usize, part: u32) -> Result<Option<Float32Array>> {
        let Some(m) = self.0.modules.get(module) else { return Ok(None) };
        let values = match part {
            0 => Some(&m.a),
            1 => Some(&m.b),
            2 => m.magnitude.as_ref(),
            3 => m.lora_bias.as_ref(),
            _ => Some(&m.delta_weight()?),
        };
        Ok(values.map(|values| Float32Array::from(values.as_slice())))
    }

    /// The numbers of a tensor that is neither A nor B.
    pub fn tensor(&self, index: usize) -> Result<Float32Array> {
        let missing = || Error::argument("index", "that of a tensor", index.to_string());
        let other = self.0.others.get(index).ok_or_else(missing)?;
        Ok(Float32Array::from(to_f32(&other.name, other.dtype, &other.data)?.as_slice()))
    }

    /// That a model of these tensors can be merged with it; their names as it has them.
    #[wasm_bindgen(js_name = checkMerge)]
    pub fn check_merge(&self, tensors: Vec<String>) -> Result<Vec<String>> {
        Ok(self.0.check_merge(tensors)?)
    }

    /// Names of a model's tensors as the adapter has them.
    pub fn renamed(&self, tensors: Vec<String>) -> Vec<String> {
        Adapter::renamed(&self.0.merged_tensors(), tensors)
    }

    #[wasm_bindgen(js_name = mergedTensors)]
    pub fn merged_tensors(&self) -> Vec<String> {
        self.0.merged_tensors()
    }

    /// A tensor of the model with the adapter in it.
    #[wasm_bindgen(js_name = mergeTensor)]
    pub fn merge_tensor(
        &self,
        name: String,
        dtype_name: &str,
        dimensions: &[u32],
        data: &[u8],
    ) -> Result<Option<Uint8Array>> {
        let dtype = Dtype::from_name(dtype_name).unwrap_or(Dtype::U8);
        let info = TensorInfo { name, dtype, shape: super::shape(dimensions), range: 0..data.len() as u64 };
        Ok(self.0.merge_tensor(&info, data)?.map(bytes))
    }
}

/// Adapters and their weights, to be combined.
#[wasm_bindgen]
#[derive(Default)]
pub struct RawCombination(RefCell<Vec<(Rc<Adapter>, f64)>>);

#[wasm_bindgen]
impl RawCombination {
    #[wasm_bindgen(constructor)]
    pub fn new() -> RawCombination {
        RawCombination::default()
    }

    pub fn push(&self, adapter: &RawPeft, weight: f64) {
        self.0.borrow_mut().push((adapter.0.clone(), weight));
    }

    /// `kind`: 0 linear, 1 cat, 2 svd, whose rank is the largest where it is 0.
    pub fn finish(&self, kind: u32, rank: usize) -> Result<RawPeft> {
        let combination = match kind {
            0 => Combination::Linear,
            1 => Combination::Cat,
            _ => Combination::Svd { rank: (rank > 0).then_some(rank) },
        };
        let all = self.0.borrow();
        let pairs: Vec<_> = all.iter().map(|(adapter, weight)| (adapter.as_ref(), *weight)).collect();
        Ok(RawPeft::new(Adapter::combine(&pairs, combination)?))
    }
}

/// Modules on their way to an adapter.
#[wasm_bindgen]
#[derive(Default)]
pub struct RawModulesToSave {
    modules: RefCell<Vec<AdapterModule>>,
    biases: RefCell<Vec<(String, Vec<f32>)>>,
    fields: RefCell<Vec<(String, String)>>,
}

#[wasm_bindgen]
impl RawModulesToSave {
    #[wasm_bindgen(constructor)]
    pub fn new() -> RawModulesToSave {
        RawModulesToSave::default()
    }

    /// `kind`: 0 linear, 1 a kernel of 1×1, 2 an embedding.
    #[allow(clippy::too_many_arguments)]
    pub fn push(
        &self,
        name: String,
        kind: u32,
        rank: usize,
        alpha: f64,
        a: Vec<f32>,
        b: Vec<f32>,
        magnitude: Option<Vec<f32>>,
        lora_bias: Option<Vec<f32>>,
    ) {
        let kind = [AdapterKind::Linear, AdapterKind::Conv1x1, AdapterKind::Embedding][kind.min(2) as usize];
        let module = AdapterModule { name, kind, rank, alpha, scaling: 0.0, a, b, magnitude, lora_bias };
        self.modules.borrow_mut().push(module);
    }

    /// The trained bias of a module's base.
    #[wasm_bindgen(js_name = pushBias)]
    pub fn push_bias(&self, module: String, values: Vec<f32>) {
        self.biases.borrow_mut().push((module, values));
    }

    /// Sets a field of the configuration to a JSON text.
    pub fn set(&self, key: String, value: String) {
        self.fields.borrow_mut().push((key, value));
    }

    /// The adapter of these modules.
    pub fn finish(&self) -> Result<RawPeft> {
        self.finished(Adapter::new(self.modules.take(), None)?)
    }

    /// The adapter of these modules, with the configuration of another otherwise.
    #[wasm_bindgen(js_name = finishLike)]
    pub fn finish_like(&self, like: &RawPeft) -> Result<RawPeft> {
        self.finished(like.0.with_modules(self.modules.take())?)
    }

    fn finished(&self, adapter: Adapter) -> Result<RawPeft> {
        let mut adapter = adapter.with_biases(&self.biases.take())?;
        for (key, value) in self.fields.take() {
            adapter.set(&key, &value)?;
        }
        Ok(RawPeft::new(adapter))
    }
}

/// How an adapter starts, where the CPU computes it.
#[wasm_bindgen]
pub struct RawStart(Start);

#[wasm_bindgen]
impl RawStart {
    /// `weight` is empty for a start that does not look at it. What the device cannot hold is not computed.
    #[wasm_bindgen(constructor)]
    pub fn new(
        gpu: &RawGpu,
        init: &str,
        weight: &[f32],
        out_features: usize,
        in_features: usize,
        config: &RawConfig,
    ) -> Result<RawStart> {
        let (init, config) = (InitLoraWeights::named(init), &config.0);
        LoraWeight::check_size(&gpu.0, in_features, out_features, config.rank)?;
        // Whoever loads the file repeats a decomposition, and knows no seed.
        let seed = if init.changes_base() { 0 } else { config.seed };
        let scaling = f64::from(config.scaling()?);
        Ok(RawStart(initialize(&init, weight, out_features, in_features, config.rank, scaling, seed)?))
    }

    /// 0: A, 1: B, 2: the base weight that is left, where it is another one.
    pub fn part(&self, which: u32) -> Option<Float32Array> {
        let values = match which {
            0 => &self.0.a,
            1 => &self.0.b,
            _ => self.0.weight.as_ref()?,
        };
        Some(Float32Array::from(values.as_slice()))
    }
}

/// An adapter of PiSSA or OLoRA on its way to a plain one, module by module.
#[wasm_bindgen]
pub struct RawPlain {
    adapter: Rc<Adapter>,
    plain: RefCell<Vec<AdapterModule>>,
    next: Cell<usize>,
}

#[wasm_bindgen]
impl RawPlain {
    #[wasm_bindgen(constructor)]
    pub fn new(adapter: &RawPeft) -> RawPlain {
        RawPlain { adapter: adapter.0.clone(), plain: RefCell::default(), next: Cell::new(0) }
    }

    /// The module whose base weight is wanted next.
    pub fn wanted(&self) -> Option<String> {
        self.adapter.modules.get(self.next.get()).map(|m| m.name.clone())
    }

    pub fn push(&self, dtype_name: &str, data: &[u8]) -> Result<()> {
        if let Some(module) = self.adapter.modules.get(self.next.get()) {
            let weight = to_f32(&module.name, dtype(dtype_name)?, data)?;
            self.plain.borrow_mut().push(self.adapter.plain_module(module, &weight)?);
            self.next.set(self.next.get() + 1);
        }
        Ok(())
    }

    pub fn finish(&self) -> Result<RawPeft> {
        Ok(RawPeft::new(self.adapter.with_plain_modules(self.plain.take())?))
    }
}
