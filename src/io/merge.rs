//! Adapters into weights: `W + scaling·B·A`, on the CPU in f64, one tensor of a model's file at a time.

use super::adapter::{Adapter, AdapterKind, AdapterModule, name_in_model};
use super::config::InitLoraWeights;
use super::linalg::{Matrix, add_scaled};
use super::safetensors::{Dtype, SafetensorsFile, TensorInfo, from_f32, to_f32};
use super::{find, order};
use crate::error::{Error, Result, room};

impl AdapterModule {
    /// `scaling·B·A [out_features, in_features]`, rounded once.
    ///
    /// # Errors
    /// [`Limit`](crate::error::ErrorKind::Limit) above 2³¹ − 1 bytes, which a small file can ask for, or what the memory has.
    pub fn delta_weight(&self) -> Result<Vec<f32>> {
        let (rows, columns) = (self.out_features() as u64, self.in_features() as u64);
        let mut out = room(&self.name, rows.saturating_mul(columns))?;
        let a = Matrix::from_f32(self.rank, self.in_features(), &self.a);
        for b in self.b.chunks(self.rank) {
            out.extend(self.delta_row(&a, b).iter().map(|v| *v as f32));
        }
        Ok(out)
    }

    fn delta_row(&self, a: &Matrix, b: &[f32]) -> Vec<f64> {
        let mut row = vec![0.0; a.columns];
        b.iter().enumerate().for_each(|(r, b)| add_scaled(&mut row, self.scaling * f64::from(*b), a.row(r)));
        row
    }

    /// The weight with the adapter in it, in the layout that `weight` has: `[out_features, in_features]`, or the other way round
    /// where `turned`. With magnitudes, `m/‖w‖·w` of each row `w` of the sum; a row of zeros stays one.
    fn merge_into(&self, weight: &mut [f64], turned: bool, init: &InitLoraWeights) -> Result<()> {
        let (rows, columns) = (self.out_features(), self.in_features());
        let at = |row: usize, column: usize| if turned { column * rows + row } else { row * columns + column };
        let a = Matrix::from_f32(self.rank, columns, &self.a);
        let started = if init.changes_base() {
            let gather = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
            let w: Vec<f32> = gather.map(|(row, column)| weight[at(row, column)] as f32).collect();
            let start = self.start(init, &w)?;
            Some((Matrix::from_f32(self.rank, columns, &start.a), start.b))
        } else {
            None
        };
        for (row, b) in self.b.chunks(self.rank).enumerate() {
            let mut sum = self.delta_row(&a, b);
            if let Some((a0, b0)) = &started {
                let taken = self.delta_row(a0, &b0[row * self.rank..(row + 1) * self.rank]);
                add_scaled(&mut sum, -1.0, &taken);
            }
            for (column, sum) in sum.iter_mut().enumerate() {
                *sum += weight[at(row, column)];
            }
            let factor = match &self.magnitude {
                Some(magnitude) if sum.iter().any(|v| *v != 0.0) => {
                    f64::from(magnitude[row]) / sum.iter().map(|v| v * v).sum::<f64>().sqrt()
                }
                _ => 1.0,
            };
            for (column, sum) in sum.iter().enumerate() {
                weight[at(row, column)] = factor * sum;
            }
        }
        Ok(())
    }
}

impl Adapter {
    /// Names of the model's tensors that merging changes.
    pub fn merged_tensors(&self) -> Vec<String> {
        let mut names: Vec<String> = self.others.iter().map(|o| name_in_model(&o.name)).collect();
        for m in &self.modules {
            let bias = m.lora_bias.is_some().then(|| format!("{}.bias", m.name));
            names.extend([Some(format!("{}.weight", m.name)), bias].into_iter().flatten());
        }
        let name = |i: usize| names[i].as_str();
        let order = order(names.len(), &mut |i, j| name(i) < name(j));
        let firsts = (0..names.len()).filter(|i| find(&order, &name, name(*i)) == Some(*i));
        firsts.map(|i| names[i].clone()).collect()
    }

