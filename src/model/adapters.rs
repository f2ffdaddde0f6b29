//! PEFT's adapters on a model: new ones by a configuration, loaded ones, and what is saved.

use std::future::Future;
use std::rc::Rc;

use super::causal_lm::{CausalLM, EMBEDDING, HEAD};
use crate::error::{Error, Result};
use crate::gpu::Recording;
use crate::io::safetensors::{Dtype, from_f32, to_f32};
use crate::io::{
    Adapter, AdapterConfig, AdapterKind, AdapterModule, InitLoraWeights, ModelModule, ModuleKind, OtherTensor,
    embedding_b, initialize, name_in_model,
};
use crate::lora::{LoraConfig, LoraLinear, Trained};

impl CausalLM {
    /// The modules that PEFT's `target_modules` choose from, in the model's order.
    pub fn modules(&self) -> Vec<ModelModule> {
        let config = self.config();
        let (vocabulary, hidden) = (config.vocab_size, config.hidden_size);
        let module = |name: &str, kind, in_features, out_features, is_output_head| ModelModule {
            name: name.into(),
            kind,
            in_features,
            out_features,
            is_output_head,
        };
        let embedding = module(EMBEDDING, ModuleKind::Embedding, vocabulary, hidden, false);
        let linears = self.linears();
        let linears = linears.iter().map(|linear| {
            let base = &linear.base;
            module(linear.name(), ModuleKind::Linear, base.in_features(), base.out_features(), false)
        });
        let head = module(HEAD, ModuleKind::Linear, hidden, vocabulary, true);
        [embedding].into_iter().chain(linears).chain([head]).collect()
    }

    /// Names of the modules that a configuration has trained whole: those whose name, or that of one that they are part of, ends
    /// so, as PEFT has it.
    ///
    /// # Errors
    /// [`Unmatched`](crate::error::ErrorKind::Unmatched) for an entry of `modules_to_save` that is none.
    pub(super) fn saved_modules(&self, config: &AdapterConfig) -> Result<Vec<String>> {
        let mut names: Vec<String> = Vec::new();
        for linear in self.with_linears() {
            names.push(linear.name.clone());
        }
        for (name, _) in self.norms() {
            names.push(name);
        }
        let mut saved = vec![false; names.len()];
        for end in config.modules_to_save() {
            let mut found = false;
            for (name, saved) in names.iter().zip(&mut saved) {
                let mut part = name.as_str();
                let own = loop {
                    match (part.ends_with(&end), part.rsplit_once('.')) {
                        (false, Some((whole, _))) => part = whole,
                        (own, _) => break own,
                    }
                };
                *saved |= own;
                found |= own;
            }
            if !found {
                let text = format!("modules_to_save: no module of this model is called `{end}`");
                return Err(Error::unmatched(text));
            }
        }
        let mut saved = saved.into_iter();
        names.retain(|_| saved.next().unwrap_or(false));
        Ok(names)
    }

    /// What of a configuration is not done.
    fn check(&self, config: &AdapterConfig) -> Result<()> {
        let refuse = |what: String| Err(Error::unsupported(format!("adapter_config.json: {what}")));
        if let Some(what) = config.unsupported() {
            return refuse(what);
        }
        if self.config().tie_word_embeddings && config.get("ensure_weight_tying") == Some("true") {
            return refuse("ensure_weight_tying: true; embedding and head have adapters of their own".into());
        }
        if config.init_lora_weights().changes_base() {
            return refuse("init_lora_weights that change the base; convert the adapter to a plain one".into());
        }
        Ok(())
    }

