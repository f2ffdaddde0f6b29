//! A language model on the GPU: its weights by name, and adapters on its linear layers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::adapters::no_linear;
use super::block::Block;
use super::config::{LinearShape, ModelConfig};
use super::linear::Linear;
use super::rope::RopeTables;
use crate::base::FrozenLinear;
use crate::error::{Error, Result};
use crate::gpu::{Gpu, Tensor};
use crate::lora::{LoraConfig, LoraLinear, Pool, Trained};
use crate::nn::{Norm, NormRoom};

/// A frozen decoder-only language model, perhaps with adapters.
pub struct CausalLM {
    gpu: Gpu,
    config: ModelConfig,
    pub(super) embed_tokens: Linear,
    pub(crate) blocks: Vec<Block>,
    pub(crate) norm: Norm,
    /// The output head `[vocab_size, hidden_size]`, whose weight may be the embedding's.
    pub(super) lm_head: Linear,
    tables: RefCell<Option<RopeTables>>,
    /// Where the adapters' activations lie, by the kind of layer.
    pub(super) pools: [Rc<Pool>; 7],
    /// What is trained whole.
    pub(super) whole: RefCell<Vec<(String, Trained)>>,
    pub(super) whole_enabled: Rc<Cell<bool>>,
    pub(super) norm_room: Rc<NormRoom>,
}

pub(super) const EMBEDDING: &str = "model.embed_tokens";
pub(super) const HEAD: &str = "lm_head";

/// A frozen tensor of a model, to be filled from a file.
pub struct Parameter {
    /// As in Hugging Face's files: `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Where it lies; its shape is the file's.
    pub tensor: Tensor,
}

impl CausalLM {
    /// A model of zeros in f32, whose [`parameters`](CausalLM::parameters) are to be filled.
    ///
    /// # Errors
    /// [`Limit`](crate::error::ErrorKind::Limit) naming the tensor that the device cannot hold.
    pub fn new(gpu: &Gpu, config: ModelConfig) -> Result<CausalLM> {
        let eps = config.rms_norm_eps;
        let mut linear = |name: &str, out_features, in_features, bias: bool| {
            let weight = Tensor::zeros(gpu, &format!("{name}.weight"), &[out_features, in_features])?;
            let bias = bias.then(|| Tensor::zeros(gpu, &format!("{name}.bias"), &[out_features])).transpose()?;
            FrozenLinear::from_tensors(weight, bias)
        };
        let mut norm = |_: &str, features: usize| Norm::new(gpu, &vec![0.0; features], None, false, eps);
        CausalLM::assemble(gpu, config, &mut linear, &mut norm)
    }

