//! Weights on their way from files to the GPU, stored as small as they came.

use super::causal_lm::CausalLM;
use super::config::{ModelConfig, RopeScaling, Ternary};
use crate::base::{FrozenLoader, Packing, WeightKind, pack};
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::io::gguf::{GgmlType, GgufHeader, model_tensor};
use crate::io::safetensors::{Dtype, Header, to_f32};
use crate::io::{find, order, twice};
use crate::nn::Norm;

/// How weights are kept on the GPU. Norms and biases are f32 always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Store {
    /// f32, f16, bf16 and the kinds of GGUF's as they are in the file; f64 as f32.
    #[default]
    AsIs,
    /// Floats as f32; what is quantised in the file stays as it is.
    F32,
    /// Floats packed to `q8_0`, where in_features is a multiple of 32; what is quantised in the file stays as it is.
    Q8_0,
}

/// What elements a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Elements {
    Float(Dtype),
    Packed(WeightKind),
}

/// A tensor of a model's files, to be given to [`ModelLoader::write`].
#[derive(Debug, Clone, PartialEq)]
pub struct SourceTensor {
    /// As in Hugging Face's files: `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// As in the file, row-major.
    pub shape: Vec<usize>,
    /// Which of the files it is in.
    pub file: usize,
    /// Its bytes there.
    pub range: std::ops::Range<u64>,
    /// Name of its type in the file.
    type_name: &'static str,
    elements: Option<Elements>,
    /// Whether rows of a head lie in pairs, as llama.cpp has them for `llama`.
    paired: bool,
}

/// GGUF's factors of the rotary frequencies.
const ROPE_FREQS: &str = "rope_freqs.weight";

/// The tensors of a safetensors file.
pub fn safetensors_sources(file: usize, header: &Header) -> Vec<SourceTensor> {
    let source = |info: &crate::io::safetensors::TensorInfo| SourceTensor {
        name: info.name.clone(),
        shape: info.shape.clone(),
        file,
        range: info.range.clone(),
        type_name: info.dtype.name(),
        elements: match info.dtype {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F64 | Dtype::U8 => Some(Elements::Float(info.dtype)),
            _ => None,
        },
        paired: false,
    };
    header.tensors.iter().map(source).collect()
}

/// The tensors of a GGUF file, by Hugging Face's names.
pub fn gguf_sources(file: usize, header: &GgufHeader) -> Vec<SourceTensor> {
    let llama = header.get("general.architecture").and_then(|value| value.as_str()) == Some("llama");
    let source = |tensor: &crate::io::gguf::GgufTensor| {
        let name = model_tensor(&tensor.name);
        SourceTensor {
            paired: llama && name.split('.').any(|part| part == "q_proj" || part == "k_proj"),
            name,
            shape: tensor.shape.clone(),
            file,
            // Codes and their scale, without what stands behind.
            range: match tensor.kind {
                GgmlType::I2_S => tensor.range.start..tensor.range.end - 28,
                _ => tensor.range.clone(),
            },
            type_name: tensor.kind.name(),
            elements: match tensor.kind {
                GgmlType::F32 => Some(Elements::Float(Dtype::F32)),
                GgmlType::F16 => Some(Elements::Float(Dtype::F16)),
                GgmlType::BF16 => Some(Elements::Float(Dtype::BF16)),
                GgmlType::Q8_0 => Some(Elements::Packed(WeightKind::Q8_0)),
                GgmlType::Q4_0 => Some(Elements::Packed(WeightKind::Q4_0)),
                GgmlType::Q4_1 => Some(Elements::Packed(WeightKind::Q4_1)),
                GgmlType::I2_S if name_of_linear(&tensor.name) => {
                    let (packing, int8_activations) = (Packing::I2S, true); // as bitnet.cpp computes them
                    Some(Elements::Packed(WeightKind::BitLinear { packing, int8_activations }))
                }
                _ => None,
            },
        }
    };
    header.tensors.iter().map(source).collect()
}

/// Whether a tensor of GGUF's is the weight of a layer's linear module.
fn name_of_linear(name: &str) -> bool {
    name.starts_with("blk.")
}

/// What has come of a tensor.
enum Part {
    Nothing,
    /// A norm, bias or scale: its bytes.
    Vector(Vec<u8>),
    Weight {
        loader: FrozenLoader,
        /// Bytes of the kind that is stored, so far.
        at: u64,
        /// Of floats that are stored otherwise: less than a block.
        pending: Vec<u8>,
    },
}

/// Takes the tensors of a model, each in pieces of any size.
///
/// One that is dropped before [`finish`](ModelLoader::finish) frees what it allocated.
pub struct ModelLoader {
    gpu: Gpu,
    config: ModelConfig,
    store: Store,
    sources: Vec<SourceTensor>,
    /// The sources by name.
    order: Vec<usize>,
    parts: Vec<Part>,
}

