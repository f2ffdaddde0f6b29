//! PEFT's `adapter_config.json`: what of it matters here, and all the rest as it stands in the file.

use super::json::{Reader, number, quote, quoted};
use super::pattern::Pattern;
use super::safetensors::{Header, TensorInfo};
use crate::error::{Error, Result};

const FILE: &str = "adapter_config.json";
/// The fields that every version of PEFT knows.
const TEMPLATE: &str = r#"{"alpha_pattern":{},"auto_mapping":null,"base_model_name_or_path":null,"bias":"none",
"fan_in_fan_out":false,"inference_mode":true,"init_lora_weights":true,"layers_pattern":null,"layers_to_transform":null,
"lora_alpha":1,"lora_dropout":0.0,"modules_to_save":null,"peft_type":"LORA","r":1,"rank_pattern":{},"revision":null,
"target_modules":[],"task_type":null,"use_dora":false,"use_rslora":false}"#;
/// PEFT has about fifty.
const MOST_FIELDS: usize = 1000;

/// Modules by name.
#[derive(Debug, Clone)]
pub enum Targets {
    /// No field, or null.
    None,
    /// Every linear module but the output head.
    AllLinear,
    /// Whole names, or whole parts of them at their end.
    Names(Vec<String>),
    /// A regular expression for whole names.
    Regex(String),
}

/// How the adapter started, as far as it says what its base is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InitLoraWeights {
    /// `true`, or a name that leaves the base as it is: B zero.
    Default,
    /// `false`: not at all, for tests.
    None,
    /// A normal of deviation 1/rank, B zero.
    Gaussian,
    /// The base's largest singular values and vectors, taken out of it; with a count, approximately.
    Pissa(Option<u32>),
    /// The beginning of the base's QR decomposition, taken out of it.
    Olora,
    /// B·A = 0, neither zero.
    Orthogonal,
    /// One that changes the base from data that the adapter does not hold.
    Other(String),
}

impl InitLoraWeights {
    /// The start of this name, as PEFT has it.
    pub fn named(name: &str) -> InitLoraWeights {
        match name {
            "gaussian" => InitLoraWeights::Gaussian,
            "pissa" => InitLoraWeights::Pissa(None),
            "olora" => InitLoraWeights::Olora,
            "orthogonal" => InitLoraWeights::Orthogonal,
            "eva" | "mica" => InitLoraWeights::Default, // they choose A or B and leave the base
            _ => match name.strip_prefix("pissa_niter_").and_then(|count| count.parse().ok()) {
                Some(count) => InitLoraWeights::Pissa(Some(count)),
                None => InitLoraWeights::Other(name.into()),
            },
        }
    }

    /// Whether the base is another one than the model's file holds.
    pub fn changes_base(&self) -> bool {
        matches!(self, InitLoraWeights::Pissa(_) | InitLoraWeights::Olora | InitLoraWeights::Other(_))
    }
}

/// A configuration as PEFT writes it: fields in their order, values as they are written, and read when they are asked for, so
/// that those which are not understood stay as they are.
#[derive(Debug, Clone)]
pub struct AdapterConfig {
    fields: Vec<(String, String)>,
}

/// What an adapter can sit on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleKind {
    /// A weight `[out_features, in_features]`.
    Linear,
    /// A weight `[in_features, out_features]`: as many rows as there are tokens.
    Embedding,
    /// A weight that is no matrix, as a norm's: no adapter sits on it, but it can be trained whole.
    Other,
}

/// A module of a model.
#[derive(Debug, Clone)]
pub struct ModelModule {
    /// Its name, e.g. `model.layers.0.self_attn.q_proj`.
    pub name: String,
    /// What it is.
    pub kind: ModuleKind,
    /// Of an embedding the number of tokens, of a module that is neither linear nor an embedding 1.
    pub in_features: usize,
    /// Of an embedding the width, of a norm the number of its weights.
    pub out_features: usize,
    /// The output head, which `all-linear` leaves out.
    pub is_output_head: bool,
}

