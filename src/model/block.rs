//! One decoder layer: attention and a gated feed-forward part, each behind a norm and beside a residual connection.

use super::config::ModelConfig;
use super::linear::Linear;
use super::rope::RopeTables;
use crate::error::Result;
use crate::gpu::{Gpu, Profile, Recording, Tensor};
use crate::kernels::lora::add_scaled;
use crate::kernels::nn::{
    add, attention, attention_grad_kv, attention_grad_kv_tiled, attention_grad_q, attention_grad_q_tiled,
    attention_step, attention_tiled, cache_write, gated, gated_grad, rope,
};
use crate::lora::TrainingStep;
use crate::nn::Norm;

/// One decoder layer's weights.
pub(crate) struct Block {
    pub input_layernorm: Norm,
    pub q_proj: Linear,
    pub k_proj: Linear,
    pub v_proj: Linear,
    pub q_norm: Option<Norm>,
    pub k_norm: Option<Norm>,
    pub attn_sub_norm: Option<Norm>,
    pub o_proj: Linear,
    pub post_attention_layernorm: Norm,
    pub gate_proj: Linear,
    pub up_proj: Linear,
    pub ffn_sub_norm: Option<Norm>,
    pub down_proj: Linear,
}

/// What a pass over some rows depends on beside the weights.
pub(crate) struct Pass<'a> {
    pub config: &'a ModelConfig,
    pub tables: &'a RopeTables,
    /// `[rows]`
    pub position_ids: &'a Tensor,
    /// `[batch, tokens]`
    pub segments: &'a Tensor,
    pub step: Option<&'a TrainingStep>,
}

/// The activations of one layer for a number of rows; with checkpointing all layers share them.
pub(crate) struct Activations {
    /// `[rows, hidden_size]`
    normed: Tensor,
    /// `q [rows, heads·head_dim]`, `k`, `v [rows, kv_heads·head_dim]` as projected; rotated in place where no norm follows.
    projected: [Tensor; 3],
    /// With norms of queries and keys what they give, rotated in place.
    normed_qk: Option<[Tensor; 2]>,
    /// `[rows, heads·head_dim]`
    attended: Tensor,
    /// `[rows, heads, 2]`
    stats: Tensor,
    sub_normed: Option<Tensor>,
    o: Tensor,
    /// `[rows, hidden_size]`: `x + o`
    middle: Tensor,
    middle_normed: Tensor,
    /// `[rows, intermediate_size]`
    gate: Tensor,
    up: Tensor,
    gated: Tensor,
    gated_normed: Option<Tensor>,
    /// `[rows, hidden_size]`
    down: Tensor,
}

/// Gradients of one layer at work.
pub(crate) struct Gradients {
    /// `[rows, hidden_size]`, two of them
    hidden: [Tensor; 2],
    /// `[rows, heads·head_dim]`, two of them
    q: [Tensor; 2],
    /// `[rows, kv_heads·head_dim]`: at keys and values, and before the keys' norm
    kv: [Tensor; 3],
    /// `[rows, intermediate_size]`, three of them
    inner: [Tensor; 3],
}

impl Block {
    pub fn linears(&self) -> [&Linear; 7] {
        [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj, &self.gate_proj, &self.up_proj, &self.down_proj]
    }

    pub fn norms(&self) -> impl Iterator<Item = &Norm> {
        self.named_norms().map(|(_, norm)| norm)
    }

    /// Its norms by name, below that of the layer.
    pub fn named_norms(&self) -> impl Iterator<Item = (&'static str, &Norm)> {
        let all = [
            ("input_layernorm", Some(&self.input_layernorm)),
            ("post_attention_layernorm", Some(&self.post_attention_layernorm)),
            ("self_attn.q_norm", self.q_norm.as_ref()),
            ("self_attn.k_norm", self.k_norm.as_ref()),
            ("self_attn.attn_sub_norm", self.attn_sub_norm.as_ref()),
            ("mlp.ffn_sub_norm", self.ffn_sub_norm.as_ref()),
        ];
        all.into_iter().filter_map(|(name, norm)| Some((name, norm?)))
    }