    /// Names of a model's modules or tensors as the adapter has them, which names `wanted` of them: a file that was saved from the
    /// model without its head calls `h.0` what is `transformer.h.0` in the whole one, and an adapter can be of either. The names
    /// stay where any is wanted as it is, or the same word before or off all of them does not make every one fit.
    pub(crate) fn renamed(wanted: &[String], mut names: Vec<String>) -> Vec<String> {
        let sorted = order(names.len(), &mut |i, j| names[i] < names[j]);
        let has = |name: &str| find(&sorted, &|i| names[i].as_str(), name).is_some();
        let Some(first) = wanted.first().filter(|_| !wanted.iter().any(|name| has(name))) else { return names };
        let word = first.split_inclusive('.').next().unwrap_or_default().to_string();
        if wanted.iter().all(|name| name.strip_prefix(&word).is_some_and(has)) {
            names.iter_mut().for_each(|name| name.insert_str(0, &word));
            return names;
        }
        let words = names.iter().filter_map(|name| name.strip_suffix(first.as_str()));
        let mut words = words.filter(|word| word.find('.').is_some_and(|dot| dot + 1 == word.len()));
        if let (Some(word), None) = (words.next().map(String::from), words.next())
            && wanted.iter().all(|name| has(&format!("{word}{name}")))
        {
            for name in &mut names {
                if name.starts_with(&word) {
                    name.drain(..word.len());
                }
            }
        }
        names
    }

    /// That a model of these tensors can be merged with it; their names by which [`Adapter::merge_tensor`] knows them.
    ///
    /// # Errors
    /// [`Unmatched`](crate::error::ErrorKind::Unmatched) where it lacks a tensor that the adapter changes; [`Unsupported`](crate::error::ErrorKind::Unsupported) where
    /// one of them is the embedding and there is no head: whoever loads the model makes the embedding its head, and the adapter
    /// would be in both. With `ensure_weight_tying` it is.
    pub fn check_merge(&self, tensors: Vec<String>) -> Result<Vec<String>> {
        let changed = self.merged_tensors();
        let tensors = Adapter::renamed(&changed, tensors);
        let tied = self.config.get("ensure_weight_tying") != Some("true") && !tensors.iter().any(|name| is_head(name));
        let order = order(tensors.len(), &mut |i, j| tensors[i] < tensors[j]);
        for name in changed {
            if find(&order, &|i| tensors[i].as_str(), &name).is_none() {
                return Err(Error::unmatched(format!("the model has no tensor {name}, which the adapter changes")));
            }
            if tied && self.is_tied(&name, &tensors) {
                return Err(Error::unsupported(format!(
                    "{name}: the model has no lm_head.weight, so that its head is tied to the embedding and would be changed \
                     with it; expected an adapter that leaves the embedding, or a model with a head of its own"
                )));
            }
        }
        Ok(tensors)
    }

    /// Whether this tensor that the adapter changes is an embedding which a model without a head of its own uses as one.
    fn is_tied(&self, name: &str, tensors: &[String]) -> bool {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let (parent, last) = module.rsplit_once('.').unwrap_or(("", module));
        let known = ["embed_tokens", "wte", "word_embeddings", "shared", "embed_in", "tok_embeddings", "embeddings"];
        let any = |start: &str| tensors.iter().any(|name| name.starts_with(start));
        known.contains(&last)
            && match parent.rsplit('.').next() {
                // A model without a head, unless it is one of T5's with a decoder.
                Some("") => last == "shared" && any("decoder."),
                // An encoder of BERT's form has a head where one of masked words is beside it.
                Some("embeddings") => any("cls.predictions.") || any("lm_head.") || any("vocab_transform."),
                _ => true,
            }
    }

