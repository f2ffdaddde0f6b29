//! Other formats of adapters: Kohya's and MLX's safetensors, Hesper's binary file; and what each cannot hold.

use super::adapter::{Adapter, AdapterKind, AdapterModule};
use super::config::{ModelModule, ModuleKind};
use super::gguf::GgufModel;
use super::json::{Reader, number};
use super::linalg::Matrix;
use super::safetensors::{Dtype, Entry, SafetensorsFile, TensorInfo, to_f32, write};
use crate::error::{Error, Result, show_number};

/// What an adapter can be written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `adapter_config.json` and `adapter_model.safetensors`
    Peft,
    /// llama.cpp's
    Gguf,
    /// `lora_down`, `lora_up` and `alpha`, dots as underscores
    Kohya,
    /// 24 bytes of header and q and v of each layer
    Hesper,
}

/// The magic number of Hesper's files.
const HESPER: u32 = 0x4C4F_5241;

/// The widths that Hesper's files leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HesperWidths {
    /// Columns of both A.
    pub in_features: usize,
    /// Rows of q's B.
    pub q_out_features: usize,
    /// Rows of v's B.
    pub v_out_features: usize,
}

fn hesper_name(layer: usize, projection: &str) -> String {
    format!("model.layers.{layer}.self_attn.{projection}")
}

impl Adapter {
    /// What of this adapter a format cannot hold, each thing named; empty where nothing is lost. `model` where it is known.
    pub fn can_export(&self, format: Format, model: Option<&GgufModel>) -> Vec<String> {
        match format {
            Format::Peft => Vec::new(),
            Format::Gguf => self.not_in_gguf(model),
            Format::Kohya => self.more_than_a_and_b().into_iter().chain(self.embeddings()).collect(),
            Format::Hesper => {
                let mut lost: Vec<String> = self.more_than_a_and_b().into_iter().chain(self.embeddings()).collect();
                if let Err(error) = self.hesper_layers() {
                    lost.push(error.to_string());
                }
                lost
            }
        }
    }

    /// What there is beside plain A and B.
    pub(crate) fn more_than_a_and_b(&self) -> Vec<String> {
        let mut lost = Vec::new();
        let mut note = |what: &str, names: Vec<&str>| {
            if let Some(first) = names.first() {
                lost.push(format!("{what}: {first}{}", if names.len() > 1 { " and others" } else { "" }));
            }
        };
        let modules =
            |has: fn(&AdapterModule) -> bool| self.modules.iter().filter(|m| has(m)).map(|m| m.name.as_str()).collect();
        note("magnitudes of DoRA", modules(|m| m.magnitude.is_some()));
        note("biases of B", modules(|m| m.lora_bias.is_some()));
        let others = |base: bool| {
            let copy = |name: &str| name.ends_with(".base_layer.weight");
            self.others
                .iter()
                .map(|o| o.name.as_str())
                .filter(|name| !copy(name) && name.ends_with(".bias") == base)
                .collect()
        };
        note("trained biases of the base", others(true));
        note("modules that were trained whole (modules_to_save)", others(false));
        if self.config.init_lora_weights().changes_base() {
            let value = self.config.get("init_lora_weights").unwrap_or_default();
            lost.push(format!("a base changed by init_lora_weights {value}: convert to a plain adapter first"));
        }
        lost
    }

    fn embeddings(&self) -> Vec<String> {
        let embedding = |m: &&AdapterModule| m.kind == AdapterKind::Embedding;
        self.modules.iter().filter(embedding).map(|m| format!("an adapter of an embedding: {}", m.name)).collect()
    }

    fn exportable(&self, name: &str, lost: Vec<String>) -> Result<()> {
        match lost.first() {
            None => Ok(()),
            Some(lost) => Err(Error::unsupported(format!("{name} cannot hold all of this adapter: {lost}"))),
        }
    }

