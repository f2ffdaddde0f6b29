//! An adapter in memory, and PEFT's two files: `adapter_config.json` and `adapter_model.safetensors`.

use super::config::{AdapterConfig, ModelModule, ModuleKind, NewConfig, Rule};
use super::safetensors::{Dtype, Entry, SafetensorsFile, from_f32, to_f32, write};
use super::{find, order, twice};
use crate::error::{Error, Result, show_number};

const FILE: &str = "adapter_model.safetensors";
const PREFIX: &str = "base_model.model.";

/// The adapter of one module, in float32.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterModule {
    /// The module's name in its model, e.g. `model.layers.0.self_attn.q_proj`.
    pub name: String,
    /// Of a linear module, a 1×1 convolution or an embedding.
    pub kind: AdapterKind,
    /// Inner dimension of B·A.
    pub rank: usize,
    /// Numerator of the scaling.
    pub alpha: f64,
    /// What B·A is multiplied with.
    pub scaling: f64,
    /// `A [rank, in_features]`; of an embedding, `in_features` is the number of tokens.
    pub a: Vec<f32>,
    /// `B [out_features, rank]`
    pub b: Vec<f32>,
    /// DoRA's magnitude of each row `[out_features]`.
    pub magnitude: Option<Vec<f32>>,
    /// The bias of B `[out_features]`, scaled as B is.
    pub lora_bias: Option<Vec<f32>>,
}

/// Where an adapter's tensors belong, which their names and shapes follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterKind {
    /// `lora_A.weight [rank, in_features]`, `lora_B.weight [out_features, rank]`
    Linear,
    /// The same, as kernels of 1×1: `[rank, in_features, 1, 1]`.
    Conv1x1,
    /// `lora_embedding_A [rank, tokens]`, `lora_embedding_B [out_features, rank]`
    Embedding,
}

impl AdapterModule {
    /// A module of A `[rank, in_features]` and B `[out_features, rank]`, or of kernels of 1×1, with their shapes as they stand
    /// in a file; without an alpha it is the rank. The scaling is left to whoever has the configuration.
    ///
    /// # Errors
    /// [`Unsupported`](crate::error::ErrorKind::Unsupported) for larger kernels, [`File`](crate::error::ErrorKind::File) for other shapes and ranks that disagree.
    pub(crate) fn of_tensors(
        name: String,
        embedding: bool,
        (a_shape, a): (&[usize], Vec<f32>),
        (b_shape, b): (&[usize], Vec<f32>),
        alpha: Option<f64>,
    ) -> Result<AdapterModule> {
        let shapes = || format!("{} and {}", crate::gpu::show(a_shape), crate::gpu::show(b_shape));
        let kind = match (a_shape, b_shape) {
            ([_, _], [_, _]) if embedding => AdapterKind::Embedding,
            ([_, _], [_, _]) => AdapterKind::Linear,
            ([_, _, 1, 1], [_, _, 1, 1]) if !embedding => AdapterKind::Conv1x1,
            ([_, _, _, _], _) => {
                let text = format!("{name}: LoRA of a convolution, {}; expected a 1×1 kernel", shapes());
                return Err(Error::unsupported(text));
            }
            _ => return Err(Error::file(&name, format!("expected matrices A and B, got {}", shapes()))),
        };
        let rank = a_shape[0];
        if rank != b_shape[1] || a.is_empty() || b.is_empty() {
            let reason = format!("expected A [rank, in] and B [out, rank] of one rank, got {}", shapes());
            return Err(Error::file(&name, reason));
        }
        let alpha = alpha.unwrap_or(rank as f64);
        Ok(AdapterModule { name, kind, rank, alpha, scaling: 0.0, a, b, magnitude: None, lora_bias: None })
    }

    /// Columns of A.
    pub fn in_features(&self) -> usize {
        self.a.len() / self.rank.max(1)
    }

    /// Rows of B.
    pub fn out_features(&self) -> usize {
        self.b.len() / self.rank.max(1)
    }