impl ModelModule {
    /// The modules of a model's file, what is called `….weight`: matrices, of which those whose name says so are embeddings and
    /// the output head, and others.
    pub fn list(header: &Header) -> Vec<ModelModule> {
        let module = |t: &TensorInfo| {
            let name = t.name.strip_suffix(".weight")?.to_string();
            let ([rows, columns] | [rows, columns, 1, 1]) = t.shape[..] else {
                let (kind, out_features) = (ModuleKind::Other, t.shape.first().copied().unwrap_or(1).max(1));
                return Some(ModelModule { name, kind, in_features: 1, out_features, is_output_head: false });
            };
            let last = name.rsplit('.').next().unwrap_or_default();
            let embedding = last == "wte" || last == "wpe" || last.split('_').any(|word| word.starts_with("embed"));
            let kind = if embedding { ModuleKind::Embedding } else { ModuleKind::Linear };
            let (in_features, out_features) = if embedding { (rows, columns) } else { (columns, rows) };
            Some(ModelModule { is_output_head: last == "lm_head", name, kind, in_features, out_features })
        };
        header.tensors.iter().filter_map(module).collect()
    }
}

/// The adapter that a configuration gives a module.
#[derive(Debug, Clone, PartialEq)]
pub struct ModuleConfig {
    /// Index in the list of modules.
    pub module: usize,
    /// Inner dimension of B·A.
    pub rank: usize,
    /// Numerator of the scaling.
    pub alpha: f64,
    /// alpha/rank, with rsLoRA alpha/√rank.
    pub scaling: f64,
}

/// What [`AdapterConfig::new`] writes.
#[derive(Debug, Clone)]
pub struct NewConfig<'a> {
    /// Rank of the modules that `rank_pattern` does not name.
    pub rank: usize,
    /// Alpha of the modules that `alpha_pattern` does not name.
    pub alpha: f64,
    /// Whole names of the modules.
    pub target_modules: &'a [String],
    /// Ranks of single modules, by whole name.
    pub ranks: &'a [(String, usize)],
    /// Alphas of single modules, by whole name.
    pub alphas: &'a [(String, f64)],
    /// Name or path of the base model.
    pub base_model: Option<&'a str>,
}

impl AdapterConfig {
    /// Reads a configuration.
    ///
    /// # Errors
    /// [`File`](crate::error::ErrorKind::File) for what is no JSON object, has equal keys, lacks `peft_type` or has a field of another type than PEFT
    /// gives it; [`Unsupported`](crate::error::ErrorKind::Unsupported) for other methods than LoRA and for keys of
    /// `alpha_pattern` with look-around.
    pub fn parse(bytes: &[u8]) -> Result<AdapterConfig> {
        let mut reader = Reader::new(FILE, bytes)?;
        let mut fields: Vec<(String, String)> = Vec::new();
        reader.object(&mut |reader, key| {
            if fields.iter().any(|(other, _)| *other == key) {
                return Err(Error::file(FILE, format!("two entries have the key `{key}`")));
            }
            if fields.len() == MOST_FIELDS {
                return Err(reader.fail("fewer fields"));
            }
            fields.push((key, reader.raw()?.to_string()));
            Ok(())
        })?;
        reader.end()?;
        AdapterConfig::from_fields(fields)
    }

    fn from_fields(fields: Vec<(String, String)>) -> Result<AdapterConfig> {
        let config = AdapterConfig { fields };
        config.check()?;
        Ok(config)
    }

