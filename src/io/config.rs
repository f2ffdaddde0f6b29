//! PEFT's `adapter_config.json`: what of it matters here, and all the rest as it stands in the file.

use super::json::{Reader, number, quote, quoted};
use super::pattern::Pattern;
use crate::error::{Error, Result};

const FILE: &str = "adapter_config.json";
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
    /// Whether the base is another one than the model's file holds.
    pub fn changes_base(&self) -> bool {
        matches!(self, InitLoraWeights::Pissa(_) | InitLoraWeights::Olora | InitLoraWeights::Other(_))
    }
}

/// The meaning of the fields that matter.
#[derive(Debug, Clone)]
struct Settings {
    rank: usize,
    alpha: f64,
    use_rslora: bool,
    dropout: f64,
    target_modules: Targets,
    exclude_modules: Targets,
    layers_to_transform: Option<Vec<u64>>,
    layers_pattern: Vec<String>,
    rank_pattern: Vec<(String, f64)>,
    alpha_pattern: Vec<(String, f64)>,
    fan_in_fan_out: bool,
    bias: String,
    lora_bias: bool,
    use_dora: bool,
    modules_to_save: Vec<String>,
    init: InitLoraWeights,
    /// A field that changes what the adapter computes in a way that is not done here.
    unsupported: Option<String>,
}

/// A configuration as PEFT writes it. Fields that are not understood stay as they are, in their order.
#[derive(Debug, Clone)]
pub struct AdapterConfig {
    /// Key and value, the value as it is written.
    fields: Vec<(String, String)>,
    settings: Settings,
    /// Compiled from the settings: which modules, and the ranks and alphas of some.
    target: Option<Pattern>,
    exclude: Option<Pattern>,
    ranks: Vec<Pattern>,
    alphas: Vec<Pattern>,
}

/// What an adapter can sit on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleKind {
    /// A weight `[out_features, in_features]`.
    Linear,
    /// A weight `[in_features, out_features]`: as many rows as there are tokens.
    Embedding,
}