    /// A model of what the functions give for names without `.weight`: a linear layer by out_features, in_features and
    /// whether it has a bias, a norm by its width.
    pub(crate) fn assemble(
        gpu: &Gpu,
        config: ModelConfig,
        linear: &mut dyn FnMut(&str, usize, usize, bool) -> Result<FrozenLinear>,
        norm: &mut dyn FnMut(&str, usize) -> Result<Norm>,
    ) -> Result<CausalLM> {
        let c = &config;
        let mut block = |layer: usize| {
            let mut make = |shape: LinearShape| {
                let name = format!("model.layers.{layer}.{}", shape.name);
                let base = linear(&name, shape.out_features, shape.in_features, shape.bias)?;
                Ok::<_, Error>(Linear::new(name, base))
            };
            let mut norm = |name: &str, width: usize| norm(&format!("model.layers.{layer}.{name}"), width);
            let [q, k, v, o, gate, up, down] = c.linears();
            let mut norm_if = |wanted: bool, name, width| wanted.then(|| norm(name, width)).transpose();
            Ok::<_, Error>(Block {
                q_norm: norm_if(c.qk_norms(), "self_attn.q_norm", c.head_dim)?,
                k_norm: norm_if(c.qk_norms(), "self_attn.k_norm", c.head_dim)?,
                attn_sub_norm: norm_if(c.sub_norms(), "self_attn.attn_sub_norm", c.q_width())?,
                ffn_sub_norm: norm_if(c.sub_norms(), "mlp.ffn_sub_norm", c.intermediate_size)?,
                input_layernorm: norm("input_layernorm", c.hidden_size)?,
                post_attention_layernorm: norm("post_attention_layernorm", c.hidden_size)?,
                q_proj: make(q)?,
                k_proj: make(k)?,
                v_proj: make(v)?,
                o_proj: make(o)?,
                gate_proj: make(gate)?,
                up_proj: make(up)?,
                down_proj: make(down)?,
            })
        };
        let blocks = (0..c.layers).map(&mut block).collect::<Result<_>>()?;
        let final_norm = norm("model.norm", c.hidden_size)?;
        let embedding = linear("model.embed_tokens", c.vocab_size, c.hidden_size, false)?;
        let head = match c.tie_word_embeddings {
            true => embedding.clone(),
            false => linear("lm_head", c.vocab_size, c.hidden_size, false)?,
        };
        Ok(CausalLM {
            gpu: gpu.clone(),
            embed_tokens: Linear::new(EMBEDDING.into(), embedding),
            blocks,
            norm: final_norm,
            lm_head: Linear::new(HEAD.into(), head),
            tables: RefCell::default(),
            pools: Default::default(),
            whole: RefCell::default(),
            whole_enabled: Rc::new(Cell::new(true)),
            norm_room: Rc::default(),
            config,
        })
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Its shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Every frozen tensor by its name in Hugging Face's files.
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut all = Vec::new();
        let mut add = |name: String, tensor: Option<&Tensor>| {
            all.extend(tensor.map(|tensor| Parameter { name, tensor: tensor.clone() }));
        };
        add("model.embed_tokens.weight".into(), self.embed_tokens.base.f32_weight().ok());
        for (layer, block) in self.blocks.iter().enumerate() {
            for linear in block.linears() {
                add(format!("{}.weight", linear.name), linear.base.f32_weight().ok());
                if let Some(bias) = linear.base.bias() {
                    add(format!("{}.bias", linear.name), Some(bias));
                }
            }
            for (name, norm) in block.named_norms() {
                add(format!("model.layers.{layer}.{name}.weight"), Some(norm.weight()));
            }
        }
        add("model.norm.weight".into(), Some(self.norm.weight()));
        if !self.config.tie_word_embeddings {
            add("lm_head.weight".into(), self.lm_head.base.f32_weight().ok());
        }
        all
    }

    /// Bytes of GPU memory of the weights.
    pub fn bytes(&self) -> u64 {
        let mut bytes = 0;
        for linear in self.with_linears() {
            let shared = self.config.tie_word_embeddings && linear.name == HEAD;
            bytes += if shared { 0 } else { linear.base.bytes() };
        }
        for (_, norm) in self.norms() {
            bytes += norm.weight().bytes();
        }
        bytes
    }

    /// All that adapters can sit on, in order: the embedding, the layers' linear modules, the head.
    pub(super) fn with_linears(&self) -> Vec<&Linear> {
        [&self.embed_tokens].into_iter().chain(self.linears()).chain([&self.lm_head]).collect()
    }

    /// All norms by name, in order.
    pub(super) fn norms(&self) -> Vec<(String, &Norm)> {
        let mut all = Vec::new();
        for (layer, block) in self.blocks.iter().enumerate() {
            for (name, norm) in block.named_norms() {
                all.push((format!("model.layers.{layer}.{name}"), norm));
            }
        }
        all.push(("model.norm".into(), &self.norm));
        all
    }

    /// The layers' linear modules in order.
    pub fn linears(&self) -> Vec<&Linear> {
        self.blocks.iter().flat_map(Block::linears).collect()
    }

    /// Puts a new adapter on the module of this name, a layer's linear one, `model.embed_tokens` or `lm_head`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) where there is no such module or it has adapters already, and as [`LoraLinear::new`];
    /// [`Unsupported`](crate::error::ErrorKind::Unsupported) for DoRA on the embedding or the head and `lora_bias` on the embedding.
    pub fn add_lora(&self, name: &str, config: &LoraConfig) -> Result<Rc<LoraLinear>> {
        let linear = self.with_linears().into_iter().find(|linear| linear.name == name);
        let linear = linear.ok_or_else(|| no_linear(name))?;
        if linear.lora.borrow().is_some() {
            return Err(Error::argument("module", "a layer without adapters", name));
        }
        let (gpu, base) = (&self.gpu, linear.base());
        let lora = Rc::new(match name {
            EMBEDDING => LoraLinear::embedding(gpu, name, base, config)?,
            HEAD if config.use_dora => return Err(Error::unsupported(format!("DoRA on `{name}`"))),
            _ => LoraLinear::new(gpu, Some(name), base, config)?,
        });
        *linear.lora.borrow_mut() = Some(lora.clone());
        Ok(lora)
    }