    /// Whether something of it is trained.
    pub fn trains(&self) -> bool {
        self.linears().iter().any(|linear| linear.trains()) || self.norms().any(Norm::trains)
    }

    /// Whether something that comes before the scores of attention is trained, or its output's projection.
    fn attention_trains(&self) -> bool {
        let norms = [&self.q_norm, &self.k_norm, &self.attn_sub_norm];
        [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj].iter().any(|linear| linear.trains())
            || norms.into_iter().flatten().any(Norm::trains)
    }

    pub fn activations(&self, gpu: &Gpu, config: &ModelConfig, rows: usize) -> Result<Activations> {
        let zeros = |label, columns| Tensor::zeros(gpu, label, &[rows, columns]);
        let output = |linear: &Linear| zeros("projection", linear.base.out_features());
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let [q, kv] = [config.q_width(), config.kv_width()];
        let optional = |norm: &Option<Norm>, label, columns| norm.as_ref().map(|_| zeros(label, columns)).transpose();
        Ok(Activations {
            normed: zeros("normed", hidden)?,
            projected: [output(&self.q_proj)?, output(&self.k_proj)?, output(&self.v_proj)?],
            normed_qk: match &self.q_norm {
                Some(_) => Some([zeros("normed q", q)?, zeros("normed k", kv)?]),
                None => None,
            },
            attended: zeros("attended", q)?,
            stats: Tensor::zeros(gpu, "attention stats", &[rows, config.heads, 2])?,
            sub_normed: optional(&self.attn_sub_norm, "normed attended", q)?,
            o: output(&self.o_proj)?,
            middle: zeros("middle", hidden)?,
            middle_normed: zeros("normed middle", hidden)?,
            gate: output(&self.gate_proj)?,
            up: output(&self.up_proj)?,
            gated: zeros("gated", inner)?,
            gated_normed: optional(&self.ffn_sub_norm, "normed gated", inner)?,
            down: output(&self.down_proj)?,
        })
    }

    /// Records queries, keys and values of `x`, rotated: what attention is given.
    fn project(&self, rec: &Recording, pass: &Pass, x: &Tensor, a: &Activations) -> Result<[Tensor; 3]> {
        self.input_layernorm.forward(rec, x, &a.normed)?;
        let [q, k, v] = &a.projected;
        self.q_proj.forward(rec, &a.normed, q, pass.step)?;
        self.k_proj.forward(rec, &a.normed, k, pass.step)?;
        self.v_proj.forward(rec, &a.normed, v, pass.step)?;
        let [q, k] = match (&a.normed_qk, &self.q_norm, &self.k_norm) {
            (Some([normed_q, normed_k]), Some(q_norm), Some(k_norm)) => {
                let head_dim = pass.config.head_dim;
                q_norm.forward(rec, &q.split_rows(head_dim)?, &normed_q.split_rows(head_dim)?)?;
                k_norm.forward(rec, &k.split_rows(head_dim)?, &normed_k.split_rows(head_dim)?)?;
                [normed_q, normed_k]
            }
            _ => [q, k],
        };
        for x in [q, k] {
            rope::record(rec, &pass.tables.cos, &pass.tables.sin, pass.position_ids, x, false)?;
        }
        Ok([q.clone(), k.clone(), v.clone()])
    }

    /// Records all that stands behind attention; `output` is not computed where it is None, for the backward pass needs it
    /// not.
    fn finish(&self, rec: &Recording, pass: &Pass, x: &Tensor, a: &Activations, output: Option<&Tensor>) -> Result<()> {
        let attended = match (&self.attn_sub_norm, &a.sub_normed) {
            (Some(norm), Some(sub_normed)) => {
                norm.forward(rec, &a.attended, sub_normed)?;
                sub_normed
            }
            _ => &a.attended,
        };
        self.o_proj.forward(rec, attended, &a.o, pass.step)?;
        add::record(rec, x, &a.o, &a.middle)?;
        self.post_attention_layernorm.forward(rec, &a.middle, &a.middle_normed)?;
        self.gate_proj.forward(rec, &a.middle_normed, &a.gate, pass.step)?;
        self.up_proj.forward(rec, &a.middle_normed, &a.up, pass.step)?;
        gated::record(rec, pass.config.gate, &a.gate, &a.up, &a.gated)?;
        let inner = match (&self.ffn_sub_norm, &a.gated_normed) {
            (Some(norm), Some(gated_normed)) => {
                norm.forward(rec, &a.gated, gated_normed)?;
                gated_normed
            }
            _ => &a.gated,
        };
        if output.is_some() || self.down_proj.trains() {
            self.down_proj.forward(rec, inner, &a.down, pass.step)?;
        }
        match output {
            Some(output) => add::record(rec, &a.middle, &a.down, output),
            None => Ok(()),
        }
    }

