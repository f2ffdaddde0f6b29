//! Buffers handed over by the page and to it, as the TypeScript layer does with whole devices (`RawGpu::adopt`).

use wasm_bindgen::prelude::*;

use super::{RawGpu, RawTensor, Result, shape};
use crate::{DType, Error, Tensor};

#[wasm_bindgen]
impl RawTensor {
    /// A tensor in the buffer that the device's `createBuffer` answers with, which is called in this very turn, so that
    /// the TypeScript layer can answer with one that the page has, of this `size` and `usage`. `id` is the
    /// [`storage_id`](RawTensor::storage_id) of an earlier tensor in the same buffer.
    #[allow(clippy::too_many_arguments)]
    pub fn adopt(
        gpu: &RawGpu,
        label: &str,
        dimensions: &[u32],
        integers: bool,
        size: f64,
        usage: u32,
        byte_offset: f64,
        id: Option<f64>,
    ) -> Result<RawTensor> {
        let buffer = gpu.0.device().create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: size as u64,
            usage: wgpu::BufferUsages::from_bits_truncate(usage),
            mapped_at_creation: false,
        });
        let dtype = if integers { DType::I32 } else { DType::F32 };
        let id = id.map_or_else(crate::gpu::next_id, |id| id as u64);
        Ok(RawTensor(Tensor::adopt(&gpu.0, label, dtype, &shape(dimensions), buffer, byte_offset as u64, id)?))
    }

    /// The `GPUBuffer`.
    pub fn buffer(&self) -> Result<JsValue> {
        let (buffer, _) = self.0.buffer()?;
        let buffer = buffer.as_webgpu().ok_or_else(|| Error::validation("this device is not a WebGPU one".into()))?;
        Ok(AsRef::<JsValue>::as_ref(buffer).clone())
    }

    #[wasm_bindgen(js_name = byteOffset)]
    pub fn byte_offset(&self) -> Result<f64> {
        Ok(self.0.buffer()?.1 as f64)
    }

    /// A number for its buffer.
    #[wasm_bindgen(js_name = storageId)]
    pub fn storage_id(&self) -> Result<f64> {
        Ok(self.0.place()?.storage.id as f64)
    }
}