    /// Puts a new adapter on the modules that a configuration targets, as PEFT begins it: B zero and A by `seed`, on an embedding
    /// the other way round; and makes copies of the modules that are to be trained whole.
    ///
    /// # Errors
    /// [`Unmatched`](crate::error::ErrorKind::Unmatched) where none is targeted; [`Unsupported`](crate::error::ErrorKind::Unsupported) for what of the configuration is not done on
    /// models, naming field or module; as [`CausalLM::add_lora`]. Nothing is added then.
    pub fn new_adapter(&self, config: &AdapterConfig, seed: u64) -> Result<Vec<Rc<LoraLinear>>> {
        let modules = self.modules();
        self.check(config)?;
        let (targets, saved) = (config.resolve(&modules)?, self.saved_modules(config)?);
        let chosen = targets.iter().zip(0..).map(|(target, i)| {
            let options = options(config, target.rank, target.alpha);
            (modules[target.module].name.as_str(), LoraConfig { seed: seed.wrapping_add(i), ..options })
        });
        let chosen: Vec<_> = chosen.collect();
        let loras = self.add_loras(&chosen, &saved, &config.bias())?;
        let init = config.init_lora_weights();
        let mut pairs = loras.iter().zip(&chosen);
        self.or_nothing(pairs.try_for_each(|(lora, (_, options))| start(lora, &init, options.seed)))?;
        Ok(loras)
    }

    /// Puts a loaded adapter on the model.
    ///
    /// # Errors
    /// As [`Adapter::report`], strictly, and as [`CausalLM::new_adapter`].
    pub fn load_adapter(&self, adapter: &Adapter) -> Result<Vec<Rc<LoraLinear>>> {
        self.check(&adapter.config)?;
        let saved = self.saved_modules(&adapter.config)?;
        // Here it is known which width is which. Norms are modules, too.
        let mut modules = self.modules();
        for (name, norm) in self.norms() {
            let (kind, out_features) = (ModuleKind::Other, norm.features());
            modules.push(ModelModule { name, kind, in_features: 1, out_features, is_output_head: false });
        }
        adapter.fit(&modules, true, false)?;
        for other in &adapter.others {
            let name = name_in_model(&other.name);
            let module = name.rsplit_once('.').map_or("", |(module, _)| module);
            if is_copy(other) {
                let shape = [self.config().vocab_size, self.config().hidden_size];
                if other.shape != shape {
                    let got = crate::gpu::show(&other.shape);
                    return Err(Error::shape(&format!("`{}`", other.name), crate::gpu::show(&shape), got));
                }
                continue;
            }
            let bias = name.ends_with(".bias") && adapter.config.bias() != "none";
            if !bias && !saved.iter().any(|saved| saved == module) {
                return Err(Error::unsupported(format!("an adapter that replaces the model's own `{}`", other.name)));
            }
        }
        let chosen: Vec<_> = adapter
            .modules
            .iter()
            .map(|module| {
                let options = options(&adapter.config, module.rank, module.alpha);
                let (use_dora, lora_bias) = (module.magnitude.is_some(), module.lora_bias.is_some());
                (module.name.as_str(), LoraConfig { use_dora, lora_bias, ..options })
            })
            .collect();
        let loras = self.add_loras(&chosen, &saved, &adapter.config.bias())?;
        self.or_nothing(self.write_adapter(&loras, adapter, &saved))?;
        Ok(loras)
    }

    /// A loaded adapter's numbers into a new one. Biases that it lacks altogether are left as the model's own, see
    /// [`Adapter::lacks_biases`].
    fn write_adapter(&self, loras: &[Rc<LoraLinear>], adapter: &Adapter, saved: &[String]) -> Result<()> {
        loras.iter().zip(&adapter.modules).try_for_each(|(lora, module)| write(lora, module))?;
        let mut left: Vec<&OtherTensor> = adapter.others.iter().filter(|other| !is_copy(other)).collect();
        for (name, trained) in self.trained_whole() {
            let own = left.iter().position(|other| name_in_model(&other.name) == name);
            if own.is_none()
                && adapter.lacks_biases()
                && name.strip_suffix(".bias").is_some_and(|module| !saved.iter().any(|saved| saved == module))
            {
                continue;
            }
            let own = own
                .ok_or_else(|| Error::unmatched(format!("the adapter lacks `{name}`, which it says that it trains")))?;
            let own = left.swap_remove(own);
            if own.shape != trained.value.shape() {
                let (expected, got) = (crate::gpu::show(trained.value.shape()), crate::gpu::show(&own.shape));
                return Err(Error::shape(&format!("`{}`", own.name), expected, got));
            }
            let values = to_f32(&own.name, own.dtype, &own.data)?;
            trained.value.write(&values)?;
        }
        match left.first() {
            Some(other) => {
                Err(Error::unmatched(format!("`{}` of the adapter is nothing that is trained here", other.name)))
            }
            None => Ok(()),
        }
    }

