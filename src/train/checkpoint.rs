//! A trainer's whole state as one safetensors file, so that training goes on with the same bits.

use std::collections::HashMap;
use std::future::Future;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::trainer::Trainer;
use crate::error::{Error, Result};
use crate::gpu::Tensor;

/// Where in its data a training stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// Times through the data, done.
    pub epoch: u64,
    /// Batches of the next time through, done.
    pub batch: u64,
}

/// What a loaded checkpoint says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resumed {
    /// Where to go on.
    pub position: Position,
    /// Whether it was saved with other kernels or on another adapter, so that the bits may differ from now on.
    pub bits_may_differ: bool,
}

const FORMAT: &str = "lora-webgpu checkpoint 1";

impl Trainer {
    /// The state after the steps submitted so far: adapters, moments, step counter, skips; with where the data stands.
    pub fn save_state(&self, position: Position) -> impl Future<Output = Result<Vec<u8>>> + use<> {
        let mut metadata = self.description();
        metadata.insert("profile".into(), self.profile());
        metadata.insert("epoch".into(), position.epoch.to_string());
        metadata.insert("batch".into(), position.batch.to_string());
        metadata.insert("attempts".into(), self.attempts().to_string());
        // All read-backs are encoded now, so that they see one state.
        let parts: Vec<_> = self.parts().into_iter().map(|(name, t)| (name, t.shape().to_vec(), t.read())).collect();
        async move {
            let mut data = Vec::new();
            for (name, shape, values) in parts {
                data.push((name, shape, bytemuck::pod_collect_to_vec::<f32, u8>(&values.await?)));
            }
            let views = data.iter().map(|(name, shape, bytes)| {
                TensorView::new(Dtype::F32, shape.clone(), bytes).map(|view| (*name, view)).map_err(foreign)
            });
            safetensors::serialize(views.collect::<Result<Vec<_>>>()?, Some(metadata)).map_err(foreign)
        }
    }

    /// Takes over a saved state, before whatever is submitted next. That the frozen weights are the same ones is the
    /// caller's to know.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for bytes that are no checkpoint, or one of other layers, loss or optimiser; nothing changes.
    pub fn load_state(&self, bytes: &[u8]) -> Result<Resumed> {
        let file = SafeTensors::deserialize(bytes).map_err(foreign)?;
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(foreign)?;
        let saved = header.metadata().clone().unwrap_or_default();
        for (key, own) in self.description() {
            let found = saved.get(&key).map_or("nothing", String::as_str);
            if found != own {
                return Err(Error::Checkpoint(format!("{key}: expected {own}, got {found}")));
            }
        }
        let number = |key: &str| {
            let text = saved.get(key).map_or("nothing", String::as_str);
            text.parse::<u64>().map_err(|_| Error::Checkpoint(format!("{key}: expected a number, got {text}")))
        };
        let position = Position { epoch: number("epoch")?, batch: number("batch")? };
        let attempts = number("attempts")?;
        let mut loaded = Vec::new();
        for (name, tensor) in self.parts() {
            let view = file.tensor(name).map_err(foreign)?;
            if view.dtype() != Dtype::F32 || view.shape() != tensor.shape() {
                let (expected, got) = (crate::gpu::show(tensor.shape()), crate::gpu::show(view.shape()));
                return Err(Error::Checkpoint(format!("{name}: expected float32 {expected}, got {got}")));
            }
            loaded.push((tensor, bytemuck::pod_collect_to_vec::<u8, f32>(view.data())));
        }
        loaded.iter().try_for_each(|(tensor, _)| tensor.place().map(drop))?;
        loaded.iter().try_for_each(|(tensor, values)| tensor.write(values))?;
        self.set_attempts(attempts);
        Ok(Resumed { position, bits_may_differ: saved.get("profile") != Some(&self.profile()) })
    }

    /// What must be the same in a checkpoint.
    fn description(&self) -> HashMap<String, String> {
        HashMap::from([
            ("format".into(), FORMAT.into()),
            ("layers".into(), self.network().description()),
            ("loss".into(), self.loss().name()),
            ("optimizer".into(), self.optimizer().fingerprint()),
            ("seed".into(), self.seed().to_string()),
        ])
    }

    /// The kernels that are chosen, and what runs them.
    fn profile(&self) -> String {
        let info = self.gpu().device().adapter_info();
        format!("{:?} {} {}", self.gpu().profile(), info.name, info.driver_info)
    }

    fn parts(&self) -> Vec<(&'static str, &Tensor)> {
        self.optimizer().state_tensors()
    }
}

/// Without the library's own words, whose printing would be a part of the wasm that nobody needs.
fn foreign<E>(_: E) -> Error {
    Error::Checkpoint("expected a whole safetensors file, got other bytes".into())
}