    /// Records the forward pass of `x [rows, hidden_size]`; overwrites `output`, of its shape.
    pub fn forward(
        &self,
        rec: &Recording,
        pass: &Pass,
        x: &Tensor,
        a: &Activations,
        output: Option<&Tensor>,
    ) -> Result<()> {
        let [q, k, v] = self.project(rec, pass, x, a)?;
        attend(rec, pass, [&q, &k, &v], a)?;
        self.finish(rec, pass, x, a, output)
    }

    /// Records the forward pass of the rows behind those that the caches hold: a whole prompt into empty caches, or one
    /// token.
    pub fn forward_cached(
        &self,
        rec: &Recording,
        pass: &Pass,
        x: &Tensor,
        a: &Activations,
        [k_cache, v_cache, cursor]: [&Tensor; 3],
        output: &Tensor,
    ) -> Result<()> {
        let [q, k, v] = self.project(rec, pass, x, a)?;
        cache_write::record(rec, &k, cursor, k_cache)?;
        cache_write::record(rec, &v, cursor, v_cache)?;
        match x.shape()[0] {
            1 => attention_step::record(rec, pass.config.attention(), &q, k_cache, v_cache, cursor, &a.attended)?,
            _ => attend(rec, pass, [&q, &k, &v], a)?,
        }
        self.finish(rec, pass, x, a, Some(output))
    }