/// Floats of a block, and those that are converted at a time.
const BLOCK: usize = 32;
const AT_ONCE: usize = 1 << 18;

impl ModelLoader {
    /// Compares a configuration with what the files have; allocates nothing yet.
    ///
    /// # Errors
    /// [`Unmatched`](crate::error::ErrorKind::Unmatched) for a tensor that is missing, twice there or unknown to the configuration, [`Shape`](crate::error::ErrorKind::Shape) for
    /// one of another shape, [`Unsupported`](crate::error::ErrorKind::Unsupported) for one of a type that this package does not do, each naming it.
    pub fn new(gpu: &Gpu, config: ModelConfig, mut sources: Vec<SourceTensor>, store: Store) -> Result<ModelLoader> {
        let tied = config.tie_word_embeddings;
        // What older files hold beside the weights, and a copy of the embedding.
        let needless = |name: &str| name.ends_with(".rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
        sources.retain(|source| !needless(&source.name));
        if let Some(i) = twice(sources.len(), &|i| sources[i].name.as_str()) {
            return Err(Error::unmatched(format!("two of the files have the tensor `{}`", sources[i].name)));
        }
        let order = order(sources.len(), &mut |i, j| sources[i].name < sources[j].name);
        let mut known = vec![false; sources.len()];
        config.each_tensor(&mut |name, shape| {
            let Some(place) = find(&order, &|i| &sources[i].name, name) else {
                let text = format!("the files lack the tensor `{name}` that the configuration asks for");
                return Err(Error::unmatched(text));
            };
            known[place] = true;
            let source = &mut sources[place];
            if source.shape != shape {
                let expected = format!("{shape:?} by the configuration");
                return Err(Error::shape(&format!("tensor `{name}`"), expected, format!("{:?}", source.shape)));
            }
            let ternary = config.ternary.is_some() && name.ends_with("_proj.weight");
            source.elements = match source.elements {
                Some(Elements::Float(Dtype::U8)) if ternary => {
                    let packing = Packing::Transformers;
                    Some(Elements::Packed(WeightKind::BitLinear { packing, int8_activations: true }))
                }
                Some(Elements::Float(Dtype::U8)) => None,
                Some(_) if ternary => None,
                Some(Elements::Packed(_)) if shape.len() == 1 => None,
                other => other,
            };
            if source.elements.is_none() {
                let works = if ternary {
                    "U8 is"
                } else {
                    "F32, F16, BF16, F64, and of GGUF Q8_0, Q4_0, Q4_1 and for layers I2_S are"
                };
                let text = format!("tensor `{name}`: {} is not supported; {works}", source.type_name);
                return Err(Error::unsupported(text));
            }
            Ok(())
        })?;
        for (source, known) in sources.iter().zip(known) {
            let rope = source.name == ROPE_FREQS
                && source.elements == Some(Elements::Float(Dtype::F32))
                && source.shape == [config.head_dim / 2];
            if !known && !rope {
                let text = format!("the files have the tensor `{}` that the configuration does not know", source.name);
                return Err(Error::unmatched(text));
            }
        }
        let parts = sources.iter().map(|_| Part::Nothing).collect();
        Ok(ModelLoader { gpu: gpu.clone(), config, store, sources, order, parts })
    }

    /// What has to be written.
    pub fn sources(&self) -> &[SourceTensor] {
        &self.sources
    }

    /// What the model will be.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What a weight of these elements is kept as.
    fn stored(&self, elements: Elements, in_features: usize) -> WeightKind {
        match (elements, self.store) {
            (Elements::Packed(kind), _) => kind,
            (_, Store::Q8_0) if in_features.is_multiple_of(BLOCK) => WeightKind::Q8_0,
            (Elements::Float(Dtype::F16), Store::AsIs | Store::Q8_0) => WeightKind::F16,
            (Elements::Float(Dtype::BF16), Store::AsIs | Store::Q8_0) => WeightKind::Bf16,
            _ => WeightKind::F32,
        }
    }

    /// Takes the next bytes of the tensor `index` of [`sources`](ModelLoader::sources). Its memory is allocated with the first.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for another index and for the ternary code 3, [`Shape`](crate::error::ErrorKind::Shape) for more bytes than it has and for features that its kind
    /// cannot have, [`Limit`](crate::error::ErrorKind::Limit), [`DeviceLost`](crate::error::ErrorKind::DeviceLost).
    pub fn write(&mut self, index: usize, bytes: &[u8]) -> Result<()> {
        let Some(source) = self.sources.get(index) else {
            return Err(Error::argument("tensor", "one of the model", index.to_string()));
        };
        let Some(elements) = source.elements else { return Ok(()) };
        let (name, columns) = (source.name.clone(), source.shape.last().copied().unwrap_or_default());
        let kind = self.stored(elements, columns);
        if matches!(self.parts[index], Part::Nothing) {
            self.parts[index] = match source.shape[..] {
                [mut out_features, in_features] => {
                    if let WeightKind::BitLinear { packing: Packing::Transformers, .. } = kind {
                        out_features *= 4;
                    }
                    let mut loader = FrozenLoader::new(&self.gpu, kind, out_features, in_features)
                        .map_err(|error| error.of(&name))?;
                    if source.paired {
                        loader.unpair_rows(self.config.head_dim);
                    }
                    Part::Weight { loader, at: 0, pending: Vec::new() }
                }
                _ => Part::Vector(Vec::new()),
            };
        }
        let dtype = match elements {
            Elements::Float(dtype) => Some(dtype),
            Elements::Packed(_) => None,
        };
        match &mut self.parts[index] {
            Part::Nothing => {}
            Part::Vector(all) => {
                if (all.len() + bytes.len()) as u64 > source.range.end - source.range.start {
                    return Err(Error::shape(&name, "no more bytes than the file has", bytes.len().to_string()));
                }
                all.extend_from_slice(bytes);
            }
            Part::Weight { loader, at, pending } => match dtype.filter(|dtype| !is(*dtype, kind)) {
                None => {
                    loader.write(*at, bytes)?;
                    *at += bytes.len() as u64;
                }
                Some(dtype) => {
                    for bytes in bytes.chunks(AT_ONCE * dtype.size()) {
                        pending.extend_from_slice(bytes);
                        let whole = pending.len() - pending.len() % (BLOCK * dtype.size());
                        // F32's last elements are no whole block.
                        let last = kind == WeightKind::F32
                            && *at + 4 * (pending.len() / dtype.size()) as u64 == loader.source_bytes();
                        let taken: Vec<u8> = pending.drain(..if last { pending.len() } else { whole }).collect();
                        let packed = pack(kind, &to_f32(&name, dtype, &taken)?)?;
                        loader.write(*at, &packed)?;
                        *at += packed.len() as u64;
                    }
                }
            },
        }
        Ok(())
    }

    /// The numbers of a vector that has come whole, in Hugging Face's order.
    fn vector(&self, name: &str) -> Result<Vec<f32>> {
        let index = self.find(name)?;
        let (source, part) = (&self.sources[index], &self.parts[index]);
        match (part, source.elements) {
            (Part::Vector(bytes), Some(Elements::Float(dtype)))
                if bytes.len() as u64 == source.range.end - source.range.start =>
            {
                let values = to_f32(name, dtype, bytes)?;
                let unpaired = |i| values[crate::base::paired_row(i, self.config.head_dim)];
                Ok(if source.paired { (0..values.len()).map(unpaired).collect() } else { values })
            }
            _ => Err(Error::shape(name, "all its bytes", "fewer")),
        }
    }

    fn find(&self, name: &str) -> Result<usize> {
        let place = find(&self.order, &|i| &self.sources[i].name, name);
        place.ok_or_else(|| Error::unmatched(format!("the files lack the tensor `{name}`")))
    }

    /// The model, once all bytes came.
    ///
    /// # Errors
    /// [`Shape`](crate::error::ErrorKind::Shape) naming the tensor of which some are missing.
    pub fn finish(mut self) -> Result<CausalLM> {
        let mut config = self.config.clone();
        if self.find(ROPE_FREQS).is_ok() {
            config.rope_scaling = RopeScaling::Factors(self.vector(ROPE_FREQS)?);
        }
        let (gpu, eps, ternary) = (self.gpu.clone(), config.rms_norm_eps, config.ternary);
        let all = std::cell::RefCell::new(&mut self);
        let mut linear = |name: &str, _: usize, _: usize, bias: bool| {
            let mut all = all.borrow_mut();
            let index = all.find(&format!("{name}.weight"))?;
            let Part::Weight { mut loader, .. } = std::mem::replace(&mut all.parts[index], Part::Nothing) else {
                return Err(Error::shape(name, "all its bytes", "none"));
            };
            if bias {
                loader.set_bias(&all.vector(&format!("{name}.bias"))?)?;
            }
            if let Some(ternary) = ternary.filter(|_| name.ends_with("_proj")) {
                let scale = all.vector(&format!("{name}.weight_scale"))?[0];
                loader.set_scale(if ternary == Ternary::Divide { 1.0 / scale } else { scale })?;
            }
            loader.finish().map_err(|error| error.of(name))
        };
        let mut norm = |name: &str, _: usize| {
            let weight = all.borrow().vector(&format!("{name}.weight"))?;
            Norm::new(&gpu, &weight, None, false, eps)
        };
        CausalLM::assemble(&gpu, config, &mut linear, &mut norm)
    }
}

/// Whether this is how the file has it.
fn is(dtype: Dtype, kind: WeightKind) -> bool {
    matches!(
        (dtype, kind),
        (Dtype::F32, WeightKind::F32) | (Dtype::F16, WeightKind::F16) | (Dtype::BF16, WeightKind::Bf16)
    )
}
