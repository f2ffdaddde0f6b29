//! A language model on the GPU: its weights by name, and adapters on its linear layers.

use std::cell::RefCell;
use std::rc::Rc;

use super::adapters::no_linear;
use super::block::{Block, Linear};
use super::config::ModelConfig;
use super::rope::RopeTables;
use crate::base::FrozenLinear;
use crate::error::{Error, Result};
use crate::gpu::{Gpu, Recording, Tensor};
use crate::lora::{LoraConfig, LoraLinear, Pool};
use crate::nn::Norm;

/// A frozen decoder-only language model, perhaps with adapters.
pub struct CausalLM {
    gpu: Gpu,
    config: ModelConfig,
    embed_tokens: FrozenLinear,
    pub(crate) blocks: Vec<Block>,
    pub(crate) norm: Norm,
    /// None where it is the embedding.
    lm_head: Option<FrozenLinear>,
    tables: RefCell<Option<RopeTables>>,
    /// Where the adapters' activations lie, by the kind of layer.
    pools: [Rc<Pool>; 7],
}

/// A frozen tensor of a model, to be filled from a file.
pub struct Parameter {
    /// As in Hugging Face's files: `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Where it lies; its shape is the file's.
    pub tensor: Tensor,
}

/// A frozen layer of zeros.
fn frozen(gpu: &Gpu, name: &str, out_features: usize, in_features: usize, bias: bool) -> Result<FrozenLinear> {
    let weight = Tensor::zeros(gpu, &format!("{name}.weight"), &[out_features, in_features])?;
    let bias = bias.then(|| Tensor::zeros(gpu, &format!("{name}.bias"), &[out_features])).transpose()?;
    FrozenLinear::from_tensors(weight, bias)
}