    /// Takes the adapters of a layer away and frees their memory; the frozen layer stays.
    pub fn remove_lora(&self, lora: &Rc<LoraLinear>) {
        for linear in self.with_linears() {
            if linear.lora.borrow().as_ref().is_some_and(|own| Rc::ptr_eq(own, lora)) {
                linear.lora.take();
                lora.destroy_adapters();
            }
        }
    }

    /// Has the adapter, and what was trained whole, take part in what is recorded from now on or not.
    pub fn set_adapter_enabled(&self, enabled: bool) {
        self.loras().iter().for_each(|lora| lora.set_enabled(enabled));
        self.whole_enabled.set(enabled);
    }

    /// The tensors that are trained whole, by their names in Hugging Face's files, in order.
    pub fn trained_whole(&self) -> Vec<(String, Trained)> {
        self.whole.borrow().clone()
    }

    pub(crate) fn whole_enabled(&self) -> bool {
        self.whole_enabled.get()
    }

    /// Elements of a token that the norm of this name takes.
    pub(super) fn norm_width(&self, name: &str, norm: &Norm) -> usize {
        match name.rsplit('.').next() {
            Some("q_norm") => self.config.q_width(),
            Some("k_norm") => self.config.kv_width(),
            _ => norm.features(),
        }
    }

    /// Makes room for the gradients of the norms that are trained, for this many tokens.
    pub(crate) fn reserve_norms(&self, rows: usize) -> Result<()> {
        let (mut width, mut features) = (0, 0);
        for (name, norm) in self.norms() {
            if norm.trains() {
                width = width.max(self.norm_width(&name, norm));
                features = features.max(norm.features());
            }
        }
        if width == 0 { Ok(()) } else { self.norm_room.reserve(&self.gpu, rows * width, features) }
    }

    /// The modules with adapters, in order.
    pub fn loras(&self) -> Vec<Rc<LoraLinear>> {
        self.with_linears().iter().filter_map(|linear| linear.lora.borrow().clone()).collect()
    }

    /// That [`destroy`](CausalLM::destroy) was not called.
    #[cfg(target_arch = "wasm32")]
    pub(crate) fn check_live(&self) -> Result<()> {
        self.embed_tokens.base.kernel_rows()[0].weight.place().map(drop)
    }

    /// Has layers of one kind share the room of their activations, which recomputing them allows.
    pub(crate) fn share_activations(&self, shared: bool) {
        for (linear, pool) in self.linears().iter().zip(self.pools.iter().cycle()) {
            if let Some(lora) = linear.lora.borrow().as_ref() {
                lora.share_activations(shared.then_some(pool));
            }
        }
    }

    /// Tables for at least this many positions.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for more than the model has.
    pub(crate) fn tables(&self, positions: usize) -> Result<RopeTables> {
        let most = self.config.max_positions;
        if positions > most {
            return Err(Error::argument("positions", &format!("at most {most}"), positions.to_string()));
        }
        let mut slot = self.tables.borrow_mut();
        match slot.as_ref().filter(|tables| tables.positions() >= positions) {
            Some(tables) => Ok(tables.clone()),
            // Recordings keep the ones that they were made with.
            None => Ok(slot
                .insert(RopeTables::new(&self.gpu, &self.config, positions.next_power_of_two().min(most))?)
                .clone()),
        }
    }

    /// Frees the GPU memory of weights and adapters.
    pub fn destroy(&self) {
        self.drop_adapters();
        self.blocks.iter().for_each(Block::destroy);
        self.norm.destroy();
        self.embed_tokens.destroy();
        self.lm_head.destroy();
        if let Some(tables) = self.tables.take() {
            tables.destroy();
        }
    }
}
