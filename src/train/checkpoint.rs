//! A training's whole state as one safetensors file, so that it goes on with the same bits.

use std::future::Future;

use super::language::LanguageTrainer;
use super::trainer::Trainer;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::io::safetensors::{self, Dtype, Entry, SafetensorsFile};
use crate::kernels;
use crate::optim::Optimizer;

/// Where in its data a training stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// Times through the data, done.
    pub epoch: u64,
    /// Batches of the next time through, done.
    pub batch: u64,
}

/// What a loaded checkpoint says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumed {
    /// Where to go on.
    pub position: Position,
    /// What was saved beside the state.
    pub note: String,
    /// Whether it was saved with other kernels or on another adapter, so that the bits may differ from now on.
    pub bits_may_differ: bool,
}

const FORMAT: &str = "lora-webgpu checkpoint 2";
/// What stands before the checksum in the header; nowhere else, as quotes inside a JSON string are escaped.
const CHECKSUM: &[u8] = b"\"checksum\":\"";
/// What the checksum is taken over in its own place.
const NO_CHECKSUM: &str = "00000000";
/// Where the `state` counts attempts (`begin_step.wgsl`), as `u32`.
const ATTEMPTS: usize = 6;

impl Trainer {
    /// The state after the steps submitted so far: adapters, moments, step counter, skips; with where the data stands
    /// and a note of the caller's. The same state gives the same bytes.
    ///
    /// # Errors
    /// Through the future, as reading a tensor; [`Validation`](crate::error::ErrorKind::Validation) where the GPU refused one of these steps.
    pub fn save_state(&self, position: Position, note: &str) -> impl Future<Output = Result<Vec<u8>>> + use<> {
        self.saved().save(self.attempts(), position, note)
    }

    /// Takes over a saved state, before whatever is submitted next. That the frozen weights are the same ones is the
    /// caller's to know.
    ///
    /// # Errors
    /// [`Checkpoint`](crate::error::ErrorKind::Checkpoint) for bytes that are no checkpoint, a damaged one, or one of other layers, loss or optimiser;
    /// nothing changes.
    pub fn load_state(&self, bytes: &[u8]) -> Result<Resumed> {
        let (resumed, attempts) = self.saved().load(bytes)?;
        self.stepper().set_attempts(attempts);
        Ok(resumed)
    }

    fn saved(&self) -> Saved<'_> {
        let (layers, loss) = (self.network().description(), self.loss().name());
        Saved { gpu: self.gpu(), optimizer: self.optimizer(), layers, loss, seed: self.stepper().seed }
    }
}

impl LanguageTrainer {
    /// As [`Trainer::save_state`].
    ///
    /// # Errors
    /// As there.
    pub fn save_state(&self, position: Position, note: &str) -> impl Future<Output = Result<Vec<u8>>> + use<> {
        self.saved().save(self.attempts(), position, note)
    }

    /// As [`Trainer::load_state`].
    ///
    /// # Errors
    /// As there.
    pub fn load_state(&self, bytes: &[u8]) -> Result<Resumed> {
        let (resumed, attempts) = self.saved().load(bytes)?;
        self.stepper().set_attempts(attempts);
        Ok(resumed)
    }

    fn saved(&self) -> Saved<'_> {
        // A model's adapter may be looked at with another factor at any time: no part of the training.
        let mut layers: Vec<_> = self.model().loras().iter().map(|layer| layer.description(false)).collect();
        for (name, trained) in self.model().trained_whole() {
            layers.push(name + &crate::gpu::show(trained.value.shape()));
        }
        let (layers, loss) = (layers.join(" "), "next token".into());
        Saved { gpu: self.model().gpu(), optimizer: self.optimizer(), layers, loss, seed: self.stepper().seed }
    }
}

/// What a checkpoint is of.
struct Saved<'a> {
    gpu: &'a Gpu,
    optimizer: &'a Optimizer,
    layers: String,
    loss: String,
    seed: u64,
}

