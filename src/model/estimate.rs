//! GPU memory of a training, before it begins.

use super::causal_lm::CausalLM;
use crate::base::WeightKind;
use crate::error::{Error, Result};
use crate::io::{AdapterConfig, ModuleKind};
use crate::loss::LmHead;
use crate::optim::Optimizer;

/// Bytes of GPU memory that a training holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// The frozen weights, as they are stored now.
    pub weights: u64,
    /// The adapter with its gradients and AdamW's moments.
    pub adapter: u64,
    /// Everything that grows with the tokens of a batch.
    pub activations: u64,
    /// The largest single buffer, which has to be within the device's limits.
    pub largest: u64,
}

impl Estimate {
    /// All together.
    pub fn total(&self) -> u64 {
        self.weights + self.adapter + self.activations
    }
}

impl CausalLM {
    /// What training a new adapter of this configuration by AdamW will hold, with batches of at most `batch` sequences of `tokens`
    /// tokens: all shapes lie in the memory of the largest. What of such a training is there already is counted as if it were not.
    ///
    /// # Errors
    /// As [`CausalLM::new_adapter`]; [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for no tokens or more than can be counted.
    pub fn estimate(
        &self,
        adapter: &AdapterConfig,
        batch: usize,
        tokens: usize,
        checkpointing: bool,
    ) -> Result<Estimate> {
        let c = self.config();
        let rows = (batch as u64).saturating_mul(tokens as u64);
        if !(1..=1 << 30).contains(&rows) {
            return Err(Error::argument("batch", "one token to 2^30 of them", format!("{batch}×{tokens}")));
        }
        let [hidden, inner, q, kv] = [c.hidden_size, c.intermediate_size, c.q_width(), c.kv_width()].map(|n| n as u64);
        let (layers, if_sub, if_qk) = (c.layers as u64, u64::from(c.sub_norms()), u64::from(c.qk_norms()));
        let repeated = if checkpointing { 1 } else { layers };

        // Floats of a row, as block.rs and sequences.rs have them.
        let layer =
            5 * hidden + 2 * (q + kv) + 2 * c.heads as u64 + 3 * inner + if_qk * (q + kv) + if_sub * (q + inner);
        let gradients = 2 * hidden + 2 * q + 3 * kv + 3 * inner;
        let outside = (layers + 1) * hidden + hidden + 2 * hidden + 4;
        let head = LmHead::chunk(rows as usize, c.vocab_size, None) as u64 + 3;
        let mut floats = repeated * layer + gradients + outside + head;

        let (modules, linears) = (self.modules(), self.linears());
        let (dora, dropout) = (adapter.use_dora(), adapter.dropout() > 0.0);
        // Each tensor begins at a multiple of 64 floats.
        let aligned = |n: u64| n.next_multiple_of(64);
        let mut parameters = 0;
        let mut fixed = 0;
        let (mut seen, mut targeted) = (Vec::new(), Vec::new());
        for target in adapter.resolve(&modules)? {
            let module = &modules[target.module];
            targeted.push(module.name.clone());
            let (rank, fan_in, fan_out) = (target.rank as u64, module.in_features as u64, module.out_features as u64);
            parameters += aligned(rank * fan_in) + aligned(rank * fan_out);
            if dora {
                parameters += aligned(fan_out);
                fixed += rank * fan_out + rank * rank + 2 * fan_out;
            }
            // Layers of one kind share what a pass over the adapter needs, unless all activations are kept.
            let kind = module.name.rsplit('.').next().unwrap_or_default().to_string();
            if !checkpointing || !seen.contains(&kind) {
                let dropped = dropout && module.kind == ModuleKind::Linear;
                floats += 2 * rank + if dora { 2 * fan_out } else { 0 } + if dropped { fan_in } else { 0 };
                seen.push(kind);
            }
        }
        let bias = adapter.bias();
        for linear in self.with_linears() {
            if bias == "all" || bias == "lora_only" && targeted.contains(&linear.name) {
                parameters += linear.base.bias().map_or(0, |bias| aligned(bias.len() as u64));
            }
        }
        // Modules that are trained whole, and for norms twice the widest of what they take, which their gradients are made in.
        let (norms, mut widest_norm) = (self.norms(), 0);
        for name in self.saved_modules(adapter)? {
            if let Some((_, norm)) = norms.iter().find(|(other, _)| *other == name) {
                parameters += aligned(norm.features() as u64);
                let width = self.norm_width(&name, norm) as u64;
                widest_norm = widest_norm.max(width);
            } else if let Some(linear) = self.with_linears().into_iter().find(|linear| linear.name == name) {
                parameters += aligned((linear.base.out_features() * linear.base.in_features()) as u64);
                parameters += linear.base.bias().map_or(0, |bias| aligned(bias.len() as u64));
            }
        }
        floats += 2 * widest_norm;
        // The input, where it is not used as it is.
        for linear in linears {
            let base = &linear.base;
            let int8 = matches!(base.kind(), WeightKind::BitLinear { int8_activations: true, .. });
            if int8 || !base.in_features().is_multiple_of(4) {
                floats += base.in_features().next_multiple_of(4) as u64;
            }
        }
        let rope = 4 * (c.head_dim as u64) * tokens.next_power_of_two().min(c.max_positions) as u64;
        let widest = [hidden, inner, q, kv, head - 3].into_iter().max().unwrap_or_default();
        Ok(Estimate {
            weights: self.bytes(),
            adapter: 16 * parameters + 4 * fixed + Optimizer::fixed_bytes(),
            activations: 4 * rows * floats + rope,
            largest: (4 * rows * widest).max(8 * parameters),
        })
    }
}