    fn parameters(&self) -> usize {
        let len = |values: &Option<Vec<f32>>| values.as_ref().map_or(0, Vec::len);
        self.a.len() + self.b.len() + len(&self.magnitude) + len(&self.lora_bias)
    }
}

/// A tensor of an adapter's file that is neither A nor B: a bias of the base, a module that was trained whole.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherTensor {
    /// Its key without `base_model.model.`, e.g. `lm_head.weight`.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its bytes.
    pub data: Vec<u8>,
}

/// An adapter: everything that PEFT's two files hold.
#[derive(Debug, Clone)]
pub struct Adapter {
    /// The configuration.
    pub config: AdapterConfig,
    /// The adapters of the modules, in the order of the file.
    pub modules: Vec<AdapterModule>,
    /// All other tensors, in the order of the file.
    pub others: Vec<OtherTensor>,
    /// What is odd about the file, and with `strict: false` what would have been an error.
    pub notes: Vec<String>,
    /// The texts beside `format: pt` in the weights' file.
    pub metadata: Vec<(String, String)>,
}

/// How an adapter fits a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Indices of the adapter's modules that are modules of the model.
    pub matched: Vec<usize>,
    /// Modules that the configuration targets, but the weights lack.
    pub missing: Vec<String>,
    /// Keys of tensors that fit no module of the model.
    pub leftover: Vec<String>,
    /// Names of tensors that replace the model's own.
    pub replaced: Vec<String>,
}

/// What stands behind a module's name in a key.
#[derive(PartialEq)]
enum Part {
    A,
    B,
    EmbeddingA,
    EmbeddingB,
    Magnitude,
    LoraBias,
}

/// Module and part of a key, whether or not an adapter's name is in it.
fn part(key: &str) -> Option<(&str, Part)> {
    let mut end = key.len();
    // `weight` or `bias`, an adapter's name, and what it is.
    for _ in 0..3 {
        let (module, word) = key[..end].rsplit_once('.')?;
        let rest = &key[end..];
        let part = match word {
            "lora_A" if rest.ends_with(".weight") => Part::A,
            "lora_B" if rest.ends_with(".weight") => Part::B,
            "lora_B" if rest.ends_with(".bias") => Part::LoraBias,
            "lora_embedding_A" => Part::EmbeddingA,
            "lora_embedding_B" => Part::EmbeddingB,
            "lora_magnitude_vector" => Part::Magnitude,
            _ => {
                end = module.len();
                continue;
            }
        };
        return Some((module, part));
    }
    None
}

/// The name that a tensor of an adapter has in the model: `q_proj.base_layer.bias` is the bias of `q_proj`.
pub(crate) fn name_in_model(name: &str) -> String {
    let mut out = String::new();
    for word in name.split('.').filter(|word| *word != "base_layer") {
        out.push_str(if out.is_empty() { "" } else { "." });
        out.push_str(word);
    }
    out
}

/// The tensors of one module while a file is read: shape and values.
#[derive(Default)]
struct Parts {
    name: String,
    embedding: bool,
    a: Option<(Vec<usize>, Vec<f32>)>,
    b: Option<(Vec<usize>, Vec<f32>)>,
    magnitude: Option<Vec<f32>>,
    lora_bias: Option<Vec<f32>>,
}