    /// Kohya's file: `PREFIX_module_name.lora_down.weight`, `.lora_up.weight` and `.alpha`, in float32. Its scale is alpha/rank of each
    /// module, so rsLoRA goes into alpha.
    ///
    /// # Errors
    /// [`Unsupported`](crate::error::ErrorKind::Unsupported) where something would be lost.
    pub fn to_kohya(&self, prefix: &str) -> Result<Vec<u8>> {
        self.exportable("Kohya's format", self.can_export(Format::Kohya, None))?;
        let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
        for m in &self.modules {
            let name = format!("{prefix}_{}", m.name.replace('.', "_"));
            let kernel = if m.kind == AdapterKind::Conv1x1 { 4 } else { 2 };
            let shape = |rows, columns| [rows, columns, 1, 1][..kernel].to_vec();
            tensors.push((format!("{name}.lora_down.weight"), shape(m.rank, m.in_features()), bytes(&m.a)));
            tensors.push((format!("{name}.lora_up.weight"), shape(m.out_features(), m.rank), bytes(&m.b)));
            let alpha = m.scaling * m.rank as f64;
            tensors.push((format!("{name}.alpha"), Vec::new(), bytes(&[alpha as f32])));
        }
        let mut entries: Vec<Entry> = Vec::new();
        for (name, shape, data) in &tensors {
            entries.push(Entry { name, dtype: Dtype::F32, shape, data });
        }
        let text = |key: &str, value: String| (key.to_string(), value);
        let metadata = [
            text("format", "pt".into()),
            text("ss_network_module", "networks.lora".into()),
            text("ss_network_dim", self.config.rank().to_string()),
            text("ss_network_alpha", number(self.config.alpha())),
        ];
        Ok(write(&entries, &metadata))
    }

    /// Reads Kohya's file. Its names have underscores for dots; `model` says which modules they are. A missing alpha is the rank.
    ///
    /// # Errors
    /// [`File`](crate::error::ErrorKind::File) for bytes that are no such file; [`Unmatched`](crate::error::ErrorKind::Unmatched) for a name that no module has, or several;
    /// [`Unsupported`](crate::error::ErrorKind::Unsupported) for LyCORIS' other kinds and kernels beyond 1×1.
    pub fn from_kohya(bytes: &[u8], model: &[ModelModule]) -> Result<Adapter> {
        let file = SafetensorsFile::parse("Kohya's file", bytes)?;
        let mut modules: Vec<AdapterModule> = Vec::new();
        for info in &file.header.tensors {
            let Some((key, part)) = info.name.split_once('.') else {
                return Err(Error::unsupported(format!("{}: expected lora_down, lora_up and alpha only", info.name)));
            };
            let down = format!("{key}.lora_down.weight");
            match part {
                "lora_down.weight" => {}
                "lora_up.weight" | "alpha" if file.header.find(&down).is_some() => continue,
                _ => {
                    return Err(Error::unsupported(format!(
                        "{}: expected lora_down, lora_up and alpha only",
                        info.name
                    )));
                }
            }
            let up = file.header.find(&format!("{key}.lora_up.weight"));
            let up = up.ok_or_else(|| Error::file(&info.name, "has no lora_up beside it"))?;
            let read = |t: &TensorInfo| to_f32(&t.name, t.dtype, file.data(t));
            let alpha = match file.header.find(&format!("{key}.alpha")) {
                Some(alpha) => read(alpha)?.first().map(|v| f64::from(*v)),
                None => None,
            };
            let name = module_of(key, model)?;
            let (a, b) = ((&info.shape[..], read(info)?), (&up.shape[..], read(up)?));
            modules.push(AdapterModule::of_tensors(name, false, a, b, alpha)?);
        }
        finish(modules, "Kohya's file")
    }