    /// A tensor of the model with the adapter in it, of the same type and shape, from its bytes; nothing for a tensor that the
    /// adapter leaves alone. Its type's rounding happens once.
    ///
    /// # Errors
    /// [`Unsupported`](crate::error::ErrorKind::Unsupported) for a quantised tensor; [`Shape`](crate::error::ErrorKind::Shape) for one of another shape than the adapter's; [`File`](crate::error::ErrorKind::File)
    /// where what comes out is not finite; those of [`super::initialize`] where the adapter starts from a decomposition.
    pub fn merge_tensor(&self, tensor: &TensorInfo, data: &[u8]) -> Result<Option<Vec<u8>>> {
        let name = &tensor.name;
        let module = |end: &str| self.modules.iter().find(|m| name.strip_suffix(end) == Some(&m.name));
        let (module, biased) = (module(".weight"), module(".bias").filter(|m| m.lora_bias.is_some()));
        let other = self.others.iter().find(|o| name_in_model(&o.name) == *name);
        if module.is_none() && biased.is_none() && other.is_none() {
            return Ok(None);
        }
        if let Some(other) = other.filter(|other| other.shape != tensor.shape) {
            let (expected, got) = (crate::gpu::show(&tensor.shape), crate::gpu::show(&other.shape));
            return Err(Error::shape(&format!("`{}`", other.name), expected, got));
        }
        if !matches!(tensor.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F64) {
            return Err(Error::unsupported(format!(
                "{name} is quantised ({}); expected F32, F16 or BF16: merge into a copy of the model that is not quantised",
                tensor.dtype.name()
            )));
        }
        let elements = tensor.shape.iter().try_fold(1_usize, |n, d| n.checked_mul(*d));
        if elements.and_then(|n| n.checked_mul(tensor.dtype.size())) != Some(data.len()) {
            let reason = format!("{} bytes for the shape {}", data.len(), crate::gpu::show(&tensor.shape));
            return Err(Error::file(name, reason));
        }
        let mut values = match other {
            Some(other) => floats(&other.name, other.dtype, &other.data)?,
            None => floats(name, tensor.dtype, data)?,
        };
        let whole = values.iter().all(|v| v.is_finite());
        if let Some(module) = module {
            // Rows of W are B's, except in an embedding and where the base says fan_in_fan_out.
            let turned = module.kind == AdapterKind::Embedding || self.config.fan_in_fan_out();
            let (rows, columns) = (module.out_features(), module.in_features());
            let own = if turned { [columns, rows] } else { [rows, columns] };
            let kernel = module.kind == AdapterKind::Conv1x1;
            if tensor.shape.get(..2) != Some(&own) || tensor.shape[2..] != *(if kernel { &[1, 1][..] } else { &[] }) {
                let (expected, got) = (crate::gpu::show(&tensor.shape), crate::gpu::show(&own));
                return Err(Error::shape(&format!("`{}`", module.name), expected, got));
            }
            if module.kind == AdapterKind::Embedding && module.magnitude.is_some() {
                return Err(Error::unsupported(format!("{}: DoRA of an embedding is not merged", module.name)));
            }
            module.merge_into(&mut values, turned, &self.config.init_lora_weights())?;
        }
        if let Some((module, bias)) = biased.and_then(|m| Some((m, m.lora_bias.as_ref()?))) {
            if bias.len() != values.len() {
                return Err(Error::shape(&format!("`{name}`"), bias.len().to_string(), values.len().to_string()));
            }
            bias.iter().zip(&mut values).for_each(|(b, v)| *v += module.scaling * f64::from(*b));
        }
        let merged = from_f32(name, tensor.dtype, &mut values.iter().copied())?;
        if whole && !to_f32(name, tensor.dtype, &merged)?.iter().all(|v| v.is_finite()) {
            return Err(Error::file(
                name,
                format!("is not finite in {} once the adapter is in it", tensor.dtype.name()),
            ));
        }
        Ok(Some(merged))
    }

    /// A model's whole file with the adapter in it; header and all other bytes stay as they are.
    ///
    /// # Errors
    /// Those of [`Adapter::check_merge`] and [`Adapter::merge_tensor`].
    pub fn merge(&self, model: &[u8]) -> Result<Vec<u8>> {
        let file = SafetensorsFile::parse("the model", model)?;
        let mut names = Vec::new();
        file.header.tensors.iter().for_each(|tensor| names.push(tensor.name.clone()));
        let names = self.check_merge(names)?;
        let mut out = model.to_vec();
        for (tensor, name) in file.header.tensors.iter().zip(names) {
            if let Some(merged) = self.merge_tensor(&TensorInfo { name, ..tensor.clone() }, file.data(tensor))? {
                out[tensor.range.start as usize..tensor.range.end as usize].copy_from_slice(&merged);
            }
        }
        Ok(out)
    }
}

/// Whether a tensor is a model's own output head, by its name.
fn is_head(name: &str) -> bool {
    name == "output.weight"
        || ["lm_head.weight", "embed_out.weight", "output_layer.weight"].iter().any(|end| name.ends_with(end))
}

/// Elements as f64, all of them exactly.
fn floats(name: &str, dtype: Dtype, data: &[u8]) -> Result<Vec<f64>> {
    match dtype {
        Dtype::F64 => Ok(data.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect()),
        _ => Ok(to_f32(name, dtype, data)?.into_iter().map(f64::from).collect()),
    }
}