impl Adapter {
    /// Reads PEFT's two files.
    ///
    /// # Errors
    /// [`File`](crate::error::ErrorKind::File) for bytes that are not what they should be: a broken header, an A without its B, ranks that disagree, other
    /// elements than floats, no adapter at all; [`Unsupported`](crate::error::ErrorKind::Unsupported) for other methods than LoRA and for convolutions beyond
    /// 1×1. With `strict` also for what otherwise becomes a note: values that are not finite, an alpha of 0, which makes the
    /// adapter nothing, and fields of the configuration that make it something else than its A and B say.
    pub fn read(config: &[u8], weights: &[u8], strict: bool) -> Result<Adapter> {
        let config = AdapterConfig::parse(config)?;
        let file = SafetensorsFile::parse(FILE, weights)?;
        let mut adapter =
            Adapter { config, modules: Vec::new(), others: Vec::new(), notes: Vec::new(), metadata: Vec::new() };
        adapter.metadata = file.header.metadata.iter().filter(|(key, _)| key != "format").cloned().collect();
        let mut bare = 0;
        let mut own = Vec::new();
        for info in &file.header.tensors {
            let key = info.name.strip_prefix(PREFIX).unwrap_or_else(|| {
                bare += 1;
                &info.name
            });
            match part(key) {
                Some((module, part)) => own.push((info, module, part)),
                None => {
                    let (name, shape, data) = (key.to_string(), info.shape.clone(), file.data(info).to_vec());
                    adapter.others.push(OtherTensor { name, dtype: info.dtype, shape, data });
                }
            }
        }
        let mut found: Vec<Parts> = Vec::new();
        let module = |i: usize| own[i].1;
        let order = order(own.len(), &mut |i, j| module(i) < module(j));
        // Of a module's first tensor, where the module is among those found.
        let mut places = vec![0; own.len()];
        for (i, (info, name, part)) in own.iter().enumerate() {
            let values = to_f32(&info.name, info.dtype, file.data(info))?;
            if values.iter().any(|v| !v.is_finite()) {
                adapter.doubt(strict, || Error::file(&info.name, "has values that are not finite"))?;
            }
            let first = find(&order, &module, name).unwrap_or(i);
            if first == i {
                places[i] = found.len();
                found.push(Parts { name: (*name).into(), ..Parts::default() });
            }
            let parts = &mut found[places[first]];
            parts.embedding |= matches!(part, Part::EmbeddingA | Part::EmbeddingB);
            let twice = match part {
                Part::A | Part::EmbeddingA => parts.a.replace((info.shape.clone(), values)).is_some(),
                Part::B | Part::EmbeddingB => parts.b.replace((info.shape.clone(), values)).is_some(),
                Part::Magnitude => parts.magnitude.replace(values).is_some(),
                Part::LoraBias => parts.lora_bias.replace(values).is_some(),
            };
            if twice {
                return Err(Error::file(&info.name, "is there twice, under the names of two adapters"));
            }
        }
        let alphas = adapter.config.alphas();
        for parts in found {
            let module = adapter.module(parts, &alphas)?;
            adapter.modules.push(module);
        }
        adapter.check(bare, strict)?;
        Ok(adapter)
    }

    /// An error with `strict`, else a note.
    fn doubt(&mut self, strict: bool, error: impl FnOnce() -> Error) -> Result<()> {
        let error = error();
        if strict {
            return Err(error);
        }
        self.notes.push(error.to_string());
        Ok(())
    }

    fn module(&self, parts: Parts, alphas: &Rule) -> Result<AdapterModule> {
        let Parts { name, embedding, a, b, magnitude, lora_bias } = parts;
        let (Some((a_shape, a)), Some((b_shape, b))) = (a, b) else {
            return Err(Error::file(&name, "has one of lora_A and lora_B only"));
        };
        let alpha = alphas.of(&name);
        let mut module = AdapterModule::of_tensors(name, embedding, (&a_shape, a), (&b_shape, b), Some(alpha))?;
        let (name, rows) = (&module.name, b_shape[0]);
        for (what, values) in [("lora_magnitude_vector", &magnitude), ("lora_B.bias", &lora_bias)] {
            if let Some(values) = values.as_ref().filter(|values| values.len() != rows) {
                let reason = format!("{what}: expected {rows} elements, one per row of B, got {}", values.len());
                return Err(Error::file(name, reason));
            }
        }
        if self.config.use_dora() && magnitude.is_none() {
            return Err(Error::file(name, "has no lora_magnitude_vector, but the configuration says use_dora"));
        }
        module.scaling = self.config.scaling(alpha, module.rank);
        (module.magnitude, module.lora_bias) = (magnitude, lora_bias);
        Ok(module)
    }

