//! The frozen layer in JavaScript.

use std::cell::{Cell, RefCell};

use js_sys::Uint8Array;
use wasm_bindgen::prelude::*;

use super::{RawConfig, RawGpu, RawLayer, RawRecording, RawTensor, Result};
use crate::base::pack;
use crate::{Error, FrozenLinear, FrozenLoader, LoraLinear, Packing, WeightKind};

/// Bytes that cross into wasm at a time.
const PIECE: u32 = 1 << 20;

/// `kind`: 0 f32, 1 f16, 2 bf16, 3 q8_0, 4 q4_0, 5 q4_1, 6 bitlinear in i2_s, 7 in transformers' packing.
fn weight_kind(kind: u32, int8_activations: bool) -> WeightKind {
    match kind {
        0 => WeightKind::F32,
        1 => WeightKind::F16,
        2 => WeightKind::Bf16,
        3 => WeightKind::Q8_0,
        4 => WeightKind::Q4_0,
        5 => WeightKind::Q4_1,
        6 => WeightKind::BitLinear { packing: Packing::I2S, int8_activations },
        _ => WeightKind::BitLinear { packing: Packing::Transformers, int8_activations },
    }
}

/// `values`, packed: the bytes of a `Uint8Array`.
#[wasm_bindgen(js_name = packWeight)]
pub fn pack_weight(kind: u32, values: &[f32]) -> Result<Vec<u8>> {
    Ok(pack(weight_kind(kind, false), values)?)
}

/// A frozen layer, or a weight that is still on its way.
#[wasm_bindgen]
pub struct RawFrozen {
    loader: RefCell<Option<FrozenLoader>>,
    linear: RefCell<Option<FrozenLinear>>,
    disposed: Cell<bool>,
}

#[wasm_bindgen]
impl RawFrozen {
    #[wasm_bindgen(constructor)]
    pub fn new(
        gpu: &RawGpu,
        kind: u32,
        int8_activations: bool,
        out_features: u32,
        in_features: u32,
    ) -> Result<RawFrozen> {
        let kind = weight_kind(kind, int8_activations);
        let loader = FrozenLoader::new(&gpu.0, kind, out_features as usize, in_features as usize)?;
        Ok(RawFrozen { loader: RefCell::new(Some(loader)), linear: RefCell::default(), disposed: Cell::new(false) })
    }

    /// `bias` is any tensor where there is none. The tensors stay the caller's: the layer's own lie in the same place.
    #[wasm_bindgen(js_name = fromTensors)]
    pub fn from_tensors(weight: &RawTensor, bias: &RawTensor, has_bias: bool) -> Result<RawFrozen> {
        let own = |tensor: &RawTensor| tensor.0.prefix(tensor.0.shape());
        let linear = FrozenLinear::from_tensors(own(weight)?, has_bias.then(|| own(bias)).transpose()?)?;
        Ok(RawFrozen { loader: RefCell::default(), linear: RefCell::new(Some(linear)), disposed: Cell::new(false) })
    }

    fn loading<T>(&self, work: impl FnOnce(&mut FrozenLoader) -> crate::Result<T>) -> Result<T> {
        match self.loader.borrow_mut().as_mut() {
            Some(loader) => Ok(work(loader)?),
            None if self.disposed.get() => Err(Error::disposed("FrozenLinear".into()).into()),
            None => {
                Err(Error::argument("FrozenLinear", "one whose weight is still on its way", "a finished one").into())
            }
        }
    }

    pub(super) fn linear(&self) -> crate::Result<FrozenLinear> {
        match self.linear.borrow().as_ref() {
            Some(linear) => Ok(linear.clone()),
            None if self.disposed.get() => Err(Error::disposed("FrozenLinear".into())),
            None => Err(Error::argument("FrozenLinear", "one whose weight has come whole: finish()", "one without")),
        }
    }

    pub fn write(&self, byte_offset: f64, bytes: &Uint8Array) -> Result<()> {
        self.loading(|loader| {
            for start in (0..bytes.length().max(1)).step_by(PIECE as usize) {
                let piece = bytes.subarray(start, bytes.length().min(start + PIECE)).to_vec();
                loader.write(byte_offset as u64 + u64::from(start), &piece)?;
            }
            Ok(())
        })
    }

    #[wasm_bindgen(js_name = setBias)]
    pub fn set_bias(&self, bias: &[f32]) -> Result<()> {
        self.loading(|loader| loader.set_bias(bias))
    }

    #[wasm_bindgen(js_name = setScale)]
    pub fn set_scale(&self, scale: f64) -> Result<()> {
        self.loading(|loader| loader.set_scale(scale as f32))
    }

    /// Where it fails, the weight stays on its way.
    pub fn finish(&self) -> Result<()> {
        self.loading(|loader| loader.check_complete())?;
        if let Some(loader) = self.loader.take() {
            *self.linear.borrow_mut() = Some(loader.finish()?);
        }
        Ok(())
    }

    #[wasm_bindgen(js_name = isFinished)]
    pub fn is_finished(&self) -> bool {
        self.linear.borrow().is_some()
    }

    /// `[outFeatures, inFeatures, bytes of GPU memory]`
    pub fn size(&self) -> Result<Vec<f64>> {
        let linear = self.linear()?;
        Ok([linear.out_features() as u64, linear.in_features() as u64, linear.bytes()].map(|n| n as f64).into())
    }

    #[wasm_bindgen(js_name = forwardRows)]
    pub fn forward_rows(
        &self,
        rec: &RawRecording,
        first: u32,
        end: u32,
        x: &RawTensor,
        output: &RawTensor,
    ) -> Result<()> {
        Ok(self.linear()?.forward_rows(&rec.0, first as usize..end as usize, &x.0, &output.0)?)
    }

    #[wasm_bindgen(js_name = backwardInputRows)]
    pub fn backward_input_rows(
        &self,
        rec: &RawRecording,
        first: u32,
        end: u32,
        d_output: &RawTensor,
        d_input: &RawTensor,
        accumulate: bool,
    ) -> Result<()> {
        let rows = first as usize..end as usize;
        Ok(self.linear()?.backward_input_rows(&rec.0, rows, &d_output.0, &d_input.0, accumulate)?)
    }

    pub fn embed(&self, rec: &RawRecording, ids: &RawTensor, output: &RawTensor) -> Result<()> {
        Ok(self.linear()?.embed(&rec.0, &ids.0, &output.0)?)
    }

    pub fn destroy(&self) {
        self.disposed.set(true);
        self.loader.take();
        if let Some(linear) = self.linear.take() {
            linear.destroy();
        }
    }
}

#[wasm_bindgen]
impl RawLayer {
    /// On a frozen layer that is there already.
    #[wasm_bindgen(js_name = onBase)]
    pub fn on_base(gpu: &RawGpu, name: Option<String>, base: &RawFrozen, config: &RawConfig) -> Result<RawLayer> {
        let base = base.linear()?;
        Ok(RawLayer(std::rc::Rc::new(LoraLinear::new(&gpu.0, name.as_deref(), base, &config.0)?)))
    }
}