    /// Reads MLX's `adapters.safetensors` and the `adapter_config.json` beside it: `lora_a [in, rank]` and `lora_b [rank, out]`, and a
    /// scale that multiplies directly.
    ///
    /// # Errors
    /// [`File`](crate::error::ErrorKind::File) for bytes that are no such files; [`Unsupported`](crate::error::ErrorKind::Unsupported) for DoRA and for weights that were trained whole.
    pub fn from_mlx(config: &[u8], weights: &[u8]) -> Result<Adapter> {
        let (mut scale, mut kind) = (None, "lora".to_string());
        let mut reader = Reader::new("MLX's adapter_config.json", config)?;
        reader.object(&mut |reader, key| {
            match key.as_str() {
                "fine_tune_type" => kind = reader.string()?,
                "lora_parameters" => reader.object(&mut |reader, key| {
                    match key.as_str() {
                        "scale" => scale = Some(reader.number()?),
                        _ => drop(reader.raw()?),
                    }
                    Ok(())
                })?,
                _ => drop(reader.raw()?),
            }
            Ok(())
        })?;
        reader.end()?;
        let scale =
            scale.ok_or_else(|| Error::file("MLX's adapter_config.json", "has no lora_parameters with a scale"))?;
        if kind != "lora" {
            return Err(Error::unsupported(format!(
                "MLX's adapter_config.json: fine_tune_type {kind:?}; expected \"lora\""
            )));
        }
        let file = SafetensorsFile::parse("MLX's file", weights)?;
        let mut modules: Vec<AdapterModule> = Vec::new();
        for info in &file.header.tensors {
            let Some(name) = info.name.strip_suffix(".lora_a") else {
                let partner = info.name.strip_suffix(".lora_b").map(|name| format!("{name}.lora_a"));
                if partner.is_some_and(|partner| file.header.find(&partner).is_some()) {
                    continue;
                }
                return Err(Error::unsupported(format!("{}: expected pairs of lora_a and lora_b only", info.name)));
            };
            let b = file.header.find(&format!("{name}.lora_b"));
            let b = b.ok_or_else(|| Error::file(&info.name, "has no lora_b beside it"))?;
            let turned = |t: &TensorInfo| {
                let &[rows, columns] = &t.shape[..] else { return Err(Error::file(&t.name, "is no matrix")) };
                let values = to_f32(&t.name, t.dtype, file.data(t))?;
                Ok(([columns, rows], Matrix::from_f32(rows, columns, &values).transposed().to_f32()))
            };
            let ((a_shape, a), (b_shape, b)) = (turned(info)?, turned(b)?);
            let (a, b, alpha) = ((&a_shape[..], a), (&b_shape[..], b), scale * a_shape[0] as f64);
            let embedding = name.ends_with("embed_tokens");
            modules.push(AdapterModule::of_tensors(name.into(), embedding, a, b, Some(alpha))?);
        }
        finish(modules, "MLX's file")
    }

    /// The layers' q and v, with the widths, where that is all there is.
    fn hesper_layers(&self) -> Result<(HesperWidths, Vec<[&AdapterModule; 2]>)> {
        let find = |layer, projection| {
            let name = hesper_name(layer, projection);
            self.modules.iter().find(move |m| m.name == name)
        };
        let pairs = (0..).map_while(|layer| Some([find(layer, "q_proj")?, find(layer, "v_proj")?]));
        let layers: Vec<[&AdapterModule; 2]> = pairs.collect();
        let refuse = |what: &str| Err(Error::unsupported(format!("Hesper's format: {what}")));
        let Some([q, v]) = layers.first() else {
            return refuse("expected model.layers.0.self_attn.q_proj and v_proj, got others");
        };
        if self.modules.len() != 2 * layers.len() {
            return refuse("expected q_proj and v_proj of the first layers and no other modules");
        }
        let widths = HesperWidths {
            in_features: q.in_features(),
            q_out_features: q.out_features(),
            v_out_features: v.out_features(),
        };
        for [q, v] in &layers {
            let own = [(q, widths.q_out_features), (v, widths.v_out_features)];
            if own.iter().any(|(m, rows)| m.in_features() != widths.in_features || m.out_features() != *rows) {
                return refuse("expected the same widths in each layer");
            }
            if own.iter().any(|(m, _)| m.rank != layers[0][0].rank || m.scaling != layers[0][0].scaling) {
                return refuse("expected one rank and one scaling for all modules");
            }
        }
        Ok((widths, layers))
    }

    /// Hesper's file: u32 magic, version 1, rank, f32 alpha, layers, 0; then of each layer A and B of q, A and B of v, as f32.
    /// It holds no widths: the reader must know them.
    ///
    /// # Errors
    /// [`Unsupported`](crate::error::ErrorKind::Unsupported) for anything but q and v of one rank and scaling in every layer from the first on.
    pub fn to_hesper(&self) -> Result<Vec<u8>> {
        self.exportable("Hesper's format", self.can_export(Format::Hesper, None))?;
        let (_, layers) = self.hesper_layers()?;
        let first = layers[0][0];
        let alpha = (first.scaling * first.rank as f64) as f32;
        let mut out = Vec::new();
        for word in [HESPER, 1, first.rank as u32, alpha.to_bits(), layers.len() as u32, 0] {
            out.extend(word.to_le_bytes());
        }
        for values in layers.iter().flatten().flat_map(|m| [&m.a, &m.b]) {
            values.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }
        Ok(out)
    }