    /// That every field that is understood can be read, once and for all.
    fn check(&self) -> Result<()> {
        let wrong = |key: &str, expected: &str| {
            let value = self.get(key).unwrap_or("none");
            Err(Error::file(FILE, format!("{key}: expected {expected}, got {value}")))
        };
        match self.read("peft_type", &mut |r| r.string())? {
            Some(method) if method == "LORA" => {}
            Some(method) => {
                return Err(Error::unsupported(format!("{FILE}: peft_type: expected \"LORA\", got {method:?}")));
            }
            None => return wrong("peft_type", "\"LORA\", as every configuration of PEFT has"),
        }
        for flag in ["use_rslora", "fan_in_fan_out", "lora_bias", "use_dora"] {
            self.read(flag, &mut |r| r.boolean())?;
        }
        for number in ["lora_alpha", "lora_dropout"] {
            if self.read(number, &mut |r| r.number())?.is_some_and(|number| !number.is_finite()) {
                return wrong(number, "a finite number");
            }
        }
        let possible = |rank: f64| (1.0..=f64::from(u32::MAX)).contains(&rank);
        if !self.read("r", &mut |r| r.integer())?.is_none_or(|rank| possible(rank as f64)) {
            return wrong("r", "a rank of at least 1 and below 2³²");
        }
        let mut steps = 0;
        for (key, whole) in [("rank_pattern", true), ("alpha_pattern", false)] {
            for (part, value) in self.read(key, &mut |reader| pattern(reader, whole))?.unwrap_or_default() {
                match Key::new(&part) {
                    Ok(Key::Pattern(pattern)) => steps += pattern.steps(),
                    // Ranks are those of the tensors; alphas are nowhere else.
                    Err(error) if !whole || error.code() != "unsupported" => return Err(error),
                    _ => {}
                }
                if steps > MOST_STEPS {
                    let text = format!("{FILE}: {key}: expected fewer patterns that are more than names");
                    return Err(Error::unsupported(text));
                }
                if whole && !possible(value) || !value.is_finite() {
                    return wrong(key, "ranks of at least 1, or finite alphas");
                }
            }
        }
        if !["none", "all", "lora_only"].contains(&self.read("bias", &mut |r| r.string())?.as_deref().unwrap_or("none"))
        {
            return wrong("bias", "\"none\", \"all\" or \"lora_only\"");
        }
        for key in ["target_modules", "exclude_modules"] {
            // The keys of the weights name the modules: a pattern that Python has more of is none's business but resolve()'s.
            if let Some(Targets::Regex(text)) = self.read(key, &mut targets)?
                && let Err(error) = Pattern::new(&text)
                && error.code() != "unsupported"
            {
                return Err(error);
            }
        }
        for key in ["modules_to_save", "layers_pattern"] {
            self.read(key, &mut |reader| one_or_more(reader, &mut |r| r.string()))?;
        }
        self.read("init_lora_weights", &mut init)?;
        let layers = self.read("layers_to_transform", &mut layers)?.unwrap_or_default();
        if !layers.is_empty() && !matches!(self.target_modules(), Targets::Names(_)) {
            return wrong("layers_to_transform", "target_modules to be a list of names beside it");
        }
        Ok(())
    }

    /// A field's value; nothing where there is none, or null.
    fn read<T>(&self, key: &str, read: &mut dyn FnMut(&mut Reader) -> Result<T>) -> Result<Option<T>> {
        match self.get(key) {
            None | Some("null") => Ok(None),
            Some(value) => {
                let what = format!("{FILE}: {key}");
                read(&mut Reader::new(&what, value.as_bytes())?).map(Some)
            }
        }
    }

    fn flag(&self, key: &str) -> bool {
        self.read(key, &mut |r| r.boolean()).ok().flatten().unwrap_or(false)
    }

    fn texts(&self, key: &str) -> Vec<String> {
        let texts = self.read(key, &mut |reader| one_or_more(reader, &mut |r| r.string()));
        texts.ok().flatten().unwrap_or_default()
    }

    /// The values of modules: that of the first entry whose key matches the name or its end, else `plain`.
    fn rule(&self, patterns: &str, plain: f64) -> Rule {
        let entries = self.read(patterns, &mut |reader| pattern(reader, false)).ok().flatten().unwrap_or_default();
        let entry = |(key, value): (String, f64)| Some((Key::new(&key).ok()?, value));
        Rule { entries: entries.into_iter().filter_map(entry).collect(), plain }
    }