    /// What configuration and weights say about each other.
    fn check(&mut self, bare: usize, strict: bool) -> Result<()> {
        if self.modules.is_empty() && self.others.is_empty() {
            return Err(Error::file(FILE, "has no tensors"));
        }
        if self.modules.is_empty() && self.config.modules_to_save().is_empty() {
            return Err(Error::file(
                FILE,
                format!("has no lora_A and lora_B; its first key is `{}`", self.others[0].name),
            ));
        }
        if bare > 0 {
            self.notes
                .push(format!("{bare} keys lack the prefix {PREFIX}, which PEFT needs; they are written with it"));
        }
        if let Some(field) = self.config.unsupported() {
            let text = format!("adapter_config.json: {field} makes the adapter something else than its A and B say");
            self.doubt(strict, || Error::unsupported(text))?;
        }
        if let Some(zero) = self.modules.iter().find(|m| m.alpha == 0.0) {
            let text = format!("{}: lora_alpha is 0, so that the adapter does nothing", zero.name);
            self.doubt(strict, || Error::file("adapter_config.json", text))?;
        }
        let beyond = self.config.beyond();
        if beyond.iter().all(|(key, _)| *key != "rank_pattern") {
            self.notes.extend(self.disagreements());
        }
        let notes = beyond
            .iter()
            .map(|(key, error)| format!("adapter_config.json: {key} is kept, but not understood: {error}"));
        self.notes.extend(notes);
        if !self.modules.iter().any(|m| m.rank == self.config.rank()) && !self.modules.is_empty() {
            self.notes.push(format!("adapter_config.json: r is {}, but no tensor has that rank", self.config.rank()));
        }
        if self.lacks_biases() {
            let text =
                "bias is lora_only, but no bias is there, as PEFT 0.7 to 0.19 left them out: the model's own are used";
            self.notes.push(text.into());
        }
        if !self.config.use_dora() && self.modules.iter().any(|m| m.magnitude.is_some()) {
            self.notes.push("there are magnitudes of DoRA, but the configuration does not say use_dora".into());
        }
        Ok(())
    }

    /// Whether it says that its modules' biases were trained, and has none: PEFT 0.7 to 0.19 saved what is called `….bias`, but
    /// they are called `….base_layer.bias`.
    pub(crate) fn lacks_biases(&self) -> bool {
        self.config.bias() == "lora_only" && !self.others.iter().any(|other| other.name.ends_with(".bias"))
    }

    /// The modules whose tensors have another rank than the configuration gives them.
    pub fn disagreements(&self) -> Vec<String> {
        let ranks = self.config.ranks();
        let differs = |m: &AdapterModule| {
            let said = ranks.of(&m.name) as usize;
            let (rank, scaling) = (m.rank, show_number(m.scaling));
            let note =
                || format!("{}: rank {said} in the configuration, {rank} in the tensors; scaling {scaling}", m.name);
            (rank != said).then(note)
        };
        self.modules.iter().filter_map(differs).collect()
    }

    /// Numbers in A, B, magnitudes, biases and modules that were trained whole.
    pub fn parameters(&self) -> usize {
        let others: usize = self.others.iter().map(|o| o.shape.iter().product::<usize>()).sum();
        self.modules.iter().map(AdapterModule::parameters).sum::<usize>() + others
    }