/// A module of a model.
#[derive(Debug, Clone)]
pub struct ModelModule {
    /// Its name, e.g. `model.layers.0.self_attn.q_proj`.
    pub name: String,
    /// Linear or embedding.
    pub kind: ModuleKind,
    /// Of an embedding the number of tokens.
    pub in_features: usize,
    /// Of an embedding the width.
    pub out_features: usize,
    /// The output head, which `all-linear` leaves out.
    pub is_output_head: bool,
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
    /// [`Error::File`] for what is no JSON object, has equal keys, lacks `peft_type` or has a field of another type than PEFT
    /// gives it; [`Error::Unsupported`] for other methods than LoRA and for patterns with look-around.
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
        let settings = Settings::read(&fields)?;
        let whole = |targets: &Targets| match targets {
            Targets::Regex(text) => Pattern::new(text).map(Some),
            _ => Ok(None),
        };
        let parts = |patterns: &[(String, f64)]| {
            patterns.iter().map(|(key, _)| Pattern::new(&format!("(.*\\.)?({key})$"))).collect::<Result<Vec<_>>>()
        };
        Ok(AdapterConfig {
            target: whole(&settings.target_modules)?,
            exclude: whole(&settings.exclude_modules)?,
            ranks: parts(&settings.rank_pattern)?,
            alphas: parts(&settings.alpha_pattern)?,
            fields,
            settings,
        })
    }

    /// A configuration with the fields that every version of PEFT knows.
    ///
    /// # Errors
    /// [`Error::File`] for a rank of 0 and numbers that are not finite.
    pub fn new(new: &NewConfig) -> Result<AdapterConfig> {
        let field = |key: &str, value: &str| (key.to_string(), value.to_string());
        let base_model = new.base_model.map_or("null".into(), quoted);
        let mut config = AdapterConfig::from_fields(vec![
            field("alpha_pattern", "{}"),
            field("auto_mapping", "null"),
            field("base_model_name_or_path", &base_model),
            field("bias", "\"none\""),
            field("fan_in_fan_out", "false"),
            field("inference_mode", "true"),
            field("init_lora_weights", "true"),
            field("layers_pattern", "null"),
            field("layers_to_transform", "null"),
            field("lora_alpha", "1"),
            field("lora_dropout", "0.0"),
            field("modules_to_save", "null"),
            field("peft_type", "\"LORA\""),
            field("r", "1"),
            field("rank_pattern", "{}"),
            field("revision", "null"),
            field("target_modules", "[]"),
            field("task_type", "null"),
            field("use_dora", "false"),
            field("use_rslora", "false"),
        ])?;
        config.retarget(new)?;
        Ok(config)
    }

    /// Replaces modules, ranks and alphas, the scaling being alpha/rank, and leaves everything else.
    pub(crate) fn retarget(&mut self, new: &NewConfig) -> Result<()> {
        // A pattern for one whole name and no other.
        let exact = |name: &str| {
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
        let entry = |name: &str, value: f64| format!("{}: {}", exact(name), number(value));
        let targets = new.target_modules.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(",\n    ");
        self.set_all(&[
            ("r", new.rank.to_string()),
            ("lora_alpha", number(new.alpha)),
            ("use_rslora", "false".into()),
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
        self.settings.rank
    }

    /// `lora_alpha`
    pub fn alpha(&self) -> f64 {
        self.settings.alpha
    }

    /// Whether the scaling is alpha/√rank.
    pub fn use_rslora(&self) -> bool {
        self.settings.use_rslora
    }

    /// `lora_dropout`
    pub fn dropout(&self) -> f64 {
        self.settings.dropout
    }

    /// Whether the base's weights are `[in_features, out_features]`.
    pub fn fan_in_fan_out(&self) -> bool {
        self.settings.fan_in_fan_out
    }

    /// `none`, `all` or `lora_only`: which of the base's biases were trained.
    pub fn bias(&self) -> &str {
        &self.settings.bias
    }

    /// Whether `B` has a bias of its own.
    pub fn lora_bias(&self) -> bool {
        self.settings.lora_bias
    }

    /// Whether there are magnitudes.
    pub fn use_dora(&self) -> bool {
        self.settings.use_dora
    }

    /// Modules that were trained whole.
    pub fn modules_to_save(&self) -> &[String] {
        &self.settings.modules_to_save
    }

    /// How the adapter started.
    pub fn init_lora_weights(&self) -> &InitLoraWeights {
        &self.settings.init
    }

    /// `target_modules`
    pub fn target_modules(&self) -> &Targets {
        &self.settings.target_modules
    }

    /// A field that makes the adapter something else than its A and B say, as `field: value`.
    pub fn unsupported(&self) -> Option<&str> {
        self.settings.unsupported.as_deref()
    }

    /// The rank of a module that is not in the file yet: by the first key of `rank_pattern` that matches, else `r`.
    pub fn rank_of(&self, module: &str) -> usize {
        let found = self.ranks.iter().position(|pattern| pattern.matches_start(module));
        found.map_or(self.settings.rank, |i| self.settings.rank_pattern[i].1 as usize)
    }

    /// The alpha of a module: by the first key of `alpha_pattern` that matches, else `lora_alpha`.
    pub fn alpha_of(&self, module: &str) -> f64 {
        let found = self.alphas.iter().position(|pattern| pattern.matches_start(module));
        found.map_or(self.settings.alpha, |i| self.settings.alpha_pattern[i].1)
    }

    /// alpha/rank, with rsLoRA alpha/√rank.
    pub fn scaling(&self, alpha: f64, rank: usize) -> f64 {
        alpha / if self.settings.use_rslora { (rank as f64).sqrt() } else { rank as f64 }
    }

    /// Which of a model's modules get an adapter, and which one, as `get_peft_model` decides it.
    ///
    /// # Errors
    /// [`Error::Unmatched`] where none do; [`Error::Unsupported`] for a pattern with look-around.
    pub fn resolve(&self, modules: &[ModelModule]) -> Result<Vec<ModuleConfig>> {
        let saved = self.settings.modules_to_save.iter().map(|m| Pattern::new(&format!("(^|.*\\.){m}($|\\..*)")));
        let saved = saved.collect::<Result<Vec<_>>>()?;
        let layers = self.settings.layers_pattern.iter().map(|p| Pattern::new(&format!("(?:.*\\.)?(?:{p})")));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        let mut found = Vec::new();
        for (index, module) in modules.iter().enumerate() {
            let excluded = self.excludes(&module.name) || saved.iter().any(|p| p.matches_start(&module.name));
            if !excluded && self.targets(module, &layers) {
                let (rank, alpha) = (self.rank_of(&module.name), self.alpha_of(&module.name));
                found.push(ModuleConfig { module: index, rank, alpha, scaling: self.scaling(alpha, rank) });
            }
        }
        if found.is_empty() {
            let targets = self.get("target_modules").unwrap_or("null");
            return Err(Error::Unmatched(format!(
                "no module of this model matches the adapter's target_modules {targets}"
            )));
        }
        Ok(found)
    }

    fn excludes(&self, name: &str) -> bool {
        match &self.settings.exclude_modules {
            Targets::Names(names) => names.iter().any(|end| ends_with(name, end)),
            _ => self.exclude.as_ref().is_some_and(|pattern| pattern.matches(name)),
        }
    }

    fn targets(&self, module: &ModelModule, layers: &[Pattern]) -> bool {
        let name = &module.name;
        let names = match &self.settings.target_modules {
            Targets::None => return false,
            Targets::AllLinear => return module.kind == ModuleKind::Linear && !module.is_output_head,
            Targets::Regex(_) => return self.target.as_ref().is_some_and(|pattern| pattern.matches(name)),
            Targets::Names(names) => names,
        };
        // A whole name counts whatever the layer.
        if names.contains(name) {
            return true;
        }
        let wanted = self.settings.layers_to_transform.as_deref();
        let in_layer =
            || wanted.is_none_or(|wanted| layer_of(name, layers).is_some_and(|layer| wanted.contains(&layer)));
        names.iter().any(|end| ends_with(name, end)) && in_layer()
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

impl Settings {
    fn read(fields: &[(String, String)]) -> Result<Settings> {
        let mut s = Settings {
            rank: 8, // this and alpha: PEFT's own defaults
            alpha: 8.0,
            use_rslora: false,
            dropout: 0.0,
            target_modules: Targets::None,
            exclude_modules: Targets::None,
            layers_to_transform: None,
            layers_pattern: Vec::new(),
            rank_pattern: Vec::new(),
            alpha_pattern: Vec::new(),
            fan_in_fan_out: false,
            bias: "none".into(),
            lora_bias: false,
            use_dora: false,
            modules_to_save: Vec::new(),
            init: InitLoraWeights::Default,
            unsupported: None,
        };
        if !fields.iter().any(|(key, _)| key == "peft_type") {
            return Err(Error::file(FILE, "is no configuration of PEFT: it has no peft_type"));
        }
        for (key, value) in fields {
            let what = format!("{FILE}: {key}");
            let mut reader = Reader::new(&what, value.as_bytes())?;
            let r = &mut reader;
            if value == "null" {
                continue;
            }
            match key.as_str() {
                "peft_type" => {
                    let method = r.string()?;
                    if method != "LORA" {
                        return Err(Error::Unsupported(format!("{what}: expected \"LORA\", got {value}")));
                    }
                }
                "r" => s.rank = usize::try_from(r.integer()?).unwrap_or(0), // in a page usize has 32 bits
                "lora_alpha" => s.alpha = finite(r)?,
                "lora_dropout" => s.dropout = finite(r)?,
                "use_rslora" => s.use_rslora = r.boolean()?,
                "fan_in_fan_out" => s.fan_in_fan_out = r.boolean()?,
                "lora_bias" => s.lora_bias = r.boolean()?,
                "use_dora" => s.use_dora = r.boolean()?,
                "bias" => {
                    s.bias = r.string()?;
                    if !["none", "all", "lora_only"].contains(&s.bias.as_str()) {
                        return Err(Error::file(
                            &what,
                            format!("expected \"none\", \"all\" or \"lora_only\", got {value}"),
                        ));
                    }
                }
                "target_modules" => s.target_modules = targets(r)?,
                "exclude_modules" => s.exclude_modules = targets(r)?,
                "layers_to_transform" => s.layers_to_transform = Some(one_or_more(r, &mut |r| r.integer())?),
                "layers_pattern" => s.layers_pattern = one_or_more(r, &mut |r| r.string())?,
                "modules_to_save" => s.modules_to_save = one_or_more(r, &mut |r| r.string())?,
                "rank_pattern" => s.rank_pattern = pattern(r, &mut |r| Ok(r.integer()? as f64))?,
                "alpha_pattern" => s.alpha_pattern = pattern(r, &mut finite)?,
                "init_lora_weights" => s.init = init(r)?,
                // Fields of PEFT that make something else of A and B, or put them elsewhere.
                "use_qalora"
                | "alora_invocation_tokens"
                | "layer_replication"
                | "target_parameters"
                | "use_bdlora"
                | "arrow_config"
                | "trainable_token_indices"
                | "kasa_config"
                | "monteclora_config"
                | "velora_config"
                    if !matches!(value.as_str(), "false" | "[]" | "{}") =>
                {
                    s.unsupported = Some(format!("{key}: {value}"));
                }
                _ => {}
            }
        }
        if s.layers_to_transform.as_ref().is_some_and(Vec::is_empty) {
            s.layers_to_transform = None; // as PEFT takes it
        }
        s.layers_pattern.retain(|pattern| !pattern.is_empty());
        let possible = |rank: f64| (1.0..=f64::from(u32::MAX)).contains(&rank);
        if !possible(s.rank as f64) || !s.rank_pattern.iter().all(|(_, rank)| possible(*rank)) {
            return Err(Error::file(FILE, "expected ranks of at least 1 and below 2³² in `r` and `rank_pattern`"));
        }
        if s.layers_to_transform.is_some() && !matches!(s.target_modules, Targets::Names(_)) {
            return Err(Error::file(FILE, "layers_to_transform needs target_modules to be a list of names"));
        }
        if let InitLoraWeights::Other(name) = &s.init {
            s.unsupported = Some(format!("init_lora_weights: {name}"));
        }
        Ok(s)
    }
}

fn finite(reader: &mut Reader) -> Result<f64> {
    let value = reader.number()?;
    if value.is_finite() { Ok(value) } else { Err(reader.fail("a finite number before this")) }
}

fn targets(reader: &mut Reader) -> Result<Targets> {
    if !reader.is_string() {
        let names = one_or_more(reader, &mut |reader| reader.string())?;
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
fn pattern(reader: &mut Reader, read: &mut dyn FnMut(&mut Reader) -> Result<f64>) -> Result<Vec<(String, f64)>> {
    let mut found = Vec::new();
    reader.object(&mut |reader, key| {
        found.push((key, read(reader)?));
        Ok(())
    })?;
    Ok(found)
}

fn init(reader: &mut Reader) -> Result<InitLoraWeights> {
    if reader.is_boolean() {
        return Ok(if reader.boolean()? { InitLoraWeights::Default } else { InitLoraWeights::None });
    }
    let name = reader.string()?;
    Ok(match name.as_str() {
        "gaussian" => InitLoraWeights::Gaussian,
        "pissa" => InitLoraWeights::Pissa(None),
        "olora" => InitLoraWeights::Olora,
        "orthogonal" => InitLoraWeights::Orthogonal,
        "eva" | "mica" => InitLoraWeights::Default, // they choose A or B and leave the base
        _ => match name.strip_prefix("pissa_niter_").and_then(|count| count.parse().ok()) {
            Some(count) => InitLoraWeights::Pissa(Some(count)),
            None => InitLoraWeights::Other(name),
        },
    })
}