    /// What of `target_modules`, `exclude_modules` and `rank_pattern` is written in more of Python's `re` than is understood.
    pub(crate) fn beyond(&self) -> Vec<(&'static str, Error)> {
        let mut found = Vec::new();
        for key in ["target_modules", "exclude_modules"] {
            if let Ok(Some(Targets::Regex(text))) = self.read(key, &mut targets) {
                found.extend(Pattern::new(&text).err().map(|error| (key, error)));
            }
        }
        let key = "rank_pattern";
        for (part, _) in self.read(key, &mut |reader| pattern(reader, true)).ok().flatten().unwrap_or_default() {
            found.extend(Key::new(&part).err().map(|error| (key, error)));
        }
        found
    }

    /// The ranks of modules that are not in the file yet: by the first key of `rank_pattern` that matches, else `r`.
    pub(crate) fn ranks(&self) -> Rule {
        self.rule("rank_pattern", self.rank() as f64)
    }

    /// The alphas of modules: by the first key of `alpha_pattern` that matches, else `lora_alpha`.
    pub(crate) fn alphas(&self) -> Rule {
        self.rule("alpha_pattern", self.alpha())
    }

    /// A configuration with the fields that every version of PEFT knows.
    ///
    /// # Errors
    /// [`File`](crate::error::ErrorKind::File) for a rank of 0 and numbers that are not finite.
    pub fn new(new: &NewConfig) -> Result<AdapterConfig> {
        let mut config = AdapterConfig::parse(TEMPLATE.as_bytes())?;
        config.set("base_model_name_or_path", &new.base_model.map_or("null".into(), quoted))?;
        config.retarget(new)?;
        Ok(config)
    }

    /// Replaces modules, ranks and alphas, and leaves everything else.
    pub(crate) fn retarget(&mut self, new: &NewConfig) -> Result<()> {
        // A pattern for one whole name and no other: the name itself, which PEFT before 0.15 looks up, unless it is also the end of
        // another, or means more as a pattern.
        let patterns = new.ranks.len() + new.alphas.len();
        let few = patterns.saturating_mul(new.target_modules.len()) < MOST_PAIRS;
        let exact = |name: &String| {
            if few
                && let Ok(key @ Key::Name(..)) = Key::new(name)
                && !new.target_modules.iter().any(|other| other != name && key.matches(other))
            {
                return quoted(name);
            }
            let mut text = String::from("^");
            for c in name.chars() {
                text.push_str(if c.is_ascii_punctuation() && c != '_' { "\\" } else { "" });
                text.push(c);
            }
            quoted(&text)
        };
        let object = |entries: Vec<String>| match entries.is_empty() {
            true => "{}".to_string(),
            false => format!("{{\n    {}\n  }}", entries.join(",\n    ")),
        };
        let entry = |name: &String, value: f64| format!("{}: {}", exact(name), number(value));
        let targets = new.target_modules.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(",\n    ");
        self.set_all(&[
            ("r", new.rank.to_string()),
            ("lora_alpha", number(new.alpha)),
            ("rank_pattern", object(new.ranks.iter().map(|(name, rank)| entry(name, *rank as f64)).collect())),
            ("alpha_pattern", object(new.alphas.iter().map(|(name, alpha)| entry(name, *alpha)).collect())),
            ("target_modules", format!("[\n    {targets}\n  ]")),
            ("exclude_modules", "null".into()),
            ("layers_to_transform", "null".into()),
            ("layers_pattern", "null".into()),
        ])
    }

    /// The file's text, as PEFT would write these fields.
    pub fn to_json(&self) -> String {
        let mut out = String::from("{\n");
        for (i, (key, value)) in self.fields.iter().enumerate() {
            out.push_str(if i == 0 { "  " } else { ",\n  " });
            quote(&mut out, key, true);
            out.push_str(": ");
            out.push_str(value);
        }
        out.push_str("\n}");
        out
    }