    /// How the adapter fits a model of these modules.
    ///
    /// # Errors
    /// [`Unmatched`](crate::error::ErrorKind::Unmatched) where none of its modules is one of the model, and with `strict` where any tensor is left over;
    /// [`Shape`](crate::error::ErrorKind::Shape) where a module has other widths.
    pub fn report(&self, model: &[ModelModule], strict: bool) -> Result<Report> {
        let mut model = model.to_vec();
        let wanted: Vec<String> = self.modules.iter().map(|m| m.name.clone()).collect();
        let names = model.iter_mut().map(|own| std::mem::take(&mut own.name)).collect();
        for (own, name) in model.iter_mut().zip(Adapter::renamed(&wanted, names)) {
            own.name = name;
        }
        // The head of a tied model is no tensor of its file, but of the embedding's widths.
        let head = self.modules.iter().find(|m| m.name == "lm_head" && m.kind == AdapterKind::Linear);
        if let Some(head) = head.filter(|_| model.iter().all(|own| own.name != "lm_head"))
            && let Some(embedding) = model.iter().find(|own| {
                own.kind == ModuleKind::Embedding
                    && [own.in_features, own.out_features] == [head.out_features(), head.in_features()]
            })
        {
            let (in_features, out_features) = (embedding.out_features, embedding.in_features);
            let (name, kind) = (head.name.clone(), ModuleKind::Linear);
            model.push(ModelModule { name, kind, in_features, out_features, is_output_head: true });
        }
        // Of a weight [in, out] a model's file alone does not say which is which.
        self.fit(&model, strict, self.config.fan_in_fan_out())
    }

    /// The same, where `turned` for a model whose widths may be the other way round.
    pub(crate) fn fit(&self, model: &[ModelModule], strict: bool, turned: bool) -> Result<Report> {
        let mut report = Report::default();
        let name = |i: usize| model[i].name.as_str();
        let names = order(model.len(), &mut |i, j| name(i) < name(j));
        for (index, module) in self.modules.iter().enumerate() {
            let own = find(&names, &name, &module.name).map(|i| &model[i]);
            let Some(own) = own.filter(|own| own.kind != ModuleKind::Other) else {
                report.leftover.push(module.name.clone());
                continue;
            };
            let embedding = module.kind == AdapterKind::Embedding;
            let (expected, got) = ([own.out_features, own.in_features], [module.out_features(), module.in_features()]);
            let turned = turned && [expected[1], expected[0]] == got;
            if (expected != got && !turned) || embedding != (own.kind == ModuleKind::Embedding) {
                let show = |embedding, shape: [usize; 2]| {
                    format!(
                        "{} [out, in] = {}",
                        if embedding { "an embedding" } else { "a linear" },
                        crate::gpu::show(&shape)
                    )
                };
                let expected = show(own.kind == ModuleKind::Embedding, expected);
                return Err(Error::shape(&format!("`{}`", module.name), expected, show(embedding, got)));
            }
            report.matched.push(index);
        }
        for other in &self.others {
            let whole = name_in_model(&other.name);
            let module = whole.strip_suffix(".weight").or(whole.strip_suffix(".bias"));
            match module.is_some_and(|module| find(&names, &name, module).is_some()) {
                true => report.replaced.push(whole),
                false => report.leftover.push(other.name.clone()),
            }
        }
        let show = |names: &[String]| names[..names.len().min(3)].join(", ");
        if report.matched.is_empty() && report.replaced.is_empty() {
            let (own, theirs) = (show(&report.leftover), model.first().map_or("nothing", |own| &own.name));
            let text = format!("none of the adapter's modules is in this model: it has {own} …, the model {theirs} …");
            return Err(Error::unmatched(text));
        }
        if strict && !report.leftover.is_empty() {
            let (count, some) = (report.leftover.len(), show(&report.leftover));
            let text = format!(
                "{count} entries of the adapter fit no module of this model: {some}; `strict: false` leaves them out"
            );
            return Err(Error::unmatched(text));
        }
        let targeted = self.config.resolve(model).unwrap_or_default();
        let own = |i: usize| self.modules[i].name.as_str();
        let owns = order(self.modules.len(), &mut |i, j| own(i) < own(j));
        let names = targeted.iter().map(|t| &model[t.module].name);
        report.missing = names.filter(|name| find(&owns, &own, name).is_none()).cloned().collect();
        Ok(report)
    }