    /// Takes all adapters away where something went wrong.
    fn or_nothing(&self, result: Result<()>) -> Result<()> {
        result.inspect_err(|_| self.drop_adapters())
    }

    /// All or none, on a model that has none.
    fn add_loras(&self, chosen: &[(&str, LoraConfig)], saved: &[String], bias: &str) -> Result<Vec<Rc<LoraLinear>>> {
        if !self.loras().is_empty() {
            return Err(Error::argument("adapter", "a model without one; remove it first", "a second one"));
        }
        if let Some((name, _)) = chosen.iter().find(|(name, _)| saved.iter().any(|saved| saved == name)) {
            return Err(Error::unsupported(format!("an adapter on `{name}`, which modules_to_save has trained whole")));
        }
        self.whole_enabled.set(true);
        self.try_add(chosen, saved, bias).inspect_err(|_| self.drop_adapters())
    }

    fn try_add(&self, chosen: &[(&str, LoraConfig)], saved: &[String], bias: &str) -> Result<Vec<Rc<LoraLinear>>> {
        let mut whole = self.whole.borrow_mut();
        for linear in self.with_linears() {
            if saved.contains(&linear.name) {
                linear.train_whole(&self.whole_enabled, &mut whole)?;
            } else if bias == "all" || bias == "lora_only" && chosen.iter().any(|(name, _)| *name == linear.name) {
                linear.train_bias(&self.whole_enabled, &mut whole)?;
            }
        }
        let mut loras = Vec::new();
        for (name, options) in chosen {
            loras.push(self.add_lora(name, options)?);
        }
        for (name, norm) in self.norms() {
            if saved.contains(&name) {
                let [value, grad] = norm.train_whole(&self.norm_room, &self.whole_enabled)?;
                whole.push((name + ".weight", Trained { value, grad }));
            }
        }
        Ok(loras)
    }

    /// Takes adapters and copies of modules away and frees their memory.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) where an optimiser updates one of them.
    pub fn remove_adapters(&self) -> Result<()> {
        for lora in self.loras() {
            lora.refuse_owned()?;
        }
        self.drop_adapters();
        Ok(())
    }

    /// The same, whoever updates them.
    pub(super) fn drop_adapters(&self) {
        for lora in self.loras() {
            self.remove_lora(&lora);
        }
        for linear in self.with_linears() {
            linear.drop_whole();
        }
        for (_, norm) in self.norms() {
            norm.drop_whole();
        }
        for (_, trained) in self.whole.take() {
            trained.value.destroy();
            trained.grad.destroy();
        }
        self.pools.iter().for_each(|pool| pool.destroy());
        self.norm_room.destroy();
    }