    /// A field's value as JSON text.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.fields.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Sets a field to a JSON text; a new one goes before the first greater key, which is in order where the others are. A new
    /// null is left out.
    ///
    /// # Errors
    /// Those of [`AdapterConfig::parse`], and nothing changes.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let mut reader = Reader::new(FILE, value.as_bytes())?;
        reader.raw()?;
        reader.end()?;
        self.set_all(&[(key, value.to_string())])
    }

    fn set_all(&mut self, values: &[(&str, String)]) -> Result<()> {
        let mut fields = self.fields.clone();
        for (key, value) in values {
            match fields.iter_mut().find(|(name, _)| name == key) {
                Some(field) => field.1.clone_from(value),
                None if value == "null" => {}
                None => {
                    let at = fields.iter().position(|(name, _)| name.as_str() > *key).unwrap_or(fields.len());
                    fields.insert(at, (key.to_string(), value.clone()));
                }
            }
        }
        *self = AdapterConfig::from_fields(fields)?;
        Ok(())
    }

    /// `r`
    pub fn rank(&self) -> usize {
        self.read("r", &mut |r| r.integer()).ok().flatten().unwrap_or(8) as usize // this and alpha: PEFT's own defaults
    }

    /// `lora_alpha`
    pub fn alpha(&self) -> f64 {
        self.read("lora_alpha", &mut |r| r.number()).ok().flatten().unwrap_or(8.0)
    }

    /// Whether the scaling is alpha/√rank.
    pub fn use_rslora(&self) -> bool {
        self.flag("use_rslora")
    }

    /// `lora_dropout`
    pub fn dropout(&self) -> f64 {
        self.read("lora_dropout", &mut |r| r.number()).ok().flatten().unwrap_or(0.0)
    }

    /// Whether the base's weights are `[in_features, out_features]`.
    pub fn fan_in_fan_out(&self) -> bool {
        self.flag("fan_in_fan_out")
    }

    /// `none`, `all` or `lora_only`: which of the base's biases were trained.
    pub fn bias(&self) -> String {
        self.texts("bias").pop().unwrap_or_else(|| "none".into())
    }

    /// Whether `B` has a bias of its own.
    pub fn lora_bias(&self) -> bool {
        self.flag("lora_bias")
    }

    /// Whether there are magnitudes.
    pub fn use_dora(&self) -> bool {
        self.flag("use_dora")
    }

    /// Modules that were trained whole.
    pub fn modules_to_save(&self) -> Vec<String> {
        self.texts("modules_to_save")
    }

    /// How the adapter started.
    pub fn init_lora_weights(&self) -> InitLoraWeights {
        self.read("init_lora_weights", &mut init).ok().flatten().unwrap_or(InitLoraWeights::Default)
    }

    /// `target_modules`
    pub fn target_modules(&self) -> Targets {
        self.read("target_modules", &mut targets).ok().flatten().unwrap_or(Targets::None)
    }

    /// A field that makes the adapter something else than its A and B say, as `field: value`.
    pub fn unsupported(&self) -> Option<String> {
        // Fields of PEFT that make something else of A and B, or put them elsewhere.
        const FIELDS: [&str; 10] = [
            "use_qalora",
            "alora_invocation_tokens",
            "layer_replication",
            "target_parameters",
            "use_bdlora",
            "arrow_config",
            "trainable_token_indices",
            "kasa_config",
            "monteclora_config",
            "velora_config",
        ];
        let set = |key: &&&str| !matches!(self.get(key), None | Some("null" | "false" | "[]" | "{}"));
        let field = FIELDS.iter().find(set).map(|key| format!("{key}: {}", self.get(key).unwrap_or_default()));
        field.or_else(|| match self.init_lora_weights() {
            InitLoraWeights::Other(name) => Some(format!("init_lora_weights: {name}")),
            _ => None,
        })
    }

    /// The rank of a module that is not in the file yet: by the first key of `rank_pattern` that matches, else `r`.
    pub fn rank_of(&self, module: &str) -> usize {
        self.ranks().of(module) as usize
    }

    /// The alpha of a module: by the first key of `alpha_pattern` that matches, else `lora_alpha`.
    pub fn alpha_of(&self, module: &str) -> f64 {
        self.alphas().of(module)
    }

    /// alpha/rank, with rsLoRA alpha/√rank.
    pub fn scaling(&self, alpha: f64, rank: usize) -> f64 {
        alpha / if self.use_rslora() { (rank as f64).sqrt() } else { rank as f64 }
    }

    /// Which of a model's modules get an adapter, and which one, as `get_peft_model` decides it.
    ///
    /// # Errors
    /// [`Unmatched`](crate::error::ErrorKind::Unmatched) where none do; [`Unsupported`](crate::error::ErrorKind::Unsupported) for a pattern with look-around.
    pub fn resolve(&self, modules: &[ModelModule]) -> Result<Vec<ModuleConfig>> {
        if let Some((key, error)) = self.beyond().into_iter().next() {
            return Err(Error::unsupported(format!("{FILE}: {key}: {error}")));
        }
        let (target_modules, exclude_modules) = (self.target_modules(), self.read("exclude_modules", &mut targets)?);
        let [target, excluded] = [Some(&target_modules), exclude_modules.as_ref()].map(|targets| match targets {
            Some(Targets::Regex(text)) => Pattern::new(text).map(Some),
            _ => Ok(None),
        });
        let (target, excluded) = (target?, excluded?);
        let patterns = |key: &str, before: &str, behind: &str| {
            let texts = self.texts(key).into_iter().filter(|text| !text.is_empty());
            texts.map(|text| Pattern::new(&format!("{before}{text}{behind}"))).collect::<Result<Vec<_>>>()
        };
        let saved = patterns("modules_to_save", "(^|.*\\.)", "($|\\..*)")?;
        let layers_pattern = patterns("layers_pattern", "(?:.*\\.)?(?:", ")")?;
        let wanted = self.read("layers_to_transform", &mut layers)?.unwrap_or_default();

        let is_excluded = |name: &String| match &exclude_modules {
            Some(Targets::Names(names)) => names.iter().any(|end| ends_with(name, end)),
            _ => excluded.as_ref().is_some_and(|pattern| pattern.matches(name)),
        };
        let is_target = |module: &ModelModule| match &target_modules {
            Targets::None => false,
            Targets::AllLinear => module.kind == ModuleKind::Linear && !module.is_output_head,
            Targets::Regex(_) => target.as_ref().is_some_and(|pattern| pattern.matches(&module.name)),
            Targets::Names(names) => {
                let in_layer = || layer_of(&module.name, &layers_pattern).is_some_and(|layer| wanted.contains(&layer));
                // A whole name counts whatever the layer.
                names.contains(&module.name)
                    || names.iter().any(|end| ends_with(&module.name, end)) && (wanted.is_empty() || in_layer())
            }
        };
        let (ranks, alphas) = (self.ranks(), self.alphas());
        let mut found = Vec::new();
        for (index, module) in modules.iter().enumerate() {
            let out = is_excluded(&module.name) || saved.iter().any(|p| p.matches_start(&module.name));
            if !out && module.kind != ModuleKind::Other && is_target(module) {
                let (rank, alpha) = (ranks.of(&module.name) as usize, alphas.of(&module.name));
                found.push(ModuleConfig { module: index, rank, alpha, scaling: self.scaling(alpha, rank) });
            }
        }
        if found.is_empty() {
            let targets = self.get("target_modules").unwrap_or("null");
            return Err(Error::unmatched(format!(
                "no module of this model matches the adapter's target_modules {targets}"
            )));
        }
        Ok(found)
    }
}