    /// Reads Hesper's file.
    ///
    /// # Errors
    /// [`File`](crate::error::ErrorKind::File) for bytes that are no such file, or of other widths.
    pub fn from_hesper(bytes: &[u8], widths: HesperWidths) -> Result<Adapter> {
        let file = "Hesper's file";
        let Some((header, data)) = bytes.split_first_chunk::<24>() else {
            return Err(Error::file(file, "is cut off: expected a header of 24 bytes"));
        };
        let word =
            |i: usize| u32::from_le_bytes([header[4 * i], header[4 * i + 1], header[4 * i + 2], header[4 * i + 3]]);
        let (rank, alpha, layers) = (word(2) as usize, f32::from_bits(word(3)), word(4));
        if word(0) != HESPER || word(1) != 1 {
            return Err(Error::file(file, "expected the magic number 0x4C4F5241 and version 1"));
        }
        let HesperWidths { in_features, q_out_features, v_out_features } = widths;
        // Per layer, in numbers: rank·(2·in + q + v).
        let all = [in_features, in_features, q_out_features, v_out_features];
        let sum = all.iter().try_fold(0u64, |sum, width| sum.checked_add(*width as u64));
        let bytes = sum.and_then(|sum| sum.checked_mul(rank as u64)?.checked_mul(4)?.checked_mul(u64::from(layers)));
        if rank == 0 || layers == 0 || all.contains(&0) || !alpha.is_finite() || bytes != Some(data.len() as u64) {
            let alpha = show_number(f64::from(alpha));
            let got = format!("rank {rank}, alpha {alpha}, {layers} layers and {} bytes after the header", data.len());
            let widths = format!("{in_features} → {q_out_features} for q and {v_out_features} for v");
            return Err(Error::file(file, format!("expected whole layers of width {widths}, got {got}")));
        }
        let mut rest = data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
        let mut modules = Vec::new();
        for layer in 0..layers as usize {
            for (projection, rows) in [("q_proj", q_out_features), ("v_proj", v_out_features)] {
                let mut take = |count: usize| rest.by_ref().take(count).collect::<Vec<f32>>();
                let (a, b) = (take(rank * in_features), take(rows * rank));
                let (name, alpha) = (hesper_name(layer, projection), f64::from(alpha));
                let kind = AdapterKind::Linear;
                modules.push(AdapterModule {
                    name,
                    kind,
                    rank,
                    alpha,
                    scaling: 0.0,
                    a,
                    b,
                    magnitude: None,
                    lora_bias: None,
                });
            }
        }
        finish(modules, file)
    }
}

fn finish(modules: Vec<AdapterModule>, file: &str) -> Result<Adapter> {
    if modules.is_empty() {
        return Err(Error::file(file, "has no adapters"));
    }
    Adapter::new(modules, None)
}

/// The module whose name, dots as underscores, is all of `key` or all but a prefix of one word, `lora_unet_` or `lora_te1_`.
fn module_of(key: &str, model: &[ModelModule]) -> Result<String> {
    let prefix = |rest: &str| {
        let word = rest.strip_prefix("lora_").and_then(|rest| rest.strip_suffix('_'));
        rest.is_empty() || word.is_some_and(|word| !word.is_empty() && !word.contains('_'))
    };
    let named = |m: &ModelModule| key.strip_suffix(m.name.replace('.', "_").as_str()).is_some_and(prefix);
    let fits = |m: &&ModelModule| m.kind != ModuleKind::Other && named(m);
    match model.iter().filter(fits).collect::<Vec<_>>()[..] {
        [module] => Ok(module.name.clone()),
        [] => {
            Err(Error::unmatched(format!("{key}: no module of the model has that name with underscores for its dots")))
        }
        [one, other, ..] => Err(Error::unmatched(format!("{key}: could be {} or {}", one.name, other.name))),
    }
}
