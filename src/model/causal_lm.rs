//! A language model on the GPU: its weights by name, and adapters on its linear layers.

use std::cell::RefCell;
use std::rc::Rc;

use super::adapters::no_linear;
use super::block::{Block, Linear};
use super::config::{LinearShape, ModelConfig};
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
        Ok(CausalLM {
            gpu: gpu.clone(),
            embed_tokens: linear("model.embed_tokens", c.vocab_size, c.hidden_size, false)?,
            blocks,
            norm: final_norm,
            lm_head: match c.tie_word_embeddings {
                true => None,
                false => Some(linear("lm_head", c.vocab_size, c.hidden_size, false)?),
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

    /// Bytes of GPU memory of the weights.
    pub fn bytes(&self) -> u64 {
        let heads = [&self.embed_tokens].into_iter().chain(&self.lm_head);
        let bases = self.linears().into_iter().map(|linear| &linear.base).chain(heads).map(FrozenLinear::bytes);
        let norms = self.blocks.iter().flat_map(Block::norms).chain([&self.norm]);
        bases.chain(norms.map(|norm| norm.weight().bytes())).sum()
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