/// A value for each module's name.
pub(crate) struct Rule {
    entries: Vec<(Key, f64)>,
    plain: f64,
}

impl Rule {
    pub(crate) fn of(&self, module: &str) -> f64 {
        self.entries.iter().find(|(key, _)| key.matches(module)).map_or(self.plain, |(_, value)| *value)
    }
}

/// A key of `rank_pattern` or `alpha_pattern`, which matches a name or its end.
enum Key {
    /// The end of names, byte by byte, 0 for any; with `true` whole names.
    Name(Vec<u8>, bool),
    Pattern(Pattern),
}

/// Pairs of names that are compared before patterns are written.
const MOST_PAIRS: usize = 10_000_000;
/// Steps of all the keys that are no plain names: each is tried on each module.
const MOST_STEPS: usize = 10_000;

impl Key {
    /// There can be one for each module: most are names, and those need no automaton.
    fn new(key: &str) -> Result<Key> {
        let rest = key.strip_prefix('^').unwrap_or(key);
        let mut bytes = rest.bytes();
        let mut name = Vec::new();
        while let Some(byte) = bytes.next() {
            name.push(match byte {
                b'.' => 0,
                b'\\' => bytes.next().filter(u8::is_ascii_punctuation).unwrap_or(b'?'),
                _ => byte,
            });
            if byte != b'\\' && !(byte.is_ascii_alphanumeric() || b"_-.".contains(&byte)) || name.ends_with(b"?") {
                return Pattern::new(&format!("(.*\\.)?({key})$")).map(Key::Pattern);
            }
        }
        Ok(Key::Name(name, rest.len() < key.len()))
    }

