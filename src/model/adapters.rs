//! PEFT's adapters on a model: new ones by a configuration, loaded ones, and what is saved.

use std::future::Future;
use std::rc::Rc;

use super::causal_lm::CausalLM;
use crate::error::{Error, Result};
use crate::io::{Adapter, AdapterConfig, AdapterKind, AdapterModule, ModelModule, ModuleKind};
use crate::lora::{LoraConfig, LoraLinear};

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
        let embedding = module("model.embed_tokens", ModuleKind::Embedding, vocabulary, hidden, false);
        let linears = self.linears();
        let linears = linears.iter().map(|linear| {
            let base = &linear.base;
            module(linear.name(), ModuleKind::Linear, base.in_features(), base.out_features(), false)
        });
        let head = module("lm_head", ModuleKind::Linear, hidden, vocabulary, true);
        [embedding].into_iter().chain(linears).chain([head]).collect()
    }

    /// Puts a new adapter on the modules that a configuration targets: B zero, A by `seed`.
    ///
    /// # Errors
    /// [`Unmatched`](crate::error::ErrorKind::Unmatched) where none is targeted; [`Unsupported`](crate::error::ErrorKind::Unsupported) for what of the configuration is not done on
    /// models, naming field or module; as [`CausalLM::add_lora`]. Nothing is added then.
    pub fn new_adapter(&self, config: &AdapterConfig, seed: u64) -> Result<Vec<Rc<LoraLinear>>> {
        let modules = self.modules();
        check(config)?;
        let targets = config.resolve(&modules)?;
        let chosen = targets.iter().zip(0..).map(|(target, i)| {
            let options = options(config, target.rank, target.alpha);
            (modules[target.module].name.as_str(), LoraConfig { seed: seed.wrapping_add(i), ..options })
        });
        self.add_loras(&chosen.collect::<Vec<_>>())
    }

    /// Puts a loaded adapter on the model.
    ///
    /// # Errors
    /// As [`Adapter::report`], strictly, and as [`CausalLM::new_adapter`].
    pub fn load_adapter(&self, adapter: &Adapter) -> Result<Vec<Rc<LoraLinear>>> {
        check(&adapter.config)?;
        // Here it is known which width is which.
        adapter.fit(&self.modules(), true, false)?;
        if let Some(other) = adapter.others.first() {
            return Err(Error::unsupported(format!("an adapter that replaces the model's own `{}`", other.name)));
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
        let loras = self.add_loras(&chosen)?;
        let mut pairs = loras.iter().zip(&adapter.modules);
        if let Err(error) = pairs.try_for_each(|(lora, module)| write(lora, module)) {
            loras.iter().for_each(|lora| self.remove_lora(lora));
            return Err(error);
        }
        Ok(loras)
    }

    /// All or none.
    fn add_loras(&self, chosen: &[(&str, LoraConfig)]) -> Result<Vec<Rc<LoraLinear>>> {
        let mut added: Vec<Rc<LoraLinear>> = Vec::new();
        for (name, options) in chosen {
            match self.add_lora(name, options) {
                Ok(lora) => added.push(lora),
                Err(error) => {
                    added.iter().for_each(|lora| self.remove_lora(lora));
                    return Err(error);
                }
            }
        }
        Ok(added)
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
                (name, weight.rank(), weight.a.read(), weight.b.read(), vectors)
            })
            .collect();
        let config = config.clone();
        async move {
            let mut modules = Vec::new();
            for (name, rank, a, b, [magnitude, lora_bias]) in started {
                let alpha = config.alpha_of(&name);
                modules.push(AdapterModule {
                    scaling: config.scaling(alpha, rank),
                    kind: AdapterKind::Linear,
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
            Ok(Adapter { config, modules, others: Vec::new(), notes: Vec::new(), metadata: Vec::new() })
        }
    }
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

/// What of a configuration is not done.
fn check(config: &AdapterConfig) -> Result<()> {
    let refuse = |what: String| Err(Error::unsupported(format!("adapter_config.json: {what}")));
    if let Some(what) = config.unsupported() {
        return refuse(what);
    }
    if config.bias() != "none" {
        return refuse(format!("bias: {:?} on a language model; \"none\" is", config.bias()));
    }
    if let Some(name) = config.modules_to_save().first() {
        return refuse(format!("modules_to_save: {name:?} on a language model; none is"));
    }
    if config.init_lora_weights().changes_base() {
        return refuse("init_lora_weights that change the base; convert the adapter to a plain one".into());
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
pub(super) fn no_linear(model: &CausalLM, name: &str) -> Error {
    let known = model.modules().iter().any(|module| module.name == name);
    match known {
        true => Error::unsupported(format!("an adapter on `{name}`; the layers' linear modules have them")),
        false => Error::argument("module", "the name of a linear layer of the model", name),
    }
}