impl CausalLM {
    /// A model of zeros, whose [`parameters`](CausalLM::parameters) are to be filled.
    ///
    /// # Errors
    /// [`Limit`](crate::error::ErrorKind::Limit) naming the tensor that the device cannot hold.
    pub fn new(gpu: &Gpu, config: ModelConfig) -> Result<CausalLM> {
        let c = &config;
        let norm = |features: usize| Norm::new(gpu, &vec![0.0; features], None, false, c.rms_norm_eps);
        let norm_if = |wanted: bool, features: usize| wanted.then(|| norm(features)).transpose();
        let (hidden, inner) = (c.hidden_size, c.intermediate_size);
        let block = |layer: usize| {
            let linear = |name: &str, out_features, in_features, bias| {
                let name = format!("model.layers.{layer}.{name}");
                let base = frozen(gpu, &name, out_features, in_features, bias)?;
                Ok::<_, Error>(Linear::new(name, base))
            };
            Ok(Block {
                input_layernorm: norm(hidden)?,
                q_proj: linear("self_attn.q_proj", c.q_width(), hidden, c.qkv_bias)?,
                k_proj: linear("self_attn.k_proj", c.kv_width(), hidden, c.qkv_bias)?,
                v_proj: linear("self_attn.v_proj", c.kv_width(), hidden, c.qkv_bias)?,
                q_norm: norm_if(c.qk_norms(), c.head_dim)?,
                k_norm: norm_if(c.qk_norms(), c.head_dim)?,
                attn_sub_norm: norm_if(c.sub_norms(), c.q_width())?,
                o_proj: linear("self_attn.o_proj", hidden, c.q_width(), c.o_bias)?,
                post_attention_layernorm: norm(hidden)?,
                gate_proj: linear("mlp.gate_proj", inner, hidden, c.mlp_bias)?,
                up_proj: linear("mlp.up_proj", inner, hidden, c.mlp_bias)?,
                ffn_sub_norm: norm_if(c.sub_norms(), inner)?,
                down_proj: linear("mlp.down_proj", hidden, inner, c.mlp_bias)?,
            })
        };
        Ok(CausalLM {
            gpu: gpu.clone(),
            embed_tokens: frozen(gpu, "model.embed_tokens", c.vocab_size, hidden, false)?,
            blocks: (0..c.layers).map(block).collect::<Result<_>>()?,
            norm: norm(hidden)?,
            lm_head: match c.tie_word_embeddings {
                true => None,
                false => Some(frozen(gpu, "lm_head", c.vocab_size, hidden, false)?),
            },
            tables: RefCell::default(),
            pools: Default::default(),
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
        add("model.embed_tokens.weight".into(), self.embed_tokens.f32_weight().ok());
        for (layer, block) in self.blocks.iter().enumerate() {
            for linear in block.linears() {
                add(format!("{}.weight", linear.name), linear.base.f32_weight().ok());
                if let Some(bias) = linear.base.bias() {
                    add(format!("{}.bias", linear.name), Some(bias));
                }
            }
            let norms = [
                ("input_layernorm", Some(&block.input_layernorm)),
                ("post_attention_layernorm", Some(&block.post_attention_layernorm)),
                ("self_attn.q_norm", block.q_norm.as_ref()),
                ("self_attn.k_norm", block.k_norm.as_ref()),
                ("self_attn.attn_sub_norm", block.attn_sub_norm.as_ref()),
                ("mlp.ffn_sub_norm", block.ffn_sub_norm.as_ref()),
            ];
            for (name, norm) in norms.into_iter().filter_map(|(name, norm)| Some((name, norm?))) {
                add(format!("model.layers.{layer}.{name}.weight"), Some(norm.weight()));
            }
        }
        add("model.norm.weight".into(), Some(self.norm.weight()));
        if let Some(head) = &self.lm_head {
            add("lm_head.weight".into(), head.f32_weight().ok());
        }
        all
    }

    /// The linear layers that adapters can sit on, by name, in order.
    pub fn linears(&self) -> Vec<&Linear> {
        self.blocks.iter().flat_map(Block::linears).collect()
    }

    /// Puts a new adapter on the linear layer of this name, or adds it to those that are there.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) where there is no such layer or it has adapters already, and as [`LoraLinear::new`].
    pub fn add_lora(&self, name: &str, config: &LoraConfig) -> Result<Rc<LoraLinear>> {
        let linear = self.linears().into_iter().find(|linear| linear.name == name);
        let linear = linear.ok_or_else(|| no_linear(self, name))?;
        if linear.lora.borrow().is_some() {
            return Err(Error::argument("module", "a layer without adapters", name));
        }
        let lora = Rc::new(LoraLinear::new(&self.gpu, Some(name), linear.base.clone(), config)?);
        *linear.lora.borrow_mut() = Some(lora.clone());
        Ok(lora)
    }

    /// Takes the adapters of a layer away and frees their memory; the frozen layer stays.
    pub fn remove_lora(&self, lora: &Rc<LoraLinear>) {
        for linear in self.linears() {
            if linear.lora.borrow().as_ref().is_some_and(|own| Rc::ptr_eq(own, lora)) {
                linear.lora.take();
                lora.destroy_adapters();
            }
        }
    }

    /// The layers with adapters, in order.
    pub fn loras(&self) -> Vec<Rc<LoraLinear>> {
        self.linears().iter().filter_map(|linear| linear.lora.borrow().clone()).collect()
    }

    /// Has layers of one kind share the room of their activations, which recomputing them allows.
    pub(crate) fn share_activations(&self, shared: bool) {
        for (linear, pool) in self.linears().iter().zip(self.pools.iter().cycle()) {
            if let Some(lora) = linear.lora.borrow().as_ref() {
                lora.share_activations(shared.then_some(pool));
            }
        }
    }

    /// The output head `[vocab_size, hidden_size]`.
    pub(crate) fn head(&self) -> &FrozenLinear {
        self.lm_head.as_ref().unwrap_or(&self.embed_tokens)
    }

    /// Records the rows of the embedding.
    pub(crate) fn embed(&self, rec: &Recording, input_ids: &Tensor, output: &Tensor) -> Result<()> {
        self.embed_tokens.embed(rec, input_ids, output)
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
        self.blocks.iter().for_each(Block::destroy);
        self.norm.destroy();
        self.embed_tokens.destroy();
        self.lm_head.iter().for_each(FrozenLinear::destroy);
        if let Some(tables) = self.tables.take() {
            tables.destroy();
        }
    }
}