    fn matches(&self, module: &str) -> bool {
        match self {
            Key::Pattern(pattern) => pattern.matches_start(module),
            Key::Name(name, whole) => {
                let module = module.as_bytes();
                let Some(at) = module.len().checked_sub(name.len()) else { return false };
                let fits = name.iter().zip(&module[at..]).all(|(own, other)| *own == 0 || own == other);
                fits && (at == 0 || module[at - 1] == b'.' && !whole)
            }
        }
    }
}

/// Whether `end` is all of the name or its last parts.
fn ends_with(name: &str, end: &str) -> bool {
    name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// The first part of a name that is a number and is neither the last, nor, where there are no patterns for what is before it,
/// the first or the second.
fn layer_of(name: &str, patterns: &[Pattern]) -> Option<u64> {
    let parts: Vec<&str> = name.split('.').collect();
    let mut before = 0;
    for (i, part) in parts.iter().enumerate().take(parts.len().saturating_sub(1)) {
        let prefix = name[..before].strip_suffix('.').unwrap_or_default();
        before += part.len() + 1;
        let here = if patterns.is_empty() { i >= 2 } else { i >= 1 && patterns.iter().any(|p| p.matches(prefix)) };
        if here && let Ok(layer) = part.parse() {
            return Some(layer);
        }
    }
    None
}

fn layers(reader: &mut Reader) -> Result<Vec<u64>> {
    one_or_more(reader, &mut |r| r.integer())
}

fn targets(reader: &mut Reader) -> Result<Targets> {
    if !reader.is_string() {
        let names = one_or_more(reader, &mut |r| r.string())?;
        return Ok(if names.is_empty() { Targets::None } else { Targets::Names(names) });
    }
    let text = reader.string()?;
    Ok(if text.eq_ignore_ascii_case("all-linear") { Targets::AllLinear } else { Targets::Regex(text) })
}

/// A value or an array of them.
fn one_or_more<T>(reader: &mut Reader, read: &mut dyn FnMut(&mut Reader) -> Result<T>) -> Result<Vec<T>> {
    let mut found = Vec::new();
    if reader.is_array() {
        reader.array(&mut |reader| {
            found.push(read(reader)?);
            Ok(())
        })?;
    } else {
        found.push(read(reader)?);
    }
    Ok(found)
}

/// An object of numbers, in its order.
fn pattern(reader: &mut Reader, whole: bool) -> Result<Vec<(String, f64)>> {
    let mut found = Vec::new();
    reader.object(&mut |reader, key| {
        found.push((key, if whole { reader.integer()? as f64 } else { reader.number()? }));
        Ok(())
    })?;
    Ok(found)
}

fn init(reader: &mut Reader) -> Result<InitLoraWeights> {
    if reader.is_boolean() {
        return Ok(if reader.boolean()? { InitLoraWeights::Default } else { InitLoraWeights::None });
    }
    Ok(InitLoraWeights::named(&reader.string()?))
}