    /// Records the backward pass of [`Block::forward`] of `x`, whose activations are `a`. `d` is the gradient at its output
    /// and becomes that at `x`; without `d_input` only the gradients of what is trained are added to.
    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        &self,
        rec: &Recording,
        pass: &Pass,
        x: &Tensor,
        a: &Activations,
        g: &Gradients,
        d: &Tensor,
        d_input: bool,
    ) -> Result<()> {
        let step = pass.step;
        let [d_hidden, more] = &g.hidden;
        let [d_gate, d_up, d_inner] = &g.inner;
        let inner = a.gated_normed.as_ref().unwrap_or(&a.gated);
        match &self.ffn_sub_norm {
            Some(norm) => {
                self.down_proj.backward(rec, [inner, &a.down], d, Some(d_gate), step)?;
                norm.backward_input(rec, &a.gated, d_gate, d_inner)?;
            }
            None => self.down_proj.backward(rec, [inner, &a.down], d, Some(d_inner), step)?,
        }
        gated_grad::record(rec, pass.config.gate, &a.gate, &a.up, d_inner, d_gate, d_up)?;
        self.gate_proj.backward(rec, [&a.middle_normed, &a.gate], d_gate, Some(d_hidden), step)?;
        self.up_proj.backward(rec, [&a.middle_normed, &a.up], d_up, Some(more), step)?;
        add_scaled::record(rec, more, d_hidden, 1.0)?;
        self.post_attention_layernorm.add_backward_input(rec, &a.middle, d_hidden, d)?;

        // d is now the gradient at the middle.
        let d_input = d_input || self.input_layernorm.trains();
        if !d_input && !self.attention_trains() {
            return Ok(());
        }
        let attended = a.sub_normed.as_ref().unwrap_or(&a.attended);
        let [d_q, d_attended] = &g.q;
        match &self.attn_sub_norm {
            Some(norm) => {
                self.o_proj.backward(rec, [attended, &a.o], d, Some(d_q), step)?;
                norm.backward_input(rec, &a.attended, d_q, d_attended)?;
            }
            None => self.o_proj.backward(rec, [attended, &a.o], d, Some(d_attended), step)?,
        }
        let [d_k, d_v, d_projected_k] = &g.kv;
        let [q, k] = match &a.normed_qk {
            Some([q, k]) => [q, k],
            None => [&a.projected[0], &a.projected[1]],
        };
        let (shape, segments, v) = (pass.config.attention(), pass.segments, &a.projected[2]);
        let [grad_q, grad_kv] = match rec.gpu().profile() {
            Profile::Hardware => [attention_grad_q_tiled::record, attention_grad_kv_tiled::record],
            Profile::Software => [attention_grad_q::record, attention_grad_kv::record],
        };
        grad_q(rec, shape, q, k, v, segments, &a.attended, d_attended, &a.stats, d_q)?;
        grad_kv(rec, shape, q, k, v, segments, d_attended, &a.stats, d_k, d_v)?;
        for x in [d_q, d_k] {
            rope::record(rec, &pass.tables.cos, &pass.tables.sin, pass.position_ids, x, true)?;
        }
        let [d_q, d_k] = match (&self.q_norm, &self.k_norm) {
            (Some(q_norm), Some(k_norm)) => {
                let head_dim = pass.config.head_dim;
                let by_head = |t: &Tensor| t.split_rows(head_dim);
                let [q, k, _] = &a.projected;
                q_norm.backward_input(rec, &by_head(q)?, &by_head(d_q)?, &by_head(d_attended)?)?;
                k_norm.backward_input(rec, &by_head(k)?, &by_head(d_k)?, &by_head(d_projected_k)?)?;
                [d_attended, d_projected_k]
            }
            _ => [d_q, d_k],
        };
        let given = |t| d_input.then_some(t);
        self.q_proj.backward(rec, [&a.normed, &a.projected[0]], d_q, given(d_hidden), step)?;
        for (linear, output, d_output) in [(&self.k_proj, &a.projected[1], d_k), (&self.v_proj, v, d_v)] {
            linear.backward(rec, [&a.normed, output], d_output, given(more), step)?;
            if d_input {
                add_scaled::record(rec, more, d_hidden, 1.0)?;
            }
        }
        match d_input {
            true => self.input_layernorm.add_backward_input(rec, x, d_hidden, d),
            false => Ok(()),
        }
    }

    pub fn destroy(&self) {
        self.linears().into_iter().for_each(Linear::destroy);
        self.norms().for_each(Norm::destroy);
    }
}

impl Activations {
    pub fn destroy(&self) {
        let hidden = [&self.normed, &self.o, &self.middle, &self.middle_normed, &self.down];
        let others = [&self.attended, &self.stats, &self.gate, &self.up, &self.gated];
        let optional = self.sub_normed.iter().chain(&self.gated_normed).chain(self.normed_qk.iter().flatten());
        hidden.into_iter().chain(others).chain(&self.projected).chain(optional).for_each(Tensor::destroy_storage);
    }
}

impl Gradients {
    pub fn new(gpu: &Gpu, config: &ModelConfig, rows: usize) -> Result<Gradients> {
        let zeros = |columns| Tensor::zeros(gpu, "gradient", &[rows, columns]);
        let [hidden, q, kv, inner] =
            [config.hidden_size, config.q_width(), config.kv_width(), config.intermediate_size];
        Ok(Gradients {
            hidden: [zeros(hidden)?, zeros(hidden)?],
            q: [zeros(q)?, zeros(q)?],
            kv: [zeros(kv)?, zeros(kv)?, zeros(kv)?],
            inner: [zeros(inner)?, zeros(inner)?, zeros(inner)?],
        })
    }

    pub fn destroy(&self) {
        let all = self.hidden.iter().chain(&self.q).chain(&self.kv).chain(&self.inner);
        all.for_each(Tensor::destroy_storage);
    }
}

/// Records attention of these queries, keys and values.
fn attend(rec: &Recording, pass: &Pass, [q, k, v]: [&Tensor; 3], a: &Activations) -> Result<()> {
    let record = match rec.gpu().profile() {
        Profile::Hardware => attention_tiled::record,
        Profile::Software => attention::record,
    };
    record(rec, pass.config.attention(), q, k, v, pass.segments, &a.attended, &a.stats)
}