impl Saved<'_> {
    fn save(&self, attempts: u64, position: Position, note: &str) -> impl Future<Output = Result<Vec<u8>>> + use<> {
        let mut metadata = Vec::from(self.description());
        metadata.extend([
            ("attempts", attempts.to_string()),
            ("batch", position.batch.to_string()),
            ("checksum", NO_CHECKSUM.into()),
            ("epoch", position.epoch.to_string()),
            ("note", note.into()),
            ("profile", self.profile()),
        ]);
        // All read-backs are encoded now, so that they see one state.
        let parts: Vec<_> =
            self.optimizer.state_tensors().into_iter().map(|(name, t)| (name, t.shape().to_vec(), t.read())).collect();
        async move {
            let mut data = Vec::new();
            for (name, shape, values) in parts {
                let values = values.await?;
                if name == "state" && values[ATTEMPTS].to_bits() != attempts as u32 {
                    return Err(Error::validation("a step before this checkpoint".into()));
                }
                data.push((name, shape, bytemuck::pod_collect_to_vec::<f32, u8>(&values)));
            }
            let entries: Vec<_> =
                data.iter().map(|(name, shape, bytes)| Entry { name, dtype: Dtype::F32, shape, data: bytes }).collect();
            let metadata: Vec<_> = metadata.into_iter().map(|(key, value)| (key.to_string(), value)).collect();
            let mut file = safetensors::write(&entries, &metadata);
            let at = checksum_place(&file).ok_or_else(foreign)?;
            let sum = checksum(&file, at);
            file[at..at + NO_CHECKSUM.len()].copy_from_slice(sum.as_bytes());
            Ok(file)
        }
    }

    /// With the attempts that there were.
    fn load(&self, bytes: &[u8]) -> Result<(Resumed, u64)> {
        let file = SafetensorsFile::parse("checkpoint", bytes).map_err(|_| foreign())?;
        let metadata = &file.header.metadata;
        let entry = |key: &str| metadata.iter().find(|(k, _)| k == key).map_or("nothing", |(_, value)| value.as_str());
        let same = |key: &str, own: &str| match entry(key) {
            found if found == own => Ok(()),
            found if key == "layers" => {
                let (own, found) = first_difference(own, found);
                Err(Error::checkpoint(format!("{key}: expected {own}, got {found}")))
            }
            found => Err(Error::checkpoint(format!("{key}: expected {own}, got {found}"))),
        };
        same("format", FORMAT)?;
        if checksum_place(bytes).is_none_or(|at| entry("checksum") != checksum(bytes, at)) {
            let got = entry("checksum");
            return Err(Error::checkpoint(format!("its checksum says {got}, which its bytes do not: it is damaged")));
        }
        self.description().iter().try_for_each(|(key, own)| same(key, own))?;
        let number = |key: &str| {
            let text = entry(key);
            text.parse::<u64>().map_err(|_| Error::checkpoint(format!("{key}: expected a number, got {text}")))
        };
        let position = Position { epoch: number("epoch")?, batch: number("batch")? };
        let attempts = number("attempts")?;
        let mut loaded = Vec::new();
        for (name, tensor) in self.optimizer.state_tensors() {
            let info = file.header.find(name).ok_or_else(foreign)?;
            if info.dtype != Dtype::F32 || info.shape != tensor.shape() {
                let (expected, got) = (crate::gpu::show(tensor.shape()), crate::gpu::show(&info.shape));
                return Err(Error::checkpoint(format!("{name}: expected float32 {expected}, got {got}")));
            }
            let values = bytemuck::pod_collect_to_vec::<u8, f32>(file.data(info));
            if name == "state" && values[ATTEMPTS].to_bits() != attempts as u32 {
                let counted = values[ATTEMPTS].to_bits();
                return Err(Error::checkpoint(format!("attempts: expected the state's {counted}, got {attempts}")));
            }
            loaded.push((tensor, values));
        }
        loaded.iter().try_for_each(|(tensor, _)| tensor.place().map(drop))?;
        loaded.iter().try_for_each(|(tensor, values)| tensor.write(values))?;
        let bits_may_differ = entry("profile") != self.profile();
        Ok((Resumed { position, note: entry("note").into(), bits_may_differ }, attempts))
    }

    /// What must be the same in a checkpoint.
    fn description(&self) -> [(&'static str, String); 5] {
        [
            ("format", FORMAT.into()),
            ("layers", self.layers.clone()),
            ("loss", self.loss.clone()),
            ("optimizer", self.optimizer.fingerprint()),
            ("seed", self.seed.to_string()),
        ]
    }

    /// What the bits of a step depend on besides: the kernels with their constants, and what runs them.
    fn profile(&self) -> String {
        let (gpu, info) = (self.gpu, self.gpu.device().adapter_info());
        let mut crc = 0;
        for kernel in kernels::all() {
            crc = kernel.source.iter().fold(crc, |crc, piece| crc32(crc, piece.as_bytes()));
            for (name, ..) in kernel.constants {
                crc = crc32(crc, &(kernel.constant(gpu, name) as u32).to_le_bytes());
            }
        }
        let by = match () {
            _ if gpu.has_quads() => " by quads",
            _ if gpu.has_subgroups() => " by subgroups",
            _ => "",
        };
        let f16 = if gpu.has_f16() { " in f16" } else { "" }; // subnormal ones may be read as zeros
        format!("{:?}{by}{f16} {} {}, kernels {crc:08x}", gpu.profile(), info.name, info.driver_info)
    }
}

/// Where the checksum's digits stand in a file: metadata come first, and quotes inside a JSON string are escaped.
fn checksum_place(file: &[u8]) -> Option<usize> {
    Some(file.windows(CHECKSUM.len()).position(|window| window == CHECKSUM)? + CHECKSUM.len())
}

/// CRC-32 of a whole file, with zeros where the checksum itself stands.
fn checksum(file: &[u8], at: usize) -> String {
    let after = &file[(at + NO_CHECKSUM.len()).min(file.len())..];
    format!("{:08x}", crc32(crc32(crc32(0, &file[..at]), NO_CHECKSUM.as_bytes()), after))
}

/// CRC-32 as zip and PNG have it, going on from that of what came before.
fn crc32(before: u32, bytes: &[u8]) -> u32 {
    /// Of each half byte.
    const TABLE: [u32; 16] = {
        let mut table = [0; 16];
        let mut i = 0;
        while i < 16 {
            let (mut crc, mut bit) = (i as u32, 0);
            while bit < 4 {
                crc = (crc >> 1) ^ (0xEDB8_8320 * (crc & 1));
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };
    !bytes.iter().fold(!before, |crc, byte| {
        let crc = crc ^ u32::from(*byte);
        let crc = (crc >> 4) ^ TABLE[crc as usize & 15];
        (crc >> 4) ^ TABLE[crc as usize & 15]
    })
}

/// The first layer of two descriptions that is not the same in both.
fn first_difference<'a>(own: &'a str, found: &'a str) -> (&'a str, &'a str) {
    let (mut own, mut found) = (own.split_inclusive(']'), found.split_inclusive(']'));
    loop {
        let (own, found) = (own.next(), found.next());
        if own != found || own.is_none() {
            return (own.map_or("nothing", str::trim), found.map_or("nothing", str::trim));
        }
    }
}

fn foreign() -> Error {
    Error::checkpoint("expected a whole safetensors file, got other bytes".into())
}