    /// The adapter as it is now, with this configuration, which must be the one that it was made or loaded with.
    pub fn save_adapter(&self, config: &AdapterConfig) -> impl Future<Output = Result<Adapter>> + use<> {
        // All read-backs are encoded now, so that they see one state.
        let started: Vec<_> = self
            .loras()
            .iter()
            .map(|lora| {
                let (name, weight) = (lora.label().to_string(), lora.weight());
                let own = lora.adapter(LoraLinear::DEFAULT);
                let vector = |of: fn(&crate::lora::Adapter) -> Option<&crate::lora::Trained>| {
                    own.as_ref().ok().and_then(|own| Some(of(own)?.value.read()))
                };
                let vectors = [vector(crate::lora::Adapter::magnitude), vector(crate::lora::Adapter::lora_bias)];
                let kind = if lora.is_embedding() { AdapterKind::Embedding } else { AdapterKind::Linear };
                (name, kind, weight.rank(), weight.a.read(), weight.b.read(), vectors)
            })
            .collect();
        let mut whole = Vec::new();
        let loras = self.loras();
        for (mut name, trained) in self.trained_whole() {
            // PEFT's name of the bias of a module that has an adapter.
            if let Some(module) = name.strip_suffix(".bias")
                && loras.iter().any(|lora| lora.label() == module)
            {
                name = format!("{module}.base_layer.bias");
            }
            whole.push((name, trained.value.shape().to_vec(), trained.value.read()));
        }
        let config = config.clone();
        async move {
            let mut modules = Vec::new();
            for (name, kind, rank, a, b, [magnitude, lora_bias]) in started {
                let alpha = config.alpha_of(&name);
                modules.push(AdapterModule {
                    scaling: config.scaling(alpha, rank),
                    kind,
                    name,
                    rank,
                    alpha,
                    a: a.await?,
                    b: b.await?,
                    magnitude: match magnitude {
                        Some(read) => Some(read.await?),
                        None => None,
                    },
                    lora_bias: match lora_bias {
                        Some(read) => Some(read.await?),
                        None => None,
                    },
                });
            }
            let mut others = Vec::new();
            for (name, shape, values) in whole {
                let data = from_f32(&name, Dtype::F32, &mut values.await?.into_iter().map(f64::from))?;
                others.push(OtherTensor { name, dtype: Dtype::F32, shape, data });
            }
            Ok(Adapter { config, modules, others, notes: Vec::new(), metadata: Vec::new() })
        }
    }
}

/// Whether it is the base's own weight, which PEFT puts beside an adapter of the embedding or the head; it is the model's.
fn is_copy(other: &OtherTensor) -> bool {
    let module = other.name.strip_suffix(".base_layer.weight");
    module.is_some_and(|module| [EMBEDDING, HEAD].contains(&module))
}

/// What a new adapter begins with, where it is something else than what every new one has.
fn start(lora: &LoraLinear, init: &InitLoraWeights, seed: u64) -> Result<()> {
    let weight = lora.weight();
    if lora.is_embedding() {
        if *init != InitLoraWeights::None {
            let rec = Recording::new(weight.a.gpu());
            rec.zero(&weight.a)?;
            drop(rec.try_submit()?);
        }
        return weight.b.write(&embedding_b(weight.out_features(), weight.rank(), seed)?);
    }
    if *init == InitLoraWeights::Default {
        return Ok(());
    }
    let scaling = f64::from(lora.scaling());
    let start = initialize(init, &[], weight.out_features(), weight.in_features(), weight.rank(), scaling, seed)?;
    weight.a.write(&start.a)?;
    weight.b.write(&start.b)
}

/// A loaded adapter's numbers into a new one.
fn write(lora: &LoraLinear, module: &AdapterModule) -> Result<()> {
    lora.weight().a.write(&module.a)?;
    lora.weight().b.write(&module.b)?;
    let own = lora.adapter(LoraLinear::DEFAULT)?;
    if let (Some(own), Some(magnitude)) = (own.magnitude(), &module.magnitude) {
        own.value.write(magnitude)?;
    }
    if let (Some(own), Some(bias)) = (own.lora_bias(), &module.lora_bias) {
        own.value.write(bias)?;
    }
    Ok(())
}

fn options(config: &AdapterConfig, rank: usize, alpha: f64) -> LoraConfig {
    LoraConfig {
        use_rslora: config.use_rslora(),
        use_dora: config.use_dora(),
        lora_bias: config.lora_bias(),
        dropout: config.dropout(),
        ..LoraConfig::new(rank, alpha)
    }
}

/// For which no adapter can be recorded.
pub(super) fn no_linear(name: &str) -> Error {
    Error::argument("module", "the name of a linear module or of the embedding of the model", name)
}
