//! A llama or qwen2 in plain f64 loops, from its definition: what adapter files must make of a model's logits.

use lora_webgpu::io::safetensors::{SafetensorsFile, to_f32};
use serde_json::Value;

pub struct Llama<'a> {
    config: &'a Value,
    file: SafetensorsFile<'a>,
}

/// x·Wᵀ of each row.
fn linear(x: &[Vec<f64>], weight: &[f64], bias: Option<&[f64]>) -> Vec<Vec<f64>> {
    let columns = x[0].len();
    let row = |x: &Vec<f64>| {
        let dot = |w: &[f64]| w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
        let products = weight.chunks(columns).map(dot);
        products.enumerate().map(|(i, v)| v + bias.map_or(0.0, |b| b[i])).collect()
    };
    x.iter().map(row).collect()
}

impl<'a> Llama<'a> {
    pub fn new(config: &'a Value, model: &'a [u8]) -> Llama<'a> {
        Llama { config, file: SafetensorsFile::parse("model", model).unwrap() }
    }

    fn size(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap() as usize
    }

    fn find(&self, name: &str) -> Option<Vec<f64>> {
        let info = self.file.header.find(name)?;
        let values = to_f32(name, info.dtype, self.file.data(info)).unwrap();
        Some(values.into_iter().map(f64::from).collect())
    }

    fn tensor(&self, name: &str) -> Vec<f64> {
        self.find(name).unwrap_or_else(|| panic!("the model has no {name}"))
    }

    fn project(&self, name: &str, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        linear(x, &self.tensor(&format!("{name}.weight")), self.find(&format!("{name}.bias")).as_deref())
    }

    /// x / √(mean x² + ε) · weight
    fn norm(&self, name: &str, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (weight, eps) = (self.tensor(&format!("{name}.weight")), self.config["rms_norm_eps"].as_f64().unwrap());
        let row = |x: &Vec<f64>| {
            let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
            x.iter().zip(&weight).map(|(v, w)| v / (mean + eps).sqrt() * w).collect()
        };
        x.iter().map(row).collect()
    }

    /// Turns the pairs (i, i + half) of each head by position·θ^(−2i/width).
    fn rope(&self, x: &mut [Vec<f64>], width: usize) {
        let theta = self.config["rope_parameters"]["rope_theta"].as_f64().unwrap();
        let half = width / 2;
        for (position, row) in x.iter_mut().enumerate() {
            for head in row.chunks_mut(width) {
                for i in 0..half {
                    // As transformers has it: frequencies and their products in f32.
                    let frequency = (1.0 / theta.powf((2 * i) as f64 / width as f64)) as f32;
                    let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
                    let (one, other) = (head[i], head[i + half]);
                    head[i] = one * cos - other * sin;
                    head[i + half] = other * cos + one * sin;
                }
            }
        }
    }

    fn attention(&self, name: &str, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (heads, kv_heads) = (self.size("num_attention_heads"), self.size("num_key_value_heads"));
        let width = self.config["head_dim"].as_u64().map_or(self.size("hidden_size") / heads, |w| w as usize);
        let [mut q, mut k, v] = ["q_proj", "k_proj", "v_proj"].map(|p| self.project(&format!("{name}.{p}"), x));
        self.rope(&mut q, width);
        self.rope(&mut k, width);
        let mut out = vec![vec![0.0; heads * width]; x.len()];
        for head in 0..heads {
            let (own, shared) = (head * width, head * kv_heads / heads * width);
            for (t, out) in out.iter_mut().enumerate() {
                let dot = |k: &Vec<f64>| {
                    (0..width).map(|i| q[t][own + i] * k[shared + i]).sum::<f64>() / (width as f64).sqrt()
                };
                let scores: Vec<f64> = k[..=t].iter().map(dot).collect();
                let most = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for (w, v) in weights.iter().zip(&v) {
                    (0..width).for_each(|i| out[own + i] += w / sum * v[shared + i]);
                }
            }
        }
        self.project(&format!("{name}.o_proj"), &out)
    }

    /// Logits [tokens, vocabulary] of one sequence.
    pub fn logits(&self, ids: &[usize]) -> Vec<Vec<f64>> {
        let width = self.size("hidden_size");
        let embeddings = self.tensor("model.embed_tokens.weight");
        let mut x: Vec<Vec<f64>> = ids.iter().map(|id| embeddings[id * width..(id + 1) * width].to_vec()).collect();
        let add = |x: &mut [Vec<f64>], y: Vec<Vec<f64>>| {
            x.iter_mut().zip(y).for_each(|(x, y)| x.iter_mut().zip(y).for_each(|(x, y)| *x += y));
        };
        for layer in 0..self.size("num_hidden_layers") {
            let name = format!("model.layers.{layer}");
            let h = self.norm(&format!("{name}.input_layernorm"), &x);
            add(&mut x, self.attention(&format!("{name}.self_attn"), &h));
            let h = self.norm(&format!("{name}.post_attention_layernorm"), &x);
            let [mut gate, up] = ["gate_proj", "up_proj"].map(|p| self.project(&format!("{name}.mlp.{p}"), &h));
            let silu = |gate: &mut f64, up: f64| *gate *= up / (1.0 + (-*gate).exp());
            gate.iter_mut().zip(up).for_each(|(g, u)| g.iter_mut().zip(u).for_each(|(g, u)| silu(g, u)));
            add(&mut x, self.project(&format!("{name}.mlp.down_proj"), &gate));
        }
        let x = self.norm("model.norm", &x);
        match self.find("lm_head.weight") {
            Some(head) => linear(&x, &head, None),
            None => linear(&x, &embeddings, None),
        }
    }
}