    /// An adapter of these modules, with a configuration of its own. The most common rank and alpha become `r` and `lora_alpha`,
    /// others stand in the patterns by whole name.
    ///
    /// # Errors
    /// [`File`](crate::error::ErrorKind::File) for equal names, lengths that do not fit and alphas that are not finite.
    pub fn new(modules: Vec<AdapterModule>, base_model: Option<&str>) -> Result<Adapter> {
        let names = [String::new()];
        let new = NewConfig { rank: 1, alpha: 1.0, target_modules: &names, ranks: &[], alphas: &[], base_model };
        Adapter::with_config(AdapterConfig::new(&new)?, modules)
    }

    /// The same adapter with other modules: everything of the configuration stays but modules, ranks and alphas.
    ///
    /// # Errors
    /// Those of [`Adapter::new`].
    pub fn with_modules(&self, modules: Vec<AdapterModule>) -> Result<Adapter> {
        Ok(Adapter::with_config(self.config.clone(), modules)?.beside(self))
    }

    /// With the other tensors and texts of `other`.
    pub(crate) fn beside(mut self, other: &Adapter) -> Adapter {
        self.others.clone_from(&other.others);
        self.metadata.clone_from(&other.metadata);
        self
    }

    /// Sets a field of the configuration to a JSON text; alphas and scalings are those that it then says.
    ///
    /// # Errors
    /// Those of [`AdapterConfig::set`].
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        self.config.set(key, value)?;
        let alphas = self.config.alphas();
        for module in &mut self.modules {
            module.alpha = alphas.of(&module.name);
            module.scaling = self.config.scaling(module.alpha, module.rank);
        }
        Ok(())
    }

    /// With trained biases of the base, by module, as PEFT saves them for `bias: lora_only` or, where there are more, `all`.
    ///
    /// # Errors
    /// None that the configuration does not have already.
    pub fn with_biases(mut self, biases: &[(String, Vec<f32>)]) -> Result<Adapter> {
        for (module, values) in biases {
            let own = self.modules.iter().any(|m| m.name == *module);
            let name = format!("{module}{}.bias", if own { ".base_layer" } else { "" });
            let before = format!("{module}.bias"); // also as PEFT before 0.7 called it
            self.others.retain(|o| name_in_model(&o.name) != before);
            let data = from_f32(&name, Dtype::F32, &mut values.iter().map(|v| f64::from(*v)))?;
            self.others.push(OtherTensor { name, dtype: Dtype::F32, shape: vec![values.len()], data });
            if !own {
                self.config.set("bias", "\"all\"")?;
            } else if self.config.bias() == "none" {
                self.config.set("bias", "\"lora_only\"")?;
            }
        }
        Ok(self)
    }

    /// [`Adapter::new`] on a configuration whose other fields stay.
    pub(crate) fn with_config(mut config: AdapterConfig, modules: Vec<AdapterModule>) -> Result<Adapter> {
        if let Some(i) = twice(modules.len(), &|i| &modules[i].name) {
            return Err(Error::file(&modules[i].name, "expected no name twice"));
        }
        for module in &modules {
            let whole = module.rank > 0 && module.a.len() % module.rank == 0 && module.b.len() % module.rank == 0;
            let rows = |values: &Option<Vec<f32>>| values.as_ref().is_none_or(|v| v.len() == module.out_features());
            if !whole
                || module.a.is_empty()
                || module.b.is_empty()
                || !rows(&module.magnitude)
                || !rows(&module.lora_bias)
            {
                return Err(Error::file(&module.name, "expected A [rank, in] and B [out, rank] of whole rows"));
            }
            if module.name.is_empty() {
                return Err(Error::file("a module", "expected a name"));
            }
            if !module.alpha.is_finite() {
                return Err(Error::file(&module.name, "expected a finite alpha"));
            }
        }
        let rank = most_common(&mut modules.iter().map(|m| m.rank as f64)).unwrap_or(1.0) as usize;
        let alpha = most_common(&mut modules.iter().map(|m| m.alpha)).unwrap_or(1.0);
        let names: Vec<String> = modules.iter().map(|m| m.name.clone()).collect();
        let ranks: Vec<_> = modules.iter().filter(|m| m.rank != rank).map(|m| (m.name.clone(), m.rank)).collect();
        let alphas: Vec<_> = modules.iter().filter(|m| m.alpha != alpha).map(|m| (m.name.clone(), m.alpha)).collect();
        config.retarget(&NewConfig {
            rank,
            alpha,
            target_modules: &names,
            ranks: &ranks,
            alphas: &alphas,
            base_model: None,
        })?;
        let any = |has: fn(&AdapterModule) -> bool| if modules.iter().any(has) { "true" } else { "false" };
        config.set("use_dora", any(|m| m.magnitude.is_some()))?;
        if config.get("lora_bias").is_some() || modules.iter().any(|m| m.lora_bias.is_some()) {
            config.set("lora_bias", any(|m| m.lora_bias.is_some()))?;
        }
        let mut adapter = Adapter { config, modules, others: Vec::new(), notes: Vec::new(), metadata: Vec::new() };
        for module in &mut adapter.modules {
            module.scaling = adapter.config.scaling(module.alpha, module.rank);
        }
        Ok(adapter)
    }

    /// The bytes of `adapter_model.safetensors`, as PEFT writes it; `dtype` is that of A, B, magnitudes and their biases.
    ///
    /// # Errors
    /// [`File`](crate::error::ErrorKind::File) for a `dtype` that is no float.
    pub fn weights(&self, dtype: Dtype) -> Result<Vec<u8>> {
        let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
        let mut push = |name: String, shape: Vec<usize>, values: &[f32]| -> Result<()> {
            let bytes = from_f32(&name, dtype, &mut values.iter().map(|v| f64::from(*v)))?;
            tensors.push((name, dtype, shape, bytes));
            Ok(())
        };
        for m in &self.modules {
            let shape = |rows, columns| match m.kind {
                AdapterKind::Conv1x1 => vec![rows, columns, 1, 1],
                _ => vec![rows, columns],
            };
            let name = |part: &str| format!("{PREFIX}{}.{part}", m.name);
            let (a, b) = match m.kind {
                AdapterKind::Embedding => ("lora_embedding_A", "lora_embedding_B"),
                _ => ("lora_A.weight", "lora_B.weight"),
            };
            push(name(a), shape(m.rank, m.in_features()), &m.a)?;
            push(name(b), shape(m.out_features(), m.rank), &m.b)?;
            for (part, values) in [("lora_magnitude_vector", &m.magnitude), ("lora_B.bias", &m.lora_bias)] {
                if let Some(values) = values {
                    push(name(part), vec![values.len()], values)?;
                }
            }
        }
        for o in &self.others {
            tensors.push((format!("{PREFIX}{}", o.name), o.dtype, o.shape.clone(), o.data.clone()));
        }
        let mut entries = Vec::new();
        for (name, dtype, shape, data) in &tensors {
            entries.push(Entry { name, dtype: *dtype, shape, data });
        }
        let mut metadata = vec![("format".to_string(), "pt".to_string())];
        metadata.extend(self.metadata.iter().cloned());
        Ok(write(&entries, &metadata))
    }
}

/// The value that comes most often, the first of several.
fn most_common(values: &mut dyn Iterator<Item = f64>) -> Option<f64> {
    let mut counts: Vec<(f64, usize)> = Vec::new();
    for value in values {
        match counts.iter_mut().find(|(other, _)| *other == value) {
            Some((_, count)) => *count += 1,
            None => counts.push((value, 1)),
        }
    }
    let best = counts.iter().map(|(_, count)| *count).max()?;
    counts.iter().find(|(_, count)| *count == best).map(|(value, _)| *value)
}
